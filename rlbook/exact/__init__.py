"""Policies small enough to enumerate, and what can be computed exactly with them."""

from rlbook.exact.divergence import (
    KL_KINDS,
    KLEstimator,
    exact_kl,
    exact_kl_gradient,
    exact_reverse_kl_gradient,
    kl_estimator,
    kl_estimator_table,
)
from rlbook.exact.estimators import (
    GradientMoments,
    expected_gradient,
    optimal_baseline,
)
from rlbook.exact.four_completions import FOUR, Completions, four_table
from rlbook.exact.policies import EnumerablePolicy, FillerPolicy, SoftmaxPolicy, TokenTree

__all__ = [
    "FOUR",
    "KL_KINDS",
    "Completions",
    "EnumerablePolicy",
    "FillerPolicy",
    "GradientMoments",
    "KLEstimator",
    "SoftmaxPolicy",
    "TokenTree",
    "exact_kl",
    "exact_kl_gradient",
    "exact_reverse_kl_gradient",
    "expected_gradient",
    "four_table",
    "kl_estimator",
    "kl_estimator_table",
    "optimal_baseline",
]
