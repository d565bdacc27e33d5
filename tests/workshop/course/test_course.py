"""A course is handed out without its solutions, and a hand-in is marked on hidden numbers too."""

import re

import nbformat
import pytest

from rlbook.paths import ROOT
from workshop.course.build import build
from workshop.course.grade import grade

CHAPTERS = ROOT / "chapters"
TITLE = "# 1 · The policy: a language model that acts"
LOSS = "def loss(logp, mask):\n    return {}\n\n\nchecks.check_imitation_loss(loss)"
RATIO = "ratio = {}\nchecks.check_path_ratio(ratio)"


def hand_in(loss, ratio="None"):
    cells = [
        nbformat.v4.new_markdown_cell(TITLE),
        nbformat.v4.new_code_cell("from workshop.ch01 import checks\nhalf = 0.5"),
        nbformat.v4.new_code_cell("raise RuntimeError('a training that no check needs')"),
        nbformat.v4.new_code_cell(LOSS.format(loss)),
        nbformat.v4.new_markdown_cell("### Exercise 1 · ●○○ · 5 minutes · Along the path."),
        nbformat.v4.new_code_cell(RATIO.format(ratio)),
    ]
    return nbformat.v4.new_notebook(cells=cells)


@pytest.mark.parametrize(
    ("loss", "said", "points"),
    [
        ("-2 * half * logp.sum() / mask.sum()", r"right: .* \(and on 2 hidden cases\)", 2),
        ("logp.sum() / mask.sum()", "not yet: the sign", 0),
        ("-logp.sum() / 10", "not yet", 0),  # fitted to the ten tokens that the check shows
        ("logp.nothing", "not yet: AttributeError", 0),
        ("...", "not attempted yet", 0),
    ],
)
def test_lines_are_marked_on_numbers_that_were_not_shown(loss, said, points):
    mark, _ = grade(hand_in(loss), seed=7)
    assert re.match(said, mark.said), mark.said
    assert (mark.points, mark.worth) == (points, 2)


def test_an_exercise_is_worth_its_dots_and_a_crash_is_named():
    mark = grade(hand_in("...", "1.25"))[1]
    assert mark.said.startswith("right") and (mark.points, mark.worth) == (1, 1)
    mark = grade(hand_in("...", "1 / 0"))[1]
    assert mark.said == "does not run: ZeroDivisionError: division by zero" and mark.points == 0


@pytest.mark.parametrize("path", sorted(CHAPTERS.glob("[0-9]*.ipynb")), ids=lambda path: path.stem)
def test_the_books_own_lines_are_right_on_hidden_numbers(path):
    """Every solution that a chapter stores, put in the place of the lines that are asked for."""
    given = nbformat.read(path, as_version=4)
    lines = {}
    for index, cell in enumerate(given.cells):
        if "solution" in cell.metadata.get("tags", []):
            before = [i for i, c in enumerate(given.cells[:index]) if "check_" in c.source]
            own = re.sub(r"^if not \w+:", "if True:", cell.source, flags=re.MULTILINE)
            asked, call = re.split(
                r"^(?=\w+ = \S*check_)", given.cells[before[-1]].source, flags=re.M
            )
            lines[before[-1]] = f"{asked}{own}\n\n{call}"
            cell.source = ""
    for index, cell in enumerate(given.cells):
        if cell.cell_type == "code" and "check_" in cell.source:
            cell.source = lines.get(index, "")
    marks = grade(given, seed=7)
    assert len(marks) == len(lines)  # none where a chapter asks for no lines
    for mark in marks:
        assert re.search(r"^right: .* \(and on [1-9]\d* hidden cases\)$", mark.said), mark


def test_what_is_no_chapter_is_refused():
    with pytest.raises(ValueError, match="does not begin with a chapter's number"):
        grade(nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# Mine")]))


def test_a_course_gives_students_no_solution(tmp_path):
    build(6, tmp_path / "course")
    given = sorted((tmp_path / "course/student").glob("*.ipynb"))
    assert len(given) == 11
    for path in given:
        notebook = nbformat.read(path, as_version=4)
        assert not any(cell.get("outputs") for cell in notebook.cells)
        assert "solutions/" not in path.read_text()
        assert not any("solution" in cell.metadata.get("tags", []) for cell in notebook.cells)
    teacher = tmp_path / "course/instructor"
    assert len(list((teacher / "solutions").glob("*.ipynb"))) == 11
    assert "(-0.616 instead of 0.616)" in (teacher / "misconceptions.md").read_text()
    assert "| 1 | Exercise 1 · ●○○ " in (teacher / "rubric.md").read_text()
    assert (teacher / "slides/05_grpo.html").read_text().count("<section>") > 10
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").touch()
    with pytest.raises(ValueError, match="holds something that is no course"):
        build(6, tmp_path / "mine")
