"""Which groups a method learns from, and how long a run may go on without any."""

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from rlbook.grouping import group_by
from rlbook.objectives import Method
from rlbook.training.batch import Rollout
from rlbook.training.rewards import Reward, VerifierReward, reward_name

__all__ = ["select_groups"]

SILENT_STEPS = 5  # a run that stands still for so long stops


def select_groups(rollouts: Sequence[Rollout], method: Method) -> list[Rollout]:
    """The rollouts of the groups that pass the method's prompt filter; all of them without one.

    A group passes if its completions `differ` in what the filter names. Chapters 08 and 16.
    """
    if method.prompt_filter is None:
        return list(rollouts)
    by, groups = method.prompt_filter.by, group_by(rollouts, lambda r: r.group)
    passed = {group for group, members in groups.items() if differ(members, by)}
    return [r for r in rollouts if r.group in passed]


@dataclass
class Patience:
    """How long a run may go on without an update: a first step is a warning, the last an error."""

    method: Method
    reward: Reward
    silent: int = 0  # steps without an update, one after the other

    def note(self, rollouts: Sequence[Rollout], used: Sequence[Rollout]) -> None:
        """A step's rollouts, and those it learned from; `RuntimeError` if it has been too long."""
        self.silent = 0 if used else self.silent + 1
        if self.silent >= SILENT_STEPS:
            why = why_silent(rollouts, self.method, self.reward)
            raise RuntimeError(f"no update in {self.silent} steps: {why}")
        if self.silent == 1:
            why = why_silent(rollouts, self.method, self.reward)
            warnings.warn(f"no update in this step: {why}", RuntimeWarning, stacklevel=3)


def why_silent(rollouts: Sequence[Rollout], method: Method, reward: Reward) -> str:
    """Why the method's prompt filter leaves nothing of these rollouts, and what to do about it."""
    assert method.prompt_filter is not None
    by, name = method.prompt_filter.by, reward_name(reward)
    right, own = sum(r.correct for r in rollouts), not isinstance(reward, VerifierReward)
    found = (
        f"{right} of {len(rollouts)} answers are right and no prompt has both kinds"
        if by == "correct"
        else f"{name} gives all answers to a prompt the same"
    )
    fix = "choose other data.levels, or raise rollout.max_new_tokens or rollout.group_size"
    if by == "correct" and own:
        fix = f'let prompts be chosen by {name}: prompt_filter=PromptFilter(by="reward")'
    return f"the prompt filter of {method.name}, by {by}, leaves nothing to learn: {found}; {fix}"


def differ(rollouts: Iterable[Rollout], by: Literal["correct", "reward"]) -> bool:
    """Whether these completions differ in correctness, or in their rewards."""
    return len({getattr(rollout, by) for rollout in rollouts}) > 1
