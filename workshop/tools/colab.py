"""What a chapter needs on Colab: `python -m workshop.tools.colab [FILE …]`.

With an address in `pyproject.toml` it gets a first code cell, tagged `colab`, folded, that fetches
the book and does nothing anywhere else; without one it gets none. Colab does not read JupyterLab's
marks of folded headings and hidden code: it gets its own, made from those.
`--check` changes nothing and names the notebooks that it would change.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from rlbook.paths import ROOT
from workshop.site.owner import Owner, read_owner
from workshop.tools.main_line import COLLAPSED, is_hidden

TAG = "colab"
CELL = """\
# On Colab: fetch the book and install it. Anywhere else this cell does nothing.
import os
import sys
from importlib.util import find_spec
from subprocess import check_call

address, clone = "{repository}", os.path.expanduser("~/rlbook")
if find_spec("google") and find_spec("google.colab"):
    if not os.path.isdir(clone):
        check_call(["git", "clone", "-q", "--depth", "1", "-b", "{branch}", address, clone])
    wanted = [f"{{clone}}[figures,tasks]", "anywidget", "ipywidgets"]
    check_call([sys.executable, "-m", "pip", "install", "-q", *wanted])
    sys.path.insert(0, clone)
    os.chdir(f"{{clone}}/chapters")"""


def colab_cell(owner: Owner) -> str:
    """The source of the cell; empty without an address."""
    return CELL.format(**vars(owner)) if owner.repository else ""


def close_folds(notebook: NotebookNode) -> None:
    """Have Colab show closed what JupyterLab shows closed: headings by id, code as a form."""
    folded = [cell for cell in notebook.cells if cell.metadata.get(COLLAPSED)]
    for cell in notebook.cells:
        cell.metadata.pop("id", None)
        cell.metadata.pop("cellView", None)
        if is_hidden(cell):
            cell.metadata["cellView"] = "form"
    for cell in folded:
        cell.metadata["id"] = cell.id
    notebook.metadata.pop("colab", None)
    if folded:
        notebook.metadata["colab"] = {"collapsed_sections": [cell.id for cell in folded]}


def with_cell(notebook: NotebookNode, source: str, name: str) -> bool:
    """Make `source` the notebook's one Colab cell, before all other code; True if that changed it.

    An empty source takes the cell out. Execution counts stay in order, folds are closed on Colab.
    """
    before = nbformat.writes(notebook)
    notebook.cells = [cell for cell in notebook.cells if TAG not in cell.metadata.get("tags", [])]
    if source:
        metadata = {"tags": [TAG], "jupyter": {"source_hidden": True}}
        cell = nbformat.v4.new_code_cell(source, metadata=metadata, id=f"colab-{name}"[:64])
        first = next((i for i, c in enumerate(notebook.cells) if c.cell_type == "code"), 0)
        notebook.cells.insert(first, cell)
    close_folds(notebook)
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
    """Prepare every notebook for Colab; those that were not, which `check` leaves alone."""
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
        print(f"{path.name}: {'Colab would not show it as it should be' if check else 'changed'}")
    return int(check and bool(changed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
