"""Importance ratios: how much more likely is this token now than when it was sampled?

A ratio of your own is a function of `Tokens`, or a frozen dataclass with a `__call__`:

    def halfway(tokens): return tokens.ratio.sqrt()
    replace(METHODS["grpo"], ratio=halfway)
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rlbook.objectives.options import Choice
from rlbook.objectives.shapes import check_result, check_same_shape, check_tokens, zero_masked

__all__ = ["SamplerCorrection", "Tokens", "sequence_ratio", "token_ratio"]

# A ratio is e^±32 at most: 8e13 and its square fit float32 with room to spare, so the gradient of a
# token is finite and so is the norm of all of them. verl clamps at 20, TRL not at all.
MAX_LOG_RATIO = 32.0

Mode = Literal["truncate", "drop"]
Level = Literal["token", "sequence", "geometric"]


def token_ratio(
    logp: Float[Tensor, "*shape"], logp_old: Float[Tensor, "*shape"]
) -> Float[Tensor, "*shape"]:
    """Ratio of each token: ρ_t = π_θ(y_t) / π_old(y_t) = exp(log π_θ − log π_old).

    The exponent is clamped to ±`MAX_LOG_RATIO`, so that it never overflows.
    Source: PPO, arXiv:1707.06347, Eq. 6. Chapter 03.
    """
    check_same_shape(logp=logp, logp_old=logp_old)
    return (logp - logp_old).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def sequence_ratio(
    logp: Float[Tensor, "N T"],
    logp_old: Float[Tensor, "N T"],
    mask: Bool[Tensor, "N T"],
    normalize: bool = True,
    gradient: Literal["token", "sequence"] = "token",
) -> Float[Tensor, "N T"]:
    """One ratio per sequence, repeated on its tokens: s = (π_θ(y) / π_old(y))^{1/|y|}.

    `normalize=False` drops the exponent 1/|y|: the ratio of whole completions, a row's
    ratio="sequence_product".
    The logarithm is clamped to ±`MAX_LOG_RATIO`.
    `gradient="token"` gives entry t the gradient s·∇log π(y_t) (GSPO-token, Eqs. 13–14), as every
    row has it; `"sequence"` differentiates s itself (Eq. 7), so every entry reaches every token.
    With one advantage per sequence and `normalize=True` both give the same gradient.
    Source: GSPO, arXiv:2507.18071. Chapter 09.
    """
    check_tokens(mask, logp=logp, logp_old=logp_old)
    logp, logp_old = zero_masked(mask, logp, logp_old)
    length = mask.sum(1, keepdim=True).clamp(min=1) if normalize else 1
    log_ratio = (logp - logp_old).sum(1, keepdim=True) / length
    log_ratio = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    if gradient == "token":
        return (log_ratio.detach() + logp - logp.detach()).exp()
    if gradient == "sequence":
        return log_ratio.exp().expand(mask.shape)
    raise ValueError(f'gradient must be "token" or "sequence", got {gradient!r}')


@dataclass(frozen=True)
class Tokens:
    """What a ratio or a trust region looks at: (N, T) each, without gradient, 0 outside the mask.

    `logp` log π_θ now, `logp_old` log π_old, `ratio` the method's importance ratio, 1 for "none",
    `divergence` of the whole distributions where a run has it. One record, so that a field that
    comes later breaks nobody's own region.
    """

    logp: Float[Tensor, "*shape"]
    logp_old: Float[Tensor, "*shape"]
    advantages: Float[Tensor, "*shape"]
    mask: Bool[Tensor, "*shape"]
    ratio: Float[Tensor, "*shape"]
    divergence: Float[Tensor, "*shape"] | None = None

    @classmethod
    def of(
        cls,
        logp: Float[Tensor, "*shape"],
        logp_old: Float[Tensor, "*shape"],
        advantages: Float[Tensor, "*shape"],
        mask: Bool[Tensor, "*shape"] | None = None,
        ratio: "Ratio" = "token",
        divergence: Float[Tensor, "*shape"] | None = None,
    ) -> "Tokens":
        """The record of these tensors; without a mask every token counts.

        Raises `ValueError` for a ratio that `RATIOS` has not.
        """
        mask = torch.ones_like(logp, dtype=torch.bool) if mask is None else mask
        given = (x.detach() for x in (logp, logp_old, advantages))
        logp, logp_old, advantages = zero_masked(mask, *given)
        tokens = cls(logp, logp_old, advantages, mask, token_ratio(logp, logp_old), divergence)
        if ratio == "token":
            return tokens
        if isinstance(ratio, str) and ratio not in RATIOS:
            raise ValueError(f"unknown ratio {ratio!r}; choose from {', '.join(RATIOS)}")
        choice = RATIOS[ratio] if isinstance(ratio, str) else ratio
        chosen = choice(tokens)
        check_result(f"ratio {getattr(choice, '__name__', type(choice).__name__)}", chosen, logp)
        return replace(tokens, ratio=chosen.detach())

    @property
    def token_ratio(self) -> Float[Tensor, "*shape"]:
        """π_θ/π_old of each token, whatever ratio the method uses."""
        return token_ratio(self.logp, self.logp_old)


Ratio = str | Callable[[Tokens], Tensor]

RATIOS: Mapping[str, Callable[[Tokens], Tensor]] = {
    "none": lambda tokens: torch.ones_like(tokens.logp),
    "token": lambda tokens: tokens.token_ratio,
    "sequence": lambda t: sequence_ratio(t.logp, t.logp_old, t.mask),
    "sequence_product": lambda t: sequence_ratio(t.logp, t.logp_old, t.mask, normalize=False),
}


@dataclass(frozen=True)
class SamplerCorrection(Choice):
    """Weight that repairs a sampler μ which is not quite π_old: the ratio r = π_old/μ, bounded.

    For runs that recompute π_old in the trainer while another engine sampled.
    `mode="truncate"` gives min(max(r, low), cap), `"drop"` r where low ≤ r ≤ cap and 0 elsewhere.
    `level`: r of the `"token"`, of the whole completion (`"sequence"`), or the `"geometric"` mean
    of its tokens. There is no agreed cap, so none is assumed: 2 and 3 per token, 0.5 to 5 for
    IcePop, about 1.001 for the geometric mean are in use.
    TIS: SamplerCorrection(2.0). IcePop: SamplerCorrection(5.0, "drop", low=0.5), the same with
    level="sequence" masked importance sampling. Chapters 11 and 18.
    `moment` drops besides, over the batch, the tokens with the largest (log r)² until the mean of
    the rest is at most `moment`: M2PO, arXiv:2510.01161, with no cap.
    """

    cap: float
    mode: Mode = "truncate"
    level: Level = "token"
    low: float = 0.0
    moment: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.low <= 1 <= self.cap:
            raise ValueError(
                f"bounds of the weight must enclose 1, got low={self.low}, cap={self.cap}: "
                "they are absolute"
            )
        if self.moment is not None and self.moment < 0:
            raise ValueError(f"moment is a mean of squares ≥ 0, got {self.moment}")

    def __call__(
        self,
        logp_old: Float[Tensor, "N T"],
        logp_sampler: Float[Tensor, "N T"],
        mask: Bool[Tensor, "N T"],
    ) -> Float[Tensor, "N T"]:
        """The weight of each token, without gradient; 1 outside the mask."""
        check_tokens(mask, logp_old=logp_old, logp_sampler=logp_sampler)
        logp_old, logp_sampler = zero_masked(mask, logp_old.detach(), logp_sampler.detach())
        log_ratio = logp_old - logp_sampler
        if self.level != "token":
            length = mask.sum(1, keepdim=True).clamp(min=1) if self.level == "geometric" else 1
            log_ratio = torch.where(mask, log_ratio.sum(1, keepdim=True) / length, 0.0)
        ratio = log_ratio.exp()
        inside = (ratio >= self.low) & (ratio <= self.cap)
        if self.mode == "truncate":
            ratio, inside = ratio.clamp(self.low, self.cap), torch.ones_like(mask)
        if self.moment is not None:
            inside &= calm(log_ratio.square(), mask, self.moment)
        return torch.where(inside, ratio, 0.0)


def calm(
    squares: Float[Tensor, "N T"], mask: Bool[Tensor, "N T"], mean: float
) -> Bool[Tensor, "N T"]:
    """The smallest of the masked entries, as many as have a mean ≤ `mean`, and all others."""
    rising = squares[mask].sort().values
    means = rising.cumsum(0) / torch.arange(1, len(rising) + 1, device=rising.device)
    count = int((means <= mean).sum())
    largest = rising[count - 1] if count else -torch.inf
    return (squares <= largest) | ~mask
