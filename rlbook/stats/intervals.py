"""How sure a number is: intervals over seeds, prompts and proportions."""

from collections.abc import Callable
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from rlbook.extras import require

__all__ = ["Interval", "bootstrap_interval", "t_interval", "wilson_interval"]


class Interval(NamedTuple):
    """An estimate with the bounds of its confidence interval; floats, or arrays of one shape."""

    mean: np.ndarray | float
    low: np.ndarray | float
    high: np.ndarray | float


def t_interval(values: ArrayLike, level: float = 0.95) -> Interval:
    """Mean over runs with Student's t interval, x̄ ± t_{S-1} s / √S.

    `values` is (S, ...), one row per seed; s has S - 1 in its denominator. With few seeds the
    quantile is much wider than 1.96 (5 seeds: 2.78). Assumes roughly normal run-to-run scatter.
    Raises `ValueError` for fewer than two seeds: one run carries no spread,
    and `ImportError` without scipy.
    """
    require("stats", "scipy")
    from scipy.stats import t

    values = _rows(values, "seeds")
    seeds = len(values)
    half = t.ppf((1 + level) / 2, seeds - 1) * values.std(axis=0, ddof=1) / np.sqrt(seeds)
    mean = values.mean(axis=0)
    return Interval(mean, mean - half, mean + half)


def bootstrap_interval(
    values: ArrayLike,
    statistic: Callable[..., np.ndarray] = np.mean,
    level: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> Interval:
    """Percentile interval of `statistic(rows, axis=…)` under resampling of the rows of `values`.

    `values` is (N, ...); a row (a prompt, say) is drawn whole, with replacement, so everything
    measured on it stays together. Mean is the statistic of the data itself. Same seed, same
    interval. How hard a prompt is cancels in the interval of `after - before`, rows of two
    policies on the same prompts. Raises `ValueError` for fewer than two rows. Source: Efron 1979.
    """
    values = _rows(values, "rows")
    rng = np.random.default_rng(seed)
    picks = rng.integers(len(values), size=(resamples, len(values)))
    draws = np.stack([statistic(values[pick], axis=0) for pick in picks])
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return Interval(statistic(values, axis=0), low, high)


def wilson_interval(successes: ArrayLike, trials: ArrayLike, level: float = 0.95) -> Interval:
    """Interval for a proportion that stays inside [0, 1] and is sensible at 0 and n successes.

    centre = (p̂ + z²/2n) / (1 + z²/n),  half = z √(p̂(1-p̂)/n + z²/4n²) / (1 + z²/n)

    `mean` is p̂ itself, not the centre. Raises `ValueError` unless 0 ≤ successes ≤ trials and
    trials ≥ 1. Source: Wilson 1927.
    """
    successes, trials = np.asarray(successes, dtype=float), np.asarray(trials, dtype=float)
    if ((successes < 0) | (successes > trials) | (trials < 1)).any():
        raise ValueError("a proportion needs 0 ≤ successes ≤ trials and trials ≥ 1")
    p, z2 = successes / trials, NormalDist().inv_cdf((1 + level) / 2) ** 2
    shrink = 1 + z2 / trials
    centre = (p + z2 / (2 * trials)) / shrink
    half = np.sqrt(z2 * (p * (1 - p) / trials + z2 / (4 * trials**2))) / shrink
    return Interval(p, centre - half, centre + half)


def _rows(values: ArrayLike, what: str) -> np.ndarray:
    values = np.asarray(values, dtype=float)
    if values.ndim < 1 or len(values) < 2:
        raise ValueError(f"an interval needs at least two {what}, got shape {values.shape}")
    return values
