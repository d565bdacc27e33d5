"""What an answer can be worth besides the verifier's word: functions of rollouts, one seam."""

from rlbook.rewards.dpo import answer_logprobs, dpo_loss, implicit_reward, train_dpo
from rlbook.rewards.entropy import EntropyFineTuning, token_entropy
from rlbook.rewards.judges import habits_on_track
from rlbook.rewards.kl_reward import kl_of_answers
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
from rlbook.rewards.length import KimiLength, L1Exact, L1Max, LengthCost
from rlbook.rewards.preferences import Annotator, Misled, Preference, expert, sample_preferences
from rlbook.rewards.process import PrimeCredit, SiblingCredit, Steps, VerdictCredit, VineCredit
from rlbook.rewards.reward_model import (
    ProxyReward,
    RewardModel,
    bradley_terry_loss,
    calibration,
    margins,
    train_reward_model,
)
from rlbook.rewards.teacher import TeacherReward

__all__ = [
    "Annotator",
    "EntropyFineTuning",
    "KimiLength",
    "L1Exact",
    "L1Max",
    "LengthCost",
    "Misled",
    "Preference",
    "PrimeCredit",
    "ProxyReward",
    "RewardModel",
    "SiblingCredit",
    "Steps",
    "TeacherReward",
    "VerdictCredit",
    "VineCredit",
    "answer_logprobs",
    "bradley_terry_loss",
    "calibration",
    "confidence",
    "dpo_loss",
    "expert",
    "format_only",
    "habits_on_track",
    "implicit_reward",
    "kl_of_answers",
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
