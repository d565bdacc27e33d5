"""The whole step against TRL: sampling, verification, advantages, updates; and what is learned."""

import subprocess
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from statistics import fmean, median, quantiles

from rlbook.bench.flops import step_flops
from rlbook.bench.record import Skipped
from rlbook.bench.timing import gemm_multiplication, spread, timed
from rlbook.bench.trl_program import trl_python
from rlbook.bench.worker import Worker
from rlbook.bench.workload import Workload, setting
from rlbook.manifest import run_as_data
from rlbook.policy import load_policy

PROGRAMS = ("trl", "rlbook")
METHODS = {"smoke": ("grpo",), "full": ("grpo", "dapo")}
COMPLETIONS = {"smoke": (16,), "full": (32, 128, 512)}
TURNS = {"smoke": {16: 1}, "full": {32: 13, 128: 9, 512: 5}}
SEEDS = {"smoke": (0, 1), "full": (0, 1, 2, 3)}
LEARNING_STEPS = {"smoke": 2, "full": 15}


def run(size: str) -> list[dict]:
    """One row per method, completions per step and program: medians over steps done in turns.

    `speedup` is the median of TRL's seconds by ours over pairs of neighbouring steps, `_low` and
    `_high` its quartiles. `share_of_limit` is the time the step's operations would take at the
    best rate of `torch.mm`, divided by the time taken. `peak_mib` is the process's resident memory,
    `idle_mib` what it held before its first step: the libraries and the model.
    """
    python = find_trl()
    cases = [(m, n) for m in METHODS[size] for n in COMPLETIONS[size]]
    return [row for m, n in cases for row in _compare(python, m, n, TURNS[size][n])]


def run_learning(size: str) -> list[dict]:
    """Reward curves of both programs on the same prompts: one row per method, seed and step.

    `accuracy` is the share of right completions in the step's own rollouts.
    """
    python, steps = find_trl(), LEARNING_STEPS[size]
    completions = COMPLETIONS[size][-1] if size == "smoke" else 128
    rows = []
    for method in METHODS[size]:
        for seed in SEEDS[size]:
            workload = setting(method, completions=completions, steps=steps, seed=seed)
            rows += _curves(python, workload)
    return rows


def arms(size: str) -> dict[str, dict]:
    """What each method's runs are, as data: the method whole, of the settings those of its own."""
    return {name: run_as_data(setting(name).config) for name in METHODS[size]}


@cache
def find_trl() -> str:
    """The interpreter that has TRL; raises `Skipped` with the way to get one."""
    python = trl_python()
    if python is None:
        raise Skipped("there is no environment with TRL: `make trl`, or set RLBOOK_TRL_PYTHON")
    done = subprocess.run([python, "-c", "import trl, rlbook"], capture_output=True, text=True)
    if done.returncode:
        raise Skipped(f"{python} cannot import trl and rlbook: {done.stderr.strip()[-200:]}")
    return python


def _compare(python: str, method: str, completions: int, turns: int) -> list[dict]:
    workload = setting(method, completions=completions, steps=turns + 1)
    (_, *pairs), rate = in_turns(python, workload)
    ratios = [trl["seconds"] / ours["seconds"] for trl, ours in pairs]
    low, _, high = quantiles(ratios, n=4, method="inclusive") if turns > 1 else 3 * ratios
    speedups = {"trl": (1.0, 1.0, 1.0), "rlbook": (median(ratios), low, high)}
    head = {"method": method, "updates": workload.updates, "completions": completions}
    return [
        head
        | {"program": program, "turns": turns}
        | _summary(steps, workload.group_size, rate)
        | dict(zip(("speedup", "speedup_low", "speedup_high"), speedups[program], strict=True))
        for program, steps in zip(PROGRAMS, zip(*pairs, strict=True), strict=True)
    ]


def _summary(steps: Sequence[dict], group: int, rate: float) -> dict[str, float]:
    model, _ = load_policy("tiny")
    ideal = [step_flops(model, step["lengths"], group) / rate / step["seconds"] for step in steps]
    tokens = [sum(length for _, length in step["lengths"]) for step in steps]
    speed = [count / step["seconds"] for count, step in zip(tokens, steps, strict=True)]
    return (
        spread([step["seconds"] for step in steps])
        | {"cpu_seconds": median(step["cpu_seconds"] for step in steps)}
        | {"tokens": round(fmean(tokens)), "tokens_per_second": median(speed)}
        | {"share_of_limit": median(ideal)}
        | {name: steps[-1][name] for name in ("peak_mib", "idle_mib")}
    )


def _curves(python: str, workload: Workload) -> list[dict]:
    pairs, _ = in_turns(python, workload)
    return [
        {"method": workload.method, "program": program, "seed": workload.seed, "step": step}
        | {"accuracy": report["accuracy"], "seconds": report["seconds"]}
        for step, pair in enumerate(pairs, start=1)
        for program, report in zip(PROGRAMS, pair, strict=True)
    ]


def in_turns(python: str, workload: Workload) -> tuple[list[tuple[dict, dict]], float]:
    """Reports of TRL's and our steps, side by side, and the best rate of `torch.mm` meanwhile.

    While one works, the other waits.
    """
    longer = replace(workload, steps=workload.steps + 1)  # nobody ends while the other is measured
    gemm, flops = gemm_multiplication()
    pairs, seconds = [], []
    with Worker("trl", longer, python) as trl, Worker("rlbook", longer) as ours:
        for _ in range(workload.steps):
            pairs.append((trl.step(), ours.step()))
            seconds.append(timed(gemm))
    return pairs, flops / min(seconds)
