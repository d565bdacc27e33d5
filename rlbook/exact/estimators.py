"""Expected value and spread of policy-gradient estimators, computed instead of sampled.

An estimator draws n outcomes y_1 … y_n ~ π, turns their rewards into advantages A_1 … A_n and
returns g = 1/n Σ_i A_i ∇log π(y_i). Advantages see the rewards alone, so it is enough to go
through all n-tuples of *reward values*; given its reward, a sample contributes only the first
two moments of its score. That makes n = 8 answers of 2000 outcomes each a sum of 256 terms.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations_with_replacement, product
from math import factorial, prod

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rlbook.exact.policies import EnumerablePolicy

__all__ = ["GradientMoments", "expected_gradient", "optimal_baseline"]

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
        return float((self.mean - self.true).norm())

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
        return float(self.variance**0.5 / self.mean.norm())


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
