"""Chapter 11: what its recorded experiments say, by seed; what a mismatch does to long answers."""

from math import exp, pi

import pandas as pd

from rlbook.policy import load_policy
from rlbook.stats import Interval, t_interval
from workshop.bases.decisions import decisions
from workshop.shared.evidence import AGE_AND_ROUGHNESS, batches_until, load_results

ARMS = ["no trust region", "DPPO", "CISPO", "clip-higher 0.28", "clip 0.2"]


def ends() -> dict[str, pd.DataFrame]:
    """Held-out pass@1 by world: a row per seed, a column per region at its own best rate."""
    runs = {world: load_results(f"{name}_eval") for world, name in AGE_AND_ROUGHNESS.items()}
    return {world: table.pivot(index="seed", columns="arm", values="pass@1")
            for world, table in runs.items()}  # fmt: skip


def gap(table: pd.DataFrame, arm: str, against: str) -> Interval:
    """Paired difference of two columns of a table by seed, with its 95 % interval."""
    return t_interval((table[arm] - table[against]).to_numpy())


def half_times(runs: pd.DataFrame) -> pd.DataFrame:
    """Batches until half of the answers open with `check `: rate and seed by arm of `ARMS`.

    `runs` is the table "rare_opening". Between two batches a straight line.
    """
    start = decisions(*load_policy("tiny"))["opens_careful"]
    return batches_until(runs, "opens_rarely", start=start).unstack("arm")[ARMS]


def effective_share(mismatch: float, tokens: int) -> float:
    """Share of a batch that is left, in effect, under the weights of whole answers.

    exp(−σ²T), the effective sample size of log-normal weights, if the log-ratios of T tokens are
    normal and independent with mean absolute value `mismatch`, so that σ = mismatch √(π/2).
    """
    return exp(-(mismatch**2) * pi / 2 * tokens)
