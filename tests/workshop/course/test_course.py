"""A course is handed out without its solutions, and a hand-in is marked on hidden numbers too."""

import re

import nbformat
import pytest

from rlbook.paths import ROOT
from workshop.course.build import build
from workshop.course.grade import checks_in, checks_module, checks_of, grade
from workshop.course.slides import lecture
from workshop.shared.solutions import code_of

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
        if "solution" in cell.metadata.get("tags", []) and cell.cell_type == "markdown":
            before = [i for i, c in enumerate(given.cells[:index]) if "check_" in c.source]
            own = code_of(cell.source)
            cell.source = ""
            asked, call = re.split(
                r"^(?=\w+ = \S*check_)", given.cells[before[-1]].source, flags=re.M
            )
            lines[before[-1]] = f"{asked}{own}\n\n{call}"
    for index, cell in enumerate(given.cells):
        if cell.cell_type == "code" and "check_" in cell.source:
            cell.source = lines.get(index, "")
    marks = grade(given, seed=7)
    assert len(marks) == len(lines)  # none where a chapter asks for no lines
    for mark in marks:
        assert re.search(r"^right: .* \(and on [1-9]\d* hidden cases\)$", mark.said), mark


@pytest.mark.parametrize("path", sorted(CHAPTERS.glob("[0-9]*.ipynb")), ids=lambda path: path.stem)
def test_a_chapter_can_be_given_full_marks_and_lectured_on(path):
    """Every check that counts exists; every slide has a heading and something below it."""
    notebook = nbformat.read(path, as_version=4)
    known = checks_in(checks_module(int(path.name[:2])))
    assert checks_of(notebook).keys() <= known.keys()
    shown = list(lecture(notebook))
    bare = [each for each in shown if not re.search(r"</h[12]>\s*<", each)]
    assert len(shown) > 10 and bare == []
    assert all(len(each) < 1_000_000 for each in shown)
    assert sum("<img" in each for each in shown) > 2
    assert any('class="formula"><math' in each for each in shown)
    assert not any(re.search(r"\\\w", re.sub(r'alttext="[^"]*"', "", each)) for each in shown)
    scored = [n for n, each in enumerate(shown) if "no difference found?" in each]
    assert all("<table" in shown[n + 1] for n in scored)


@pytest.mark.parametrize("path", sorted(CHAPTERS.glob("[0-9]*.ipynb")), ids=lambda path: path.stem)
def test_every_exercise_has_an_answer_that_its_check_called_right(path):
    """Its stored output says so; lines in the text are tried on hidden numbers above."""
    solved = nbformat.read(CHAPTERS / f"solutions/{path.stem}_solutions.ipynb", as_version=4)
    answers = checks_of(solved)
    asked = checks_of(nbformat.read(path, as_version=4))
    exercises = {check for check, (heading, _) in asked.items() if "●" in heading}
    assert exercises and exercises <= answers.keys()
    for check in exercises:
        cell = solved.cells[answers[check][1]]
        told = "".join(out.get("text", "") for out in cell.outputs)
        assert {*re.findall(r"^(right|not \w+)", told, re.MULTILINE)} == {"right"}, (check, told)


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
        links = re.findall(r"\]\((\w+\.ipynb)", path.read_text())
        assert {*links} <= {other.name for other in given}
        assert not any("solution" in cell.metadata.get("tags", []) for cell in notebook.cells)
    teacher = tmp_path / "course/instructor"
    assert len(list((teacher / "solutions").glob("*.ipynb"))) == 11
    assert "(-0.616 instead of 0.616)" in (teacher / "misconceptions.md").read_text()
    assert "| 1 | Exercise 1 · ●○○ " in (teacher / "rubric.md").read_text()
    assert "slides/05_grpo.html" in (teacher / "plan.md").read_text()
    syllabus = (tmp_path / "course/syllabus.md").read_text()
    assert "instructor" not in syllabus and "arxiv.org/abs/2402.03300" in syllabus
    assert syllabus.count("\n* ") > 40  # outcomes and papers
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").touch()
    with pytest.raises(ValueError, match="holds something that is no course"):
        build(6, tmp_path / "mine")
