"""How the tensor library uses the CPU: threads, and memory it has already been given."""

import ctypes
import os
import platform

import torch

__all__ = ["set_threads"]

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # from glibc's malloc.h


def set_threads(n: int | None = None) -> int:
    """Set the number of CPU threads for tensor operations and return it.

    Without `n`, `OMP_NUM_THREADS` decides, and if that is not set, one thread: the operations of a
    small policy last microseconds, so a second thread gains little on an idle machine, while on a
    busy one the threads spin waiting for each other and a step can take ten times as long.
    Raise it for models of 100 M parameters and more. Also calls `keep_freed_memory`.
    Raises `ValueError` for n < 1.
    """
    if n is None:
        n = int(os.environ.get("OMP_NUM_THREADS") or 1)
    if n < 1:
        raise ValueError(f"number of threads must be at least 1, got {n}")
    torch.set_num_threads(n)
    keep_freed_memory()
    return n


def keep_freed_memory(block: int = 2**26, total: int = 2**28) -> bool:
    """Let the process reuse freed blocks of up to `block` bytes instead of returning them.

    Every tensor of a training step is allocated and freed again; by default glibc hands the larger
    ones back to the system each time, and touching fresh pages then costs 4-6 % of a step. At most
    `total` bytes of free memory are kept. Returns whether it took effect (glibc only).
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(M_MMAP_THRESHOLD, block)) and bool(mallopt(M_TRIM_THRESHOLD, total))
