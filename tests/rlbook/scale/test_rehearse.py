"""A rehearsal: a few updates, two deaths, what was measured beside the plan."""

import signal
from types import SimpleNamespace

import pytest
import yaml

from rlbook.cli import VERBS
from rlbook.paths import ROOT
from rlbook.scale.config import ScaleConfig
from rlbook.scale.launch.rehearse import Killer, decode_seconds, rehearse
from rlbook.scale.launch.supervisor import TooManyDeaths
from rlbook.scale.layout import Layout, write_json


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
    monkeypatch.setattr("rlbook.scale.launch.rehearse.newest_batch", lambda _: 2)
    assert decode_seconds(Layout(tmp_path), 6.0) == pytest.approx(6 / 30)


@pytest.mark.slow
def test_a_rehearsal_of_the_laptops_file(tmp_path, capsys, monkeypatch):
    words = [f"run={tmp_path / 'mine'}", "generate.engine=builtin", "rollout.prompts=4"]
    assert VERBS["rehearse"]([str(ROOT / "configs/cpu-tiny.yaml"), *words]) == 0
    said = capsys.readouterr().out
    assert "trainer and generator0" in said and "measured" in said
    budget = yaml.safe_load(said[said.index("budget:") :])["budget"]
    ScaleConfig(budget=budget)
    assert budget["update_seconds"] > 0 and budget["mean_tokens"] > 1
    (folder,) = tmp_path.iterdir()
    assert folder.name.startswith("mine-rehearsal-")


def test_a_rehearsal_that_fails_says_where_its_logs_are(tmp_path, monkeypatch, capsys):
    def dies(config, tick):
        raise TooManyDeaths("generator0 died 9 times")

    monkeypatch.setattr("rlbook.scale.launch.rehearse.launch", dies)
    assert rehearse(ScaleConfig(run=str(tmp_path / "mine"))) == 1
    said = capsys.readouterr().err
    assert "generator0 died 9 times" in said and "mine-rehearsal-" in said
