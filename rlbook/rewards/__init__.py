"""What an answer can be worth besides the verifier's word: rewards are functions of rollouts."""

from rlbook.rewards.dpo import answer_logprobs, dpo_loss, implicit_reward, train_dpo
from rlbook.rewards.entropy import EntropyFineTuning, token_entropy
from rlbook.rewards.label_free import (
    confidence,
    format_only,
    majority_vote,
    negative_entropy,
    plurality,
    random_reward,
    semantic_agreement,
    vote_metrics,
    wrong_labels,
)
from rlbook.rewards.preferences import Annotator, Misled, Preference, expert, sample_preferences
from rlbook.rewards.reward_model import (
    ProxyReward,
    RewardModel,
    bradley_terry_loss,
    calibration,
    margins,
    train_reward_model,
)

__all__ = [
    "Annotator",
    "EntropyFineTuning",
    "Misled",
    "Preference",
    "ProxyReward",
    "RewardModel",
    "answer_logprobs",
    "bradley_terry_loss",
    "calibration",
    "confidence",
    "dpo_loss",
    "expert",
    "format_only",
    "implicit_reward",
    "majority_vote",
    "margins",
    "negative_entropy",
    "plurality",
    "random_reward",
    "sample_preferences",
    "semantic_agreement",
    "token_entropy",
    "train_dpo",
    "train_reward_model",
    "vote_metrics",
    "wrong_labels",
]
