"""A stored notebook becomes a page: pictures with words, labs without code, links that lead."""

import base64
import io
import re

import nbformat
import pytest
from PIL import Image

from rlbook.tasks import Problem
from rlbook.tasks.sums import verdict_on_integer
from workshop.site.dark import PAPER
from workshop.site.notebooks import anchors_of, is_scaffold, page_of, with_links, without_lost
from workshop.site.owner import Owner
from workshop.site.titles import alternative, known
from workshop.site.vectors import take_vectors

PLACE = "chapters/05_grpo.ipynb"
OWNER = Owner(repository="https://github.com/nobody/rlbook")


def png(width=220, height=110):
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), "white").save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()


def shown(data, source="draw()"):
    output = nbformat.v4.new_output("execute_result", data=data, execution_count=1)
    return nbformat.v4.new_code_cell(source, outputs=[output])


def page(tmp_path, *cells, owner=OWNER):
    notebook = nbformat.v4.new_notebook(cells=list(cells))
    before = nbformat.writes(notebook)
    made = page_of(notebook, PLACE, tmp_path / "figures", owner, {})
    assert nbformat.writes(notebook) == before
    return made.cells


def test_a_widget_becomes_its_picture_with_its_title_as_words(tmp_path):
    widget = {
        "application/vnd.jupyter.widget-view+json": {"model_id": "x"},
        "text/plain": "Explorer",
    }
    (cell,) = page(tmp_path, shown(widget | {"image/png": png()}, 'ax.set_title("It "\n"rises")'))
    assert list(cell.outputs[0].data) == ["text/html"]
    html = cell.outputs[0].data["text/html"]
    assert 'src="../figures/05_grpo-1.png"' in html and 'alt="It rises"' in html
    assert Image.open(tmp_path / "figures/05_grpo-1.png").size == (220, 110)
    assert 'class="figure only-dark" src="../figures/05_grpo-1-dark.png"' in html
    sizes = re.findall(r'width="(\d+)" height="(\d+)"', html)
    assert len(set(sizes)) == 1 and int(sizes[0][0]) == 2 * int(sizes[0][1])


def test_a_picture_is_a_drawing_where_that_is_kept(tmp_path, monkeypatch):
    folder, picture = tmp_path / "kept", png()
    monkeypatch.setattr("workshop.site.notebooks.folder_of", lambda path: folder)
    drawn = '<svg fill="#000000"><path style="fill: #ffffff"/></svg>'
    with_drawing = nbformat.v4.new_notebook(
        cells=[shown({"image/png": picture, "image/svg+xml": drawn})]
    )
    take_vectors(with_drawing, folder)
    other = shown({"image/png": png(400)})
    first, second = page(tmp_path, shown({"image/png": picture}), other)
    assert "05_grpo-1.svg" in first.outputs[0].data["text/html"]
    assert "05_grpo-2.png" in second.outputs[0].data["text/html"]
    figures = tmp_path / "figures"
    assert (figures / "05_grpo-1.svg").read_text() == drawn
    assert PAPER in (figures / "05_grpo-1-dark.svg").read_text()
    assert (figures / "05_grpo-1.png").is_file()  # for the card of the front page


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ('ax.set(title="it rises")\nax.set(xlabel="no title")', "it rises"),
        ('for t in (1, 2):\n    ax.set_title(f"step {t}: so many", fontsize=9)', "step …: so many"),
        ('titles = {"a": "one thing", "b": "or two"}\nset_title(titles)', "one thing. or two"),
        ('fig.suptitle("over all")\naxes[0].set_title("x")', "over all"),
        ('panels, title = ("a", "b"), "it falls"\nLivePlot(*panels, title=title)', "it falls"),
        ('it = "down it goes"\nplot(title=it)', "down it goes"),
        ('LivePlot("accuracy", "length")', "Curves of accuracy, length over the steps of training"),
        ("plot()", "Figure of the section “3 · Here”"),
        ("%time plot()\n!ls\nax.set_title('still read it')", "still read it"),
        ("this is no code", "Figure of the section “3 · Here”"),
    ],
)
def test_words_for_a_picture(source, words):
    assert alternative(source, {}, "3 · Here") == words


def test_words_from_the_function_that_draws():
    drawers = known(
        "from workshop.ch02.figures import cloud_explorer\ndef own():\n    title = 'two words'"
    )
    assert list(drawers) == ["own", "cloud_explorer"]
    assert "gradient" in alternative("cloud_explorer()", drawers, "See it").lower()
    assert alternative("Explorer(own, hint='drag it up')", drawers) == "two words"
    assert alternative("Explorer(draw, hint='drag it up')", drawers) == "drag it up"


def test_a_mask_lab_keeps_its_state_and_loses_its_code(tmp_path):
    pytest.importorskip("anywidget")
    from workshop.shared.masks import mask_lab

    lab = mask_lab("ppo", "dapo", hint="a </script> inside")
    (cell,) = page(tmp_path, shown({"text/html": lab.html(), "text/plain": "MaskLab"}))
    html = cell.outputs[0].data["text/html"]
    assert html.startswith("<div data-mask-lab><script type='application/json'>{")
    assert html.count("</script>") == 1 and "function" not in html
    assert len(html) < len(lab.html()) / 5


def test_scaffold_is_tucked_away(tmp_path):
    assert is_scaffold("import torch\nfrom rlbook.viz import setup\n\nsetup()")
    assert is_scaffold("assert a == b\nassert c")
    assert not is_scaffold("import torch\nx = torch.ones(3)")
    assert not is_scaffold("") and not is_scaffold("setup()")
    (cell,) = page(tmp_path, nbformat.v4.new_code_cell("import torch", metadata={"tags": ["a"]}))
    assert cell.metadata.tags == ["a", "hide-input"]


@pytest.mark.parametrize(
    ("source", "with_address", "without"),
    [
        ("[c](06_rloo.ipynb#a)", None, None),
        (
            "[c](06_rloo.ipynb#4-·-A%2C-b)",
            "[c](06_rloo.ipynb#4-·-A,-b)",
            "[c](06_rloo.ipynb#4-·-A,-b)",
        ),
        ("[s](solutions/05_grpo_solutions.ipynb)", None, None),
        ("[p](https://arxiv.org/abs/1)", None, None),
        ("[x](#here) `[c](../a.py)`", None, None),
        ("[`c`](../configs/a.yaml#L3)", "[`c`](BLOB/configs/a.yaml#L3)", "`c`"),
        ("see [the map](../README.md).", "see [the map](BLOB/README.md).", "see the map."),
        ("```\n[c](../a.py)\n```", None, None),
    ],
)
def test_links_lead_to_pages_or_to_the_repository(source, with_address, without):
    blob = f"{OWNER.repository}/blob/main"
    assert with_links(source, PLACE, OWNER) == (with_address or source).replace("BLOB", blob)
    assert with_links(source, PLACE, Owner()) == (without or source)


def test_a_stored_link_may_be_older_than_its_heading():
    there = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_markdown_cell("# 6 · RLOO\n\n## 1 · Here")]
    )
    anchors = {"chapters/06_rloo.ipynb": anchors_of(there)}
    assert anchors == {"chapters/06_rloo.ipynb": {"6-·-RLOO", "1-·-Here"}}
    kept = "[a](06_rloo.ipynb#1-·-Here) [b](06_rloo.ipynb)"
    assert without_lost(kept, PLACE, anchors) == kept
    lost = "[a](06_rloo.ipynb#2-·-Gone) [b](solutions/x.ipynb) [p](https://x.org/y)"
    expected = "[a](06_rloo.ipynb) b [p](https://x.org/y)"
    assert without_lost(lost, PLACE, anchors) == expected


def test_a_page_has_one_title(tmp_path):
    cells = [nbformat.v4.new_markdown_cell(f"# {name}\n\ntext") for name in "AB"]
    assert [cell.source[:4] for cell in page(tmp_path, *cells)] == ["# A\n", "## B"]


def test_colours_of_outputs_are_the_pages(tmp_path):
    html = '<pre style="background:#ffffff;color:#222222">x</pre>'
    (cell,) = page(tmp_path, shown({"text/html": html}))
    assert "var(--rl-paper,#ffffff)" in cell.outputs[0].data["text/html"]


# ---- the verifier of the page ----

ANSWERS = [
    "<think></think><answer>7</answer>",
    "<answer> 7\n</answer> \n",
    "<answer>07</answer>",
    "<answer>-0</answer>",
    "<answer>8</answer>",
    "<answer></answer>",
    "<answer>7</answer>x",
    "7",
    "<answer>7",
    "</answer>7<answer>",
    "<answer>7</answer><answer>7</answer>",
    "<answer>7</answer></answer>",
    "<answer>" + "9" * 20 + "</answer>",
    "<answer>٧</answer>",
    "<answer>7.0</answer>",
]


@pytest.mark.parametrize("finished", [True, False])
def test_the_pages_verdicts_are_the_packages(node, finished):
    problem = Problem("3+4", "3+4=?", "7", 2)
    expected = [verdict_on_integer(problem, answer, finished).reason for answer in ANSWERS]
    call = "job.answers.map((text) => verdict(text, '7', job.finished))"
    assert node("verdict.js", "verdict", call, answers=ANSWERS, finished=finished) == expected
    assert len(set(expected)) == (7 if finished else 1)


def test_the_pages_values_are_the_packages(node):
    from rlbook.tasks import get_task

    problems = [p for name in ("sums", "habits") for p in get_task(name).sample(seed=3, n=300)]
    found = node(
        "verdict.js", "valueOf", "job.asked.map(valueOf)", asked=[p.prompt for p in problems]
    )
    assert found == [problem.answer for problem in problems]


def test_what_is_no_sum_has_no_value(node):
    asked = ["", "5+", "5 5", "(5", "5)", "x", "5--", "5+x", "alert(1)"]
    call = "job.asked.map((text) => { try { return valueOf(text) } catch { return null } })"
    assert node("verdict.js", "valueOf", call, asked=asked) == [None] * len(asked)
