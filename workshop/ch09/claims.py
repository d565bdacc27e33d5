"""Chapter 09: the tables of evidence that it quotes, each by seed, from committed experiments."""

from typing import Any

import pandas as pd

from rlbook.policy import load_policy
from rlbook.stats import t_interval
from rlbook.stats.intervals import Interval
from workshop.bases.decisions import decisions
from workshop.shared.evidence import batches_until, load_results

ARMS = ["no trust region", "CISPO", "clip-higher 0.28", "clip 0.2"]


def half_times(runs: pd.DataFrame) -> pd.DataFrame:
    """Batches until half of the answers open with `check `: rate and seed by arm of `ARMS`.

    `runs` is the table "rare_opening". Between two batches a straight line.
    """
    start = decisions(*load_policy("tiny"))["opens_careful"]
    return batches_until(runs, "opens_rarely", start=start).unstack("arm")[ARMS]


def times_as_fast(halves: pd.DataFrame, arm: str, lr: float) -> float:
    """How many times CISPO's batches an arm needs at a rate, the mean over seeds."""
    return float(halves[arm].div(halves["CISPO"]).loc[lr].mean())


def passes(runs: pd.DataFrame, arm: str, level: float, lr: float) -> float:
    """Share of an arm's batches at a rate in which the largest ratio passes a level."""
    return float((runs[(runs.arm == arm) & (runs.lr == lr)].ratio_max > level).mean())


def by_seed(runs: pd.DataFrame, *more: str) -> pd.DataFrame:
    """pass@1 of the trained policies: a row per seed, a column per arm (and per `more`)."""
    return runs.pivot_table("pass@1", "seed", ["arm", *more] if more else "arm")


def gap(table: pd.DataFrame, arm: Any, against: Any) -> Interval:
    """Paired difference of two columns of a table by seed, with its 95 % interval."""
    return t_interval((table[arm] - table[against]).dropna().to_numpy())


def clip_at_one_rate(lr: float = 2e-4) -> Interval:
    """On old samples, chapter 11's experiment: the clip at μ less CISPO, both at one rate."""
    runs = pd.concat([load_results(f"mask_old_{part}") for part in ("eval", "second")])
    return gap(by_seed(runs[runs["lr"] == lr]), "clip at μ", "CISPO")


def widths(sweep: pd.DataFrame) -> pd.DataFrame:
    """GSPO's held-out pass@1 by window and learning rate: the tuning runs, two seeds each."""
    return sweep[sweep.arm == "gspo"].pivot_table("pass@1", "width", "lr")
