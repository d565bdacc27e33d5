"""Which differences between training runs are larger than the difference between seeds?"""

from collections.abc import Mapping, Sequence
from statistics import stdev
from typing import Any

from rlbook.extras import require
from rlbook.stats.intervals import t_interval

Runs = Mapping[str, Mapping[int, float]]


def paired_differences(
    runs: Runs, against: str, level: float = 0.95, arms: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """Every arm minus the arm `against`, seed by seed: mean, t interval, and whether it is real.

    `runs[arm][seed]` is the result of one run. The interval of each row has the given level by
    itself; `real` asks more: that the difference survives Holm's correction for all rows, so that
    among true zeros the chance of *any* false `real` is at most 1 − level. Rows are sorted by
    mean. `detectable` is what a comparison with this scatter would have found four times in five.
    Raises `ValueError` for an unknown arm or fewer than two common seeds, and `ImportError`
    without scipy.
    """
    require("stats", "scipy")
    from scipy.stats import ttest_1samp

    if against not in runs:
        raise ValueError(f"no arm {against!r}; there are {', '.join(runs)}")
    rows: list[dict[str, Any]] = []
    for arm in arms or [name for name in runs if name != against]:
        seeds = sorted(runs[arm].keys() & runs[against].keys())
        if len(seeds) < 2:
            raise ValueError(f"{arm!r} and {against!r} share {len(seeds)} seeds: need at least 2")
        differences = [runs[arm][seed] - runs[against][seed] for seed in seeds]
        spread = max(differences) > min(differences)
        p = ttest_1samp(differences, 0.0).pvalue if spread else float(differences[0] == 0)
        mean, low, high = (float(x) for x in t_interval(differences, level))
        row = {"arm": arm, "seeds": len(seeds), "mean": mean, "low": low, "high": high, "p": p}
        rows.append(row | {"detectable": detectable_difference(differences, level)})
    for row, keep in zip(rows, holm([row["p"] for row in rows], 1 - level), strict=True):
        row["real"] = keep
    return sorted(rows, key=lambda row: -row["mean"])


def detectable_difference(
    differences: Sequence[float], level: float = 0.95, power: float = 0.8
) -> float:
    """The true mean that a t test on as many pairs, with this scatter, finds with this power.

    δ with P(T² > F_level(1, S − 1)) = power, T² noncentral F with 1 and S − 1 degrees of freedom
    and noncentrality δ² S / s²; s is the standard deviation of the S differences. A smaller true
    difference is more likely missed than that: what "no difference" has left open. Raises
    `ValueError` for fewer than two differences, and `ImportError` without scipy.
    """
    require("stats", "scipy")
    from scipy.optimize import brentq
    from scipy.special import fdtri, ncfdtr

    freedom = len(differences) - 1
    if freedom < 1:
        raise ValueError(f"power needs the scatter of at least 2 differences, got {freedom + 1}")
    edge = fdtri(1, freedom, level)

    def excess(shift: float) -> float:
        return float(1 - ncfdtr(1, freedom, shift**2, edge)) - power

    shift = brentq(excess, 0.0, 2 * edge**0.5 + 10)
    return float(shift * stdev(differences) / len(differences) ** 0.5)


def holm(p_values: Sequence[float], alpha: float = 0.05) -> list[bool]:
    """Which hypotheses fall at family-wise error `alpha`, by Holm's step-down procedure (1979)."""
    rejected, order = (
        [False] * len(p_values),
        sorted(range(len(p_values)), key=p_values.__getitem__),
    )
    for rank, index in enumerate(order):
        if p_values[index] > alpha / (len(p_values) - rank):
            break
        rejected[index] = True
    return rejected
