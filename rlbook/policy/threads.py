"""How many CPU threads the tensor library may use."""

import os

import torch


def set_threads(n: int | None = None) -> int:
    """Set the number of CPU threads for tensor operations and return it.

    Without `n`, `OMP_NUM_THREADS` decides, and if that is not set, one thread: the operations of a
    small policy last microseconds, so a second thread gains little on an idle machine, while on a
    busy one the threads spin waiting for each other and a step can take ten times as long.
    Raise it for models of 100 M parameters and more. Raises `ValueError` for n < 1.
    """
    if n is None:
        n = int(os.environ.get("OMP_NUM_THREADS") or 1)
    if n < 1:
        raise ValueError(f"number of threads must be at least 1, got {n}")
    torch.set_num_threads(n)
    return n
