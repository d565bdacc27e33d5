"""How far apart are two distributions over the next token, seen from one or a few of its tokens?"""

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rlbook.objectives.shapes import check_same_shape

__all__ = ["binary_divergence", "listed_logps", "topk_divergence", "topk_tokens"]


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
