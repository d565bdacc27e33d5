"""The README's own examples run."""

import re
from pathlib import Path

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_examples_run(example, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert "steps=60" in example
    exec(example.replace("steps=60", "steps=2"), {"__name__": "__main__"})
    assert re.search(r"\d", capsys.readouterr().out)


def test_shell_examples_name_commands_and_settings_that_exist():
    from rlbook.__main__ import app, in_full
    from rlbook.training import RunConfig

    lines = re.findall(r"^\.venv/bin/rlbook (.*?)(?:  +#.*)?$", README, re.MULTILINE)
    commands = {*app._subcommands, "train"}
    assert len(lines) > 8
    for line in lines:
        command, *words = line.split()
        assert command in commands, line
        if command == "train":
            flags = {in_full(word)[2:].split(".")[0] for word in words if word.startswith("--")}
            assert flags <= {*RunConfig.model_fields, "out", "resume", "save-every"}, line
