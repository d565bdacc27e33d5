import json
import random

import pytest

from rlbook.durable import damage
from rlbook.scale import batch_log
from rlbook.scale.layout import Layout
from rlbook.tasks import Problem
from rlbook.training import Rollout


@pytest.fixture
def layout(tmp_path):
    return Layout(tmp_path)


def rollout(length, group=3, seed=0, **changes):
    rng = random.Random(seed)
    logps = [-rng.randrange(1 << 20) / (1 << 16) for _ in range(length)]  # exact in float32
    fields = {
        "problem": Problem(f"p{group}", "1+1=?", "2", level=2, meta={"index": 4, "lang": "π"}),
        "group": group,
        "prompt_ids": [1, 9, 10 + group],
        "token_ids": [rng.randrange(200_000) for _ in range(length)],
        "logps": logps,
        "versions": sorted(rng.randrange(9) for _ in range(length)),
        "finish_reason": "stop",
        "text": "2+2=4; „gut“\n",
        "correct": True,
        "format_ok": False,
        "rewards": {"answer": 0.1, "overlong": -0.25},
    }
    return Rollout(**fields | changes)


ROLLOUTS = [
    rollout(5, seed=1),
    rollout(1, seed=2, finish_reason="length", correct=False),
    rollout(4, group=8, seed=3, forced=[False, True, True, False]),
]


def test_a_batch_comes_back_as_it_was_written(layout):
    state = {"pool": {"drawn": 3, "memory": {"p3": [1, 2]}}, "open": {"17": "p8"}}
    batch_log.write_batch(layout, 12, ROLLOUTS, state)
    assert batch_log.read_batch(layout, 12) == (ROLLOUTS, state)


def test_a_batch_is_json_and_safetensors(layout):
    folder = batch_log.write_batch(layout, 0, ROLLOUTS, {})
    assert {p.name for p in folder.iterdir()} == {
        "tokens.safetensors",
        "rollouts.json",
        "state.json",
        "checksums.json",
    }
    assert "token_ids" not in json.loads((folder / "rollouts.json").read_text())["rollouts"][0]


def flip(path):
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])


def cut(path):
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("hurt", [flip, cut])
@pytest.mark.parametrize("name", ["tokens.safetensors", "rollouts.json", "state.json"])
def test_a_damaged_batch_is_neither_trained_nor_gone_on_from(layout, name, hurt):
    batch_log.write_batch(layout, 0, ROLLOUTS, {"step": 0})
    folder = batch_log.write_batch(layout, 1, ROLLOUTS, {"step": 1})
    hurt(folder / name)
    for use in (lambda: batch_log.read_batch(layout, 1), lambda: batch_log.newest_state(layout)):
        with pytest.raises(
            batch_log.DamagedBatch, match=rf"batch_000001 is damaged .*{name}.*rollback"
        ):
            use()
    assert batch_log.read_batch(layout, 0) == (ROLLOUTS, {"step": 0})


def test_the_log_knows_what_it_holds(layout):
    assert batch_log.published(layout) == []
    for step in (0, 1, 2, 10):
        batch_log.write_batch(layout, step, ROLLOUTS[:1], {"step": step})
    (layout.batches / ".batch_000099.123.partial").mkdir()
    assert batch_log.published(layout) == [0, 1, 2, 10]
    assert batch_log.has_batch(layout, 2) and not batch_log.has_batch(layout, 3)
    batch_log.prune(layout, 2)
    assert batch_log.published(layout) == [2, 10]
    with pytest.raises(FileNotFoundError, match=r"no batch 1 in .*\[2, 10\]"):
        batch_log.read_batch(layout, 1)


def test_a_batch_that_is_pruned_while_it_is_read_is_gone_not_damaged(layout, monkeypatch):
    batch_log.write_batch(layout, 0, ROLLOUTS, {"step": 0})

    def pruned_meanwhile(folder):
        batch_log.prune(layout, 1)
        return damage(folder)

    monkeypatch.setattr(batch_log, "damage", pruned_meanwhile)
    with pytest.raises(FileNotFoundError, match="no batch 0"):
        batch_log.read_batch(layout, 0)
    assert batch_log.newest_state(layout) == (0, None)


def test_a_published_batch_is_never_replaced(layout):
    batch_log.write_batch(layout, 0, ROLLOUTS, {"step": 0})
    with pytest.raises(FileExistsError, match=r"batch 0 .*another orchestrator"):
        batch_log.write_batch(layout, 0, ROLLOUTS[:1], {"step": 0})
    assert batch_log.read_batch(layout, 0)[0] == ROLLOUTS


def test_pruning_killed_half_way_leaves_no_half_batch(layout, monkeypatch):
    for step in range(3):
        batch_log.write_batch(layout, step, ROLLOUTS[:1], {})

    def killed(path, **how):
        next(path.iterdir()).unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(batch_log.shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            batch_log.prune(layout, 2)
    for step in batch_log.published(layout):
        assert batch_log.read_batch(layout, step)[0] == ROLLOUTS[:1]
    batch_log.prune(layout, 2)
    assert [p.name for p in layout.batches.iterdir()] == ["batch_000002"]


def test_pruning_gets_past_what_a_crash_left_of_a_batch_of_that_number(layout):
    batch_log.write_batch(layout, 0, ROLLOUTS[:1], {})
    left = layout.batches / ".batch_000000.pruned"
    left.mkdir()
    (left / "state.json").write_text("{}")
    batch_log.prune(layout, 1)
    assert list(layout.batches.iterdir()) == []


def test_a_crash_while_writing_publishes_nothing(layout, monkeypatch):
    def full_disk(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("rlbook.training.packing.save_file", full_disk)
    with pytest.raises(OSError, match="No space left"):
        batch_log.write_batch(layout, 0, ROLLOUTS, {})
    assert batch_log.published(layout) == []
    assert list(layout.batches.iterdir()) == []


def test_the_end_is_announced_with_a_reason(layout):
    assert batch_log.log_end(layout) == {}
    batch_log.end_log(layout, 7, "all problems are retired")
    assert batch_log.log_end(layout) == {
        "version": 7,
        "reason": "all problems are retired",
        "failed": False,
    }
