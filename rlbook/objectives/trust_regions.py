"""Trust regions: what happens to a token whose probability has already moved?

A region weighs tokens and says which of them keep their gradient. It is a frozen dataclass with
`weigh`, or a plain function, of one record:

    def weigh(self, tokens: Tokens) -> Weights: ...

Whatever a paper's loss looks like, what trains is its gradient, and that is

    ∂loss/∂log π_θ(y_t) = −weight_t · A_t

so a method is characterised by its weights, and widgets draw exactly what the trainer runs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rlbook.objectives.divergences import binary_divergence
from rlbook.objectives.options import Choice
from rlbook.objectives.ratios import Tokens
from rlbook.objectives.shapes import check_result

__all__ = ["DivergenceMask", "NoTrustRegion", "RatioClip", "TrustRegion", "WeightClip"]
__all__ += ["Region", "Surrogate", "Weights", "surrogate", "weigh"]


class Weights(NamedTuple):
    """Coefficient of A·∇log π of each token, and the tokens that keep their gradient."""

    weight: Float[Tensor, "N T"]
    keep: Bool[Tensor, "N T"]


class Surrogate(NamedTuple):
    """Per-token loss to minimise, tokens that keep their gradient, coefficient of A·∇log π."""

    loss: Float[Tensor, "N T"]
    keep: Bool[Tensor, "N T"]
    weight: Float[Tensor, "N T"]


@runtime_checkable
class TrustRegion(Protocol):
    """What weighs tokens: `weigh(tokens)` gives (weight, keep), (N, T) each.

    A `loss(tokens)` (N, T) beside it states the value that its paper gives them, for the log alone.
    `needs_ratio` beside it are the ratios of a row it makes sense with; without it, every one.
    """

    def weigh(self, tokens: Tokens) -> Weights:
        """Coefficient of A·∇log π of each token, and which tokens keep it."""


Region = TrustRegion | Callable[[Tokens], Weights]


def weigh(region: Region, tokens: Tokens) -> Weights:
    """The weights that a region, an object or a function, gives; 0 for tokens it does not keep.

    Raises `ValueError` naming a region that gives anything but two tensors (N, T).
    """
    given = (region.weigh if isinstance(region, TrustRegion) else region)(tokens)
    name = f"trust region {getattr(region, '__name__', type(region).__name__)}"
    if not (isinstance(given, tuple) and len(given) == 2):
        raise ValueError(
            f"{name} returned {type(given).__name__}: return Weights(weight, keep), (N, T) each"
        )
    weight, keep = given
    check_result(f"{name}: weight", weight, tokens.logp)
    check_result(f"{name}: keep", keep, tokens.mask)
    return Weights(torch.where(keep, weight, 0.0).detach(), keep)


def surrogate(region: Region, tokens: Tokens, logp: Float[Tensor, "*shape"]) -> Surrogate:
    """loss = −sg(weight)·A·log π_θ per token, the one law of all regions; `logp` has the gradient.

    A region with a `loss` lends it the value, not the gradient. A token that is not kept has the
    gradient 0, exactly, and a kept one a finite one: ratios are bounded (`ratios.MAX_LOG_RATIO`).
    """
    weight, keep = weigh(region, tokens)
    loss = -tokens.advantages * (weight * logp)
    if hasattr(region, "loss"):
        loss = region.loss(tokens) + (loss - loss.detach())
    return Surrogate(loss, keep, weight)


@dataclass(frozen=True)
class NoTrustRegion:
    """The plain policy gradient: −A log π on-policy, weighed by ρ where a ratio is given.

    Source: Williams 1992; with a ratio PPO, arXiv:1707.06347, Eq. 6 (L^CPI). Chapter 02.
    """

    def weigh(self, tokens: Tokens) -> Weights:
        """ρ; every token is kept."""
        return Weights(tokens.ratio, tokens.mask)


@dataclass(frozen=True)
class RatioClip(Choice):
    """PPO's clip: −min(ρA, clip(ρ, 1−low, 1+high) A), the minimum for both signs of A.

    Its gradient is a mask: 0 for tokens with A > 0 and ρ > 1+high, or A < 0 and ρ < 1−low.
    `dual` = c > 1 also stops tokens with A < 0 and ρ > c (loss at most −cA; verl: 3, PPO: None).
    Source: PPO, arXiv:1707.06347, Eq. 7; dual clip arXiv:1912.09729. Chapters 03 and 08.
    """

    low: float = 0.2
    high: float = 0.2
    dual: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.low < 0 or self.high < 0:
            raise ValueError(
                f"low and high are distances from 1, got {self.low:g} and {self.high:g}: low=0.2, "
                "high=0.28 clip at 0.8 and 1.28"
            )
        if self.low > 1:
            raise ValueError(
                f"low is at most 1, as no ratio is below 0: got {self.low:g}; low=0.2 clips at 0.8"
            )
        if self.dual is not None and self.dual <= 1:
            raise ValueError(f"dual is a bound on the ratio above 1, got {self.dual}")

    def weigh(self, tokens: Tokens) -> Weights:
        """ρ, kept unless A > 0 and ρ > 1+high, or A < 0 and (ρ < 1−low or ρ > dual)."""
        ratio, advantages = tokens.ratio, tokens.advantages
        too_high = (advantages > 0) & (ratio > 1 + self.high)
        too_low = (advantages < 0) & (ratio < 1 - self.low)
        if self.dual is not None:
            too_high |= (advantages < 0) & (ratio > self.dual)
        return Weights(ratio, ~(too_high | too_low))

    def loss(self, tokens: Tokens) -> Float[Tensor, "*shape"]:
        """−min(ρA, clip(ρ, 1−low, 1+high) A), at most −dual·A where A < 0."""
        ratio, advantages = tokens.ratio, tokens.advantages
        clipped = ratio.clamp(1 - self.low, 1 + self.high)
        loss = -torch.minimum(ratio * advantages, clipped * advantages)
        if self.dual is None:
            return loss
        return torch.where(advantages < 0, loss.minimum(-self.dual * advantages), loss)


@dataclass(frozen=True)
class WeightClip(Choice):
    """CISPO: clip the importance weight, not the gradient: −sg(clip(ρ, min, max)) A log π.

    Every token keeps a gradient. `min` and `max` are *absolute* bounds of the weight. The same
    symbol ε means max = 1+ε in MiniMax-M1 and verl, but max = ε in ScaleRL and TRL.
    The value of the loss carries no meaning; its gradient does.
    Source: MiniMax-M1, arXiv:2506.13585, Eqs. 4 and 5; ScaleRL, arXiv:2510.13786, §4. Chapter 09.
    """

    max: float
    min: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.min <= 1 <= self.max:
            raise ValueError(
                f"bounds of the weight must enclose 1, got min={self.min}, max={self.max}: "
                "they are absolute, so write max=1.28 for an ε of 0.28"
            )

    def weigh(self, tokens: Tokens) -> Weights:
        """clip(ρ, min, max); every token is kept."""
        return Weights(tokens.ratio.clamp(self.min, self.max), tokens.mask)


@dataclass(frozen=True)
class DivergenceMask(Choice):
    """DPPO: stop a token that moves away from π_old where the *distributions* already differ.

    Masked iff (A > 0, ρ > 1, D > high) or (A < 0, ρ < 1, D > low); weight min(ρ, cap) on the rest.
    D is `binary_divergence` of the given `kind`, or the `divergence` (N, T) of the tokens; with
    `top_k` it must be given, as `topk_divergence` of the `top_k` likeliest tokens and the sampled
    one (`topk_tokens`). The paper's π_old is the sampler μ: pass its log-probs as `logp_old`.
    `ratio_cap` truncates the weight (None: not at all, the paper's stability runs).
    Source: DPPO, arXiv:2602.04879, Eqs. 12–16 and 23. Chapter 11.
    """

    kind: Literal["tv", "kl"] = "tv"
    low: float = 0.15
    high: float = 0.15
    ratio_cap: float | None = None
    top_k: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.low < 0 or self.high < 0:
            raise ValueError(f"low and high are divergences ≥ 0, got {self.low} and {self.high}")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k counts the likeliest tokens, at least 1, got {self.top_k}")

    def weigh(self, tokens: Tokens) -> Weights:
        """min(ρ, cap), kept unless it moves away where D is above its bound."""
        moved, ratio, advantages = tokens.divergence, tokens.ratio, tokens.advantages
        if moved is None and self.top_k is not None:
            raise ValueError(
                f"DivergenceMask(top_k={self.top_k}) needs `divergence`: pass topk_divergence of "
                "the tokens that topk_tokens lists, or set top_k=None"
            )
        if moved is None:
            moved = binary_divergence(tokens.logp, tokens.logp_old, self.kind)
        too_high = (advantages > 0) & (ratio > 1) & (moved > self.high)
        too_low = (advantages < 0) & (ratio < 1) & (moved > self.low)
        weight = ratio if self.ratio_cap is None else ratio.clamp(max=self.ratio_cap)
        return Weights(weight, ~(too_high | too_low))
