"""The whole step against TRL: sampling, verification, advantages, updates; and what is learned."""

import subprocess
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from statistics import fmean, median
from tempfile import TemporaryDirectory

from rlbook.manifest import run_as_data
from rlbook.policy import load_policy
from rlbook.training import Trainer
from workshop.bench.flops import distinct_step_flops, step_flops
from workshop.bench.record import Skipped
from workshop.bench.timing import gemm_multiplication, speedup, spread, timed
from workshop.bench.trl_program import trl_python
from workshop.bench.worker import Worker
from workshop.bench.workload import Workload, setting

PROGRAMS = ("trl", "rlbook")
METHODS = {"smoke": ("grpo",), "full": ("grpo", "dapo")}
COMPLETIONS = {"smoke": (16,), "full": (32, 128, 512)}
TURNS = {"smoke": {16: 1}, "full": {32: 13, 128: 9, 512: 5}}
LATE_TURNS = {"smoke": 1, "full": 25}  # a late step is short: nine of them told 5 from 7 no more
SEEDS = {"smoke": (0, 1), "full": (0, 1, 2, 3)}
TRAINED = {"smoke": 2, "full": 40}
LEARNING_STEPS = {"smoke": 2, "full": 15}


def run(size: str) -> list[dict]:
    """One row per method, completions per step and program: medians over steps done in turns.

    `speedup` is the median of TRL's seconds by ours over pairs of neighbouring steps, `_low` and
    `_high` its quartiles. `share_of_limit` is the time the operations on all the step's tokens
    would take at the best rate of `torch.mm`, divided by the time taken; `share_of_distinct` counts
    those on distinct prefixes only, which is what cannot be avoided. `peak_mib` is the process's
    resident memory, `idle_mib` what it held before its first step: the libraries and the model.
    `old_logprobs` says which of the two compute π_old in a pass of its own.
    """
    python = find_trl()
    cases = [
        (setting(m, completions=n), TURNS[size][n])
        for m in METHODS[size]
        for n in COMPLETIONS[size]
    ]
    return [row for workload, turns in cases for row in _compare(python, workload, turns)]


def run_late(size: str) -> list[dict]:
    """`run` at one number of completions, with a policy that has learned for `trained` steps.

    Its answers are more alike, so that more of them is computed once: ratios of a first batch are
    not those of a run.
    """
    python, completions, rows = find_trl(), COMPLETIONS[size][len(COMPLETIONS[size]) // 2], []
    for method in METHODS[size]:
        with TemporaryDirectory() as folder:
            trained = replace(setting(method, completions=completions), steps=TRAINED[size])
            trainer = Trainer(trained.config)
            list(trainer)
            trainer.model.save_pretrained(folder)
            trainer.tokenizer.save_pretrained(folder)
            late = replace(trained, policy=folder, seed=1)  # other prompts than it has learned on
            pairs = _compare(python, late, LATE_TURNS[size])
            rows += [{"trained": trained.steps} | row for row in pairs]
    return rows


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
    done = subprocess.run([python, "-c", "import trl, workshop"], capture_output=True, text=True)
    if done.returncode:
        raise Skipped(f"{python} cannot import trl and workshop: {done.stderr.strip()[-200:]}")
    return python


def _compare(python: str, workload: Workload, turns: int) -> list[dict]:
    (_, *pairs), rate = in_turns(python, replace(workload, steps=turns + 1))
    ours_by_trl = speedup([(trl["seconds"], ours["seconds"]) for trl, ours in pairs])
    speedups = {"trl": (1.0, 1.0, 1.0), "rlbook": ours_by_trl}
    head = {name: getattr(workload, name) for name in ("method", "updates", "completions")}
    return [
        head
        | {"old_logprobs": workload.recompute, "program": program, "turns": turns}
        | _summary(workload, steps, rate)
        | dict(zip(("speedup", "speedup_low", "speedup_high"), speedups[program], strict=True))
        for program, steps in zip(PROGRAMS, zip(*pairs, strict=True), strict=True)
    ]


def _summary(workload: Workload, steps: Sequence[dict], rate: float) -> dict[str, float]:
    model, _ = load_policy(workload.policy)
    counted = {
        "share_of_limit": partial(step_flops, group_size=workload.group_size),
        "share_of_distinct": distinct_step_flops,
    }
    shares = {
        name: median(flops(model, s["sequences"]) / rate / s["seconds"] for s in steps)
        for name, flops in counted.items()
    }
    tokens = [sum(len(new) for _, new in step["sequences"]) for step in steps]
    speed = [count / step["seconds"] for count, step in zip(tokens, steps, strict=True)]
    return (
        spread([step["seconds"] for step in steps])
        | {"cpu_seconds": median(step["cpu_seconds"] for step in steps)}
        | {"tokens": round(fmean(tokens)), "tokens_per_second": median(speed)}
        | shares
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
    with Worker.of("trl", longer, python) as trl, Worker.of("rlbook", longer) as ours:
        for _ in range(workload.steps):
            pairs.append((trl.step(), ours.step()))
            seconds.append(timed(gemm))
    return pairs, flops / min(seconds)
