"""Generalised advantage estimation on a walk whose true values are known.

T steps of +1 (probability p) or -1; the reward is 1 if the sum ends at the goal or above. Every
step counts the same, or one step decides and the others do not move. The policy has one logit per
step, or one for all of them. The value of every state follows by dynamic programming, and so do the
mean and variance of the gradient for any critic and any λ: backwards in time, the moments of the
remaining advantages obey a recursion of their own.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float, Int

__all__ = ["Walk", "gae_table"]

LAMBDAS = (0.0, 0.5, 0.8, 0.9, 0.95, 0.99, 1.0)


@dataclass(frozen=True, eq=False)
class Walk:
    """The walk; tables are indexed [time, position + T] with positions -T … T.

    `decisive`: the one step, from 0, that moves; at every other the choice changes nothing. None:
    all steps move. Raises `ValueError` for a step that the walk does not have.
    """

    steps: int = 20
    p: float = 0.55
    goal: int = 4
    decisive: int | None = None

    def __post_init__(self) -> None:
        if self.decisive is not None and not 0 <= self.decisive < self.steps:
            raise ValueError(f"decisive is a step from 0 to {self.steps - 1}, got {self.decisive}")

    @classmethod
    def one_step(cls, decisive: int, steps: int = 20, p: float = 0.55) -> "Walk":
        """The walk in which one step alone earns the reward."""
        return cls(steps, p, goal=1, decisive=decisive)

    @cached_property
    def values(self) -> Float[np.ndarray, "T1 X"]:
        """V_t(x) = p V_{t+1}(x + 1) + (1 - p) V_{t+1}(x - 1), V_T(x) = 1 if x ≥ goal."""
        values = np.zeros((self.steps + 1, 2 * self.steps + 1))
        values[-1] = np.arange(-self.steps, self.steps + 1) >= self.goal
        for t in reversed(range(self.steps)):
            up, down = self.successors(values[t + 1], t)
            values[t] = self.p * up + (1 - self.p) * down
        return values

    @cached_property
    def visits(self) -> Float[np.ndarray, "T1 X"]:
        """Probability of being at each position at each time."""
        visits = np.zeros((self.steps + 1, 2 * self.steps + 1))
        visits[0, self.steps] = 1
        for t in range(self.steps):
            if not self.moves(t):
                visits[t + 1] = visits[t]
                continue
            visits[t + 1, 1:] += self.p * visits[t, :-1]
            visits[t + 1, :-1] += (1 - self.p) * visits[t, 1:]
        return visits

    @property
    def expected_reward(self) -> float:
        return float(self.values[0, self.steps])

    @cached_property
    def true_gradient(self) -> Float[np.ndarray, " T"]:
        """∂J/∂θ_t with p_t = sigmoid(θ_t): p (1 - p) E[V_{t+1}(x + 1) - V_{t+1}(x - 1)]."""
        gains = [np.subtract(*self.successors(self.values[t + 1], t)) for t in range(self.steps)]
        return self.p * (1 - self.p) * (self.visits[:-1] * np.array(gains)).sum(1)

    def critics(self, noise: float = 0.1, seed: int = 0) -> dict[str, Float[np.ndarray, "T1 X"]]:
        """Exact, with table noise, shrunk halfway to 1/2, and a constant; never wrong at the end.

        After the last step there is nothing left to predict, so row T is not read.
        """
        rng = np.random.default_rng(seed)
        return {
            "exact": self.values,
            f"noise {noise:g}": self.values + noise * rng.standard_normal(self.values.shape),
            "shrunk": 0.5 * self.values + 0.25,
            "constant": np.full_like(self.values, self.expected_reward),
        }

    def episodes(self, n: int, seed: int = 0) -> Int[np.ndarray, "n T"]:
        """n sampled walks as steps of ±1."""
        return np.where(np.random.default_rng(seed).random((n, self.steps)) < self.p, 1, -1)

    def moves(self, t: int) -> bool:
        """Whether step t changes the position."""
        return self.decisive is None or t == self.decisive

    def successors(
        self, row: Float[np.ndarray, " X"], t: int
    ) -> tuple[Float[np.ndarray, " X"], Float[np.ndarray, " X"]]:
        """Entries of `row` after +1 and after -1 at time t, from every position.

        The border is never reached.
        """
        if not self.moves(t):
            return row, row
        return np.append(row[1:], row[-1]), np.append(row[0], row[:-1])


@dataclass(frozen=True, eq=False)
class GAEMoments:
    """Exact moments of Σ_t s_t Â_t for one episode, s_t = ∂log π(a_t)/∂θ_t.

    `mean`, `variance` (T,): one logit per step. `shared_mean`, `shared_variance`: one logit for
    all steps, whose gradient is the sum.
    """

    mean: Float[np.ndarray, " T"]
    variance: Float[np.ndarray, " T"]
    shared_mean: float
    shared_variance: float


def gae_moments(walk: Walk, critic: Float[np.ndarray, "T1 X"], lam: float) -> GAEMoments:
    """Mean and variance of the GAE policy gradient (γ = 1), without sampling.

    Â_t = δ_t + λ Â_{t+1},  δ_t = V(x_{t+1}) - V(x_t), the reward standing in for V(x_T)

    With G_t = Σ_{u≥t} s_u Â_u, the conditional moments E[Â], E[Â²], E[G], E[Â G], E[G²] given x_t
    follow from those at t + 1, since what comes later depends on the past through x_{t+1} alone.
    Source: Schulman et al. 2016, arXiv:1506.02438, equation 16. Chapter 03.
    """
    if not 0 <= lam <= 1:
        raise ValueError(f"lambda must lie in [0, 1], got {lam}")
    a, aa, g, ag, gg = np.zeros((5, 2 * walk.steps + 1))
    mean, variance = np.zeros((2, walk.steps))
    for t in reversed(range(walk.steps)):
        target = walk.values[-1] if t == walk.steps - 1 else critic[t + 1]
        after = [walk.successors(row, t) for row in (target, a, aa, g, ag, gg)]
        moments = np.zeros((7, 2 * walk.steps + 1))
        for move, (chance, score) in enumerate(((walk.p, 1 - walk.p), (1 - walk.p, -walk.p))):
            v, a1, aa1, g1, ag1, gg1 = (pair[move] for pair in after)
            delta = v - critic[t]
            now, square = delta + lam * a1, delta**2 + 2 * lam * delta * a1 + lam**2 * aa1
            cross = delta * g1 + lam * ag1
            moments += chance * np.array(
                [
                    now,
                    square,
                    score * now + g1,
                    score * square + cross,
                    score**2 * square + 2 * score * cross + gg1,
                    score * now,
                    score**2 * square,
                ]
            )
        a, aa, g, ag, gg, pull, pull_square = moments
        mean[t] = walk.visits[t] @ pull
        variance[t] = walk.visits[t] @ pull_square - mean[t] ** 2
    start = walk.steps
    return GAEMoments(mean, variance, float(g[start]), float(gg[start] - g[start] ** 2))


def gae_table(
    walk: Walk,
    lambdas: tuple[float, ...] = LAMBDAS,
    episodes: int = 64,
    noise: float = 0.1,
    seed: int = 0,
) -> list[dict[str, str | float]]:
    """Bias, sd and RMSE of an `episodes`-episode gradient, relative to the true gradient's length.

    One row per critic and λ. `bias`, `sd`, `rmse`: one logit per step, root of the sum of squares
    over steps; `shared_…`: one logit for all steps.
    """
    true = walk.true_gradient
    length, total = np.linalg.norm(true), true.sum()
    rows = []
    for name, critic in walk.critics(noise, seed).items():
        for lam in lambdas:
            m = gae_moments(walk, critic, lam)
            bias = np.linalg.norm(m.mean - true) / length
            sd = np.sqrt(m.variance.sum() / episodes) / length
            shared_bias = (m.shared_mean - total) / total
            shared_sd = np.sqrt(m.shared_variance / episodes) / total
            rows.append(
                {
                    "critic": name,
                    "lambda": lam,
                    "bias": float(bias),
                    "sd": float(sd),
                    "rmse": float(np.hypot(bias, sd)),
                    "shared_bias": float(shared_bias),
                    "shared_sd": float(shared_sd),
                    "shared_rmse": float(np.hypot(shared_bias, shared_sd)),
                }
            )
    return rows
