"""A step of an older rlbook against today's, both with default settings.

`RLBOOK_OLDER=<clone of the older version> python -m workshop bench versions`.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from rlbook.paths import ROOT
from rlbook.training import RunConfig, Trainer
from workshop.bench.record import Skipped
from workshop.bench.timing import speedup
from workshop.bench.worker import Worker
from workshop.bench.workload import UPDATES_AND_LR, Workload

METHODS = ("grpo", "dr_grpo")  # rows without a filter: every step learns from all it samples
UPDATES = dict(zip(METHODS, UPDATES_AND_LR.values(), strict=True))
TURNS = {"smoke": {32: 1}, "full": {32: 13, 128: 9, 512: 5}}  # by completions a step
TRAINED = {"smoke": 2, "full": 40}
PARTS = ("step", "sampling", "learning")


def run(size: str) -> list[dict]:
    """One row per method, completions a step, steps trained before, and part of the step.

    `older` and `today` are CPU seconds, medians over steps done in turns; `speedup` is the median
    of the first by the second over pairs of neighbouring steps, `_low` and `_high` its quartiles.
    One optimizer update a step, or four. `commit` is the older version's.
    """
    older = find_older()
    commit = ["git", "-C", str(older), "rev-parse", "--short=12", "HEAD"]
    head = {"commit": subprocess.run(commit, capture_output=True, text=True).stdout.strip()}
    rows = []
    with TemporaryDirectory() as folder:
        for method in METHODS:
            for trained in (0, TRAINED[size]):
                policy = train(method, trained, Path(folder)) if trained else "tiny"
                for completions, turns in TURNS[size].items():
                    run = settings(method, completions, policy=policy, seed=int(trained > 0))
                    facts = {"method": method, "updates": UPDATES[method][0]}
                    facts |= {"completions": completions, "trained": trained}
                    rows += [head | facts | row for row in compare(older, run, turns)]
    return rows


def find_older() -> Path:
    """The clone named by `RLBOOK_OLDER`; raises `Skipped` where there is none."""
    if not (given := os.environ.get("RLBOOK_OLDER")):
        raise Skipped("no older version to compare with: RLBOOK_OLDER=<its clone>")
    if not (Path(given) / "rlbook/training").is_dir():
        raise Skipped(f"RLBOOK_OLDER={given} is no clone of rlbook")
    return Path(given).resolve()


def settings(method: str, completions: int, **changes) -> dict:
    """`RunConfig`'s arguments that every version knows."""
    updates, lr = UPDATES[method]
    group = Workload().group_size
    return {
        "method": method,
        "steps": 1000,
        "prompts": completions // group,
        "group_size": group,
        "minibatches": updates,
        "lr": lr,
    } | changes


def train(method: str, steps: int, folder: Path) -> str:
    """A folder with the policy after some steps of 128 completions."""
    trainer = Trainer(RunConfig(**settings(method, 128) | {"steps": steps}))
    for _ in trainer:
        pass
    path = folder / f"{method}-{steps}"
    trainer.model.save_pretrained(path)
    trainer.tokenizer.save_pretrained(path)
    return str(path)


def compare(older: Path, run: dict, turns: int) -> list[dict]:
    """Rows for the whole step, its sampling and its learning, of the two versions in turns."""
    with version(older, run) as before, version(ROOT, run) as now:
        before.step(), now.step()
        pairs = [(before.step(), now.step()) for _ in range(turns)]
    rows = []
    for part in PARTS:
        seconds = [tuple(taken(report, part) for report in pair) for pair in pairs]
        rows.append(
            {"part": part, "turns": turns}
            | {"older": median(a for a, _ in seconds), "today": median(b for _, b in seconds)}
            | dict(zip(("speedup", "speedup_low", "speedup_high"), speedup(seconds), strict=True))
            | {
                f"{name}_mib": reports[-1]["peak_mib"]
                for name, reports in zip(("older", "today"), zip(*pairs, strict=True), strict=True)
            }
        )
    return rows


def taken(report: dict, part: str) -> float:
    """Seconds of a part of the step, or of all of it."""
    return report["sampling"] + report["learning"] if part == "step" else report[part]


def version(clone: Path, run: dict) -> Worker:
    """A process that does steps of the rlbook in a clone."""
    program = Path(__file__).with_name("version_program.py")
    command = [sys.executable, str(program), json.dumps(run)]
    return Worker(str(clone), command, os.environ | {"PYTHONPATH": str(clone)})
