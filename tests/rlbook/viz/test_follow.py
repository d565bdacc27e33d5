"""Reading along while a run is being written, killed and replayed."""

import json

from rlbook.scale.layout import Layout
from rlbook.training import RunLog
from rlbook.viz.run_record import follow


def test_rows_come_as_they_are_written_and_replayed_updates_once_more(tmp_path):
    layout = Layout(tmp_path)
    sampled = RunLog(tmp_path, name="rollouts")
    for step in range(1, 5):
        sampled({"step": step, "accuracy": step / 10})
    rows, came = follow(layout, lambda: len(came) < 5, seconds=0), []

    trainer = RunLog(tmp_path)
    for step in (1, 2, 3):
        trainer({"step": step, "staleness_mean": 1.0})
        came.append(next(rows))
    trainer.path.open("a").write('{"step": 4, "stale')  # killed while writing
    trainer = RunLog(tmp_path, resume_step=1)  # from its checkpoint of version 1
    for step in (2, 3, 4):
        trainer({"step": step, "staleness_mean": 2.0, "mismatch_fresh": float("nan")})
    came += rows

    assert [row["step"] for row in came] == [1, 2, 3, 2, 3, 4]
    assert [row["accuracy"] for row in came] == [0.1, 0.2, 0.3, 0.2, 0.3, 0.4]
    assert [row["staleness_mean"] for row in came] == [1.0, 1.0, 1.0, 2.0, 2.0, 2.0]


def test_a_run_that_never_started_has_no_rows(tmp_path):
    assert list(follow(Layout(tmp_path / "nothing"), lambda: False)) == []


def test_half_a_row_is_not_a_row(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 1}) + "\n" + '{"step": 2')
    assert list(follow(Layout(tmp_path), lambda: False)) == [{"step": 1}]
