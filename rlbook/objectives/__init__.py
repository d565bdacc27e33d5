"""The mathematics: advantages, ratios, trust regions, aggregation, KL, and methods as rows."""

from rlbook.objectives.advantages import (
    EMABaseline,
    batch_mean_baseline,
    batch_normalize,
    gae,
    gpg,
    greedy_baseline,
    group_center,
    group_normalize,
    leave_one_out,
    length_weighted_baseline,
    max_rl,
    no_baseline,
    reinforce_plus_plus,
    reward_to_go,
)
from rlbook.objectives.aggregation import (
    Aggregation,
    Totals,
    aggregate,
    token_weights,
    totals_of,
)
from rlbook.objectives.kl import KLPenalty, kl_estimate, kl_loss
from rlbook.objectives.loss import Loss, importance_ratio, policy_loss, summarize
from rlbook.objectives.method import Method, compute_advantages
from rlbook.objectives.methods import METHODS
from rlbook.objectives.ratios import sampler_correction, sequence_ratio, token_ratio
from rlbook.objectives.shaping import overlong_penalty, rule_reward, token_rewards
from rlbook.objectives.table import method_table, method_table_markdown
from rlbook.objectives.trust_regions import (
    DivergenceMask,
    NoTrustRegion,
    RatioClip,
    Surrogate,
    TrustRegion,
    WeightClip,
    binary_divergence,
    topk_divergence,
)
from rlbook.objectives.values import value_loss

__all__ = [
    "METHODS",
    "Aggregation",
    "DivergenceMask",
    "EMABaseline",
    "KLPenalty",
    "Loss",
    "Method",
    "NoTrustRegion",
    "RatioClip",
    "Surrogate",
    "Totals",
    "TrustRegion",
    "WeightClip",
    "aggregate",
    "batch_mean_baseline",
    "batch_normalize",
    "binary_divergence",
    "compute_advantages",
    "gae",
    "gpg",
    "greedy_baseline",
    "group_center",
    "group_normalize",
    "importance_ratio",
    "kl_estimate",
    "kl_loss",
    "leave_one_out",
    "length_weighted_baseline",
    "max_rl",
    "method_table",
    "method_table_markdown",
    "no_baseline",
    "overlong_penalty",
    "policy_loss",
    "reinforce_plus_plus",
    "reward_to_go",
    "rule_reward",
    "sampler_correction",
    "sequence_ratio",
    "summarize",
    "token_ratio",
    "token_rewards",
    "token_weights",
    "topk_divergence",
    "totals_of",
    "value_loss",
]
