"""Policies small enough to enumerate, and what can be computed exactly with them."""

from rlbook.exact.baseline_cost import (
    constant_baselines,
    cost,
    relative_noise,
    rollouts_needed,
)
from rlbook.exact.batch_reuse import ReuseRun, rare_token_world, reuse_batches, reuse_sampled
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
    baseline_moments,
    bias_variance_table,
    ema_variance,
    expected_gradient,
    optimal_baseline,
)
from rlbook.exact.four_completions import FOUR, Completions, four_table
from rlbook.exact.gae_walk import GAEMoments, Walk, gae_moments, gae_table
from rlbook.exact.policies import EnumerablePolicy, FillerPolicy, SoftmaxPolicy, TokenTree
from rlbook.exact.rough_bandit import RoughRun, rough_bandit

__all__ = [
    "FOUR",
    "KL_KINDS",
    "Completions",
    "EnumerablePolicy",
    "FillerPolicy",
    "GAEMoments",
    "GradientMoments",
    "KLEstimator",
    "ReuseRun",
    "RoughRun",
    "SoftmaxPolicy",
    "TokenTree",
    "Walk",
    "baseline_moments",
    "bias_variance_table",
    "constant_baselines",
    "cost",
    "ema_variance",
    "exact_kl",
    "exact_kl_gradient",
    "exact_reverse_kl_gradient",
    "expected_gradient",
    "four_table",
    "gae_moments",
    "gae_table",
    "kl_estimator",
    "kl_estimator_table",
    "optimal_baseline",
    "rare_token_world",
    "relative_noise",
    "reuse_batches",
    "reuse_sampled",
    "rollouts_needed",
    "rough_bandit",
]
