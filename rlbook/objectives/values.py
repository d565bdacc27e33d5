"""The critic's loss."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rlbook.objectives.aggregation import Totals, aggregate
from rlbook.objectives.shapes import check_tokens, zero_masked

__all__ = ["value_loss"]


def value_loss(
    values: Float[Tensor, "N T"],
    values_old: Float[Tensor, "N T"],
    returns: Float[Tensor, "N T"],
    mask: Bool[Tensor, "N T"],
    clip: float | None = 0.2,
    totals: Totals | None = None,
) -> Float[Tensor, ""]:
    """Token mean of ½ max((V − R)², (V_clip − R)²), V_clip = V_old + clamp(V − V_old, ±clip).

    The maximum removes the gain of moving further than `clip` from the value at rollout time.
    `clip` is in units of reward; None gives ½ (V − R)². Chapter 03.
    """
    check_tokens(mask, values=values, values_old=values_old, returns=returns)
    values, values_old, returns = zero_masked(mask, values, values_old, returns)
    error = (values - returns).square()
    if clip is not None:
        clipped = values_old + (values - values_old).clamp(-clip, clip)
        error = torch.maximum(error, (clipped - returns).square())
    return aggregate(error / 2, mask, "token_mean", totals=totals)
