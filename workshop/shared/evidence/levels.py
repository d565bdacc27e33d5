"""What experiments measure level by level, as columns; levels of habits are families."""

from collections.abc import Iterable, Sequence
from typing import Any

from rlbook.grouping import mean
from rlbook.training import Rollout, Trainer
from workshop.bases.habits_card import majority
from workshop.bases.levels import evaluate_levels, level_groups

__all__ = [
    "by_level",
    "each_family",
    "families",
    "family_rates",
    "level_columns",
    "rules_by_family",
]


def level_columns(
    trainer: Trainer, keys: Sequence[str], prompts: int, n: int, **how: Any
) -> dict[str, float]:
    """Columns such as `pass@1_level_3`, from the rows of `evaluate_levels`."""
    policy = trainer.model, trainer.tokenizer
    rows = evaluate_levels(policy, trainer.task, prompts, n, (1, n), **how)
    return {f"{key}_level_{level}": row[key] for level, row in rows.items() for key in keys}


def by_level(trainer: Trainer) -> dict[str, float]:
    """Held-out pass@1, pass@16, majority of 16 and greedy accuracy on each level of the task."""
    keys = ("pass@1", "pass@16", "majority", "greedy")
    return level_columns(trainer, keys, 24, 16, greedy=True, also=majority)


def rules_by_family(trainer: Trainer) -> dict[str, float]:
    """Held-out pass@1, pass@16, right rules and greedy accuracy of each family of habits."""

    def right_rule(rollouts: Iterable[Rollout]) -> dict[str, float]:
        return {"right_rule": mean(by_the_right_rule(trainer, r) for r in rollouts)}

    keys = ("pass@1", "pass@16", "greedy", "right_rule")
    return level_columns(trainer, keys, 32, 16, greedy=True, also=right_rule)


def each_family(trainer: Trainer) -> dict[str, float]:
    """Held-out pass@1 of 32 problems of each family of habits, and the mean over families."""
    row = level_columns(trainer, ("pass@1",), 32, 8)
    return row | {"pass@1_habits": mean(row.values())}


def family_rates(trainer: Trainer) -> dict[str, float]:
    """Held-out pass@1 of 24 problems of each family of habits."""
    return level_columns(trainer, ("pass@1",), 24, 8)


def families(trainer: Trainer, rollouts: Iterable[Rollout]) -> dict[str, float]:
    """Share of answers by the right rule in each family, whatever became of the arithmetic."""
    return {
        f"right_rule_level_{level}": mean(by_the_right_rule(trainer, r) for r in members)
        for level, members in level_groups(rollouts).items()
    }


def by_the_right_rule(trainer: Trainer, rollout: Rollout) -> bool:
    """Whether an answer computes first what the rule of its family says."""
    label = trainer.task.label(rollout.problem, rollout.text, not rollout.truncated)
    return label == "right"
