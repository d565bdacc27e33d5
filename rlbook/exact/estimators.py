"""Expected value and spread of policy-gradient estimators, computed instead of sampled.

An estimator draws n outcomes y_1 … y_n ~ π, turns their rewards into advantages A_1 … A_n and
returns g = 1/n Σ_i A_i ∇log π(y_i). Advantages see the rewards alone, so it is enough to go
through all n-tuples of *reward values*; given its reward, a sample contributes only the first
two moments of its score. That makes n = 8 answers of 2000 outcomes each a sum of 256 terms.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations_with_replacement, product
from math import factorial, prod

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rlbook.exact.policies import EnumerablePolicy

Advantage = Callable[[Float[Tensor, " n"], Int[Tensor, " n"]], Float[Tensor, " n"]]
MAX_TUPLES = 2**16


@dataclass(frozen=True, eq=False)
class GradientMoments:
    """Exact mean and covariance of a gradient estimator next to the true gradient."""

    mean: Float[Tensor, " D"]
    covariance: Float[Tensor, "D D"]
    true: Float[Tensor, " D"]
    n: int

    @property
    def bias(self) -> float:
        """Length of E[g] - ∇J."""
        return (self.mean - self.true).norm().item()

    @property
    def factor(self) -> float:
        """How much of the true gradient arrives: <E[g], ∇J> / <∇J, ∇J>; 1 without bias."""
        return (self.mean @ self.true / (self.true @ self.true)).item()

    @property
    def variance(self) -> float:
        """Trace of the covariance: E‖g - E[g]‖² of one batch of n samples."""
        return max(self.covariance.trace().item(), 0.0)  # rounding must not make it negative

    @property
    def noise_to_signal(self) -> float:
        """Standard deviation over length of the mean, √variance / ‖E[g]‖: blind to scale."""
        return self.variance**0.5 / self.mean.norm().item()


def expected_gradient(
    advantage: Advantage,
    policy: EnumerablePolicy,
    rewards: Float[Tensor, " K"],
    n: int,
    exchangeable: bool = False,
) -> GradientMoments:
    """Mean and covariance of g = 1/n Σ_i A_i ∇log π(y_i) over all batches of n samples.

    `advantage(rewards (n,), groups (n,)) -> (n,)` is any estimator without memory; the n samples
    form one group. `exchangeable` promises that permuting the samples permutes the advantages
    (true of every group baseline): then each multiset of rewards is visited once, with its
    multiplicity. Raises `ValueError` beyond 65,536 terms.
    """
    values, chances, first, second = _moments_given_reward(policy, rewards)
    groups = torch.zeros(n, dtype=torch.long)
    mean = torch.zeros_like(first[0])
    outer = torch.zeros_like(second[0])
    for batch, weight in weighted_batches(chances, n, exchangeable):
        a = advantage(values[batch], groups).to(values)
        parts = a[:, None] * first[batch]
        total = parts.sum(0)
        mean += weight * total / n
        own = torch.einsum("i,ijk->jk", a**2, second[batch]) - parts.T @ parts
        outer += weight * (own + torch.outer(total, total)) / n**2
    covariance = outer - torch.outer(mean, mean)
    return GradientMoments(mean, covariance, policy.true_gradient(rewards), n)


def optimal_baseline(policy: EnumerablePolicy, rewards: Float[Tensor, " K"]) -> float:
    """The constant that minimises the variance of REINFORCE.

    b* = E[‖∇log π‖² r] / E[‖∇log π‖²]

    Rewards weighted by how hard each outcome pulls. Source: Weaver and Tao 2001; Greensmith,
    Bartlett and Baxter 2004. Chapter 02.
    """
    pull = policy.probs * policy.scores.square().sum(-1)
    return (pull @ rewards / pull.sum()).item()


def baseline_moments(
    policy: EnumerablePolicy,
    rewards: Float[Tensor, " K"],
    n: int,
    baseline: float,
    baseline_variance: float = 0.0,
) -> GradientMoments:
    """Moments of g = 1/n Σ_i (r_i - b) ∇log π(y_i) for a baseline b independent of the samples.

    Always unbiased. A b that varies from batch to batch costs Var(b) E[∇log π ∇log πᵀ] / n.
    """
    pull = policy.scores * (policy.probs.sqrt() * (rewards - baseline))[:, None]
    fisher = policy.scores * policy.probs.sqrt()[:, None]
    mean = policy.scores.T @ (policy.probs * (rewards - baseline))
    single = pull.T @ pull + baseline_variance * fisher.T @ fisher - torch.outer(mean, mean)
    return GradientMoments(mean, single / n, policy.true_gradient(rewards), n)


def ema_variance(
    policy: EnumerablePolicy, rewards: Float[Tensor, " K"], n: int, decay: float = 0.9
) -> float:
    """Variance of b ← decay · b + (1 - decay) · mean(r) in the long run under a fixed policy.

    Var(b) = (1 - decay) / (1 + decay) · Var(r) / n
    """
    spread = policy.probs @ (rewards - policy.expected_reward(rewards)).square()
    return ((1 - decay) / (1 + decay) * spread / n).item()


def bias_variance_table(
    policy: EnumerablePolicy,
    rewards: Float[Tensor, " K"],
    n: int = 8,
    shift: float = 1.0,
    extra: Mapping[str, Advantage] | None = None,
) -> list[dict[str, str | float | None]]:
    """One row per baseline, all exact; `extra` adds exchangeable estimators by name.

    Columns: `value` of the baseline (its mean; None where the batch decides; shifting all rewards
    is a baseline of minus the shift), `factor` and `bias` of the expected gradient, `variance` of
    one batch of n, and `noise_to_signal`. The rows are none, none with `shift` added to every
    reward, EMA (decay 0.9, long run), batch mean, leave-one-out, greedy (reward of the likeliest
    outcome, the first of several) and optimal. Chapter 02.
    """
    if n < 2:
        raise ValueError(f"leave-one-out needs n ≥ 2 samples, got {n}")
    mean = policy.expected_reward(rewards).item()
    greedy = rewards[policy.probs.argmax()].item()
    best = optimal_baseline(policy, rewards)
    fixed = {
        "none": (0.0, 0.0),
        f"none, rewards {shift:+g}": (-shift, 0.0),
        "EMA": (mean, ema_variance(policy, rewards, n)),
        "greedy": (greedy, 0.0),
        "optimal": (best, 0.0),
    }
    sampled = {
        "batch mean": lambda r, groups: r - r.mean(),
        "leave-one-out": lambda r, groups: (r - r.mean()) * n / (n - 1),
        **(extra or {}),
    }
    moments = {name: baseline_moments(policy, rewards, n, *b) for name, b in fixed.items()}
    moments |= {
        name: expected_gradient(advantage, policy, rewards, n, exchangeable=True)
        for name, advantage in sampled.items()
    }
    order = [*list(fixed)[:3], *list(sampled)[:2], *list(fixed)[3:], *list(sampled)[2:]]
    return [
        {
            "baseline": name,
            "value": fixed[name][0] if name in fixed else None,
            "factor": moments[name].factor,
            "bias": moments[name].bias,
            "variance": moments[name].variance,
            "noise_to_signal": moments[name].noise_to_signal,
        }
        for name in order
    ]


def _moments_given_reward(
    policy: EnumerablePolicy, rewards: Float[Tensor, " K"]
) -> tuple[Float[Tensor, " R"], Float[Tensor, " R"], Float[Tensor, "R D"], Float[Tensor, "R D D"]]:
    """Distinct rewards (R,), their chances, E[s | r] (R, D) and E[s sᵀ | r] (R, D, D)."""
    rewards = torch.as_tensor(rewards, dtype=torch.float64)
    if rewards.shape != policy.probs.shape:
        raise ValueError(
            f"rewards need one value per outcome, {tuple(policy.probs.shape)}, "
            f"got {tuple(rewards.shape)}"
        )
    values, level = rewards.unique(return_inverse=True)
    chances, first, second = [], [], []
    for index in range(len(values)):
        chosen = level == index
        p, s = policy.probs[chosen], policy.scores[chosen]
        chances.append(p.sum())
        first.append(p @ s / p.sum())
        second.append((p[:, None] * s).T @ s / p.sum())
    return values, torch.stack(chances), torch.stack(first), torch.stack(second)


def weighted_batches(
    chances: Float[Tensor, " R"], n: int, exchangeable: bool
) -> Iterator[tuple[list[int], float]]:
    """Every batch of n reward levels with its probability."""
    levels = range(len(chances))
    if not exchangeable and len(levels) ** n > MAX_TUPLES:
        raise ValueError(
            f"{len(levels)} reward values and n = {n} give {len(levels) ** n} tuples, more than "
            f"{MAX_TUPLES}: lower n, or pass exchangeable=True if the advantages are symmetric"
        )
    p = chances.tolist()
    draw = combinations_with_replacement(levels, n) if exchangeable else product(levels, repeat=n)
    for batch in draw:
        orders = 1
        if exchangeable:
            orders = factorial(n) // prod(map(factorial, Counter(batch).values()))
        yield list(batch), orders * prod(p[level] for level in batch)
