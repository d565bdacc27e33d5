"""Rows of all logs reach the sinks, each once, whoever is killed and started again."""

import pytest

from rlbook.scale.config import ScaleConfig
from rlbook.scale.launch import progress
from rlbook.scale.launch.progress import Forward, forwarding
from rlbook.scale.launch.start import roll_back
from rlbook.scale.layout import Layout
from rlbook.training import RunLog


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


def test_rows_of_trainer_orchestrator_and_evaluations_are_sent_once(layout):
    told = Told()
    forward = Forward(layout, told)
    forward()
    forward()
    assert told == ALL
    resumed = RunLog(layout.root, resume_step=1)  # a trainer that makes update 2 again
    resumed({"step": 2})
    resumed({"step": 3})
    Forward(layout, told)()  # another launcher
    assert told == [*ALL, ("metrics", None, 3)]


def test_what_a_rollback_forgets_is_sent_again(layout, monkeypatch):
    told = Told()
    Forward(layout, told)()
    monkeypatch.setattr("rlbook.scale.launch.start.damage", lambda folder: None)
    (layout.checkpoints / "step_000001").mkdir()
    roll_back(layout, 1)
    RunLog(layout.root, resume_step=1)({"step": 2})
    Forward(layout, told)()
    assert told == [*ALL, ("metrics", None, 2)]


def test_a_service_that_fails_is_asked_again(layout, monkeypatch):
    class Failing(Told):
        fails = True

        def __call__(self, log, row):
            if self.fails:
                raise ConnectionError("no route to host")
            super().__call__(log, row)

    monkeypatch.setattr(progress, "SECONDS", 0.0)
    told = Failing()
    sends = Forward(layout, told)
    with pytest.warns(RuntimeWarning, match="no route to host"):
        sends.now_and_then()
    told.fails = False
    sends.now_and_then()
    assert told == ALL


def test_the_rest_is_sent_at_the_end(layout, monkeypatch):
    told = Told()
    monkeypatch.setattr(progress, "Sinks", lambda names, folder: told)
    with forwarding(ScaleConfig(sinks=["trackio"]), layout) as send:
        send()
        RunLog(layout.root, resume_step=9)({"step": 3})
        send()  # too soon to look again
        assert told == ALL
    assert told == [*ALL, ("metrics", None, 3)] and told.closed


def test_without_sinks_nothing_is_read(tmp_path):
    with forwarding(ScaleConfig(), Layout(tmp_path / "nowhere")) as send:
        send()
    assert not (tmp_path / "nowhere").exists()
