"""Chapter 18: what a run that was killed twice leaves behind, read from its folder."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from rlbook.evaluation import evaluate, held_out_rollouts
from rlbook.jsonl import read_jsonl
from rlbook.policy import load_policy
from rlbook.scale.layout import Layout
from rlbook.tasks import get_task
from rlbook.training import Rollout

FAMILIES = (2, 3, 4)  # of habits: a bracket, a double minus, plus before times
KILLED = [("generator0", "killed by SIGKILL"), ("trainer", "killed by SIGKILL")]
EXACT = ["loss", "grad_norm", "entropy", "ratio_max", "staleness_mean"]


def events(layout: Layout) -> pd.DataFrame:
    """What the launcher noted: seconds, process, event. Raises `ValueError` for other deaths."""
    noted = read_jsonl(layout.log("events"))
    deaths = [(one["process"], one["reason"]) for one in noted if one["event"] == "death"]
    if deaths != KILLED:
        raise ValueError(f"these died: {deaths}")
    log = pd.DataFrame(noted).assign(seconds=lambda e: (e.time - e.time.min()).round(1))
    log["what"] = log.event.str.cat(log.reason.fillna(""), sep="  ")
    return log[["seconds", "process", "what"]].set_index("seconds")


def replayed(layout: Layout, rows: Sequence[Mapping[str, float]]) -> pd.Series:
    """Whether the log has every update, and how far updates made twice are apart."""
    steps = [row["step"] for row in read_jsonl(layout.log("metrics"))]
    made = pd.DataFrame(rows)
    again = made[made.duplicated("step", keep=False)].groupby("step")
    return pd.Series(
        {
            "updates in the log": steps[-1],
            "without a gap": steps == list(range(1, len(steps) + 1)),
            "some made twice": len(again) > 0,
            "from a checkpoint on": min(again.groups) % 10 == 1,
            "largest difference between the two": again[EXACT].agg(np.ptp).to_numpy().max(),
        }
    )


def checkpoints(layout: Layout) -> pd.DataFrame:
    """pass@1 of the base and of every checkpoint: 64 held-out problems, twice each."""
    policies = {0: "tiny-habits"}
    policies |= {int(path.name[5:]): str(path) for path in sorted(layout.root.glob("step_*"))}
    asked = {"prompts": 64, "n": 2, "levels": FAMILIES}
    habits = get_task("habits")
    return pd.DataFrame(
        {"step": step, **evaluate(load_policy(path), habits, **asked)}
        for step, path in policies.items()
    )


def answers(policy: str | Path) -> list[Rollout]:
    """Two answers of a policy to each of three held-out problems."""
    asked = {"prompts": 3, "n": 2, "levels": FAMILIES}
    return held_out_rollouts(load_policy(str(policy)), get_task("habits"), **asked)
