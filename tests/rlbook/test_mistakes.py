"""Mistakes at the command line: one line, which names the thing and the fix; never a traceback."""

import os
import re
import shlex
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from rlbook.cli import main
from rlbook.jsonl import read_jsonl
from rlbook.training import Trainer, checkpoint
from rlbook.yaml12 import read_yaml

TABLE = yaml.safe_load(Path(__file__).with_name("mistakes.yaml").read_text())
TINY = "steps=1 prompts=2 group_size=2 minibatches=1 max_new_tokens=8"


def words_of(line):
    words = shlex.split(line.replace("{tiny}", TINY))
    return [*words, "--out", "run"] if words[0] == "train" and "--out" not in words else words


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory):
    """A working directory with what beginners have in theirs."""
    here, before = tmp_path_factory.mktemp("here"), os.getcwd()
    for name, text in TABLE["files"].items():
        (here / name).write_text(text)
    os.chdir(here)
    sys.path.insert(0, str(here))
    yield here
    sys.path.remove(str(here))
    os.chdir(before)


@pytest.mark.parametrize(("line", "pattern"), TABLE["answers"])
def test_a_mistake_is_answered_in_one_line_and_leaves_nothing_behind(line, pattern, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(words_of(line))
    *progress, said = capsys.readouterr().err.strip().splitlines()
    assert stopped.value.code == 2
    assert re.search(pattern, said), said
    assert all("it/s" in text or "0/1" in text for text in progress)
    assert not Path("run").exists()


@pytest.mark.parametrize("line", TABLE["forgiven"])
def test_what_can_be_understood_is(line):
    main(words_of(line))


def test_a_start_that_failed_does_not_occupy_its_folder():
    with pytest.raises(SystemExit):
        main(words_of("train levels=[99] --out again {tiny}"))
    main(words_of("train levels=[3] --out again {tiny}"))
    assert [row["step"] for row in read_jsonl(Path("again/metrics.jsonl"))] == [1]


def test_a_bad_setting_is_named_before_a_folder_that_is_taken(capsys):
    main(words_of("train --out taken {tiny}"))
    for setting, said in (("seed=abc", "seed: .*got 'abc'"), ("steps=2", "holds a run already")):
        capsys.readouterr()
        with pytest.raises(SystemExit):
            main(["train", setting, "--out", "taken"])
        assert re.search(said, capsys.readouterr().err)


def test_a_run_that_was_killed_before_its_first_checkpoint_starts_again():
    main(words_of("train --out early {tiny}"))
    for file in [*Path("early").glob("step_*/*"), Path("early/latest")]:
        file.unlink()
    main(words_of("train --resume --out early steps=2"))
    assert [row["step"] for row in read_jsonl(Path("early/metrics.jsonl"))] == [1, 2]


def test_a_signal_ends_a_run_after_its_step_with_a_checkpoint(monkeypatch, capsys):
    learn = Trainer.learn

    def interrupted(trainer, rollouts):
        os.kill(os.getpid(), signal.SIGINT)
        return learn(trainer, rollouts)

    before = signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patched, pytest.raises(SystemExit) as stopped:
        patched.setattr(Trainer, "learn", interrupted)
        main(
            words_of(
                "train --out stopped {tiny}".replace("{tiny}", TINY.replace("steps=1", "steps=3"))
            )
        )
    assert stopped.value.code == 130 and signal.getsignal(signal.SIGINT) is before
    assert "go on with --resume" in capsys.readouterr().out
    main(words_of("train --resume --out stopped"))
    assert [row["step"] for row in read_jsonl(Path("stopped/metrics.jsonl"))] == [1, 2, 3]


def test_a_full_disk_is_named_with_what_is_needed_and_leaves_no_half(monkeypatch, capsys):
    monkeypatch.setattr(checkpoint.shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(SystemExit) as stopped:
        main(words_of("train --out full {tiny}"))
    assert stopped.value.code == 2
    assert re.search(r"full/step_000001: it takes [\d,]+ bytes, and 1,000", capsys.readouterr().err)
    assert not list(Path("full").glob("step_*"))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *[("1e-5", 1e-5), ("1E-5", 1e-5), ("-.5", -0.5), ("0x10", 16), ("012", 12), ("60.0", 60.0)],
        *[("yes", "yes"), ("off", "off"), ("12:30", "12:30"), ("1_000", "1_000"), ("1,5", "1,5")],
        *[("true", True), ("~", None), ("null", None), ("", None), ("2026-01-01", "2026-01-01")],
        *[
            ("[3, 4]", [3, 4]),
            ("{a: 1e3}", {"a": 1000.0}),
            ("'1e-5'", "1e-5"),
            (".inf", float("inf")),
        ],
    ],
)
def test_words_are_numbers_as_yaml_1_2_says(text, value):
    assert read_yaml(text) == value and type(read_yaml(text)) is type(value)
