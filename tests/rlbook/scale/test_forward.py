"""Rows of all logs reach the sinks, each once, whoever is killed and started again."""

import pytest

from rlbook.scale.launch.start import roll_back
from rlbook.scale.layout import Layout
from rlbook.training import RunLog, sinks
from rlbook.training.sinks import Forward


class Told(list):
    """A sink that is told (log, row)."""

    closed = False

    def __call__(self, log, row):
        self.append((log, row.get("set"), row["step"]))

    def close(self):
        self.closed = True


@pytest.fixture
def layout(tmp_path):
    for name in ("metrics", "rollouts", "samples"):
        log = RunLog(tmp_path, name=name)
        for step in (1, 2):
            log({"step": step})
    log = RunLog(tmp_path, name="eval")
    for row in ({"step": 0}, {"step": 0, "set": "aime"}, {"step": 2, "set": "aime"}):
        log(row)
    return Layout(tmp_path)


ALL = [
    *(("metrics", None, 1), ("metrics", None, 2), ("rollouts", None, 1), ("rollouts", None, 2)),
    *(("eval", None, 0), ("eval", "aime", 0), ("eval", "aime", 2)),
]


@pytest.fixture
def told(monkeypatch):
    monkeypatch.setattr(sinks, "SECONDS", 0.0)
    told = Told()
    monkeypatch.setattr(sinks, "Sinks", lambda names, folder: told)
    return told


def forward(layout):
    return Forward(["trackio"], layout.root)


def test_rows_of_trainer_orchestrator_and_evaluations_are_sent_once(layout, told):
    send = forward(layout)
    send()
    send()
    assert told == ALL
    resumed = RunLog(layout.root, resume_step=1)  # a trainer that makes update 2 again
    resumed({"step": 2})
    resumed({"step": 3})
    forward(layout)()  # another launcher
    assert told == [*ALL, ("metrics", None, 3)]


def test_what_a_rollback_forgets_is_sent_again(layout, told, monkeypatch):
    forward(layout)()
    monkeypatch.setattr("rlbook.scale.launch.start.damage", lambda folder: None)
    (layout.checkpoints / "step_000001").mkdir()
    roll_back(layout, 1)
    RunLog(layout.root, resume_step=1)({"step": 2})
    forward(layout)()
    assert told == [*ALL, ("metrics", None, 2)]


def test_a_service_that_fails_is_asked_again(layout, told):
    def fails(log, row):
        raise ConnectionError("no route to host")

    send = forward(layout)
    send.sinks = fails
    with pytest.warns(RuntimeWarning, match="no route to host"):
        send()
    send.sinks = told
    send()
    assert told == ALL


def test_the_rest_is_sent_at_the_end(layout, told, monkeypatch):
    monkeypatch.setattr(sinks, "SECONDS", 3600.0)
    with forward(layout) as send:
        send()
        RunLog(layout.root, resume_step=9)({"step": 3})
        send()  # too soon to look again
        assert told == ALL
    assert told == [*ALL, ("metrics", None, 3)] and told.closed


def test_a_run_that_fails_sends_no_more_and_closes(layout, told):
    with pytest.raises(RuntimeError, match="died"), forward(layout):
        raise RuntimeError("died")
    assert told == [] and told.closed


def test_without_sinks_nothing_is_read(tmp_path):
    with Forward([], tmp_path / "nowhere") as send:
        send()
    assert not (tmp_path / "nowhere").exists()
