"""How reward grows with compute: ScaleRL's sigmoid, its fit, its uncertainty, its predictions.

Compute may be counted in any unit (GPU-hours, updates, tokens) as long as C_mid uses the same one.
Chapter 17.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy.optimize import least_squares
from scipy.special import expit

from rlbook.stats.intervals import Interval

__all__ = ["Bootstrap", "Fit", "Sigmoid", "bootstrap_sigmoid", "fit_sigmoid"]

EXPONENTS = np.geomspace(0.05, 20, 60)
HIGHEST = 1.0  # that a pass rate can be, and so its asymptote


@dataclass(frozen=True)
class Sigmoid:
    """Reward rises from R_0 to the asymptote A; half the way is done at C_mid.

    R_C = R_0 + (A - R_0) / (1 + (C_mid / C)^B)

    A and R_0 are rewards, C_mid is compute, B > 0 says how steep the rise is on a logarithmic
    axis. Raises `ValueError` unless B and C_mid are positive. Source: Khatri et al. 2025,
    arXiv:2510.13786, equation 1. Chapter 17.
    """

    A: float
    B: float
    C_mid: float
    R_0: float

    def __post_init__(self) -> None:
        if not (self.B > 0 and self.C_mid > 0):
            raise ValueError(f"B and C_mid must be positive, got B={self.B}, C_mid={self.C_mid}")

    def __call__(self, compute: ArrayLike) -> np.ndarray:
        return self.R_0 + (self.A - self.R_0) * self.gain(compute)

    def gain(self, compute: ArrayLike) -> np.ndarray:
        """Share of the way from R_0 to A, in [0, 1]."""
        return _rise(compute, self.B, self.C_mid)

    def compute_for(self, reward: ArrayLike) -> np.ndarray:
        """The compute at which the curve reaches a reward; nan outside (R_0, A).

        C^B = C_mid^B / ((A - R_0) / (R - R_0) - 1), so log C^B over log C is a line of slope B.
        """
        share = (np.asarray(reward, dtype=float) - self.R_0) / (self.A - self.R_0)
        share = np.where((share > 0) & (share < 1), share, np.nan)
        return self.C_mid * (share / (1 - share)) ** (1 / self.B)


@dataclass(frozen=True)
class Fit:
    """A fitted curve, its sum of squared errors and the number of points it was fitted to."""

    curve: Sigmoid
    sse: float
    points: int

    @property
    def rmse(self) -> float:
        """Root of the mean squared error on the fitted points, in units of reward."""
        return float(np.sqrt(self.sse / self.points))


def fit_sigmoid(
    compute: ArrayLike,
    reward: ArrayLike,
    R_0: float | None,
    start: float = 0.0,
    stop: float = np.inf,
    A: float | None = None,
) -> Fit:
    """Least-squares sigmoid through the points with start ≤ C ≤ stop, 0 ≤ A ≤ 1 and B > 0.

    min over B, C_mid (and over A and R_0, where they are None) of Σ (R_i - R_{C_i})²

    Given B and C_mid the model is linear, so those two are searched on a grid with the rest in
    closed form; then the best eight are improved in all parameters at once. Raises `ValueError`
    for fewer points than parameters. Source: arXiv:2510.13786, equation 1. Chapter 17.
    """
    free = free_parameters(A, R_0)
    compute, reward = points_within(compute, reward, start, stop, len(free))
    midpoints = np.geomspace(compute[0] / 10, compute[-1] * 10, 80)
    B, C_mid = (x.ravel() for x in np.meshgrid(EXPONENTS, midpoints))
    rises = _rise(compute, B[:, None], C_mid[:, None])
    high, low = _linear_ends(rises, reward, A, R_0)
    errors = ((low[:, None] + (high - low)[:, None] * rises - reward) ** 2).sum(1)
    best = np.argsort(errors)[:8]
    starts = [Sigmoid(*map(float, (high[i], B[i], C_mid[i], low[i]))) for i in best]
    return min((polish(compute, reward, curve, free) for curve in starts), key=lambda fit: fit.sse)


@dataclass(frozen=True)
class Bootstrap:
    """A fitted curve and the curves that other draws of the noise would have given."""

    curve: Sigmoid
    replicas: tuple[Sigmoid, ...]

    def interval(self, parameter: str, level: float = 0.95) -> Interval:
        """Percentile interval of "A", "B", "C_mid" or "R_0"; `mean` is the fit itself."""
        draws = [getattr(replica, parameter) for replica in self.replicas]
        tail = (1 - level) / 2
        return Interval(getattr(self.curve, parameter), *np.quantile(draws, [tail, 1 - tail]))

    def band(self, compute: ArrayLike, level: float = 0.95) -> Interval:
        """Pointwise interval of the curve, not of new evaluations on it."""
        draws = [replica(compute) for replica in self.replicas]
        tail = (1 - level) / 2
        return Interval(self.curve(compute), *np.quantile(draws, [tail, 1 - tail], axis=0))


def bootstrap_sigmoid(
    compute: ArrayLike,
    reward: ArrayLike,
    R_0: float | None,
    start: float = 0.0,
    stop: float = np.inf,
    resamples: int = 200,
    seed: int = 0,
) -> Bootstrap:
    """Uncertainty of `fit_sigmoid` from the scatter of the points around the curve.

    R*_i = R_{C_i} + e_j √(n / (n - p)),  e_j a residual drawn with replacement, centred

    for n points and p parameters; every R* is fitted again, from the first fit. It knows only the
    noise *within* one run: what another seed of the whole training would change takes several
    runs to see. Source: Efron 1979. Chapter 17.
    """
    fit, free = fit_sigmoid(compute, reward, R_0, start, stop), free_parameters(None, R_0)
    compute, reward = points_within(compute, reward, start, stop, len(free) + 1)
    residuals = reward - fit.curve(compute)
    residuals = (residuals - residuals.mean()) * np.sqrt(len(reward) / (len(reward) - len(free)))
    draws = np.random.default_rng(seed).choice(residuals, (resamples, len(reward)))
    means = fit.curve(compute)
    fits = (polish(compute, means + draw, fit.curve, free) for draw in draws)
    return Bootstrap(fit.curve, tuple(replica.curve for replica in fits))


def _rise(compute: ArrayLike, B: ArrayLike, C_mid: ArrayLike) -> np.ndarray:
    """1 / (1 + (C_mid / C)^B), 0 at C = 0."""
    with np.errstate(divide="ignore"):
        return np.asarray(expit(B * np.log(np.asarray(compute, dtype=float) / C_mid)))


def free_parameters(A: float | None, R_0: float | None) -> tuple[str, ...]:
    """Names of the parameters that a fit has to find."""
    given = {"A": A, "R_0": R_0}
    return tuple(name for name in ("A", "B", "C_mid", "R_0") if given.get(name) is None)


def _linear_ends(
    rises: Float[np.ndarray, "M N"],
    reward: Float[np.ndarray, " N"],
    A: float | None,
    R_0: float | None,
) -> tuple[Float[np.ndarray, " M"], Float[np.ndarray, " M"]]:
    """Least-squares A, clipped to [0, 1], and R_0 for each row of rises, where not given."""
    if A is None and R_0 is None:
        deviation = rises - rises.mean(1, keepdims=True)
        height = (deviation @ reward) / np.maximum((deviation**2).sum(1), 1e-300)
        low = reward.mean() - height * rises.mean(1)
    elif A is None:
        low = np.full(len(rises), R_0)
        height = (rises @ (reward - R_0)) / np.maximum((rises**2).sum(1), 1e-300)
    else:
        left = 1 - rises
        found = A - (left * (A - reward)).sum(1) / np.maximum((left**2).sum(1), 1e-300)
        return np.full(len(rises), float(A)), found if R_0 is None else np.full(len(rises), R_0)
    return np.clip(low + height, 0, 1), low


def polish(
    compute: Float[np.ndarray, " N"],
    reward: Float[np.ndarray, " N"],
    curve: Sigmoid,
    free: Sequence[str],
) -> Fit:
    """The local optimum next to `curve` over the parameters that `free` names, 0 ≤ A ≤ 1.

    C_mid stays within a factor of a thousand of the points: they tell nothing of any farther one.
    """
    logs = {"B": np.log(curve.B), "C_mid": np.log(curve.C_mid)}
    given = {"A": curve.A, "R_0": curve.R_0, **logs}
    reach = np.log([compute[compute > 0].min() / 1000, compute.max() * 1000])
    ranges = {"A": (0, HIGHEST), "B": (-5, 5), "C_mid": tuple(reach)}
    inside = given | {"A": np.clip(curve.A, 1e-6, 1 - 1e-6)}
    inside |= {name: np.clip(inside[name], *ranges[name]) for name in logs}

    def sigmoid(x: np.ndarray) -> Sigmoid:
        values = given | dict(zip(free, x, strict=True))
        return Sigmoid(values["A"], exp(values["B"]), exp(values["C_mid"]), values["R_0"])

    found = least_squares(
        lambda x: sigmoid(x)(compute) - reward,
        [inside[name] for name in free],
        bounds=np.array([ranges.get(name, (-np.inf, np.inf)) for name in free]).T,
        x_scale="jac",
        xtol=1e-15,
        ftol=1e-15,
        gtol=1e-15,
    )
    return Fit(sigmoid(found.x.tolist()), float(2 * found.cost), len(reward))


def points_within(
    compute: ArrayLike, reward: ArrayLike, start: float, stop: float, needed: int
) -> tuple[Float[np.ndarray, " N"], Float[np.ndarray, " N"]]:
    """The points with start ≤ C ≤ stop, by rising compute; C = 0 tells a fit nothing but R_0."""
    compute, reward = np.asarray(compute, dtype=float), np.asarray(reward, dtype=float)
    if compute.shape != reward.shape or compute.ndim != 1:
        raise ValueError(
            f"one reward per compute is needed, got shapes {compute.shape} and {reward.shape}"
        )
    if not (np.isfinite(compute).all() and np.isfinite(reward).all()):
        raise ValueError("compute and reward must be finite: drop missing evaluations first")
    order = np.argsort(compute, kind="stable")
    order = order[(compute[order] >= start) & (compute[order] <= stop) & (compute[order] > 0)]
    if len(order) < needed:
        raise ValueError(
            f"{len(order)} points with compute in [{start:g}, {stop:g}]: need at least {needed}"
        )
    return compute[order], reward[order]
