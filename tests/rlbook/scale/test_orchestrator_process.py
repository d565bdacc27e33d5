"""The orchestrator as its own process, killed, with a real generator and real verifiers."""

import json
import os
import random
import subprocess
import sys
import time
import urllib.request

import pytest

from rlbook.durable import replace_text, write_json
from rlbook.jsonl import read_jsonl
from rlbook.scale import batch_log
from rlbook.scale.config import ScaleConfig, dump_config
from rlbook.scale.layout import Layout

pytestmark = pytest.mark.slow

STEPS, PROMPTS, GROUP, RUN_ID = 8, 2, 3, "cafe"
SETTINGS = {
    "steps": STEPS,
    "data": {"pool": 40},
    "rollout": {"prompts": PROMPTS, "group_size": GROUP, "max_new_tokens": 40},
    "optimizer": {"minibatches": 1},
    "evaluation": {"every": 4, "prompts": 3, "samples": 2},
    "generate": {
        "max_staleness": 2,
        "interruption": {"after": 12, "text": "</think><answer>", "answer_tokens": 6},
    },
}


@pytest.fixture
def processes():
    started = []

    def start(module, *arguments, **how):
        command = [sys.executable, "-m", module, *map(str, arguments)]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        started.append(subprocess.Popen(command, env=environment, **how))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def server(processes):
    """URL of a generator with the tiny policy."""
    process = processes(
        *("rlbook.scale.generate.builtin_server", "tiny", "cpu", 128, 0),
        stdout=subprocess.PIPE,
        text=True,
    )
    for line in process.stdout:
        if "ready at " in line:
            return line.split()[-1]
    raise RuntimeError("the generator did not start")


def label(server, version):
    """What the trainer does, without the weights."""
    body = json.dumps({"new_version": f"{RUN_ID}:{version}"}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{server}/update_weight_version", body, headers)
    urllib.request.urlopen(request, timeout=120).read()


@pytest.fixture
def layout(tmp_path, server):
    layout = Layout(tmp_path)
    layout.config.write_text(dump_config(ScaleConfig(run=str(tmp_path), **SETTINGS)))
    replace_text(layout.run_id, RUN_ID)
    write_json(layout.server("generator0"), {"url": server})
    return layout


def wait_for_batch(layout, step, orchestrator):
    deadline = time.monotonic() + 600
    while not batch_log.has_batch(layout, step):
        assert orchestrator.poll() is None, "the orchestrator has ended"
        assert time.monotonic() < deadline, f"no batch {step}"
        time.sleep(0.01)


def test_kill_9_of_the_orchestrator_loses_and_repeats_nothing(processes, layout, server):
    rng, groups = random.Random(0), {}
    start = lambda: processes("rlbook.scale.rollout.orchestrator", layout.root)  # noqa: E731
    orchestrator = start()
    for step in range(STEPS):
        label(server, step)
        wait_for_batch(layout, step, orchestrator)
        if step in (1, 4):
            time.sleep(rng.random() / 10)
            orchestrator.kill()
            orchestrator = start()
        for rollout in batch_log.read_batch(layout, step)[0]:
            assert groups.setdefault(rollout.group, step) == step, "trained twice"
            assert all(0 <= step - version <= 2 for version in rollout.versions)
            assert rollout.forced is None or sum(rollout.forced) == 2
        if step + 1 == STEPS:  # who is done has delivered its last version
            label(server, STEPS)
        write_json(layout.status, {"version": step + 1, "done": step + 1 == STEPS})
    assert orchestrator.wait(timeout=600) == 0
    assert len(groups) == STEPS * PROMPTS
    rows = read_jsonl(layout.log("rollouts"))
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    assert sum(row["interrupted"] for row in rows) > 0
    assert sum(row["verify_timeouts"] + row["verify_errors"] for row in rows) == 0
    evaluations = read_jsonl(layout.log("eval"))
    assert evaluations[-1]["step"] == evaluations[-1]["version_max"] == STEPS
