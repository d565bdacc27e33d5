"""What an answer can be worth besides the verifier's word: functions of rollouts, one seam."""

from rlbook.rewards.dpo import answer_logprobs, dpo_loss, implicit_reward, train_dpo
from rlbook.rewards.length import KimiLength, L1Exact, L1Max, LengthCost
from rlbook.rewards.preferences import Annotator, Misled, Preference, expert, sample_preferences
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
    "KimiLength",
    "L1Exact",
    "L1Max",
    "LengthCost",
    "Misled",
    "Preference",
    "ProxyReward",
    "RewardModel",
    "TeacherReward",
    "answer_logprobs",
    "bradley_terry_loss",
    "calibration",
    "dpo_loss",
    "expert",
    "implicit_reward",
    "margins",
    "sample_preferences",
    "train_dpo",
    "train_reward_model",
]
