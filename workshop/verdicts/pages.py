"""Where the book tells what an experiment found: links from one of its pages to another."""

import json
from functools import cache
from pathlib import Path
from urllib.parse import quote

from rlbook.paths import ROOT

PAGES = ROOT / "chapters"


@cache
def place(chapter: str, experiment: str, pages: Path = PAGES) -> str:
    """The section of a chapter that first reads a table of the experiment: a notebook's name and a
    heading's anchor. The chapter where no cell does, nothing where there is no chapter.
    """
    found = next(pages.glob(f"{chapter}_*.ipynb"), None)
    if found is None:
        return ""
    heading = ""
    for cell in json.loads(found.read_text())["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            headings = [line for line in source.splitlines() if line.startswith("#")]
            heading = headings[-1].lstrip("# ") if headings else heading
        elif f'load_results("{experiment}' in source:
            return f"{found.name}#{quote(heading.replace(' ', '-'))}"
    return found.name
