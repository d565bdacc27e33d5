"""A solution is closed wherever it is read, and what runs is what is shown."""

import json
import re

import pytest

from rlbook.paths import ROOT
from workshop.shared import solutions
from workshop.shared.solutions import code_of, shown, solution

CODE = "def twice(x):\n    return factor * x\n"


def test_what_is_shown_is_what_runs(tmp_path, monkeypatch, capsys):
    cell = {"cell_type": "markdown", "metadata": {"tags": ["solution"]}, "source": [shown(CODE)]}
    other = {"cell_type": "markdown", "metadata": {}, "source": ["def once(x): ..."]}
    (tmp_path / "chapters").mkdir()
    (tmp_path / "chapters/99_own.ipynb").write_text(json.dumps({"cells": [other, cell]}))
    monkeypatch.setattr(solutions, "ROOT", tmp_path)
    names = {"factor": 2, "twice": None}
    assert solution("99_own", "twice", names) is names["twice"]
    assert names["twice"](21) == 42
    assert "use the book's" in capsys.readouterr().out
    with pytest.raises(LookupError, match=r"99_own.ipynb shows no solution that defines once"):
        solution("99_own", "once", names)


def test_a_solution_has_one_block():
    assert code_of(shown(CODE)) == CODE
    with pytest.raises(ValueError, match="one block of Python, not 0"):
        code_of("<details>words</details>")


CHAPTERS = sorted(ROOT.glob("chapters/[0-9]*.ipynb"))


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_every_chapter_calls_the_solution_that_it_shows(path):
    tagged = [
        (cell["cell_type"], "".join(cell["source"]))
        for cell in json.loads(path.read_text())["cells"]
        if "solution" in cell["metadata"].get("tags", [])
    ]
    assert tagged
    for (kind, text), (_, call) in zip(tagged[::2], tagged[1::2], strict=True):
        name = re.match(r"def (\w+)\(", code_of(text))[1]
        assert kind == "markdown" and text == shown(code_of(text))
        assert f'{name} = solution("{path.stem}", "{name}", globals())' in call
