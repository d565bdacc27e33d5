"""Compute curves of recipes that were run with several seeds: what the scatter between runs says.

A recipe maps each of its seeds to the points of that run. Chapter 17.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from math import comb
from typing import NamedTuple
from zlib import crc32

import numpy as np
from jaxtyping import Float, Int

from rlbook.scaling.compute_curves import (
    HIGHEST,
    Bootstrap,
    Fit,
    Sigmoid,
    fit_sigmoid,
    free_parameters,
    polish,
)
from rlbook.stats.intervals import Interval

__all__ = ["Points", "bootstrap_common_asymptote", "bootstrap_seeds", "difference"]
__all__ += ["distinct_draws", "fit_common_asymptote", "open_end"]


class Points(NamedTuple):
    """Compute and reward of one run's evaluations."""

    compute: Float[np.ndarray, " N"]
    reward: Float[np.ndarray, " N"]


Recipe = Mapping[int | str, Points]


def pooled(runs: Recipe) -> Points:
    """All points of all seeds; a least-squares curve through them is one through their means."""
    return Points(*(np.concatenate(parts) for parts in zip(*runs.values(), strict=True)))


def fit_common_asymptote(recipes: Mapping[str, Recipe], R_0: float | None) -> dict[str, Fit]:
    """B and C_mid of every recipe with one A for all: the mean of those they have by themselves.

    How ScaleRL compares the efficiency of recipes whose A agree within 0.02; while A
    is free, B is traded against it. Source: arXiv:2510.13786, section 5. Chapter 17.
    """
    points = {name: pooled(runs) for name, runs in recipes.items()}
    A = float(np.mean([fit_sigmoid(*p, R_0).curve.A for p in points.values()]))
    return {name: fit_sigmoid(*p, R_0, A=A) for name, p in points.items()}


def bootstrap_seeds(
    runs: Recipe, R_0: float | None, resamples: int = 200, seed: int = 0
) -> Bootstrap:
    """Uncertainty of a recipe's curve from which seeds happened to be run.

    Whole runs are drawn with replacement and pooled, and the curve is fitted again, from the one
    through all of them. Recipes with the same seeds get the same draws, so that what a seed means
    for both (its problems, say) cancels in their `difference`.

    S seeds can be drawn in `distinct_draws(S)` ways only: with three the ends of an interval are
    hardly more than the extreme seeds. Raises `ValueError` for a single run. Source: Efron 1979.
    Chapter 17.
    """
    whole = fit_sigmoid(*pooled(runs), R_0).curve
    draws = _draws(runs, resamples, seed)
    fitted = cache(lambda picks: _refit(runs, picks, whole, None, R_0))
    return Bootstrap(whole, tuple(fitted(picks) for picks in draws))


def bootstrap_common_asymptote(
    recipes: Mapping[str, Recipe], R_0: float | None, resamples: int = 200, seed: int = 0
) -> dict[str, Bootstrap]:
    """`bootstrap_seeds` of `fit_common_asymptote`: in every draw the A of all is their mean in it.

    Raises `ValueError` for a recipe with a single run. Chapter 17.
    """
    free = {name: bootstrap_seeds(runs, R_0, resamples, seed) for name, runs in recipes.items()}
    asymptotes = np.mean([[r.A for r in boot.replicas] for boot in free.values()], axis=0).tolist()
    common = {}
    for name, fit in fit_common_asymptote(recipes, R_0).items():
        runs, curve = recipes[name], fit.curve
        fitted = cache(lambda picks, A, runs=runs, curve=curve: _refit(runs, picks, curve, A, R_0))
        draws = zip(_draws(runs, resamples, seed), asymptotes, strict=True)
        common[name] = Bootstrap(curve, tuple(fitted(picks, A) for picks, A in draws))
    return common


def difference(one: Bootstrap, other: Bootstrap, parameter: str, level: float = 0.95) -> Interval:
    """Percentile interval of `one`'s parameter minus `other`'s, draw by draw.

    Raises `ValueError` for different numbers of draws.
    """
    if len(one.replicas) != len(other.replicas):
        raise ValueError(f"{len(one.replicas)} draws against {len(other.replicas)}: take as many")

    def minus(a: Sigmoid, b: Sigmoid) -> float:
        return float(getattr(a, parameter) - getattr(b, parameter))

    draws = [minus(a, b) for a, b in zip(one.replicas, other.replicas, strict=True)]
    tail = (1 - level) / 2
    low, high = np.quantile(draws, [tail, 1 - tail])
    return Interval(minus(one.curve, other.curve), low, high)


def distinct_draws(seeds: int) -> int:
    """In how many ways as many runs can be drawn from `seeds` with replacement: C(2S - 1, S)."""
    return comb(2 * seeds - 1, seeds)


def open_end(boot: Bootstrap, last: float, widest: float = 0.2) -> str | None:
    """Why points up to compute `last` do not tell where the curve ends; None if they do.

    Before the curve bends, A and C_mid are traded for each other, and any A will do. So the points
    have to reach beyond every C_mid that they allow, and the interval of A may be no wider than
    `widest` of the rise from R_0 that they have seen. An interval that reaches 1 tells nothing: a
    fit looks no further.
    """
    A, C_mid = boot.interval("A"), boot.interval("C_mid")
    rise = float(boot.curve(last)) - boot.curve.R_0
    if rise <= 0:
        return f"the reward has not risen: {boot.curve.R_0:.3f} at the start, {rise:+.3f} since"
    if C_mid.high > last:
        return f"the midpoint may lie at {C_mid.high:.3g}, beyond the last point at {last:.3g}"
    if A.high > HIGHEST - 1e-3:
        return f"A may lie anywhere from {A.low:.3f}, and a fit looks no further than {HIGHEST:g}"
    if A.high - A.low > widest * rise:
        return (
            f"A may lie anywhere from {A.low:.3f} to {A.high:.3f}, and the points have seen a "
            f"rise of {rise:.3f}"
        )
    return None


def _draws(runs: Recipe, resamples: int, seed: int) -> list[tuple[int, ...]]:
    """Positions of the drawn runs, the same for all recipes that have the same seeds."""
    if len(runs) < 2:
        raise ValueError(f"a bootstrap over seeds needs at least two runs, got {len(runs)}")
    rng = np.random.default_rng([seed, crc32(repr(sorted(map(str, runs))).encode())])
    picks: Int[np.ndarray, "D S"] = rng.integers(len(runs), size=(resamples, len(runs)))
    return [tuple(row) for row in np.sort(picks, axis=1).tolist()]


def _refit(
    runs: Recipe, picks: tuple[int, ...], curve: Sigmoid, A: float | None, R_0: float | None
) -> Sigmoid:
    seeds = sorted(runs, key=str)
    points = pooled({i: runs[seeds[pick]] for i, pick in enumerate(picks)})
    start = curve if A is None else replace(curve, A=A)
    return polish(*points, start, free_parameters(A, R_0)).curve
