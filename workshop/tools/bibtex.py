"""The bibliography as BibTeX: `python -m workshop.tools.bibtex > rlbook.bib`."""

import re
import unicodedata
from collections.abc import Mapping
from typing import Any

from workshop.tools.terms import bibliography

STOP = {"a", "an", "the", "on", "of", "is", "in", "do", "does", "to", "what"}


def bibtex(entries: Mapping[str, Mapping[str, Any]] | None = None) -> str:
    """Every paper as an entry, named by first author, year and first word: `shao2024deepseekmath`.

    A paper with an arXiv number has its `eprint`; `note` says what the book uses it for.
    """
    entries = bibliography() if entries is None else entries
    blocks: list[str] = []
    names: set[str] = set()
    for key, paper in entries.items():
        stem = citation_key(paper)
        name = next(n for n in (stem, *(stem + c for c in "bcdefgh")) if n not in names)
        names.add(name)
        blocks.append(block(name, key, paper))
    return "\n\n".join(blocks) + "\n"


def block(name: str, key: str, paper: Mapping[str, Any]) -> str:
    """One entry; braces keep a title's capitals."""
    people = re.sub(r"\s+et al\.?$", ", others", paper["authors"]).split(", ")
    fields = {
        "title": "{" + paper["title"] + "}",
        "author": " and ".join(p if p == "others" else "{" + p + "}" for p in people),
        "year": paper["year"],
        "howpublished": paper.get("venue"),
        "eprint": key.removeprefix("arXiv:") if key.startswith("arXiv:") else None,
        "archiveprefix": "arXiv" if key.startswith("arXiv:") else None,
        "url": paper["link"],
        "note": paper.get("use"),
    }
    lines = [f"  {field} = {{{value}}}," for field, value in fields.items() if value]
    return "\n".join([f"@misc{{{name},", *lines, "}"])


def citation_key(paper: Mapping[str, Any]) -> str:
    """First author, year and first word of weight, in plain letters."""
    author = re.split(r",| et al| Team", paper["authors"])[0]
    words = re.findall(r"[A-Za-z0-9+@]+", paper["title"])
    word = next((w for w in words if w.lower() not in STOP), words[0])
    plain = unicodedata.normalize("NFKD", f"{author}{paper['year']}{word}")
    return re.sub(r"[^a-z0-9]", "", plain.lower())


if __name__ == "__main__":
    print(bibtex(), end="")
