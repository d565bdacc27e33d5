"""A chapter on one page: its scorecard and its test of relevance, taken from the stored notebook.

They are said once, in the chapter; the appendix repeats what stands there.
"""

import re
from functools import cache

import nbformat
from IPython.display import Markdown
from nbformat import NotebookNode

from workshop.tools.runner import chapters

ASKED = r"Does this apply to my run\?|What does your log say\?"
APPLIES = re.compile(rf"(?:\*\*|### )(?:{ASKED})\*{{0,2}}(.*?)(?=\n#|\n\*\*[A-Z]|\Z)", re.S)


@cache
def stored(number: str) -> NotebookNode:
    """The chapter of this number. Raises `ValueError` if there is none."""
    found = [path for path in chapters() if path.name.startswith(f"{number}_")]
    if not found:
        raise ValueError(f"there is no chapter {number!r}; name one as '05'")
    return nbformat.read(found[0], as_version=4)


def card(number: str) -> str:
    """The chapter's scorecard as it was last printed, in Markdown."""
    for cell in stored(number).cells:
        if cell.cell_type == "code" and "scorecard(" in cell.source:
            return next(o.data["text/markdown"] for o in cell.outputs if "data" in o)
    raise ValueError(f"chapter {number} prints no scorecard")


def applies(number: str) -> str:
    """What the chapter says under "Does this apply to my run?", in Markdown."""
    for cell in stored(number).cells:
        if cell.cell_type == "markdown" and (found := APPLIES.search(cell.source)):
            return found[1].strip()
    raise ValueError(f"chapter {number} does not say to whom it applies")


def digest(number: str) -> Markdown:
    """What training showed, and whether it concerns a run of one's own."""
    return Markdown(f"{card(number)}\n\n**Does this apply to my run?**\n\n{applies(number)}")
