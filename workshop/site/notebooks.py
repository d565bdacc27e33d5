"""A stored notebook as a page of the site: what needs a kernel goes, what reads better comes."""

import ast
import base64
import html
import io
import re
from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

from nbformat import NotebookNode
from PIL import Image

from rlbook.paths import ROOT
from workshop.shared.bound import without_bindings
from workshop.shared.checks import SOLUTION
from workshop.site.dark import dark_png, dark_svg
from workshop.site.navigation import without_navigation
from workshop.site.owner import Owner
from workshop.site.titles import Drawer, alternative, known, parsed
from workshop.site.vectors import folder_of, vector_of

WIDGET = "application/vnd.jupyter.widget-view+json"
DENSITY = 110 / 72  # pixels of a stored picture per point at which it is read best
LAB_STATE = re.compile(r"mountMaskLab\(host, (\{.*\})\);\n\}\)\(\);</script>", re.DOTALL)
# Colours that drawing code writes into its HTML, and the page's names for them.
INKS = {
    "background:#ffffff": "background:var(--rl-paper,#ffffff)",
    "color:#222222": "color:var(--rl-ink,#222222)",
    "color:#6b6b6b": "color:var(--rl-muted,#6b6b6b)",
    "color:#c05500": "color:var(--rl-bad,#c05500)",
    "color:#0072b2": "color:var(--rl-good,#0072b2)",
    "solid #d9d9d9": "solid var(--rl-line,#d9d9d9)",
}
LINK_OR_CODE = re.compile(
    r"```.*?```|(?<!!)\[(?P<text>(?:`[^`]*`|[^\[\]`]|\[[^\]]*\])+)\]\((?P<to>[^)\s]+)\)|`[^`\n]+`",
    re.DOTALL,
)


def page_of(
    notebook: NotebookNode,
    path: str,
    pictures: Path,
    owner: Owner,
    anchors: Mapping[str, Collection[str]],
) -> NotebookNode:
    """The notebook that Sphinx sets. Writes its pictures into the folder `pictures`.

    `path` is the notebook's place in the repository, `anchors` has the anchors of every notebook by
    its place. Pictures become files, for a light page and for a dark one, as vectors where these
    are kept, with their title as alternative text and in place of any widget that only a kernel
    moves; a mask lab keeps its state and takes its code from the site; cells
    that only import or only assert are tucked away; links that leave the site lead to the
    repository, or nowhere.
    """
    page = deepcopy(notebook)
    page.metadata.pop("widgets", None)
    page.cells = [cell for cell in page.cells if not is_for_a_kernel(cell)]
    drawers: dict[str, Drawer] = {}
    section, made = "", 0
    for index, cell in enumerate(page.cells):
        if cell.cell_type == "markdown":
            section = heading(cell.source) or section
            text = without_navigation(without_bindings(cell.source))
            text = one_title(text, first=index == 0)
            cell.source = with_links(text, path, owner)
        elif cell.cell_type == "code":
            drawers |= known(cell.source)
            tags = cell.metadata.get("tags", [])
            if is_scaffold(cell.source):
                cell.metadata.tags = [*tags, "hide-input"]
            for output in cell.outputs:
                data = output.get("data", {})
                data.pop(WIDGET, None)
                if "image/png" in data:
                    made += 1
                    png, name = data.pop("image/png"), f"{PurePosixPath(path).stem}-{made}"
                    files = put_picture(
                        png, vector_of(png, folder_of(ROOT / path)), pictures / name
                    )
                    text = alternative(cell.source, drawers, section)
                    data["text/html"] = shown_picture(png, files, text, "../" * path.count("/"))
                    data.pop("text/plain", None)
                elif "text/html" in data:
                    data["text/html"] = as_shown(data["text/html"])
                if "text/markdown" in data:
                    shown = with_links(data["text/markdown"], path, owner)
                    data["text/markdown"] = without_lost(shown, path, anchors)
                    data.pop("text/plain", None)
    return page


def is_for_a_kernel(cell: NotebookNode) -> bool:
    """Whether a cell does something only where the notebook runs: fetch the book, run a solution
    that is shown above it."""
    tags = cell.metadata.get("tags", [])
    return "colab" in tags or (cell.cell_type == "code" and SOLUTION in tags)


def heading(source: str) -> str:
    """The heading with which a cell begins, without its marks; empty if it has none."""
    found = re.match(r"#+ +(.*)", source)
    return re.sub(r"[*`]", "", found[1]) if found else ""


def one_title(source: str, first: bool) -> str:
    """A page has one title: any further one is a heading of the second order."""
    return source if first else re.sub(r"^# ", "## ", source, flags=re.MULTILINE)


def is_scaffold(source: str) -> bool:
    """Whether a cell has nothing to read in it: imports (and `setup()`) or assertions alone."""
    lines = [line for line in parsed(source).body if ast.unparse(line) != "setup()"]
    return bool(lines) and any(
        all(isinstance(line, kinds) for line in lines)
        for kinds in ((ast.Import, ast.ImportFrom), (ast.Assert,))
    )


def put_picture(png: str, drawn: str | None, path: Path) -> list[Path]:
    """Write a stored picture to two files, for light pages and for dark ones; vectors if `drawn`.

    A page's first picture is written as PNG besides: the front page and links show it small.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    bright, suffix = base64.b64decode(png), ".svg" if drawn else ".png"
    files = [path.with_name(path.name + end + suffix) for end in ("", "-dark")]
    if drawn:
        for file, text in zip(files, (drawn, dark_svg(drawn)), strict=True):
            file.write_text(text, encoding="utf-8")
    else:
        files[1].write_bytes(dark_png(bright))
    if not drawn or path.name.endswith("-1"):
        path.with_name(f"{path.name}.png").write_bytes(bright)
    return files


def shown_picture(png: str, files: Sequence[Path], text: str, root: str) -> str:
    """The HTML that shows these files at the size of the stored picture, when they are seen.

    `root` leads from the page to the folder above that of the pictures.
    """
    width, height = Image.open(io.BytesIO(base64.b64decode(png))).size
    shown = round(width / DENSITY * 1.18)
    return "".join(
        f'<img class="figure only-{scheme}" src="{root}{file.parent.name}/{file.name}" '
        f'alt="{html.escape(text)}" width="{shown}" height="{round(shown * height / width)}" '
        'loading="lazy">'
        for scheme, file in zip(("light", "dark"), files, strict=True)
    )


def as_shown(source: str) -> str:
    """HTML of an output: a mask lab without its code, anything else in the page's own colours."""
    if state := LAB_STATE.search(source):
        return lab_host(state[1])
    for ink, name in INKS.items():
        source = source.replace(ink, name)
    return source.replace('<table border="1" class', "<table class")


def lab_host(state: str) -> str:
    """Where a mask lab stands, for `mask-lab.js`, which every lab of the site shares."""
    return f"<div data-mask-lab><script type='application/json'>{state}</script></div>"


def with_links(source: str, path: str, owner: Owner) -> str:
    """Markdown in which a link to a file that is no page leads to the repository, or is plain text.

    Code is left alone.
    """
    folder = PurePosixPath(path).parent

    def led(found: re.Match) -> str:
        target = found["to"]
        if target is None or re.match(r"[a-z]+:|#", target):
            return found[0]
        file, _, anchor = target.partition("#")
        place = resolved(folder / file)
        if place.suffix == ".ipynb" and place.parts[0] == "chapters":
            return found[0].replace(anchor, unquote(anchor)) if "%" in anchor else found[0]
        address = owner.source_of(place.as_posix())
        return (
            f"[{found['text']}]({address}{'#' * bool(anchor)}{anchor})"
            if address
            else found["text"]
        )

    return LINK_OR_CODE.sub(led, source)


def anchors_of(notebook: NotebookNode) -> set[str]:
    """The anchors of a notebook's headings, as links write them."""
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    return {slug(title) for title in re.findall(r"^#+ +(.*)", text, re.MULTILINE)}


def without_lost(source: str, path: str, anchors: Mapping[str, Collection[str]]) -> str:
    """Markdown of an output, which may be older than what it links to.

    A link to a heading that is gone leads to its page, one to a page that is gone is plain text.
    """
    folder = PurePosixPath(path).parent

    def led(found: re.Match) -> str:
        known = anchors.get(resolved(folder / found[2]).as_posix())
        if known is None:
            return found[1]
        return found[0] if found[3] in known else f"[{found[1]}]({found[2]})"

    return re.sub(r"\[([^\[\]]*)\]\(([\w./]+\.ipynb)#?([^)]*)\)", led, source)


def slug(heading: str) -> str:
    """The anchor that JupyterLab gives to a heading: the notebooks' own links lead there."""
    return heading.strip().replace(" ", "-")


def resolved(path: PurePosixPath) -> PurePosixPath:
    """A path without `..`."""
    parts: list[str] = []
    for part in path.parts:
        if part == "..":
            parts = parts[:-1]
        else:
            parts.append(part)
    return PurePosixPath(*parts)
