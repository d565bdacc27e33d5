"""Every committed notebook is fit to be read, agrees with the package, and was fast enough."""

import ast
import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import nbformat
import pytest

from workshop.tools import export_difference, exported, problems, recorded_times
from workshop.tools.hygiene import MAX_SECONDS

FOLDER = Path(__file__).parents[3] / "chapters"
CHAPTERS = sorted(FOLDER.glob("*.ipynb"))
NUMBERED = [path for path in CHAPTERS if path.name[:2].isdigit()]
SOLUTIONS = sorted(FOLDER.glob("solutions/*.ipynb"))
MAX_WAIT = 30  # seconds of a cell on two idle cores
EXERCISE = re.compile(r"^#{2,4} +Exercise +(\d+)", re.MULTILINE)


def name(path: Path) -> str:
    return path.relative_to(FOLDER).as_posix()


def read(path: Path) -> nbformat.NotebookNode:
    return nbformat.read(path, as_version=4)


def exercises(path: Path) -> list[str]:
    texts = (cell.source for cell in read(path).cells if cell.cell_type == "markdown")
    return [number for text in texts for number in EXERCISE.findall(text)]


def exports() -> list:
    return [
        pytest.param(function, source, id=f"{path.stem}:{function.rpartition('.')[2]}")
        for path in CHAPTERS
        for function, source in exported(read(path))
    ]


@pytest.mark.parametrize("path", CHAPTERS + SOLUTIONS, ids=name)
def test_notebook_is_fit_to_be_committed(path):
    found = problems(path)
    assert not found, "\n" + "\n".join(found)


def test_recorded_runs_were_fast_enough():
    times, notebooks = recorded_times(), {name(path) for path in CHAPTERS + SOLUTIONS}
    assert notebooks - set(times) == set(), "no recorded time: make book CHAPTERS=chapters/…"
    slow = {each: times[each] for each in notebooks if times[each]["seconds"] > MAX_SECONDS}
    assert slow == {}
    waits = {(each, cell): s for each in times for cell, s in times[each].get("cells", {}).items()}
    assert len(waits) > 20 and all(one >= two >= eight for one, two, eight in waits.values())
    assert {cell: s for cell, s in waits.items() if s[1] > MAX_WAIT} == {}


@pytest.mark.parametrize(("function", "source"), exports())
def test_exported_cell_equals_the_package(function, source):
    difference = export_difference(function, source)
    assert not difference, "\n" + difference


def workshop_modules(path: Path) -> set[str]:
    """The modules of the workshop from which a notebook imports."""
    cells = (cell.source for cell in read(path).cells if cell.cell_type == "code")
    code = re.sub(r"^\s*[%!].*", "pass", "\n".join(cells), flags=re.M)
    imports = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ImportFrom)]
    ours = [node for node in imports if str(node.module).startswith("workshop")]
    named = [(node.module, alias.name) for node in ours for alias in node.names]
    for module, what in named:  # a file is no attribute of its folder before it is imported
        if find_spec(module).submodule_search_locations and find_spec(f"{module}.{what}"):
            import_module(f"{module}.{what}")
    things = ((module, getattr(import_module(module), what)) for module, what in named)
    return {one.__name__ if isinstance(one, ModuleType) else module for module, one in things}


@pytest.mark.parametrize("path", NUMBERED, ids=name)
def test_a_chapter_imports_few_files_of_the_workshop(path):
    files = workshop_modules(path)
    assert len(files) <= 10, sorted(files)


def test_exercises_have_solutions_and_numbers_of_their_own():
    asked = {path.stem: found for path in CHAPTERS if (found := exercises(path))}
    solved = {path.stem.removesuffix("_solutions"): exercises(path) for path in SOLUTIONS}
    assert asked == solved
    assert [chapter for chapter, found in asked.items() if len(set(found)) < len(found)] == []


def test_method_chapters_show_code_of_the_package():
    methods = [path for path in NUMBERED if path.name[:2] > "01"]
    bare = [path.name for path in methods if not exported(read(path))]
    assert bare == [], "no cell is tagged export:rlbook.…"


def test_chapter_numbers_are_unique():
    numbers = [path.name[:2] for path in NUMBERED]
    assert len(set(numbers)) == len(numbers)
