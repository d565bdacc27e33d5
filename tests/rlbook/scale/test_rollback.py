"""Going back to an older checkpoint: what stays, what goes, and that the run goes on from there."""

import re

import pytest

from rlbook.durable import CHECKSUMS, checksums, read_json, replace_text, write_json
from rlbook.jsonl import read_jsonl
from rlbook.scale import batch_log
from rlbook.scale.config import ScaleConfig, dump_config
from rlbook.scale.launch import start
from rlbook.scale.launch.start import roll_back
from rlbook.scale.layout import ROLLED_BACK, Layout, check_same_settings
from rlbook.training.checkpoint import LATEST


def checkpoint(layout, step):
    folder = layout.checkpoints / f"step_{step:06d}"
    write_json(folder / "orchestrator.json", {"step": step - 1})
    (folder / "model.safetensors").write_bytes(bytes([step]) * 100)
    write_json(folder / CHECKSUMS, checksums(folder))
    return folder


@pytest.fixture
def layout(tmp_path):
    """Checkpoints of updates 2, 4 and 6, batches for eight, logs of seven, told to end at 8."""
    layout = Layout(tmp_path)
    for step in (2, 4, 6):
        checkpoint(layout, step)
    (layout.checkpoints / LATEST).write_text("step_000006\n")
    for step in range(2, 8):
        batch_log.write_batch(layout, step, [], {"step": step})
    batch_log.end_log(layout, 8, "all problems are retired")
    for name in ("metrics", "eval"):
        layout.log(name).write_text("".join(f'{{"step": {i}}}\n' for i in range(1, 8)))
    write_json(layout.status, {"version": 7, "done": True})
    return layout


def test_the_run_is_as_it_was_after_that_update(layout):
    roll_back(layout, 4)
    assert (layout.checkpoints / LATEST).read_text() == "step_000004\n"
    assert batch_log.published(layout) == [2, 3] and batch_log.log_end(layout) == {}
    assert batch_log.newest_state(layout)[0] == 4
    assert (layout.checkpoints / "step_000006.undone/model.safetensors").is_file()
    for name in ("metrics", "eval"):
        assert [row["step"] for row in read_jsonl(layout.log(name))] == [1, 2, 3, 4]
    status = read_json(layout.status)
    assert (status["version"], status["done"]) == (4, False)
    assert not layout.log("samples").exists()


def test_to_the_oldest_checkpoint_whose_batches_are_gone(layout):
    roll_back(layout, 2)
    assert batch_log.published(layout) == []
    assert batch_log.newest_state(layout) == (2, {"step": 1})


def test_twice(layout):
    roll_back(layout, 4)
    checkpoint(layout, 6)
    roll_back(layout, 4)
    assert (layout.checkpoints / "step_000006.undone").is_dir()


def test_other_settings_are_refused_before_anything_is_touched(layout, monkeypatch):
    """All but the learning rate, which is what a run that went wrong may need."""
    config = ScaleConfig(run=str(layout.root), steps=8, generate={"engine": "builtin"})
    replace_text(layout.config, dump_config(config))
    monkeypatch.setattr(start, "check_start", lambda config: 100)
    monkeypatch.setattr(start, "preload", lambda: None)
    before = {*layout.root.rglob("*"), layout.root / ".lock"}
    with pytest.raises(ValueError, match=r"other settings \(optimizer\.warmup was"):
        start.launch(config.replace(warmup=7), rollback=4)
    assert set(layout.root.rglob("*")) == before
    slower = config.replace(lr=config.optimizer.lr / 2)
    with pytest.raises(ValueError, match=r"optimizer\.lr was"):
        check_same_settings(layout, slower)
    check_same_settings(layout, slower, *ROLLED_BACK)


@pytest.mark.parametrize(
    ("step", "message"), [(5, r"no checkpoint of update 5: it has 2, 4, 6"), (4, "damaged")]
)
def test_what_cannot_be_gone_back_to_is_named_and_nothing_is_touched(layout, step, message):
    (layout.checkpoints / "step_000004" / "model.safetensors").write_bytes(b"other")
    before = {path.relative_to(layout.root) for path in layout.root.rglob("*")}
    with pytest.raises(ValueError, match=message):
        roll_back(layout, step)
    assert {path.relative_to(layout.root) for path in layout.root.rglob("*")} == before
    assert re.fullmatch("step_000006\n", (layout.checkpoints / LATEST).read_text())
