"""A rehearsal: a few updates, two deaths, what was measured beside the plan."""

import shutil
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from rlbook.cli import VERBS
from rlbook.durable import write_json
from rlbook.paths import ROOT
from rlbook.scale.config import ScaleConfig, load_config
from rlbook.scale.launch.rehearse import Killer, decode_seconds, rehearse, with_budget
from rlbook.scale.launch.supervisor import TooManyDeaths
from rlbook.scale.layout import Layout


def test_everybody_is_killed_once_after_the_first_update(tmp_path, monkeypatch):
    """At 105 s; the next update is seen at 120 s."""
    layout, sent, now = Layout(tmp_path), [], [100.0]
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr("rlbook.scale.launch.rehearse.time", clock)

    def watched(name):
        signal_to = lambda number: sent.append((name, number))  # noqa: E731
        return SimpleNamespace(name=name, processes=[1], signal=signal_to)

    supervisor = SimpleNamespace(watched=[watched(n) for n in ("trainer", "x", "generator0")])
    killer = Killer(layout)
    killer(supervisor)
    for seconds, version in ((0, 0), (5, 1), (15, 1), (0.5, 2), (9, 3)):
        now[0] += seconds
        write_json(layout.status, {"version": version})
        killer(supervisor)
        assert len(sent) == (2 if version else 0)
    assert sent == [("trainer", signal.SIGKILL), ("generator0", signal.SIGKILL)]
    assert killer.lost == 15


def test_a_group_takes_as_long_as_its_longest_answer(tmp_path, monkeypatch):
    rollouts = [SimpleNamespace(group=g, length=n) for g, n in ((1, 10), (1, 40), (2, 20))]
    monkeypatch.setattr("rlbook.scale.launch.rehearse.read_batch", lambda *_: (rollouts, {}))
    monkeypatch.setattr("rlbook.scale.launch.rehearse.published", lambda _: [2])
    assert decode_seconds(Layout(tmp_path), 6.0) == pytest.approx(6 / 30)


@pytest.mark.parametrize(("load", "written"), [(0.4, True), (17.0, False)])
def test_the_speeds_of_a_machine_that_others_keep_busy_are_not_written(
    load, written, tmp_path, monkeypatch, capsys
):
    file = Path(shutil.copy(ROOT / "configs/cpu-tiny.yaml", tmp_path / "own.yaml"))
    before, module = file.read_text(), "rlbook.scale.launch.rehearse"
    found = {"update_seconds": 9.0, "decode_seconds": 0.1, "push_gb": 2.0, "mean_tokens": 24}
    killer = SimpleNamespace(killed=["trainer", "generator0"], lost=1.0)
    monkeypatch.setattr(f"{module}.launch", lambda config, tick: None)
    monkeypatch.setattr(f"{module}.Killer", lambda layout: killer)
    monkeypatch.setattr(f"{module}.measured", lambda layout, budget: found)
    monkeypatch.setattr("os.getloadavg", lambda: (0.0, load, 0.0))
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert rehearse(load_config(file), file) == 0
    assert (load_config(file).budget.update_seconds == 9.0) == written
    said = capsys.readouterr().out
    assert ("kept 17.0 of 2 cores busy" in said and file.read_text() == before) == (not written)


@pytest.mark.slow
def test_a_rehearsal_of_the_laptops_file(tmp_path, capsys, monkeypatch):
    words = [f"run={tmp_path / 'mine'}", "generate.engine=builtin", "rollout.prompts=4"]
    file = Path(shutil.copy(ROOT / "configs/cpu-tiny.yaml", tmp_path / "own.yaml"))
    before = load_config(file)
    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0))
    assert VERBS["rehearse"]([str(file), *words]) == 0
    said = capsys.readouterr().out
    assert "trainer and generator0" in said and "measured" in said
    after = load_config(file)
    assert after.budget.update_seconds > 0 and before.budget.update_seconds is None
    assert after.replace(budget=before.budget.model_dump()) == before
    (folder,) = tmp_path.glob("mine*")
    assert folder.name.startswith("mine-rehearsal-")


FOUND = {"update_seconds": 0.25, "decode_seconds": 1e-05, "mean_tokens": 31}


@pytest.mark.parametrize(
    "text",
    [
        "steps: 3   # as many\nbudget:\n    # by hand\n    mean_tokens: 24\ndata: {task: sums}\n",
        "budget:\n  shape:\n    hidden_size: 64\n",
        "steps: 3\n",
    ],
    ids=["some known", "none known", "no budget"],
)
def test_what_was_measured_is_written_back_and_nothing_else(text):
    written = with_budget(text, FOUND)
    before, after = yaml.safe_load(text), yaml.safe_load(written)
    assert after == before | {"budget": before.get("budget", {}) | FOUND}
    assert [line for line in text.splitlines() if "mean" not in line] == [
        line for line in written.splitlines() if line in text.splitlines() and line
    ]
    assert with_budget(written, FOUND) == written


def test_a_rehearsal_that_fails_says_where_its_logs_are(tmp_path, monkeypatch, capsys):
    def dies(config, tick):
        raise TooManyDeaths("generator0 died 9 times")

    monkeypatch.setattr("rlbook.scale.launch.rehearse.launch", dies)
    assert rehearse(ScaleConfig(run=str(tmp_path / "mine")), tmp_path / "own.yaml") == 1
    said = capsys.readouterr().err
    assert "generator0 died 9 times" in said and "mine-rehearsal-" in said
