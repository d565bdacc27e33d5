"""Importance ratios: how much more likely is this token now than when it was sampled?"""

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rlbook.objectives.shapes import check_same_shape, check_tokens, zero_masked


def token_ratio(
    logp: Float[Tensor, "N T"],
    logp_old: Float[Tensor, "N T"],
    max_log_ratio: float | None = None,
) -> Float[Tensor, "N T"]:
    """Ratio of each token: ρ_t = π_θ(y_t) / π_old(y_t) = exp(log π_θ − log π_old).

    `max_log_ratio` clamps the exponent to ±that value (verl: 20; TRL: none, the default here).
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

    `normalize=False` drops the exponent 1/|y|: the ratio of whole completions.
    `gradient="token"` gives entry t the gradient s·∇log π(y_t) (GSPO-token, Eqs. 13–14);
    `"sequence"` differentiates s itself (Eq. 7), so every entry reaches every token. With one
    advantage per sequence and `normalize=True` both give the same gradient.
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
    mode: Literal["truncate", "drop"] = "truncate",
    level: Literal["token", "sequence"] = "token",
) -> Float[Tensor, "N T"]:
    """Weight min(π_old/μ, cap) that repairs a sampler μ which is not quite π_old.

    For runs that recompute π_old in the trainer while another engine sampled. `mode="drop"`
    gives 0 instead of `cap` where the ratio exceeds it; `level="sequence"` uses the ratio of
    whole completions. Detached; 1 outside the mask. There is no agreed cap, so none is assumed.
    Chapters 11 and 17.
    """
    check_tokens(mask, logp_old=logp_old, logp_sampler=logp_sampler)
    if mode not in ("truncate", "drop") or level not in ("token", "sequence"):
        raise ValueError(
            f'mode is "truncate" or "drop", level "token" or "sequence"; got {mode!r}, {level!r}'
        )
    logp_old, logp_sampler = zero_masked(mask, logp_old.detach(), logp_sampler.detach())
    log_ratio = logp_old - logp_sampler
    if level == "sequence":
        log_ratio = torch.where(mask, log_ratio.sum(1, keepdim=True), 0.0)
    ratio = log_ratio.exp()
    return ratio.clamp(max=cap) if mode == "truncate" else torch.where(ratio <= cap, ratio, 0.0)
