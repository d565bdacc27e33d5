"""Sphinx's settings for the site: see `workshop/site/build.py`, which calls it."""

from importlib.metadata import version as version_of
from pathlib import Path

from workshop.site.owner import read_owner

HERE = Path(__file__).parent
OWNER = read_owner()

project = "rlbook"
author = "The rlbook authors"
project_copyright = author
version = release = version_of("rlbook")
language = "en"

extensions = [
    "myst_nb",
    "workshop.site.extension",
]
exclude_patterns = ["_build"]
templates_path = [str(HERE / "templates")]

nb_execution_mode = "off"
nb_merge_streams = True
nb_render_markdown_format = "myst"
nb_code_prompt_show = nb_code_prompt_hide = "Setup"
nb_ipywidgets_js: dict[str, dict] = {}
nb_mime_priority_overrides = [("html", "text/html", 1)]
myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence", "attrs_inline"]
myst_heading_anchors = 4
myst_heading_slug_func = "workshop.site.notebooks.slug"
# A solution's headings are of the third order, so that a chapter's exercises have the same ones.
suppress_warnings = ["myst.header"]

html_theme = "furo"
html_title = "rlbook"
html_math_renderer = "mathml"
html_static_path = [str(HERE / "static")]
html_css_files = ["book.css"]
html_baseurl = f"{OWNER.site}/" if OWNER.site else ""
html_copy_source = False
html_show_sphinx = False
html_last_updated_fmt = None
html_use_index = False
pygments_style = "xcode"
pygments_dark_style = "native"
html_theme_options = {
    "navigation_with_keys": True,
    "top_of_page_buttons": [],
}
