"""What a training run holds in memory: counted tensor by tensor, not estimated.

Large models are built on torch's `meta` device: every tensor has its real shape and dtype and no
storage, so 32 billion parameters cost nothing.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class StateMemory:
    """Bytes that stay allocated from one update to the next."""

    weights: int
    gradients: int = 0
    optimizer: int = 0

    @property
    def total(self) -> int:
        """Bytes of all three."""
        return self.weights + self.gradients + self.optimizer

    def __add__(self, other: "StateMemory") -> "StateMemory":
        return StateMemory(
            self.weights + other.weights,
            self.gradients + other.gradients,
            self.optimizer + other.optimizer,
        )


def count_parameters(model: nn.Module) -> int:
    """Number of parameters, shared ones once."""
    return sum(p.numel() for p in model.parameters())


def trained_memory(model: nn.Module) -> StateMemory:
    """Bytes of a trained model: its weights, a gradient for each, and AdamW's two moments.

    Takes one AdamW step with gradients of zero on a copy of the shapes (on `meta`) and adds up
    the tensors there are. 16 bytes per parameter in float32; mixed precision with float32 master
    weights comes to the same (2 + 2 + 4 + 8).
    """
    shapes = [torch.empty_like(p, device="meta").requires_grad_() for p in model.parameters()]
    for p in shapes:
        p.grad = torch.empty_like(p)
    optimizer = torch.optim.AdamW(shapes)
    optimizer.step()
    return state_memory(shapes, optimizer)


def frozen_memory(model: nn.Module, dtype: torch.dtype = torch.bfloat16) -> StateMemory:
    """Bytes of a model that is only read, such as a reference: its weights in `dtype`."""
    return StateMemory(count_parameters(model) * dtype.itemsize)


def state_memory(
    parameters: Iterable[Tensor], optimizer: torch.optim.Optimizer | None = None
) -> StateMemory:
    """Bytes of the tensors that exist now: parameters, their gradients, optimizer state."""
    parameters = list(parameters)
    state = optimizer.state.values() if optimizer else ()
    moments = [t for entry in state for t in entry.values() if torch.is_tensor(t) and t.ndim]
    return StateMemory(
        weights=sum(p.nbytes for p in parameters),
        gradients=sum(p.grad.nbytes for p in parameters if p.grad is not None),
        optimizer=sum(t.nbytes for t in moments),
    )
