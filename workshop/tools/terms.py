"""One notation, one vocabulary, one bibliography: the lists, and what a text does not keep to."""

import ast
import json
import re
import tomllib
import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import nbformat

from rlbook.paths import data_dir
from workshop.shared.bound import without_bindings
from workshop.tools.main_line import highest, places

LETTERS = {unicodedata.name(c).split()[-1].lower(): c for c in "αβγδεζηθικμνξπρστυφχψω"}
LETTERS["lambda"] = "λ"  # Unicode spells it lamda
OPERATORS = set("ΣΠΔ")
PAPER = re.compile(
    r"(?:arXiv:|arxiv\.org/abs/)(\d{4}\.\d{4,5})"
    r"|(doi:10\.[^\s,;\"')<\\]*[^\s,;\"').<\\])"
)
LINK = re.compile(r"\]\((https?://[^)\s]+)\)")
ARXIV = "https://arxiv.org/abs/"


def notation() -> dict[str, list[dict]]:
    """`symbol` and `term` entries of `data/notation.toml`."""
    return tomllib.loads((data_dir() / "notation.toml").read_text())


def bibliography() -> dict[str, dict]:
    """Papers by key: "arXiv:…", "doi:…" or an address; with title, authors, year and link."""
    entries = tomllib.loads((data_dir() / "bibliography.toml").read_text())
    return {key: {**entry, "link": link_of(key)} for key, entry in entries.items()}


def link_of(key: str) -> str:
    """The address of a paper by its key: an arXiv number, a DOI, or the address itself."""
    if key.startswith("arXiv:"):
        return ARXIV + key.removeprefix("arXiv:")
    return f"https://doi.org/{key.removeprefix('doi:')}" if key.startswith("doi:") else key


def citations(text: str) -> set[str]:
    """Keys of the papers a text cites, by arXiv number, DOI, or a link."""
    papers = {f"arXiv:{number}" if number else doi for number, doi in PAPER.findall(text)}
    return papers | {link for link in LINK.findall(text) if "arxiv.org/" not in link}


def cited_by_chapter(notebooks: Iterable[Path]) -> dict[str, set[str]]:
    """Citations by chapter, "01" or "appendix_errata"; its solutions count as the chapter."""
    found: dict[str, set[str]] = {}
    for path in notebooks:
        number = path.stem.partition("_")[0]
        chapter = number if number.isdigit() else path.stem
        found.setdefault(chapter, set()).update(citations(written(path)))
    return found


def written(path: str | Path) -> str:
    """What somebody wrote: a notebook's cells without their outputs, any other file as it is."""
    text = Path(path).read_text()
    if Path(path).suffix != ".ipynb":
        return text
    return "\n\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"])


def prose(notebook: str | Path) -> str:
    """The words and formulas of a notebook: its Markdown without code spans and link targets."""
    cells = json.loads(Path(notebook).read_text())["cells"]
    return bare("\n\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown"))


def bare(text: str) -> str:
    """Markdown without code spans and link targets."""
    text = re.sub(r"```.*?```|`[^`]*`", " ", without_bindings(text), flags=re.DOTALL)
    return re.sub(r"\]\([^)]*\)", "]", text)


class Place(NamedTuple):
    """A paragraph's cell on the main line, by chapter and heading, in reading order."""

    chapter: str  # the file's stem
    cell: int
    heading: str
    text: str


def main_line(notebooks: Iterable[Path]) -> Iterator[Place]:
    """The text of the chapters' main lines, without openings: those promise and define nothing."""
    for path in notebooks:
        notebook, heading = nbformat.read(path, as_version=4), ""
        for i, (cell, place) in enumerate(zip(notebook.cells, places(notebook), strict=True)):
            if cell.cell_type == "markdown" and place == "main" and i:
                heading = found[1] if (found := highest(cell)) else heading
                yield Place(path.stem, i, heading, bare(cell.source))


def spelt(term: str) -> str:
    """A pattern for a term, in any case if it has no capital, with its plural."""
    words = "[- ]".join(map(re.escape, re.split("[- ]", term)))
    case = "i" if term == term.lower() else ""
    return rf"(?{case}:(?<![\w-]){words}(?:e?s)?(?![\w-]))"


def defined_at(term: str, line: Iterable[Place]) -> Place | None:
    """Where the main line first sets a term in bold or italics: there it says what it means."""
    mark = re.compile(rf"\*\*[^*\n]*{spelt(term)}[^*\n]*\*\*|(?<!\*)\*{spelt(term)}\*")
    return next((place for place in line if mark.search(place.text)), None)


def used_at(term: str, line: Iterable[Place]) -> Place | None:
    """Where the main line first uses a term."""
    return next((place for place in line if re.search(spelt(term), place.text)), None)


def docstrings(module: str | Path) -> str:
    """All docstrings of a Python file, without code spans."""
    tree = ast.parse(Path(module).read_text())
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef)
    texts = [ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, owners)]
    return re.sub(r"`[^`]*`", " ", "\n\n".join(filter(None, texts)))


def greek(text: str) -> set[str]:
    """Greek letters in a text, those written as LaTeX commands included."""
    letters = {c for c in text if unicodedata.name(c, "").startswith("GREEK ")}
    commands = re.findall(r"\\(?:var)?([a-z]+)(?![a-z])", text)
    return (letters | {LETTERS[c] for c in commands if c in LETTERS}) - OPERATORS


def undefined_symbols(text: str) -> set[str]:
    """Greek letters of a text that the notation does not define."""
    return greek(text) - greek(" ".join(s["text"] for s in notation()["symbol"]))


def discouraged(text: str) -> dict[str, str]:
    """Words of a text that the book says otherwise: {word: the book's term}."""
    return {
        word: term["name"]
        for term in notation()["term"]
        for word in term.get("avoid", ())
        if re.search(rf"\b{re.escape(word)}\b", text, re.IGNORECASE)
    }
