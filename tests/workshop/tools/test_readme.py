"""The examples of the three pages run, and the first of them is short."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FRONT, PACKAGE, WORKSHOP = (
    (ROOT / folder / "README.md").read_text() for folder in (".", "rlbook", "workshop")
)
EXAMPLES = re.findall(r"```python\n(.*?)```", PACKAGE, re.DOTALL)


def test_the_front_page_is_read_in_three_minutes():
    assert len([word for word in FRONT.split() if re.search(r"\w", word)]) <= 600
    assert FRONT.index("data/results/eight_answers.png") < FRONT.index("make lab")


def test_without_make_the_same_torch_is_installed_and_the_same_copies_are_opened():
    pinned = re.search(r"^torch==.*", (ROOT / "requirements/constraints.txt").read_text(), re.M)[0]
    assert f"pip install --no-deps {pinned} --index-url " in FRONT
    assert "python workshop/tools/reading.py my\njupyter lab my/01_policy.ipynb\n" in FRONT


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_examples_run(example, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert "steps=60" in example
    exec(example.replace("steps=60", "steps=2"), {"__name__": "__main__"})
    assert re.search(r"\d", capsys.readouterr().out)


def test_shell_examples_name_commands_and_settings_that_exist():
    from rlbook.cli import VERBS
    from rlbook.training import RunConfig
    from rlbook.training.config import with_settings
    from workshop.__main__ import VERBS as OURS

    lines = re.findall(r"^\.venv/bin/rlbook (.*?)(?:  +#.*)?$", PACKAGE, re.MULTILINE)
    ours = re.findall(r"^\.venv/bin/python -m workshop (\w+)", WORKSHOP, re.MULTILINE)
    assert len(ours) > 2 and set(ours) <= set(OURS)
    assert len(lines) > 5
    for line in lines:
        command, *words = line.split()
        assert command in VERBS, line
        with_settings(RunConfig(), [word for word in words if "=" in word])
