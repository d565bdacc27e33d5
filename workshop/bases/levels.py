"""A policy measured level by level of its task: on habits, family by family."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlbook.evaluation import held_out_rollouts, summary
from rlbook.grouping import group_by, mean
from rlbook.tasks import Task
from rlbook.training import Rollout


def evaluate_levels(
    policy: tuple[PreTrainedModel, PreTrainedTokenizerBase],
    task: Task,
    prompts: int = 32,
    n: int = 16,
    ks: Sequence[int] | None = None,
    *,
    greedy: bool = False,
    also: Callable[[Sequence[Rollout]], Mapping[str, float]] | None = None,
    **how: Any,
) -> dict[int, dict[str, Any]]:
    """`evaluate`, level by level: as many held-out problems of each level of the task.

    `greedy` adds the accuracy of the most probable answers, `also` what it says of the rollouts of
    a level.
    """
    rows = {}
    for level in task.levels:
        rollouts = held_out_rollouts(policy, task, prompts, n, (level,), **how)
        rows[level] = summary(rollouts, ks, task) | dict(also(rollouts) if also else {})
        if greedy:
            likeliest = held_out_rollouts(policy, task, prompts, 1, (level,), temperature=0, **how)
            rows[level]["greedy"] = mean(r.correct for r in likeliest)
    return rows


def level_groups(rollouts: Iterable[Rollout]) -> dict[int, list[Rollout]]:
    """The rollouts of each level, in order; of sums the number of operands."""
    return dict(sorted(group_by(rollouts, lambda r: r.problem.level).items()))
