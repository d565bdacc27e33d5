"""A short run whose processes are killed; `python -m rlbook.scale.chaos` is the long one."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from rlbook.scale.chaos import Chaos, broken_promises, children, survivors
from rlbook.scale.config import ScaleConfig
from rlbook.scale.layout import Layout, write_json
from rlbook.scale.spool import write_batch
from rlbook.tasks import Problem
from rlbook.training import Rollout

CONFIG = Path(__file__).parents[2] / "configs" / "cpu-tiny.yaml"
SMALL = (
    "generate.engine=builtin",
    "steps=12",
    "rollout.prompts=4",
    "rollout.group_size=4",
    "rollout.max_new_tokens=32",
    "checkpoint.every=4",
    "evaluation.every=0",
    "launch.grace=3",
)
SLEEP = [sys.executable, "-S", "-c", "import time; print(flush=True); time.sleep(60)"]


@pytest.mark.slow
def test_nothing_is_lost_whoever_is_killed(tmp_path):
    """Seed 5 kills a trainer rank, a generator and the orchestrator."""
    chaos = Chaos(CONFIG, tmp_path / "run", seed=5, overrides=SMALL)
    assert chaos.run(seconds=180, pause=(0.1, 0.5), patience=180, kills=3) == []
    assert chaos.killed == {"rank": 1, "generator": 1, "orchestrator": 1}


def rollout(ticket):
    return Rollout(Problem("p", "1+1=?", "2"), ticket, [1], [2, 3], [0.0, 0.0], [0, 0], "stop", "2")


@pytest.fixture
def run(tmp_path):
    """The folder of a run of two steps that kept every promise, and copies of its batches."""
    layout, kept = Layout(tmp_path), Layout(tmp_path / "kept")
    write_json(layout.status, {"version": 2, "done": True})
    for name in ("metrics", "rollouts"):
        rows = [{"step": step, "staleness_max": 1.0} for step in (1, 2)]
        layout.log(name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_batch(kept, 0, [rollout(0), rollout(0), rollout(2)], {})
    write_batch(kept, 1, [rollout(1), rollout(3)], {})
    checkpoint = layout.checkpoints / "step_000002"
    checkpoint.mkdir(parents=True)
    save_file({"w": torch.ones(3), "step": torch.tensor(2)}, checkpoint / "rank_00000.safetensors")
    return layout, kept


CONFIGURED = ScaleConfig(steps=2, minibatches=1, max_staleness=1)


def broken(run):
    return list(broken_promises(*run, CONFIGURED))


def test_kept_promises(run):
    assert broken(run) == []


def test_a_run_that_ends_too_early(run):
    write_json(run[0].status, {"version": 1, "done": True})
    assert broken(run) == ["the run ends with status {'version': 1, 'done': True}"]


@pytest.mark.parametrize("steps", [[1], [1, 1, 2], [2, 1], []])
@pytest.mark.parametrize("name", ["metrics", "rollouts"])
def test_an_update_lost_repeated_or_misplaced(name, steps, run):
    rows = [{"step": step, "staleness_max": 0} for step in steps]
    run[0].log(name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert broken(run) == [f"{name}.jsonl has the steps {steps}"]


def test_a_token_that_is_too_old(run):
    run[0].log("metrics").write_text(
        '{"step": 1, "staleness_max": 1}\n{"step": 2, "staleness_max": 2}\n'
    )
    assert broken(run) == ["update 2 trained tokens of staleness 2"]


def test_a_prompt_trained_twice(run):
    shutil.rmtree(run[1].batch(1))
    write_batch(run[1], 1, [rollout(2), rollout(3)], {})
    assert broken(run) == ["ticket 2 is in batches 0 and 1"]


def test_a_batch_nobody_saw(run):
    run[1].batch(1).rename(run[1].root / "elsewhere")
    assert broken(run) == ["batches [1] were never seen"]


def test_weights_that_are_not_finite(run):
    folder = run[0].checkpoints / "step_000002"
    save_file({"w": torch.tensor([1.0, torch.nan])}, folder / "rank_00000.safetensors")
    assert broken(run) == ["rank_00000.safetensors: w is not finite"]
    (folder / "rank_00000.safetensors").unlink()
    assert broken(run) == ["no checkpoint of step 2"]


def test_a_batch_written_twice_is_noticed(run, tmp_path):
    chaos = Chaos(CONFIG, tmp_path / "run", seed=0)
    write_batch(chaos.layout, 0, [rollout(0)], {})
    chaos.keep_batches()
    chaos.keep_batches()
    assert not chaos.replaced
    shutil.rmtree(chaos.layout.batch(0))
    write_batch(chaos.layout, 0, [rollout(0)], {})
    chaos.keep_batches()
    assert chaos.replaced == {0}


def test_survivors_are_found(tmp_path):
    sleep = [*SLEEP, str(tmp_path / "run")]
    with subprocess.Popen(sleep, stdout=subprocess.PIPE) as process:
        try:
            process.stdout.readline()  # before a program has started, its command line is empty
            assert survivors(tmp_path / "run") == [process.pid]
        finally:
            process.kill()
    assert survivors(tmp_path / "run") == []


def test_victims_are_our_own(tmp_path):
    """A file of process ids outlives the processes: another program may have theirs by now."""
    chaos = Chaos(CONFIG, tmp_path / "run", seed=0)
    with subprocess.Popen(SLEEP) as process:
        try:
            assert process.pid in children(os.getpid())
            chaos.launcher = process  # which has started nobody
            write_json(chaos.layout.processes, {"generator0": process.pid, "trainer": os.getpid()})
            found = {kind: chaos.pids(kind) for kind in ("generator", "rank", "torchrun")}
            assert found == {"generator": [], "rank": [], "torchrun": []}
            assert chaos.pids("launcher") == [process.pid]
        finally:
            process.kill()
