"""The cell that lets a chapter run on Colab: `python -m workshop.tools.colab [FILE …]`.

It is the first code cell of a chapter, tagged `colab`, folded, and does nothing anywhere else. The
address comes from `pyproject.toml`; while that has none, the cell on Colab says where to write it.
`--check` changes nothing and names the notebooks whose cell is not the one that it would write.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from rlbook.paths import ROOT
from workshop.site.owner import Owner, read_owner

TAG = "colab"
CELL = """\
# On Colab: fetch the book and install it. Anywhere else this cell does nothing.
import os
import sys
from importlib.util import find_spec
from subprocess import check_call

address, clone = "{repository}", os.path.expanduser("~/rlbook")
if find_spec("google") and find_spec("google.colab"):
    assert address, "write the address of the book's repository above: this copy has none"
    if not os.path.isdir(clone):
        check_call(["git", "clone", "-q", "--depth", "1", "-b", "{branch}", address, clone])
    wanted = [f"{{clone}}[figures,tasks]", "anywidget", "ipywidgets"]
    check_call([sys.executable, "-m", "pip", "install", "-q", *wanted])
    sys.path.insert(0, clone)
    os.chdir(f"{{clone}}/chapters")"""


def colab_cell(owner: Owner) -> str:
    """The source of the cell."""
    return CELL.format(**vars(owner))


def with_cell(notebook: NotebookNode, source: str, name: str) -> bool:
    """Make `source` the notebook's one Colab cell, before all other code; True if that changed it.

    An empty source takes the cell out. Execution counts stay in order.
    """
    before = nbformat.writes(notebook)
    notebook.cells = [cell for cell in notebook.cells if TAG not in cell.metadata.get("tags", [])]
    if source:
        metadata = {"tags": [TAG], "jupyter": {"source_hidden": True}}
        cell = nbformat.v4.new_code_cell(source, metadata=metadata, id=f"colab-{name}"[:64])
        first = next((i for i, c in enumerate(notebook.cells) if c.cell_type == "code"), 0)
        notebook.cells.insert(first, cell)
    count = 0
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        count += 1
        cell.execution_count = count
        for output in cell.outputs:
            if output.output_type == "execute_result":
                output.execution_count = count
    return nbformat.writes(notebook) != before


def keep(paths: Sequence[Path], owner: Owner, check: bool = False) -> list[Path]:
    """Give every notebook the cell; the notebooks that had it not, which `check` leaves alone."""
    changed = []
    for path in paths:
        notebook = nbformat.read(path, as_version=4)
        if with_cell(notebook, colab_cell(owner), path.stem[:2]):
            changed.append(path)
            if not check:
                nbformat.write(notebook, path)
    return changed


def main(words: Sequence[str]) -> int:
    """The command."""
    check = "--check" in words
    given = [Path(word) for word in words if word != "--check"]
    paths = given or sorted((ROOT / "chapters").glob("[0-9]*.ipynb"))
    changed = keep(paths, read_owner(), check)
    for path in changed:
        print(f"{path.name}: its Colab cell is {'not as it should be' if check else 'changed'}")
    return int(check and bool(changed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
