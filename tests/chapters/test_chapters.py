"""Every committed notebook is fit to be read, agrees with the package, and was fast enough."""

import re
from pathlib import Path

import nbformat
import pytest

from rlbook.book import export_difference, exported, problems, recorded_times
from rlbook.book.hygiene import MAX_SECONDS

FOLDER = Path(__file__).parents[2] / "chapters"
CHAPTERS = sorted(FOLDER.glob("*.ipynb"))
SOLUTIONS = sorted(FOLDER.glob("solutions/*.ipynb"))
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


@pytest.mark.parametrize("path", CHAPTERS + SOLUTIONS, ids=name)
def test_recorded_run_was_fast_enough(path):
    record = recorded_times().get(name(path))
    assert record is not None, f"no recorded time: make book CHAPTERS=chapters/{name(path)}"
    assert record["seconds"] <= MAX_SECONDS, record


@pytest.mark.parametrize(("function", "source"), exports())
def test_exported_cell_equals_the_package(function, source):
    difference = export_difference(function, source)
    assert not difference, "\n" + difference


@pytest.mark.parametrize("path", CHAPTERS, ids=name)
def test_exercises_have_solutions(path):
    asked = exercises(path)
    assert len(set(asked)) == len(asked), "two exercises with one number"
    if asked:
        assert exercises(FOLDER / "solutions" / f"{path.stem}_solutions.ipynb") == asked


@pytest.mark.parametrize("path", SOLUTIONS, ids=name)
def test_solutions_belong_to_a_chapter(path):
    assert (FOLDER / f"{path.stem.removesuffix('_solutions')}.ipynb").is_file()


@pytest.mark.parametrize(
    "path", [p for p in CHAPTERS if p.name[:2].isdigit() and p.name[:2] > "01"], ids=name
)
def test_method_chapters_show_code_of_the_package(path):
    assert exported(read(path)), "no cell is tagged export:rlbook.…"


def test_chapter_numbers_are_unique():
    numbers = [p.name[:2] for p in CHAPTERS if p.name[:2].isdigit()]
    assert len(set(numbers)) == len(numbers)
