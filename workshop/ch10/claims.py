"""Chapter 10: what its recorded experiments say, a table each."""

from collections.abc import Mapping

import pandas as pd

from rlbook.stats import Interval, t_interval
from workshop.ch10.figures import half_times
from workshop.shared.evidence import batches_until, load_results

TRAINED_EARLY = (6, 15)  # batches


def minus(gap: Interval) -> dict[str, float]:
    """MaxRL minus RLOO with its interval, as columns."""
    return {"MaxRL − RLOO": gap.mean.item(), "low": gap.low.item(), "high": gap.high.item()}


def rare_rules(steps: pd.DataFrame, families: Mapping[int, str]) -> pd.DataFrame:
    """Batches until the first right answer and until half are right, a row per family.

    Means over seeds, and RLOO minus MaxRL seed by seed. `families` names levels of `habits`.
    """
    rows = {}
    for level, family in families.items():
        column = f"accuracy_level_{level}"
        first = batches_until(steps, column, 0, runs=("seed", "arm")).unstack("arm")
        half = half_times(steps, column)
        row = {("first success", arm): first[arm].mean() for arm in ("RLOO", "MaxRL")}
        row |= {("half are right", arm): half[arm].mean() for arm in ("RLOO", "MaxRL")}
        gap = t_interval(half["RLOO"] - half["MaxRL"])
        names = ("RLOO − MaxRL", "low", "high")
        rows[family] = row | {("half are right", n): x for n, x in zip(names, gap, strict=True)}
    return pd.DataFrame(rows).T


def equal_rates() -> pd.DataFrame:
    """Batches 6 to 15 at one and the same learning rate, from `habits_rates`.

    Shares of powers that begin by the right rule and of plain sums that are right: RLOO, MaxRL, and
    MaxRL minus RLOO over ten seeds.
    """
    steps = load_results("habits_rates")
    early = steps[steps["step"].between(*TRAINED_EARLY)]
    columns = {"powers by the right rule": "right_rule_level_5", "plain sums": "accuracy_level_1"}
    rows = {}
    for lr, of_rate in early.groupby("lr"):
        for what, column in columns.items():
            by_seed = of_rate.pivot_table(values=column, index="seed", columns="arm")
            gap = t_interval(by_seed["MaxRL"] - by_seed["RLOO"])
            rows[what, lr] = {**by_seed.mean()[["RLOO", "MaxRL"]], **minus(gap)}
    return pd.DataFrame(rows).T.sort_index()


def own_rates() -> Interval:
    """MaxRL minus RLOO, both with a mean over tokens and at their own best of three rates.

    Held-out pass@1 on habits after forty batches, ten seeds, from `habits_sigma`.
    """
    final = load_results("habits_sigma_eval").set_index(["arm", "seed"])["pass@1"]
    return t_interval(final["MaxRL, mean over tokens"] - final["RLOO, mean over tokens"])


def election(final: pd.DataFrame) -> pd.DataFrame:
    """pass@k and guesses of every arm where all share one opening; MaxRL minus RLOO by seed.

    A row per learning rate and measure. Raises `ValueError` where MaxRL does not pay at one try,
    or does not lead at sixteen.
    """
    rows = {}
    for lr, runs in final.groupby("lr"):
        for k in ("pass@1", "pass@16", "pass@64", "share_direct"):
            by_seed = runs.pivot(index="seed", columns="arm", values=k).fillna(0)  # no guess at all
            gap = t_interval(by_seed["MaxRL"] - by_seed["RLOO"])
            if not (gap.high < 0 if k == "pass@1" else gap.low > 0):
                raise ValueError(f"MaxRL minus RLOO, {k} at lr {lr:g}: {minus(gap)}")
            name = "guesses" if k == "share_direct" else k
            rows[name, lr] = {**by_seed.mean(), **minus(gap)}
    return pd.DataFrame(rows).T
