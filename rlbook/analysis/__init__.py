"""What can be computed exactly or estimated honestly: pass@k, intervals, enumerable policies."""

from rlbook.analysis.divergence import (
    KL_KINDS,
    KLEstimator,
    exact_kl,
    exact_kl_gradient,
    exact_reverse_kl_gradient,
    kl_estimator,
    kl_estimator_table,
)
from rlbook.analysis.exact import (
    GradientMoments,
    baseline_moments,
    bias_variance_table,
    ema_variance,
    expected_gradient,
    optimal_baseline,
)
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
from rlbook.analysis.policies import EnumerablePolicy, FillerPolicy, SoftmaxPolicy, TokenTree
from rlbook.analysis.reuse import (
    ReuseRun,
    rare_token_world,
    reuse_batches,
    reuse_sampled,
)
from rlbook.analysis.walk import GAEMoments, Walk, gae_moments, gae_table

__all__ = [
    "FOUR",
    "KL_KINDS",
    "Completions",
    "EnumerablePolicy",
    "FillerPolicy",
    "GAEMoments",
    "GradientMoments",
    "Interval",
    "KLEstimator",
    "ReuseRun",
    "SoftmaxPolicy",
    "TokenTree",
    "Walk",
    "baseline_moments",
    "bias_variance_table",
    "biased_pass_at_k",
    "bootstrap_interval",
    "ema_variance",
    "exact_kl",
    "exact_kl_gradient",
    "exact_pass_at_k",
    "exact_reverse_kl_gradient",
    "expected_gradient",
    "four_table",
    "gae_moments",
    "gae_table",
    "kl_estimator",
    "kl_estimator_table",
    "optimal_baseline",
    "paired_bootstrap",
    "pass_at_k",
    "pass_at_k_curve",
    "rare_token_world",
    "reuse_batches",
    "reuse_sampled",
    "t_interval",
    "wilson_interval",
]
