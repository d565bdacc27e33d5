"""Where the time of sampling and of an update goes, next to what the matrix products need."""

from collections.abc import Callable
from statistics import median

from torch.profiler import ProfilerActivity, profile

from workshop.bench import sampler, train_step
from workshop.bench.timing import alternate, gemm_multiplication

SHOWN = 12
ROWS = {"smoke": 8, "full": 128}


def run(size: str) -> list[dict]:
    """Tensor operations by their own time, for sampling and for one update of `ROWS` sequences.

    The row "limit" is the time the counted operations would take at the rate of `torch.mm`.
    """
    work = {
        "sampling": sampler.workload(ROWS[size]),
        "update": train_step.workload(ROWS[size]),
    }
    return [row for part, (call, flops) in work.items() for row in _profile(part, call, flops)]


def _profile(part: str, call: Callable[[], object], flops: int) -> list[dict]:
    gemm, gemm_flops = gemm_multiplication()
    rate = gemm_flops / median(alternate({"gemm": gemm}, 5)["gemm"])
    call()
    with profile(activities=[ProfilerActivity.CPU]) as trace:
        call()
    events = sorted(trace.key_averages(), key=lambda e: e.self_cpu_time_total, reverse=True)
    total = sum(e.self_cpu_time_total for e in events)
    named = [(e.key, e.count, e.self_cpu_time_total) for e in events[:SHOWN]]
    rest = events[SHOWN:]
    named += [
        ("all others", sum(e.count for e in rest), sum(e.self_cpu_time_total for e in rest)),
        ("limit", 0, flops / rate * 1e6),
    ]
    return [
        {"part": part, "operation": name, "calls": calls, "milliseconds": us / 1e3}
        | {"share": us / total}
        for name, calls, us in named
    ]
