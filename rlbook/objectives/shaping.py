"""Reward shaping: the parts of a reward that are not the verdict itself."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rlbook.objectives.advantages import at_last_token
from rlbook.objectives.kl import KLPenalty, kl_estimate
from rlbook.objectives.shapes import check_tokens, zero_masked

__all__ = ["overlong_penalty", "token_rewards"]  # and `overlong_filter`, for the trainer


def overlong_penalty(
    lengths: Int[Tensor, " N"], max_length: int, cache: int, floor: float | None = -1.0
) -> Float[Tensor, " N"]:
    """Soft punishment of long completions, added to the reward: a ramp from 0 to −1.

    0 up to max_length − cache tokens, then linear, −1 at max_length. Beyond that it stays at
    `floor`; None lets the ramp go on, as in verl (whose completions never get there).
    Raises `ValueError` unless 0 < cache ≤ max_length.
    Source: DAPO, arXiv:2503.14476, Eq. 13. Chapter 08.
    """
    if not 0 < cache <= max_length:
        raise ValueError(f"need 0 < cache ≤ max_length, got cache={cache}, max_length={max_length}")
    excess = (lengths - (max_length - cache)).clamp(min=0)
    penalty = -excess.to(torch.get_default_dtype()) / cache
    return penalty if floor is None else penalty.clamp(min=floor)


def overlong_filter(mask: Bool[Tensor, "N T"], finished: Bool[Tensor, " N"]) -> Bool[Tensor, "N T"]:
    """The tokens to train without those of truncated completions, which count in baselines alone.

    Source: DAPO, arXiv:2503.14476, §3.4. Chapter 08.
    """
    return mask & finished[:, None]


def token_rewards(
    rewards: Float[Tensor, " N"],
    mask: Bool[Tensor, "N T"],
    kl: KLPenalty | None = None,
    logp_old: Float[Tensor, "N T"] | None = None,
    logp_ref: Float[Tensor, "N T"] | None = None,
) -> Float[Tensor, "N T"]:
    """The reward on each sequence's last trained token, minus β·k on every token if asked.

    The penalty, an estimate of KL(π_old ‖ π_ref), applies when `kl.where == "reward"`; summed
    over the sequence, k1 gives β log π_old(y)/π_ref(y), the form RLOO uses.
    Sources: DeepSeekMath, arXiv:2402.03300, Eq. 2; RLOO, arXiv:2402.14740. Chapters 03 and 04.
    """
    check_tokens(mask, logp_old=logp_old, logp_ref=logp_ref)
    at_end = at_last_token(rewards, mask)
    if kl is None or kl.where != "reward":
        return at_end
    if logp_old is None or logp_ref is None:
        raise ValueError("a KL penalty in the reward needs logp_old and logp_ref")
    logp_old, logp_ref = zero_masked(mask, logp_old, logp_ref)
    return at_end - kl.beta * kl_estimate(logp_old, logp_ref, kl.kind, kl.cap)
