"""pass@k, intervals and paired differences: what a sample says."""

from rlbook.stats.intervals import (
    Interval,
    bootstrap_interval,
    t_interval,
    wilson_interval,
)
from rlbook.stats.pass_at_k import biased_pass_at_k, exact_pass_at_k, pass_at_k, pass_at_k_curve

__all__ = [
    "Interval",
    "biased_pass_at_k",
    "bootstrap_interval",
    "exact_pass_at_k",
    "pass_at_k",
    "pass_at_k_curve",
    "t_interval",
    "wilson_interval",
]
