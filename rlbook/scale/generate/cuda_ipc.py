"""Handles of GPU tensors for another process on the same GPU, as JSON."""

import base64

import torch
from torch import Tensor
from torch.multiprocessing.reductions import rebuild_cuda_tensor, reduce_tensor

# Positions in the arguments of `rebuild_cuda_tensor`.
CLASSES = {0: Tensor, 4: torch.storage.TypedStorage}
DTYPE, DEVICE, BYTES = 5, 6, (7, 11, 13)


def handle_of(tensor: Tensor) -> list:
    """What `tensor_from_handle` needs; the tensor must outlive every use of it."""
    _, arguments = reduce_tensor(tensor.detach().contiguous())
    return to_json(arguments)


def tensor_from_handle(handle: list, device: int) -> Tensor:
    """The other process's tensor, without a copy. `device` is the GPU's index in this process."""
    arguments = from_json(handle)
    arguments[DEVICE] = device
    return rebuild_cuda_tensor(*arguments)


def to_json(arguments: tuple) -> list:
    values = list(arguments)
    for place in CLASSES:
        values[place] = None
    values[DTYPE] = str(values[DTYPE]).removeprefix("torch.")
    for place in BYTES:
        values[place] = base64.b64encode(values[place]).decode()
    return [list(value) if isinstance(value, tuple) else value for value in values]


def from_json(handle: list) -> list:
    values = list(handle)
    for place, kind in CLASSES.items():
        values[place] = kind
    values[DTYPE] = getattr(torch, values[DTYPE])
    for place in BYTES:
        values[place] = base64.b64decode(values[place])
    return values
