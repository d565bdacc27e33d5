"""ScaleRL's published curves, its own way to fit them, and the curves it compares them with.

`rlbook.scaling` fits the sigmoid that a run of one's own needs; this is what chapter 17 asks of it.
"""

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp
from typing import Any, NamedTuple, Protocol

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy.optimize import minimize_scalar
from scipy.special import expit

from rlbook.paths import data_dir
from rlbook.scaling import Fit, Sigmoid, fit_sigmoid
from rlbook.scaling.compute_curves import points_within

PAPER_ASYMPTOTES = np.linspace(0.45, 0.80, 71)
PAPER_MIDPOINTS = np.linspace(100, 40_000, 100)
ASYMPTOTE_MARGIN = 0.02  # of A between repeated ScaleRL runs, as the paper uses it
INFERRED_R_0 = 0.38  # not published: the value with which A.4's power laws come out as printed


class Curve(Protocol):
    """Reward as a function of compute."""

    @property
    def A(self) -> float:
        """The reward it tends to."""

    def __call__(self, compute: ArrayLike) -> np.ndarray: ...


@dataclass(frozen=True)
class SaturatingPowerLaw:
    """R_C = A - D / C^B: what the sigmoid becomes far beyond C_mid, with D = (A - R_0) C_mid^B.

    It has no start: near C = 0 it falls without bound. Chapter 17.
    """

    A: float
    D: float
    B: float

    def __call__(self, compute: ArrayLike) -> np.ndarray:
        with np.errstate(divide="ignore"):
            return self.A - self.D * np.asarray(compute, dtype=float) ** -self.B


@dataclass(frozen=True)
class PowerLaw:
    """R_C = R_0 + D C^B: what the sigmoid is far before C_mid; it never saturates. Chapter 17."""

    D: float
    B: float
    R_0: float
    A: float = float("inf")

    def __call__(self, compute: ArrayLike) -> np.ndarray:
        return self.R_0 + self.D * np.asarray(compute, dtype=float) ** self.B


class CurveFit(NamedTuple):
    """A curve of another family, its sum of squared errors and the number of points fitted."""

    curve: Curve
    sse: float
    points: int

    @property
    def rmse(self) -> float:
        """Root of the mean squared error on the fitted points, in units of reward."""
        return float(np.sqrt(self.sse / self.points))


def published_curves(R_0: float = INFERRED_R_0) -> dict[str, Sigmoid]:
    """The ten sigmoids of ScaleRL's Table 1, C in GPU-hours.

    R_0 is an argument because the paper does not print it; the default is inferred.
    Source: Khatri et al. 2025, arXiv:2510.13786, Table 1. Chapter 17.
    """
    table = tomllib.loads((data_dir() / "scalerl_curves.toml").read_text())
    return {name: Sigmoid(**row, R_0=R_0) for name, row in table["curves"].items()}


def fit_sigmoid_grid(
    compute: ArrayLike,
    reward: ArrayLike,
    R_0: float,
    start: float = 0.0,
    stop: float = np.inf,
    asymptotes: ArrayLike = PAPER_ASYMPTOTES,
    midpoints: ArrayLike = PAPER_MIDPOINTS,
    iterations: int = 40,
) -> Fit:
    """The paper's procedure: for every A and C_mid on a grid fit B alone, keep the best triple.

    B ← B + Σ e d / Σ d²,  e = R - R_C,  d = ∂R_C / ∂B     (Gauss-Newton from B = 1, all pairs at
    once; a step that does not lower the error is halved)

    The defaults are the grid the paper states; its published C_mid lie on finer ones, hence the
    arguments. One asymptote refits B with A held, which is how the paper compares runs whose A
    agree within the margin. Source: arXiv:2510.13786, appendix A.5. Chapter 17.
    """
    compute, reward = points_within(compute, reward, start, stop, 1)
    A, C_mid = (x[..., None] for x in np.meshgrid(asymptotes, midpoints, indexing="ij"))
    logs = np.log(compute / C_mid)
    B, step = np.ones_like(A), np.ones_like(A)

    def errors_at(B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rise = expit(B * logs)
        errors = reward - R_0 - (A - R_0) * rise
        return errors, (A - R_0) * logs * rise * (1 - rise)

    errors, slope = errors_at(B)
    for _ in range(iterations):
        move = (errors * slope).sum(-1, keepdims=True)
        move /= np.maximum((slope**2).sum(-1, keepdims=True), 1e-300)
        trial = B + step * move.clip(-B / 2, B)
        new_errors, new_slope = errors_at(trial)
        better = (new_errors**2).sum(-1, keepdims=True) < (errors**2).sum(-1, keepdims=True)
        B = np.where(better, trial, B)
        errors, slope = np.where(better, new_errors, errors), np.where(better, new_slope, slope)
        step = np.where(better, np.minimum(1.0, 2 * step), step / 2)
    sse = (errors**2).sum(-1)
    i, j = np.unravel_index(sse.argmin(), sse.shape)
    curve = Sigmoid(float(A[i, j, 0]), float(B[i, j, 0]), float(C_mid[i, j, 0]), R_0)
    return Fit(curve, float(sse[i, j]), len(reward))


def fit_saturating_power_law(
    compute: ArrayLike, reward: ArrayLike, start: float = 0.0, stop: float = np.inf
) -> CurveFit:
    """Least-squares A - D / C^B with A ≤ 1; A and D in closed form for every B. Chapter 17.

    Source: the comparison of arXiv:2510.13786, appendix A.4.
    """
    compute, reward = points_within(compute, reward, start, stop, 3)
    reference = np.exp(np.log(compute).mean())  # keeps C^-B near 1 for every B

    def solve(log_b: float) -> tuple[float, float, float]:
        falls = (compute / reference) ** -exp(log_b)
        D, A = np.polyfit(-falls, reward, 1)
        if A > 1:
            A, D = 1.0, falls @ (1 - reward) / (falls @ falls)
        return float(((A - D * falls - reward) ** 2).sum()), float(A), float(D)

    log_b = minimise(lambda x: solve(x)[0])
    sse, A, D = solve(log_b)
    B = exp(log_b)
    return CurveFit(SaturatingPowerLaw(A, float(D * reference**B), B), sse, len(reward))


def fit_power_law(
    compute: ArrayLike, reward: ArrayLike, R_0: float, start: float = 0.0, stop: float = np.inf
) -> CurveFit:
    """Least-squares R_0 + D C^B, D in closed form for every B. Chapter 17."""
    compute, reward = points_within(compute, reward, start, stop, 2)
    reference = np.exp(np.log(compute).mean())

    def solve(log_b: float) -> tuple[float, float]:
        rises = (compute / reference) ** exp(log_b)
        D = rises @ (reward - R_0) / (rises @ rises)
        return float(((R_0 + D * rises - reward) ** 2).sum()), float(D)

    log_b = minimise(lambda x: solve(x)[0])
    sse, D = solve(log_b)
    B = exp(log_b)
    return CurveFit(PowerLaw(float(D * reference**-B), B, R_0), sse, len(reward))


@dataclass(frozen=True, eq=False)
class Extrapolation:
    """A curve fitted on the first part of a run against what the rest of the run measured."""

    fit: Fit | CurveFit
    compute: Float[np.ndarray, " N"]
    predicted: Float[np.ndarray, " N"]
    observed: Float[np.ndarray, " N"]

    @property
    def rmse(self) -> float:
        """Root mean squared error on the points that were not fitted."""
        return float(np.sqrt(((self.predicted - self.observed) ** 2).mean()))

    @property
    def bias(self) -> float:
        """Mean of predicted minus observed: positive if the curve promised too much."""
        return float((self.predicted - self.observed).mean())


def extrapolate(
    fit: Callable[..., Fit | CurveFit],
    compute: ArrayLike,
    reward: ArrayLike,
    stop: float,
    start: float = 0.0,
    **settings: Any,
) -> Extrapolation:
    """Fit on start ≤ C ≤ stop with `fit`, predict every point with C > stop.

    Raises `ValueError` if nothing is left to predict. Chapter 17.
    """
    fitted = fit(compute, reward, start=start, stop=stop, **settings)
    compute, reward = points_within(compute, reward, np.nextafter(stop, np.inf), np.inf, 1)
    return Extrapolation(fitted, compute, fitted.curve(compute), reward)


def compare_curves(
    compute: ArrayLike,
    reward: ArrayLike,
    R_0: float,
    stops: Sequence[float],
    start: float = 0.0,
) -> list[dict[str, float | str]]:
    """One row per curve family and end of the fitted range: limit, error there, error beyond.

    `A` is the reward promised for unlimited compute; `rmse` is on the fitted points, `beyond`
    and `bias` on the later ones. Chapter 17.
    """
    families: dict[str, tuple[Callable[..., Fit | CurveFit], dict[str, float]]] = {
        "sigmoid": (fit_sigmoid, {"R_0": R_0}),
        "saturating power law": (fit_saturating_power_law, {}),
        "power law": (fit_power_law, {"R_0": R_0}),
    }
    rows: list[dict[str, float | str]] = []
    for name, (fit, settings) in families.items():
        for stop in stops:
            check = extrapolate(fit, compute, reward, stop, start, **settings)
            errors = {"rmse": check.fit.rmse, "beyond": check.rmse, "bias": check.bias}
            rows.append({"curve": name, "stop": stop, "A": check.fit.curve.A, **errors})
    return rows


def minimise(error: Callable[[float], float]) -> float:
    """The logarithm of the best exponent: a grid, then Brent between its neighbours."""
    grid = np.log(np.geomspace(1e-3, 20, 120))
    i = int(np.argmin([error(x) for x in grid]))
    bounds = (grid[max(i - 1, 0)], grid[min(i + 1, len(grid) - 1)])
    return float(minimize_scalar(error, bounds=bounds, options={"xatol": 1e-12}).x)
