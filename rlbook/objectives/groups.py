"""Statistics per group, for arbitrary integer ids and unequal group sizes."""

from typing import cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def group_sum(values: Float[Tensor, " N"], groups: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
    """Sum over the members of each element's group, handed back to every member."""
    ids, index = torch.unique(groups, return_inverse=True)
    return values.new_zeros(len(ids)).index_add(0, index, values)[index]


def group_size(groups: Int[Tensor, " N"]) -> Int[Tensor, " N"]:
    """Number of members of each element's group."""
    _, index, counts = torch.unique(groups, return_inverse=True, return_counts=True)
    return cast(Tensor, counts[index])


def group_mean(values: Float[Tensor, " N"], groups: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
    """Mean over each element's group."""
    return group_sum(values, groups) / group_size(groups)


def has_spread(values: Float[Tensor, " N"], groups: Int[Tensor, " N"]) -> Bool[Tensor, " N"]:
    """True for members of groups that hold at least two different values.

    Compares extremes: a mean of equal float32 numbers may be off by one bit, and an estimator
    that divides by a standard deviation near 0 turns that bit into an advantage of order 1.
    """
    ids, index = torch.unique(groups, return_inverse=True)
    empty = values.new_zeros(len(ids))
    high = empty.scatter_reduce(0, index, values, "amax", include_self=False)
    low = empty.scatter_reduce(0, index, values, "amin", include_self=False)
    return (high > low)[index]
