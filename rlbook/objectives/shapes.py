"""Shape checks: every public function starts with one, and every error names the fix."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def check_tokens(mask: Bool[Tensor, "N T"], **tensors: Tensor | None) -> None:
    """Require a boolean (N, T) mask and, for every named tensor, exactly its shape.

    Raises `TypeError` for a mask that is not boolean and `ValueError` for a wrong shape; tensors
    that are None are skipped.
    """
    if mask.dtype != torch.bool:
        raise TypeError(f"mask must be boolean, got {mask.dtype}: pass mask.bool()")
    if mask.ndim != 2:
        raise ValueError(f"mask must be (N, T), got {tuple(mask.shape)}")
    for name, tensor in tensors.items():
        if tensor is not None and tensor.shape != mask.shape:
            raise ValueError(
                f"{name} has shape {tuple(tensor.shape)} but mask has {tuple(mask.shape)}: "
                "token tensors are (N, T), aligned to the token itself"
            )


def check_result(what: str, given: object, like: Tensor) -> None:
    """Require what code of a reader's own returned to be a tensor of the shape of `like`.

    Raises `ValueError` naming it, and for a boolean tensor where numbers are wanted or vice versa.
    """
    shape, flags = tuple(like.shape), like.dtype == torch.bool
    if not isinstance(given, Tensor) or given.shape != like.shape:
        got = tuple(given.shape) if isinstance(given, Tensor) else type(given).__name__
        raise ValueError(f"{what} is {got}: return a tensor {shape}, one value per token")
    if (given.dtype == torch.bool) != flags:
        raise ValueError(
            f"{what} holds {given.dtype}: return {'True or False' if flags else 'a number'} "
            "for each token"
        )


def check_same_shape(**tensors: Tensor) -> None:
    """Require one common shape; raises `ValueError` naming the first that differs."""
    (first, reference), *rest = tensors.items()
    for name, tensor in rest:
        if tensor.shape != reference.shape:
            raise ValueError(
                f"{name} has shape {tuple(tensor.shape)} but {first} has {tuple(reference.shape)}"
            )


def check_rewards(
    rewards: Float[Tensor, " N"], groups: Int[Tensor, " N"] | None = None, **others: Tensor
) -> None:
    """Require finite floating rewards (N,) and integer groups of the same length.

    Raises `TypeError` for a wrong dtype, `ValueError` for a wrong shape or a non-finite reward.
    """
    if not rewards.is_floating_point():
        raise TypeError(f"rewards must be floating point, got {rewards.dtype}: rewards.float()")
    if rewards.ndim != 1:
        raise ValueError(f"rewards must be (N,), one per sequence, got {tuple(rewards.shape)}")
    if not torch.isfinite(rewards).all():
        first = int((~torch.isfinite(rewards)).nonzero()[0])
        raise ValueError(f"rewards[{first}] is {rewards[first]:g}: drop unscorable rollouts first")
    if groups is not None and (groups.is_floating_point() or groups.shape != rewards.shape):
        raise ValueError(
            f"groups must hold one integer prompt id per reward, got {groups.dtype} "
            f"{tuple(groups.shape)} for {rewards.shape[0]} rewards"
        )
    check_same_shape(rewards=rewards, **others)


def zero_masked(mask: Bool[Tensor, "*shape"], *tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors with 0 wherever `mask` is False.

    Done on the *inputs* of a formula: masking only its result would still let a NaN in the
    padding reach the gradient, since the chain rule multiplies 0 by NaN.
    """
    return tuple(torch.where(mask, tensor, torch.zeros_like(tensor)) for tensor in tensors)


def expand_to_tokens(
    advantages: Float[Tensor, "..."], mask: Bool[Tensor, "N T"]
) -> Float[Tensor, "N T"]:
    """Advantages as (N, T): a value per sequence is given to each of its tokens.

    Raises `ValueError` unless `advantages` is (N,) or (N, T).
    """
    if advantages.shape == mask.shape[:1]:
        return advantages[:, None].expand(mask.shape)
    if advantages.shape == mask.shape:
        return advantages
    raise ValueError(
        f"advantages must be (N,) or (N, T) = {tuple(mask.shape)}, got {tuple(advantages.shape)}"
    )
