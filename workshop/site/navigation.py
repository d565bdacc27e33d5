"""previous · contents · digest · next: the line under a chapter's title and at its end."""

import re
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

import nbformat
from nbformat import NotebookNode

CONTENTS = "[contents](../README.md#the-chapters)"
LINE = re.compile(rf"^.*{re.escape(CONTENTS)}.*\n?", re.MULTILINE)


def navigation(path: Path, numbered: Sequence[Path]) -> str:
    """The line of one of these chapters, which stand in reading order."""
    place = numbered.index(path)
    before, after = numbered[:place][-1:], numbered[place + 1 :][:1]
    links = [f"[← {label(each)}]({each.name})" for each in before]
    links += [CONTENTS, on_one_page(path)]
    links += [f"[{label(each)} →]({each.name})" for each in after]
    return " · ".join(links)


def on_one_page(path: Path) -> str:
    """The link to the chapter's page in the digest."""
    digest = path.with_name("appendix_digest.ipynb")
    texts = (cell.source for cell in nbformat.read(digest, as_version=4).cells)
    headings = (text.splitlines()[0].lstrip("# ") for text in texts if text.startswith("## "))
    heading = next(each for each in headings if each.startswith(path.name[:2]))
    return f"[digest]({digest.name}#{quote(heading.replace(' ', '-'))})"


def label(path: Path) -> str:
    """A chapter's number and its title up to the colon: "2 REINFORCE"."""
    title = nbformat.read(path, as_version=4).cells[0].source.splitlines()[0]
    return title.lstrip("# ").split(":")[0].replace(" · ", " ")


def without_navigation(markdown: str) -> str:
    """A text without that line: a page of the site has its own."""
    return re.sub(r"\n{3,}", "\n\n", LINE.sub("", markdown)).strip()


def navigated(notebook: NotebookNode, line: str) -> NotebookNode:
    """The notebook with this line, and no other, under its title and at its end."""
    texts = [cell for cell in notebook.cells if cell.cell_type == "markdown"]
    first, last = texts[0], texts[-1]
    title, _, rest = without_navigation(first.source).partition("\n")
    first.source = f"{title}\n\n{line}\n\n{rest.strip()}"
    last.source = f"{without_navigation(last.source)}\n\n{line}"
    return notebook
