"""Importance ratios: how much more likely is this token now than when it was sampled?"""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rlbook.objectives.shapes import check_same_shape, check_tokens, zero_masked

Mode = Literal["truncate", "drop"]
Level = Literal["token", "sequence", "geometric"]


def token_ratio(
    logp: Float[Tensor, "*shape"],
    logp_old: Float[Tensor, "*shape"],
    max_log_ratio: float | None = None,
) -> Float[Tensor, "*shape"]:
    """Ratio of each token: ρ_t = π_θ(y_t) / π_old(y_t) = exp(log π_θ − log π_old).

    `max_log_ratio` clamps the exponent to ±that value (verl: 20; TRL: none, the default here).
    No row sets it: a clamped ratio has no gradient, whatever the trust region says of its weight.
    Source: PPO, arXiv:1707.06347, Eq. 6. Chapter 03.
    """
    check_same_shape(logp=logp, logp_old=logp_old)
    log_ratio = logp - logp_old
    if max_log_ratio is not None:
        log_ratio = log_ratio.clamp(-max_log_ratio, max_log_ratio)
    return log_ratio.exp()


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
    `gradient="token"` gives entry t the gradient s·∇log π(y_t) (GSPO-token, Eqs. 13–14), as every
    row has it; `"sequence"` differentiates s itself (Eq. 7), so every entry reaches every token.
    With one advantage per sequence and `normalize=True` both give the same gradient.
    Source: GSPO, arXiv:2507.18071. Chapter 09.
    """
    check_tokens(mask, logp=logp, logp_old=logp_old)
    logp, logp_old = zero_masked(mask, logp, logp_old)
    length = mask.sum(1, keepdim=True).clamp(min=1) if normalize else 1
    log_ratio = (logp - logp_old).sum(1, keepdim=True) / length
    if gradient == "token":
        return (log_ratio.detach() + logp - logp.detach()).exp()
    if gradient == "sequence":
        return log_ratio.exp().expand(mask.shape)
    raise ValueError(f'gradient must be "token" or "sequence", got {gradient!r}')


def sampler_correction(
    logp_old: Float[Tensor, "N T"],
    logp_sampler: Float[Tensor, "N T"],
    mask: Bool[Tensor, "N T"],
    cap: float,
    mode: Mode = "truncate",
    level: Level = "token",
    low: float = 0.0,
) -> Float[Tensor, "N T"]:
    """Weight that repairs a sampler μ which is not quite π_old: the ratio π_old/μ, bounded.

    For runs that recompute π_old in the trainer while another engine sampled. Of the ratio r,
    `mode="truncate"` gives min(max(r, low), cap) (TIS), `"drop"` r where low ≤ r ≤ cap and 0
    elsewhere (IcePop per token, masked importance sampling per sequence). `level`: r of the
    `"token"`, of the whole completion (`"sequence"`), or the `"geometric"` mean of its tokens.
    Detached; 1 outside the mask. There is no agreed cap, so none is assumed: 2 and 3 per token,
    0.5 to 5 for IcePop, about 1.001 for the geometric mean are in use. Chapters 11 and 17.
    """
    check_tokens(mask, logp_old=logp_old, logp_sampler=logp_sampler)
    check_correction(cap, mode, level, low)
    logp_old, logp_sampler = zero_masked(mask, logp_old.detach(), logp_sampler.detach())
    log_ratio = logp_old - logp_sampler
    if level != "token":
        length = mask.sum(1, keepdim=True).clamp(min=1) if level == "geometric" else 1
        log_ratio = torch.where(mask, log_ratio.sum(1, keepdim=True) / length, 0.0)
    ratio = log_ratio.exp()
    if mode == "truncate":
        return ratio.clamp(low, cap)
    return torch.where((ratio >= low) & (ratio <= cap), ratio, 0.0)


@dataclass(frozen=True)
class SamplerCorrection:
    """The settings of a `sampler_correction`, as a row of the table holds them.

    TIS: SamplerCorrection(cap=2.0). IcePop: SamplerCorrection(5.0, "drop", low=0.5).
    """

    cap: float
    mode: Mode = "truncate"
    level: Level = "token"
    low: float = 0.0

    def __post_init__(self) -> None:
        check_correction(self.cap, self.mode, self.level, self.low)

    def __call__(
        self,
        logp_old: Float[Tensor, "N T"],
        logp_sampler: Float[Tensor, "N T"],
        mask: Bool[Tensor, "N T"],
    ) -> Float[Tensor, "N T"]:
        return sampler_correction(
            logp_old, logp_sampler, mask, self.cap, self.mode, self.level, self.low
        )


def check_correction(cap: float, mode: str, level: str, low: float) -> None:
    """Require known words, and bounds that let a sampler without a mismatch pass."""
    if mode not in get_args(Mode) or level not in get_args(Level):
        raise ValueError(
            f"mode is one of {get_args(Mode)}, level one of {get_args(Level)}; "
            f"got {mode!r}, {level!r}"
        )
    if not 0 <= low <= 1 <= cap:
        raise ValueError(
            f"bounds of the weight must enclose 1, got low={low}, cap={cap}: they are absolute"
        )
