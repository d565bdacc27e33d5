"""What can be computed exactly or estimated honestly: pass@k, intervals, enumerable policies."""

from rlbook.analysis.four import FOUR, Completions, four_table
from rlbook.analysis.intervals import (
    Interval,
    bootstrap_interval,
    paired_bootstrap,
    t_interval,
    wilson_interval,
)
from rlbook.analysis.pass_at_k import (
    biased_pass_at_k,
    exact_pass_at_k,
    pass_at_k,
    pass_at_k_curve,
)

__all__ = [
    "FOUR",
    "Completions",
    "Interval",
    "biased_pass_at_k",
    "bootstrap_interval",
    "exact_pass_at_k",
    "four_table",
    "paired_bootstrap",
    "pass_at_k",
    "pass_at_k_curve",
    "t_interval",
    "wilson_interval",
]
