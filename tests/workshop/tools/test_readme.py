"""The README's own examples run."""

import re
from pathlib import Path

import pytest

README = (Path(__file__).parents[3] / "README.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


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
    from workshop.__main__ import VERBS as WORKSHOP

    lines = re.findall(r"^\.venv/bin/rlbook (.*?)(?:  +#.*)?$", README, re.MULTILINE)
    ours = re.findall(r"^\.venv/bin/python -m workshop (\w+)", README, re.MULTILINE)
    assert len(ours) > 2 and set(ours) <= set(WORKSHOP)
    assert len(lines) > 5
    for line in lines:
        command, *words = line.split()
        assert command in VERBS, line
        with_settings(RunConfig(), [word for word in words if "=" in word])
