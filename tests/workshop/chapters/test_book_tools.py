"""The tools of the book see what they claim to see, and their outputs repeat byte for byte."""

import base64
import inspect
import io
import json
import re
import textwrap
from copy import deepcopy

import nbformat
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from nbclient.exceptions import CellExecutionError
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output
from nbformat.v4.rwbase import split_lines
from PIL import Image

from rlbook.objectives import group_center, token_ratio
from rlbook.viz.style import CYCLE
from workshop.shared import evidence
from workshop.tools import build, execute, export_difference, exported, problems, recorded_times
from workshop.tools.exports import essence
from workshop.tools.hygiene import paragraphs
from workshop.tools.runner import clean, small_png, small_table, without_paths

WIDGET = "application/vnd.jupyter.widget-view+json"


def test_a_clean_notebook_has_no_problems(notebook):
    assert problems(notebook) == []


def printed(text):
    return new_output("stream", name="stdout", text=text)


def test_a_cell_that_shows_the_table_it_read_has_no_problem(notebook, monkeypatch, capsys):
    """The line that `load_results` prints in a notebook is the one that is looked for."""
    monkeypatch.setattr(evidence.tables, "in_notebook", lambda: True)
    evidence.load_results("rare_opening_eval")
    notebook.cells[1].source += '; load_results("rare_opening_eval")'
    notebook.cells[1].outputs = [printed(capsys.readouterr().out)]
    assert problems(notebook) == []


def break_language(nb):
    nb.metadata.kernelspec.name = "conda-env-py"


def break_widgets(nb):
    nb.metadata["widgets"] = {}


def break_ids(nb):
    nb.cells[1].id = nb.cells[2].id


def break_no_ids(nb):
    del nb.cells[1]["id"]


def break_order(nb):
    nb.cells[1].execution_count, nb.cells[2].execution_count = 2, 1


def break_missing_count(nb):
    nb.cells[2].execution_count = None


def break_length(nb):
    nb.cells[1].source = "\n".join(["assert 1 > 0"] * 16)


def break_check_output(nb):
    nb.cells[2].outputs = []


def break_semicolon(nb):
    nb.cells[2].source += ";"


def break_pip(nb):
    nb.cells[1].source = "%pip install torch"


def break_error(nb):
    nb.cells[1].outputs = [new_output("error", ename="KeyError", evalue="a", traceback=[])]


def break_path(nb):
    nb.cells[2].outputs[0].text = "saved to /home/reader/book/x.png"


def break_warning_path(nb):
    nb.cells[2].outputs[0].text = "/tmp/ipykernel_77/1.py:1: UserWarning"


def break_table(nb):
    nb.cells[0].source += "\n\n| a | b |\n|---|---|\n| `a|$b` | $\\sqrt{|y|}$ |"


def break_prose(nb):
    nb.cells[0].source = "word " * 111


def break_image(nb):
    nb.cells[1].outputs = [new_output("display_data", {"image/png": "A" * 150_001})]


def break_size(nb):
    nb.cells[2].outputs[0].text = "x" * 530_001


def break_bare_widget(nb):
    view = {"model_id": "0", "version_major": 2, "version_minor": 0}
    nb.cells[1].outputs = [new_output("display_data", {WIDGET: view, "text/plain": "IntSlider()"})]


def break_no_check(nb):
    nb.cells[1].source, nb.cells[2].source = "x = 2", "print(x)"


def break_silent_evidence(nb):
    nb.cells[1].source = 'table = load_results("reuse")\nassert len(table)'


def break_stale_evidence(nb):
    nb.cells[1].outputs = [printed("read reuse.csv, SHA-256 012345abcdef\n")]


def break_lost_evidence(nb):
    nb.cells[1].outputs = [printed("read no_such.csv, SHA-256 01234\n")]


@pytest.mark.filterwarnings("ignore:Non-unique cell id", "ignore:Cell is missing an id")
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (break_language, "kernelspec is not python3"),
        (break_widgets, "stores widget state"),
        (break_ids, "ids are missing or not unique"),
        (break_no_ids, "ids are missing or not unique"),
        (break_order, "not executed from top to bottom"),
        (break_missing_count, "not executed from top to bottom"),
        (break_length, "cell 1: 16 lines of code, the limit is 15"),
        (break_check_output, "cell 2: its output is to be checked, but it has none"),
        (break_semicolon, "cell 2: a final ;"),
        (break_pip, "cell 1: installs packages"),
        (break_silent_evidence, "cell 1: reads a table of results without saying which"),
        (break_stale_evidence, "cell 1: was drawn from another reuse.csv than the committed one"),
        (break_lost_evidence, "cell 1: was drawn from another no_such.csv"),
        (break_error, "cell 1: raised KeyError: a"),
        (break_path, "cell 2: path of one machine: /home/reader/book/x.png"),
        (break_warning_path, "cell 2: path of one machine: /tmp/ipykernel_77"),
        (break_prose, "cell 0: paragraph of 111 words"),
        (break_table, "cell 0: a | inside a formula ends the cell of its table"),
        (break_image, "cell 1: image/png of 150 kB"),
        (break_size, "the limit is 512"),
        (break_bare_widget, "cell 1: a widget without a static picture"),
        (break_no_check, "no cell asserts or checks anything"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_each_problem_is_found_and_named(notebook, damage, message, tmp_path):
    damage(notebook)
    path = tmp_path / "damaged.ipynb"
    path.write_text(json.dumps(split_lines(deepcopy(notebook))))  # as stored on disk
    found = problems(notebook)
    assert problems(path) == found
    assert any(message in line for line in found), found


def test_prose_is_counted_without_code_formulas_and_tables():
    text = textwrap.dedent(
        """
        # A heading of five words

        One two `three four` five $a + b = c$ seven.

        - first item
        - second item

        | a | table |
        |---|-------|

        $$
        x + y
        $$

        ```python
        print("not prose")
        ```
        """
    )
    words = [len(p.split()) for p in paragraphs(text)]
    assert words == [6, 2, 2]


def test_urls_and_units_are_no_machine_paths(notebook):
    notebook.cells[0].source = "See https://example.org/home/page, data/results and tokens/s."
    assert problems(notebook) == []


def essence_of(function) -> str:
    """The package's own source, as a chapter would show it: no docstring, no annotations."""
    return essence(inspect.getsource(function), function.__name__)


@pytest.mark.parametrize("function", [group_center, token_ratio])
def test_a_faithful_cell_agrees_with_the_package(function):
    name = f"{function.__module__}.{function.__name__}"
    assert export_difference(name, essence_of(function)) == ""
    assert "check_" not in essence_of(function).split("return")[0]


def test_a_changed_cell_shows_the_line():
    source = essence_of(token_ratio).replace("logp - logp_old", "logp_old - logp")
    difference = export_difference("rlbook.objectives.ratios.token_ratio", source)
    removed = [line for line in difference.splitlines()[2:] if line.startswith("-")]
    added = [line for line in difference.splitlines()[2:] if line.startswith("+")]
    assert len(removed) == len(added) == 1 and "logp_old - logp" in added[0]


def test_a_guard_in_the_middle_is_compared():
    """Only leading guards may be left out of a chapter."""
    kept = essence("def f(x):\n    y = x + 1\n    check_shape(y)\n    return y", "f")
    assert "check_shape" in kept
    dropped = essence(
        'def f(x: int) -> int:\n    """Doc."""\n    check_shape(x)\n    return x', "f"
    )
    assert dropped == "def f(x):\n    return x"


def test_a_class_that_only_checks_its_settings_may_leave_that_out():
    shown = essence("class A:\n    x: float = 1\n\n    def f(self):\n        return self.x", "A")
    check = "        if self.x < 0:\n            raise ValueError"
    assert essence(f"class A:\n    x: float = 1\n\n    def __post_init__(self):\n{check}\n\n"
                   "    def f(self):\n        return self.x", "A") == shown  # fmt: skip
    acts = "class A:\n    def __post_init__(self):\n        self.x = 1"
    assert "self.x = 1" in essence(acts, "A")


def test_an_export_that_is_not_defined_is_an_error():
    with pytest.raises(ValueError, match="does not define 'group_center'"):
        export_difference("rlbook.objectives.advantages.group_center", "x = 1")


def test_exports_are_read_from_tags(notebook):
    cell = new_code_cell("def f(): pass", metadata={"tags": ["export:rlbook.a.f", "other"]})
    notebook.cells.append(cell)
    assert exported(notebook) == [("rlbook.a.f", "def f(): pass")]


@pytest.fixture
def source_notebook(notebook, tmp_path):
    """A notebook with everything that tends to differ from run to run."""
    sources = [
        "import warnings\nwarnings.warn('careful')",
        "import sys\nfor i in range(3):\n    print(i, flush=True)",
        "from workshop.shared.explorer import Explorer, slider\n"
        "Explorer(lambda fig, x: fig.subplots().plot([0, x]), x=slider(0.0, 1.0, 0.5))",
        "from pathlib import Path\nprint(Path.cwd().name)",
        "from rlbook.viz import LivePlot\nlive = LivePlot('reward')\n"
        "for metrics in live.watch([{'step': i, 'reward': i} for i in range(50)]):\n    pass\n"
        "live.close()",
    ]
    notebook.cells[1:] = [new_code_cell(source) for source in sources]
    path = tmp_path / "book" / "01_small.ipynb"
    path.parent.mkdir()
    nbformat.write(notebook, path)
    return path


@pytest.mark.slow
def test_two_executions_give_the_same_bytes(source_notebook):
    first, _ = execute(source_notebook, timeout=600)
    stored = source_notebook.read_bytes()
    execute(source_notebook, timeout=600)
    assert source_notebook.read_bytes() == stored
    assert 0 < first < 60
    cells = nbformat.read(source_notebook, as_version=4).cells
    assert cells[1].outputs[0].text.startswith("<cell>:2: UserWarning")
    assert [o.text for o in cells[2].outputs] == ["0\n1\n2\n"]
    assert {"image/png", "text/plain", WIDGET} <= set(cells[3].outputs[0].data)
    assert cells[4].outputs[0].text == "book\n"
    (plot,) = cells[5].outputs  # updated in place: one picture is left
    assert plot.data["text/plain"] == "LivePlot of reward (run: 50)" and "image/png" in plot.data


def test_a_failing_notebook_keeps_its_old_outputs(notebook, tmp_path, capsys):
    notebook.cells[1].source = "assert 1 > 2, 'the likely mistake'"
    path = tmp_path / "02_fails.ipynb"
    nbformat.write(notebook, path)
    before = path.read_bytes()
    with pytest.raises(CellExecutionError, match="the likely mistake"):
        execute(path, timeout=600)
    assert build([path]) is False
    assert path.read_bytes() == before
    assert "02_fails.ipynb" in capsys.readouterr().out


def test_build_records_the_time_with_the_machine(notebook, tmp_path, monkeypatch, capsys):
    chapter = tmp_path / "chapters/01_small.ipynb"
    chapter.parent.mkdir()
    (tmp_path / "data").mkdir()
    nbformat.write(notebook, chapter)
    monkeypatch.setenv("RLBOOK_DATA", str(tmp_path / "data"))
    monkeypatch.setattr("workshop.tools.runner.ROOT", tmp_path)
    assert build() is True
    (name, record), *rest = recorded_times().items()
    assert name == "01_small.ipynb" and not rest
    assert len(record["idle"]) == 3 and {"cpu", "cores", "commit", "versions"} <= set(record)
    assert capsys.readouterr().out.startswith("01_small.ipynb")
    assert json.loads((tmp_path / "data/results/chapter_times.json").read_text()) == {name: record}


def test_clean_neutralises_model_ids(notebook):
    view = {"model_id": "f00", "version_major": 2, "version_minor": 0}
    notebook.cells[1].outputs = [new_output("display_data", {WIDGET: view})]
    notebook.metadata["widgets"] = {"state": {}}
    clean(notebook, "01")
    assert notebook.cells[1].outputs[0].data[WIDGET]["model_id"] not in ("f00", "")
    assert "widgets" not in notebook.metadata


def test_kernel_paths_become_neutral():
    text = "/tmp/ipykernel_4711/123.py:2: UserWarning: careful"
    assert without_paths(text) == "<cell>:2: UserWarning: careful"


def test_large_pictures_shrink_and_stay_the_same_to_the_eye():
    """A dense scatter, the kind of figure that weighs most."""
    fig = Figure(figsize=(7, 4), dpi=150)
    x, y = np.random.default_rng(0).normal(size=(2, 20_000))
    fig.subplots().scatter(x, y, c=x, s=4, alpha=0.5)
    buffer = io.BytesIO()
    fig.savefig(buffer)
    image = base64.b64encode(buffer.getvalue()).decode()
    pixels = np.asarray(Image.open(buffer).convert("RGB")).astype(int)
    small = small_png(image)
    again = np.asarray(Image.open(io.BytesIO(base64.b64decode(small))).convert("RGB"))
    assert len(small) < len(image) / 2
    assert np.abs(again - pixels).mean() < 3  # of 255
    assert small_png(small) == small


def test_a_stored_picture_loses_no_band():
    """Ten pale bands over each other: the largest square that is visibly off is a speck."""
    fig = Figure(figsize=(5, 3), dpi=100)
    ax, x = fig.subplots(), np.linspace(0, 1, 50)
    for row, colour in enumerate((*CYCLE, "#8fd3c1", "#00795a")):
        y = row / 8 + np.sin(5 * x + row) / 3
        ax.fill_between(x, y - 0.2, y + 0.2, color=colour, alpha=0.18, lw=0)
        ax.plot(x, y, color=colour)
    buffer = io.BytesIO()
    fig.savefig(buffer)
    true = np.asarray(Image.open(buffer).convert("RGB")).astype(int)
    stored = small_png(base64.b64encode(buffer.getvalue()).decode())
    again = np.asarray(Image.open(io.BytesIO(base64.b64decode(stored))).convert("RGB"))
    assert largest_square(np.abs(again - true).max(axis=2) > 10) <= 2
    few = Image.fromarray(true.astype(np.uint8)).quantize(16, dither=Image.Dither.NONE)
    lost = np.abs(np.asarray(few.convert("RGB")).astype(int) - true).max(axis=2)
    assert largest_square(lost > 10) > 5


def largest_square(wrong):
    """Side of the largest square that is wrong all over."""
    side = np.zeros(wrong.shape[1] + 1, dtype=int)
    largest = 0
    for row in wrong:
        before, side = side, np.zeros_like(side)
        for at, is_wrong in enumerate(row, 1):
            side[at] = is_wrong and 1 + min(side[at - 1], before[at - 1], before[at])
        largest = max(largest, side.max())
    return largest


def test_a_table_keeps_its_cells_and_loses_its_space():
    table = pd.DataFrame({"a b": [1, 2], "c": ["x y", "<br>"]}, ["one", "two"])
    made = table.to_html(notebook=True)
    small = small_table(f"<div>\n<style scoped>\n .dataframe td {{}}\n</style>\n{made}\n</div>")
    assert len(small) < 0.7 * len(made) and "style scoped" not in small
    cells = re.compile(r"<t[dh]\b[^>]*>(.*?)</t[dh]>")
    assert (
        cells.findall(small)
        == cells.findall(made)
        == ["", "a b", "c", "one", "1", "x y", "two", "2", "&lt;br&gt;"]
    )
    assert small_table("<b>a</b> <i>b</i>") == "<b>a</b> <i>b</i>"


def test_text_cells_with_long_lists_are_fine(notebook):
    notebook.cells.append(new_markdown_cell("\n".join(["- " + "word " * 40] * 5)))
    assert problems(notebook) == []
