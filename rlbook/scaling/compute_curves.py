"""How reward grows with compute: ScaleRL's sigmoid, its fit, its uncertainty, its predictions.

Compute may be counted in any unit (GPU-hours, updates, tokens) as long as C_mid uses the same one.
Chapter 16.
"""

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy.optimize import least_squares, minimize_scalar
from scipy.special import expit

from rlbook.paths import data_dir
from rlbook.stats.intervals import Interval

__all__ = ["Bootstrap", "Extrapolation", "Fit", "PowerLaw", "SaturatingPowerLaw", "Sigmoid"]
__all__ += ["bootstrap_sigmoid", "compare_curves", "extrapolate", "fit_power_law"]
__all__ += ["fit_saturating_power_law", "fit_sigmoid", "fit_sigmoid_grid", "published_curves"]

PAPER_ASYMPTOTES = np.linspace(0.45, 0.80, 71)
PAPER_MIDPOINTS = np.linspace(100, 40_000, 100)
ASYMPTOTE_MARGIN = 0.02  # of A between repeated ScaleRL runs, as the paper uses it
INFERRED_R_0 = 0.38  # not published: the value with which A.4's power laws come out as printed
EXPONENTS = np.geomspace(0.05, 20, 60)
HIGHEST = 1.0  # that a pass rate can be, and so its asymptote


class Curve(Protocol):
    """Reward as a function of compute."""

    @property
    def A(self) -> float:
        """The reward it tends to."""

    def __call__(self, compute: ArrayLike) -> np.ndarray: ...


AnyCurve = TypeVar("AnyCurve", bound=Curve, covariant=True)


@dataclass(frozen=True)
class Sigmoid:
    """Reward rises from R_0 to the asymptote A; half the way is done at C_mid.

    R_C = R_0 + (A - R_0) / (1 + (C_mid / C)^B)

    A and R_0 are rewards, C_mid is compute, B > 0 says how steep the rise is on a logarithmic
    axis. Raises `ValueError` unless B and C_mid are positive. Source: Khatri et al. 2025,
    arXiv:2510.13786, equation 1. Chapter 16.
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
class SaturatingPowerLaw:
    """R_C = A - D / C^B: what the sigmoid becomes far beyond C_mid, with D = (A - R_0) C_mid^B.

    It has no start: near C = 0 it falls without bound. Chapter 16.
    """

    A: float
    D: float
    B: float

    def __call__(self, compute: ArrayLike) -> np.ndarray:
        with np.errstate(divide="ignore"):
            return self.A - self.D * np.asarray(compute, dtype=float) ** -self.B


@dataclass(frozen=True)
class PowerLaw:
    """R_C = R_0 + D C^B: what the sigmoid is far before C_mid; it never saturates. Chapter 16."""

    D: float
    B: float
    R_0: float
    A: float = float("inf")

    def __call__(self, compute: ArrayLike) -> np.ndarray:
        return self.R_0 + self.D * np.asarray(compute, dtype=float) ** self.B


@dataclass(frozen=True)
class Fit(Generic[AnyCurve]):
    """A fitted curve, its sum of squared errors and the number of points it was fitted to."""

    curve: AnyCurve
    sse: float
    points: int

    @property
    def rmse(self) -> float:
        """Root of the mean squared error on the fitted points, in units of reward."""
        return float(np.sqrt(self.sse / self.points))


def published_curves(R_0: float = INFERRED_R_0) -> dict[str, Sigmoid]:
    """The ten sigmoids of ScaleRL's Table 1, C in GPU-hours.

    R_0 is an argument because the paper does not print it; the default is inferred.
    Source: Khatri et al. 2025, arXiv:2510.13786, Table 1. Chapter 16.
    """
    table = tomllib.loads((data_dir() / "scalerl_curves.toml").read_text())
    return {name: Sigmoid(**row, R_0=R_0) for name, row in table["curves"].items()}


def fit_sigmoid(
    compute: ArrayLike,
    reward: ArrayLike,
    R_0: float | None,
    start: float = 0.0,
    stop: float = np.inf,
    A: float | None = None,
) -> Fit[Sigmoid]:
    """Least-squares sigmoid through the points with start ≤ C ≤ stop, 0 ≤ A ≤ 1 and B > 0.

    min over B, C_mid (and over A and R_0, where they are None) of Σ (R_i - R_{C_i})²

    Given B and C_mid the model is linear, so those two are searched on a grid with the rest in
    closed form; then the best eight are improved in all parameters at once. Raises `ValueError`
    for fewer points than parameters. Source: arXiv:2510.13786, equation 1. Chapter 16.
    """
    free = free_parameters(A, R_0)
    compute, reward = _points(compute, reward, start, stop, len(free))
    midpoints = np.geomspace(compute[0] / 10, compute[-1] * 10, 80)
    B, C_mid = (x.ravel() for x in np.meshgrid(EXPONENTS, midpoints))
    rises = _rise(compute, B[:, None], C_mid[:, None])
    high, low = _linear_ends(rises, reward, A, R_0)
    errors = ((low[:, None] + (high - low)[:, None] * rises - reward) ** 2).sum(1)
    best = np.argsort(errors)[:8]
    starts = [Sigmoid(*map(float, (high[i], B[i], C_mid[i], low[i]))) for i in best]
    return min((polish(compute, reward, curve, free) for curve in starts), key=lambda fit: fit.sse)


def fit_sigmoid_grid(
    compute: ArrayLike,
    reward: ArrayLike,
    R_0: float,
    start: float = 0.0,
    stop: float = np.inf,
    asymptotes: ArrayLike = PAPER_ASYMPTOTES,
    midpoints: ArrayLike = PAPER_MIDPOINTS,
    iterations: int = 40,
) -> Fit[Sigmoid]:
    """The paper's procedure: for every A and C_mid on a grid fit B alone, keep the best triple.

    B ← B + Σ e d / Σ d²,  e = R - R_C,  d = ∂R_C / ∂B     (Gauss-Newton from B = 1, all pairs at
    once; a step that does not lower the error is halved)

    The defaults are the grid the paper states; its published C_mid lie on finer ones, hence the
    arguments. One asymptote refits B with A held, which is how the paper compares runs whose A
    agree within the margin. Source: arXiv:2510.13786, appendix A.5. Chapter 16.
    """
    compute, reward = _points(compute, reward, start, stop, 1)
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
) -> Fit[SaturatingPowerLaw]:
    """Least-squares A - D / C^B with A ≤ 1; A and D in closed form for every B. Chapter 16.

    Source: the comparison of arXiv:2510.13786, appendix A.4.
    """
    compute, reward = _points(compute, reward, start, stop, 3)
    reference = np.exp(np.log(compute).mean())  # keeps C^-B near 1 for every B

    def solve(log_b: float) -> tuple[float, float, float]:
        falls = (compute / reference) ** -exp(log_b)
        D, A = np.polyfit(-falls, reward, 1)
        if A > 1:
            A, D = 1.0, falls @ (1 - reward) / (falls @ falls)
        return float(((A - D * falls - reward) ** 2).sum()), float(A), float(D)

    log_b = _minimise(lambda x: solve(x)[0])
    sse, A, D = solve(log_b)
    B = exp(log_b)
    return Fit(SaturatingPowerLaw(A, float(D * reference**B), B), sse, len(reward))


def fit_power_law(
    compute: ArrayLike, reward: ArrayLike, R_0: float, start: float = 0.0, stop: float = np.inf
) -> Fit[PowerLaw]:
    """Least-squares R_0 + D C^B, D in closed form for every B. Chapter 16."""
    compute, reward = _points(compute, reward, start, stop, 2)
    reference = np.exp(np.log(compute).mean())

    def solve(log_b: float) -> tuple[float, float]:
        rises = (compute / reference) ** exp(log_b)
        D = rises @ (reward - R_0) / (rises @ rises)
        return float(((R_0 + D * rises - reward) ** 2).sum()), float(D)

    log_b = _minimise(lambda x: solve(x)[0])
    sse, D = solve(log_b)
    B = exp(log_b)
    return Fit(PowerLaw(float(D * reference**-B), B, R_0), sse, len(reward))


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
    runs to see. Source: Efron 1979. Chapter 16.
    """
    fit, free = fit_sigmoid(compute, reward, R_0, start, stop), free_parameters(None, R_0)
    compute, reward = _points(compute, reward, start, stop, len(free) + 1)
    residuals = reward - fit.curve(compute)
    residuals = (residuals - residuals.mean()) * np.sqrt(len(reward) / (len(reward) - len(free)))
    draws = np.random.default_rng(seed).choice(residuals, (resamples, len(reward)))
    means = fit.curve(compute)
    fits = (polish(compute, means + draw, fit.curve, free) for draw in draws)
    return Bootstrap(fit.curve, tuple(replica.curve for replica in fits))


@dataclass(frozen=True, eq=False)
class Extrapolation:
    """A curve fitted on the first part of a run against what the rest of the run measured."""

    fit: Fit[Curve]
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
    fit: Callable[..., Fit[Curve]],
    compute: ArrayLike,
    reward: ArrayLike,
    stop: float,
    start: float = 0.0,
    **settings: Any,
) -> Extrapolation:
    """Fit on start ≤ C ≤ stop with `fit` (one of this module), predict every point with C > stop.

    Raises `ValueError` if nothing is left to predict. Chapter 16.
    """
    fitted = fit(compute, reward, start=start, stop=stop, **settings)
    compute, reward = _points(compute, reward, np.nextafter(stop, np.inf), np.inf, 1)
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
    and `bias` on the later ones. Chapter 16.
    """
    families: dict[str, tuple[Callable[..., Fit[Curve]], dict[str, float]]] = {
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
) -> Fit[Sigmoid]:
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


def _minimise(error: Callable[[float], float]) -> float:
    """The logarithm of the best exponent: a grid, then Brent between its neighbours."""
    grid = np.log(np.geomspace(1e-3, 20, 120))
    i = int(np.argmin([error(x) for x in grid]))
    bounds = (grid[max(i - 1, 0)], grid[min(i + 1, len(grid) - 1)])
    return float(minimize_scalar(error, bounds=bounds, options={"xatol": 1e-12}).x)


def _points(
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
