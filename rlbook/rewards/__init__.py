"""What an answer can be worth besides the verifier's word: functions of rollouts, one seam."""

from rlbook.rewards.judges import habits_on_track, sums_on_track
from rlbook.rewards.process import (
    PrimeCredit,
    SiblingCredit,
    Steps,
    VerdictCredit,
    VineCredit,
)
from rlbook.rewards.teacher import TeacherReward

__all__ = [
    "KimiLength",
    "L1Exact",
    "L1Max",
    "LengthCost",
    "PrimeCredit",
    "SiblingCredit",
    "Steps",
    "TeacherReward",
    "VerdictCredit",
    "VineCredit",
    "habits_on_track",
    "sums_on_track",
]
