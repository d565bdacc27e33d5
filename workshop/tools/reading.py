"""A reader's own copies of the chapters: what is run and written there changes nothing in the book.

`make lab` calls it and opens `my/`, which git ignores. Jupyter trusts the copies, so their figures
move before they are run. A copy that was only run is brought up to date when its chapter changes;
one whose cells were edited is the reader's, and stays.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import nbformat
from nbformat.sign import NotebookNotary

ROOT = Path(__file__).parents[2]
GIVEN = ".given"  # the chapters as they were when they were copied


def bring(book: Path, mine: Path) -> list[Path]:
    """Copy what is new in `book` to `mine`; the edited copies of which there is a newer one."""
    kept = []
    for path in sorted([*book.glob("*.ipynb"), *book.glob("solutions/*.ipynb")]):
        name = path.relative_to(book)
        copy, given = mine / name, mine / GIVEN / name
        if given.is_file() and given.read_bytes() == path.read_bytes() and copy.is_file():
            continue
        if copy.is_file() and not (given.is_file() and says(copy) == says(given)):
            kept.append(copy)
            continue
        for target in (copy, given):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
    return kept


def trust(mine: Path) -> None:
    """Tell Jupyter that whoever reads these copies has chosen to."""
    notary = NotebookNotary()
    for path in [*mine.glob("*.ipynb"), *mine.glob("solutions/*.ipynb")]:
        notary.sign(nbformat.read(path, nbformat.NO_CONVERT))


def says(path: Path) -> list[Any] | bytes:
    """Kind and text of every cell of a notebook; the bytes of what is none."""
    text = path.read_bytes()
    try:
        return [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(text)["cells"]]
    except (ValueError, KeyError, TypeError):
        return text


if __name__ == "__main__":
    mine = ROOT / sys.argv[1]
    kept = bring(ROOT / "chapters", mine)
    trust(mine)
    for copy in kept:
        name = copy.relative_to(ROOT)
        print(f"{name} is yours and stays; the book has a newer one. To take it: rm {name}")
