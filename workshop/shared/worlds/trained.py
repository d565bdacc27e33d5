"""The worlds that experiments of several chapters are run in."""

from collections.abc import Sequence

from rlbook.training import Rollout, RunConfig, Trainer
from workshop.shared.design import sums_decisions
from workshop.shared.worlds.tasks import RareOpening

__all__ = ["HABITS", "rare_decision", "rare_opening"]

HABITS = {"policy": "tiny-habits", "task": "habits"}


def rare_opening(config: RunConfig) -> Trainer:
    """Right is what opens with "check "."""
    return Trainer(config, task=RareOpening())


def rare_decision(trainer: Trainer, rollouts: Sequence[Rollout]) -> dict[str, float]:
    """The probability of the rare opening after a step."""
    return {"opens_rarely": sums_decisions(trainer)["opens_careful"]}
