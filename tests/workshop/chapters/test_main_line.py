"""Every chapter that has a main line keeps to it, and the tool sees what it claims to see."""

import nbformat
import pytest
import torch
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from workshop.shared.checks import check_lines
from workshop.shared.schematic import chapter_map, schematic
from workshop.shared.solutions import shown
from workshop.site.navigation import navigated, navigation, without_navigation
from workshop.tools.main_line import COLLAPSED, main_line_problems, measure, places
from workshop.tools.runner import chapters

NUMBERED = [path for path in chapters() if path.match("chapters/[0-9]*.ipynb")]


def read(path):
    return nbformat.read(path, as_version=4)


def name(path):
    return path.stem


SHAPED = [path for path in NUMBERED if "folded" in places(read(path))]


@pytest.mark.parametrize("path", SHAPED, ids=name)
def test_the_main_line_is_short_and_stands_alone(path):
    found = main_line_problems(read(path))
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize("path", NUMBERED, ids=name)
def test_neighbours_are_linked_at_both_ends(path):
    chapter, line = read(path), navigation(path, NUMBERED)
    sources = [cell.source for cell in chapter.cells]
    assert [cell.source for cell in navigated(chapter, line).cells] == sources
    assert line not in "".join(map(without_navigation, sources))


ASIDE = "### Deeper: why?\n\n*Aside: a proof in two lines.*"


def folded(source=ASIDE, collapsed=True):
    return new_markdown_cell(source, metadata={COLLAPSED: True} if collapsed else {})


def picture(source):
    output = new_output("display_data", data={"image/png": "aGk="})
    return new_code_cell(source, outputs=[output])


def chapter(*cells):
    return new_notebook(cells=list(cells))


PLAIN = (
    new_markdown_cell("# One\n\nfive words stand here now"),
    picture("a = 1\nb = [a for a in range(3)]"),
    new_markdown_cell("## Two"),
    folded(),
    new_code_cell("c = 2"),
    new_markdown_cell("#### still folded"),
    new_markdown_cell("## Three\n\nthree more words"),
    new_code_cell("def f(c):\n    return a + c"),
    new_markdown_cell(shown("def f(c): ..."), metadata={"tags": ["solution"]}),
    new_code_cell("...", metadata={"tags": ["solution"], "jupyter": {"source_hidden": True}}),
    new_markdown_cell("## 4 · Exercises\n\n### Exercise 1"),
    new_code_cell("f(a)"),
)


def test_what_is_folded_ends_at_a_heading_of_its_order():
    marks = {"main": "m", "folded": "f", "exercises": "e"}
    assert "".join(marks[place] for place in places(chapter(*PLAIN))) == "mmmfffmmmmee"


def test_the_main_line_is_counted_without_what_is_folded():
    part, whole = measure(chapter(*PLAIN)), measure(chapter(*PLAIN), None)
    assert (part.words, part.code_cells, part.lines, part.pictures) == (8, 2, 4, 1)
    assert (whole.code_cells, whole.lines, whole.pictures) == (4, 6, 1)
    assert part.minutes == pytest.approx(8 / 220 + 4 * 4 / 60 + 1)
    assert main_line_problems(chapter(*PLAIN)) == []


@pytest.mark.parametrize(
    ("cells", "problem"),
    [
        ([new_markdown_cell("word " * 3100)], "3100 words in the main line, the limit is 3000"),
        ([new_code_cell("1")] * 31, "31 code cells in the main line"),
        ([picture("1")] * 7, "7 pictures in the main line"),
        ([folded(collapsed=False)], "must be true"),
        ([folded("## Two")], "must be absent"),
        ([folded("## Deeper: why?")], "stands alone with one line in italics"),
        ([folded(f"{ASIDE}\n\nand more")], "stands alone with one line in italics"),
        ([new_code_cell("1", metadata={"tags": ["solution"]})], "a solution in sight"),
        ([new_markdown_cell("```python\n1\n```", metadata={"tags": ["solution"]})], "in sight"),
        ([*PLAIN[:7], new_code_cell("print(c)")], "uses c, which the folded cell 4 bound last"),
        ([*PLAIN[:7], new_code_cell("def g():\n    return c")], "uses c, which the folded"),
        ([*PLAIN[:7], new_code_cell("c += 1")], "uses c, which the folded"),
        ([folded(), new_code_cell("import a.b"), *PLAIN[6:7], new_code_cell("a.x")], "uses a,"),
    ],
)
def test_each_problem_is_found_and_named(cells, problem):
    (found,) = main_line_problems(chapter(*cells))
    assert problem in found


@pytest.mark.parametrize(
    "own", ["c = 1\nprint(c)", "[c for c in 'ab']", "lambda c: c", "for c in 'ab':\n    print(c)"]
)
def test_a_name_of_its_own_is_no_dependence(own):
    assert main_line_problems(chapter(*PLAIN[:7], new_code_cell(own))) == []


def test_a_schematic_says_what_it_cannot_draw():
    entries = {"rewards": "1100", "loss": ["1/16"] * 4}
    drawn = schematic("Title", {"loss"}, entries, {"loss": "mean"}, {"weights": "02"})
    texts = [text.get_text() for text in drawn.axes[0].texts]
    assert texts.count("1/16") == 4
    assert {"mean", "chapter 02", *"ABCD"} <= {*texts}
    with pytest.raises(ValueError, match="no box is called 'reward'"):
        schematic("Title", {"reward"}, {})
    with pytest.raises(ValueError, match="'loss' needs an entry for each of A, B, C, D"):
        schematic("Title", {"loss"}, {"loss": ["1"]})


def test_a_map_lights_a_chapters_boxes_and_knows_no_others():
    texts = [text.get_text() for text in chapter_map({"loss": "clipping"}).axes[0].texts]
    assert "clipping" in texts
    with pytest.raises(ValueError, match="no box is called 'reward'"):
        chapter_map({"reward": ""})


def middle(values):
    return values - values.mean()


TWINS = {"the sign": lambda values: values.mean() - values, "the root": lambda v: v.var()}


@pytest.mark.parametrize(
    ("mine", "said"),
    [
        (middle, "right: because"),
        (TWINS["the sign"], "not yet: the sign"),
        (TWINS["the root"], "not yet: the root"),
        (lambda values: values * 7, "not yet: otherwise"),
        (lambda values: values / 0 * 0, "not yet: there is a NaN in it"),
        (lambda values: values[:2], "not yet: the shape is (2,), it should be (3,)"),
        (lambda values: values + torch.ones(2), "not yet: RuntimeError: The size of tensor"),
        (lambda values: "no", "not yet: give numbers, not str"),
        (lambda values: None, "not attempted yet"),
        (lambda values: values - ..., "not attempted yet"),
    ],
)
def test_lines_are_judged_by_what_they_compute(mine, said, capsys):
    probes = [(torch.tensor([1.0, 2.0, 4.0]),), (torch.tensor([0.0, 3.0, 1.0]),)]
    passed = check_lines(mine, middle, TWINS, probes, "because", "otherwise")
    assert passed == (mine is middle)
    printed = capsys.readouterr().out
    assert printed.startswith(said)
    assert ("uses the book's lines" in printed) == said.startswith("not yet")
