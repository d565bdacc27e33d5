"""Trust regions: what happens to a token whose probability has already moved?

Each is called with (N, T) tensors `logp`, `logp_old`, `ratio`, `advantages`, `divergence` and
returns a `Surrogate`. `ratio` may be per token or per sequence, or None where there is no
importance ratio at all; `divergence`, for those that ask how far the whole distributions are
apart, may be None. A region of your own is a frozen dataclass with the same call. Whatever the
shape of the loss, its gradient is

    ∂loss/∂log π_θ(y_t) = −weight_t · A_t

so a method is characterised by its weights, and widgets draw exactly what the trainer runs.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rlbook.objectives.shapes import check_same_shape


class Surrogate(NamedTuple):
    """Per-token loss to minimise, tokens that keep their gradient, coefficient of A·∇log π."""

    loss: Float[Tensor, "N T"]
    keep: Bool[Tensor, "N T"]
    weight: Float[Tensor, "N T"]


@runtime_checkable
class TrustRegion(Protocol):
    def __call__(
        self,
        logp: Tensor,
        logp_old: Tensor,
        ratio: Tensor | None,
        advantages: Tensor,
        divergence: Tensor | None = None,
    ) -> Surrogate: ...


@dataclass(frozen=True)
class NoTrustRegion:
    """The plain policy gradient: −A log π on-policy, −A ρ where a ratio is given.

    Source: Williams 1992; with a ratio PPO, arXiv:1707.06347, Eq. 6 (L^CPI). Chapter 02.
    """

    def __call__(
        self,
        logp: Tensor,
        logp_old: Tensor,
        ratio: Tensor | None,
        advantages: Tensor,
        divergence: Tensor | None = None,
    ) -> Surrogate:
        loss = -advantages * (logp if ratio is None else ratio)
        weight = torch.ones_like(logp) if ratio is None else ratio.detach()
        return Surrogate(loss, torch.ones_like(logp, dtype=torch.bool), weight.detach())


@dataclass(frozen=True)
class RatioClip:
    """PPO's clip: −min(ρA, clip(ρ, 1−low, 1+high) A), the minimum for both signs of A.

    Its gradient is a mask: 0 for tokens with A > 0 and ρ > 1+high, or A < 0 and ρ < 1−low.
    `dual` = c > 1 also stops tokens with A < 0 and ρ > c (loss at most −cA; verl: 3, PPO: None).
    Source: PPO, arXiv:1707.06347, Eq. 7; dual clip arXiv:1912.09729. Chapters 03 and 08.
    """

    low: float = 0.2
    high: float = 0.2
    dual: float | None = None

    def __post_init__(self) -> None:
        if self.low < 0 or self.high < 0:
            raise ValueError(f"low and high are distances from 1, got {self.low} and {self.high}")
        if self.dual is not None and self.dual <= 1:
            raise ValueError(f"dual is a bound on the ratio above 1, got {self.dual}")

    def __call__(
        self,
        logp: Tensor,
        logp_old: Tensor,
        ratio: Tensor | None,
        advantages: Tensor,
        divergence: Tensor | None = None,
    ) -> Surrogate:
        ratio = require(ratio, "RatioClip")
        clipped = ratio.clamp(1 - self.low, 1 + self.high)
        loss = -torch.minimum(ratio * advantages, clipped * advantages)
        too_high = (advantages > 0) & (ratio > 1 + self.high)
        too_low = (advantages < 0) & (ratio < 1 - self.low)
        keep = ~(too_high | too_low)
        if self.dual is not None:
            capped = torch.minimum(loss, -self.dual * advantages)
            loss = torch.where(advantages < 0, capped, loss)
            keep = keep & ~((advantages < 0) & (ratio > self.dual))
        return Surrogate(loss, keep, torch.where(keep, ratio.detach(), 0.0))


@dataclass(frozen=True)
class WeightClip:
    """CISPO: clip the importance weight, not the gradient: −sg(clip(ρ, min, max)) A log π.

    Every token keeps a gradient. `min` and `max` are *absolute* bounds of the weight. The same
    symbol ε means max = 1+ε in MiniMax-M1 and verl, but max = ε in ScaleRL and TRL.
    The value of the loss carries no meaning; its gradient does.
    Source: MiniMax-M1, arXiv:2506.13585, Eqs. 4 and 5; ScaleRL, arXiv:2510.13786, §4. Chapter 09.
    """

    max: float
    min: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.min <= 1 <= self.max:
            raise ValueError(
                f"bounds of the weight must enclose 1, got min={self.min}, max={self.max}: "
                "they are absolute, so write max=1.28 for an ε of 0.28"
            )

    def __call__(
        self,
        logp: Tensor,
        logp_old: Tensor,
        ratio: Tensor | None,
        advantages: Tensor,
        divergence: Tensor | None = None,
    ) -> Surrogate:
        weight = require(ratio, "WeightClip").detach().clamp(self.min, self.max)
        loss = -weight * advantages * logp
        return Surrogate(loss, torch.ones_like(logp, dtype=torch.bool), weight)


@dataclass(frozen=True)
class DivergenceMask:
    """DPPO: stop a token that moves away from π_old where the *distributions* already differ.

    Masked iff (A > 0, ρ > 1, D > high) or (A < 0, ρ < 1, D > low); loss −sg(min(ρ, cap)) A log π
    on the rest. D is `binary_divergence` of the given `kind`, or the `divergence` (N, T) of the
    call; with `top_k` it must be given, as `topk_divergence` of the `top_k` likeliest tokens and
    the sampled one (`topk_tokens`). The paper's π_old is the sampler μ: pass its log-probs as
    `logp_old`. `ratio_cap` truncates the weight (None: not at all, the paper's stability runs).
    Source: DPPO, arXiv:2602.04879, Eqs. 12–16 and 23. Chapter 11.
    """

    kind: Literal["tv", "kl"] = "tv"
    low: float = 0.15
    high: float = 0.15
    ratio_cap: float | None = None
    top_k: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in ("tv", "kl"):
            raise ValueError(f'kind must be "tv" or "kl", got {self.kind!r}')
        if self.low < 0 or self.high < 0:
            raise ValueError(f"low and high are divergences ≥ 0, got {self.low} and {self.high}")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k counts the likeliest tokens, at least 1, got {self.top_k}")

    def __call__(
        self,
        logp: Tensor,
        logp_old: Tensor,
        ratio: Tensor | None,
        advantages: Tensor,
        divergence: Tensor | None = None,
    ) -> Surrogate:
        ratio = require(ratio, "DivergenceMask").detach()
        if divergence is None and self.top_k is not None:
            raise ValueError(
                f"DivergenceMask(top_k={self.top_k}) needs `divergence`: pass topk_divergence of "
                "the tokens that topk_tokens lists, or set top_k=None"
            )
        if divergence is None:
            divergence = binary_divergence(logp.detach(), logp_old, self.kind)
        too_high = (advantages > 0) & (ratio > 1) & (divergence > self.high)
        too_low = (advantages < 0) & (ratio < 1) & (divergence > self.low)
        keep = ~(too_high | too_low)
        weight = ratio if self.ratio_cap is None else ratio.clamp(max=self.ratio_cap)
        weight = torch.where(keep, weight, 0.0)
        return Surrogate(-weight * advantages * logp, keep, weight)


def require(ratio: Tensor | None, name: str) -> Tensor:
    """The ratio, or a `ValueError` that says where to set it."""
    if ratio is None:
        raise ValueError(f'{name} needs an importance ratio: set ratio="token" or "sequence"')
    return ratio


def binary_divergence(
    logp: Float[Tensor, "*shape"],
    logp_old: Float[Tensor, "*shape"],
    kind: Literal["tv", "kl"] = "tv",
    eps: float = 1e-8,
) -> Float[Tensor, "*shape"]:
    """Divergence D(π_old ‖ π_θ) of "this token or any other", from the token's own probability.

    tv: |μ − π|;  kl: μ log(μ/π) + (1−μ) log((1−μ)/(1−π)), in nats, with μ from `logp_old`.
    A lower bound of the divergence of the full distributions. `eps` guards the logarithms of 1−μ
    and 1−π. Source: DPPO, arXiv:2602.04879, Eqs. 13 and 14. Chapter 11.
    """
    check_same_shape(logp=logp, logp_old=logp_old)
    p, p_old = logp.exp(), logp_old.exp()
    if kind == "tv":
        return (p_old - p).abs()
    others = (1 - p_old) * ((1 - p_old + eps) / (1 - p + eps)).log()
    return p_old * (logp_old - logp) + others


ABSENT = -1e4  # log-probability of a token that is not there: exp gives exactly 0


def topk_tokens(
    logp_old: Float[Tensor, "... V"], ids: Int[Tensor, "..."], k: int
) -> Int[Tensor, "... K"]:
    """Ids of the k likeliest tokens under π_old and, last, of the sampled one: K = k + 1 columns.

    Where the sampled token is among the k, the last id is −1: the list is the paper's set, each
    token once. Source: DPPO, arXiv:2602.04879, Eq. 15. Chapter 11.
    """
    top = logp_old.topk(min(k, logp_old.shape[-1]), dim=-1).indices
    sampled = ids[..., None].masked_fill((top == ids[..., None]).any(-1, keepdim=True), -1)
    return torch.cat([top, sampled], dim=-1)


def listed_logps(
    logp: Float[Tensor, "... V"], listed: Int[Tensor, "... K"]
) -> Float[Tensor, "... K"]:
    """Log-probabilities of the tokens that `topk_tokens` lists; probability 0 for an id of −1."""
    return logp.gather(-1, listed.clamp(min=0)).masked_fill(listed < 0, ABSENT)


def topk_divergence(
    logp: Float[Tensor, "N T K"],
    logp_old: Float[Tensor, "N T K"],
    kind: Literal["tv", "kl"] = "tv",
    eps: float = 1e-12,
) -> Float[Tensor, "N T"]:
    """Divergence D(π_old ‖ π_θ) over K listed tokens and one bucket for all the others.

    The list is meant to be the K most likely tokens under π_old *and* the sampled one, the same
    tokens for both policies. tv: ½ Σ |μ − π|;  kl: Σ μ log(μ/π), nats. Tighter than
    `binary_divergence`, still a lower bound. `eps` is the least mass of the bucket.
    Source: DPPO, arXiv:2602.04879, Eqs. 15 and 16 (K = 20). Chapter 11.
    """
    check_same_shape(logp=logp, logp_old=logp_old)
    p, p_old = logp.exp(), logp_old.exp()
    rest, rest_old = ((1 - x.sum(-1)).clamp(min=eps) for x in (p, p_old))
    if kind == "tv":
        return 0.5 * ((p_old - p).abs().sum(-1) + (rest_old - rest).abs())
    listed = (p_old * (logp_old - logp)).sum(-1)
    return listed + rest_old * (rest_old / rest).log()
