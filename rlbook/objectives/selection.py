"""Which tokens learn: a choice made once for a batch, by the policy that is about to be trained.

A selection picks tokens and says what becomes of the surrogate where it picked:

    replace(METHODS["dapo"], selection=TopEntropy(0.2))            only the picked tokens learn
    replace(METHODS["grpo"], selection=CovarianceClip(2e-4))       the picked tokens do not learn
    replace(METHODS["grpo"], selection=CovarianceKL(2e-3))         the picked tokens are held back

It is called with (N, T) log-probs, entropies, advantages and the mask of the trained tokens and
returns the picked ones. Denominators go on counting all trained tokens, picked or not. A
selection of your own is a frozen dataclass with the same two methods. Chapter 12.
"""

from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rlbook.objectives.kl import kl_estimate
from rlbook.objectives.options import Choice
from rlbook.objectives.trust_regions import Surrogate

__all__ = ["CovarianceClip", "CovarianceKL", "Selection", "TopEntropy"]


@runtime_checkable
class Selection(Protocol):
    """Picks tokens of a batch, and changes what is learned where it picked."""

    def __call__(
        self, logp: Tensor, entropy: Tensor, advantages: Tensor, mask: Tensor, seed: int = 0
    ) -> Tensor: ...

    def apply(self, learned: Surrogate, chosen: Tensor, logp: Tensor, old: Tensor) -> Surrogate:
        """The loss and the kept tokens (N, T) once the `chosen` ones are treated as it says."""


@dataclass(frozen=True)
class TopEntropy(Choice):
    """80/20: only the `share` of tokens learns whose next-token distribution had most entropy.

    Source: Beyond the 80/20 rule, arXiv:2506.01939 (share 0.2); TRL's `top_entropy_quantile`.
    """

    share: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        check_share(self.share)

    def __call__(
        self, logp: Tensor, entropy: Tensor, advantages: Tensor, mask: Tensor, seed: int = 0
    ) -> Bool[Tensor, "N T"]:
        return highest(entropy, mask, self.share)

    def apply(self, learned: Surrogate, chosen: Tensor, logp: Tensor, old: Tensor) -> Surrogate:
        """Only the chosen tokens learn."""
        return only(learned, chosen)


@dataclass(frozen=True)
class CovarianceClip(Choice):
    """Clip-Cov: a `share` of all tokens, drawn among those with `low` < covariance < `high`, rests.

    The covariance of a token is `token_covariance`. At least one token is drawn where one lies in
    the band. Source: arXiv:2505.22617, §4.2; values as in the authors' code and verl.
    """

    share: float = 2e-4
    low: float = 1.0
    high: float = 5.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_share(self.share)
        if not self.low < self.high:
            raise ValueError(f"low must lie below high, got {self.low} and {self.high}")

    def __call__(
        self, logp: Tensor, entropy: Tensor, advantages: Tensor, mask: Tensor, seed: int = 0
    ) -> Bool[Tensor, "N T"]:
        covariance = token_covariance(logp, advantages, mask)
        band = mask & (covariance > self.low) & (covariance < self.high)
        noise = torch.rand(mask.shape, generator=torch.Generator().manual_seed(seed))
        return highest(noise.to(logp.device), band, count_of(self.share, mask))

    def apply(self, learned: Surrogate, chosen: Tensor, logp: Tensor, old: Tensor) -> Surrogate:
        """All but the chosen tokens learn."""
        return only(learned, ~chosen)


@dataclass(frozen=True)
class CovarianceKL(Choice):
    """KL-Cov: the `share` of tokens with the highest covariance pays β KL(π_old ‖ π_θ).

    The authors' code estimates it by `"abs"`, |log π_θ − log π_old|, whose slope is ±1 however
    small the difference: rounding between sampler and trainer then decides the sign. The slopes of
    `"k2"` and `"k3"` are 0 where nothing has moved, so that one update per batch is not changed.
    Source: arXiv:2505.22617, §4.2 (share 2e-3 for 7B, 2e-4 for 32B; β = 1).
    """

    share: float = 2e-3
    beta: float = 1.0
    kind: Literal["abs", "k2", "k3"] = "abs"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_share(self.share)
        if self.beta < 0:
            raise ValueError(f"beta weighs a penalty, at least 0, got {self.beta}")

    def __call__(
        self, logp: Tensor, entropy: Tensor, advantages: Tensor, mask: Tensor, seed: int = 0
    ) -> Bool[Tensor, "N T"]:
        return highest(token_covariance(logp, advantages, mask), mask, self.share)

    def apply(self, learned: Surrogate, chosen: Tensor, logp: Tensor, old: Tensor) -> Surrogate:
        """loss + β KL on the chosen tokens; who learns stays as it is."""
        moved = (logp - old).abs()
        penalty = moved if self.kind == "abs" else kl_estimate(old, logp, self.kind)
        held = torch.where(chosen, self.beta * penalty, 0.0)
        return learned._replace(loss=learned.loss + held)


def token_covariance(
    logp: Float[Tensor, "N T"], advantages: Float[Tensor, "N T"], mask: Bool[Tensor, "N T"]
) -> Float[Tensor, "N T"]:
    """Each token's part of Cov(log π, A): (log π − mean log π)(A − mean A); 0 outside the mask.

    Means are over all trained tokens, so the mean of the result is their covariance. Where it is
    positive, a likely token has done well or an unlikely one badly, and learning costs entropy.
    Source: arXiv:2505.22617, §4.1. Chapter 12.
    """
    parts = (logp - logp[mask].mean()) * (advantages - advantages[mask].mean())
    return torch.where(mask, parts, 0.0)


def highest(
    values: Float[Tensor, "N T"], mask: Bool[Tensor, "N T"], share: float | int
) -> Bool[Tensor, "N T"]:
    """The masked positions with the highest values: a share of them, or (an integer) so many."""
    count = share if isinstance(share, int) else count_of(share, mask)
    best = values[mask].topk(min(count, int(mask.sum()))).indices
    chosen = torch.zeros_like(mask)
    chosen[tuple(mask.nonzero()[best].T)] = True
    return chosen


def count_of(share: float, mask: Bool[Tensor, "N T"]) -> int:
    """A share of the masked tokens, rounded down, at least one."""
    return max(int(share * int(mask.sum())), 1)


def only(learned: Surrogate, learns: Bool[Tensor, "N T"]) -> Surrogate:
    """The surrogate with a gradient where `learns` is True alone."""
    loss, keep, weight = learned
    loss = torch.where(learns, loss, loss.detach())
    return Surrogate(loss, keep & learns, torch.where(learns, weight, 0.0))


def check_share(share: float) -> None:
    """Require a share above 0 and at most 1."""
    if not 0 < share <= 1:
        raise ValueError(f"share is a part of all tokens, above 0 and at most 1, got {share}")


def next_bonus(bonus: float, entropy: float, target: float, step: float) -> float:
    """The entropy bonus of the next batch: up by `step` below the target, down above, at least 0.

    The bonus in force is 0 wherever the entropy is above the target: `bonus * (entropy <= target)`.
    Units: `entropy` and `target` in nats per token. It remembers the bonus between batches, so it
    belongs to the loop and not to a row. Source: Skywork-OR1, arXiv:2505.22312. Chapter 12.
    """
    return max(0.0, bonus + (step if entropy < target else -step))
