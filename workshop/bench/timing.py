"""Fair timing on a machine that does other things as well."""

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median, quantiles

import torch

GEMM_SHAPE = (256, 128, 384)  # rows, inner, columns: the tiny model's widest projection


def alternate(runs: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Seconds of each run, taken in turns after one unmeasured round.

    Taking turns spreads a neighbour's load over all of them; compare medians or paired ratios.
    """
    for run in runs.values():
        run()
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            seconds[name].append(timed(run))
    return seconds


def timed(run: Callable[[], object]) -> float:
    """Wall-clock seconds of one call, the accelerator's queue included."""
    _synchronize()
    start = time.perf_counter()
    run()
    _synchronize()
    return time.perf_counter() - start


def spread(seconds: list[float]) -> dict[str, float]:
    """Median, fastest and slowest of the measured times."""
    return {"seconds": median(seconds), "fastest": min(seconds), "slowest": max(seconds)}


def speedup(pairs: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    """The first seconds of each pair by the second: their median, lower and upper quartile."""
    ratios = [first / second for first, second in pairs]
    low, _, high = quantiles(ratios, n=4, method="inclusive") if len(pairs) > 1 else 3 * ratios
    return median(ratios), low, high


def gemm_multiplication(repeats: int = 100, device: str = "cpu") -> tuple[Callable, int]:
    """A run of float32 matrix products, and its floating-point operations."""
    m, k, n = GEMM_SHAPE
    a, b = torch.randn(m, k, device=device), torch.randn(k, n, device=device)

    def run() -> None:
        for _ in range(repeats):
            torch.mm(a, b)

    return run, repeats * 2 * m * k * n


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
