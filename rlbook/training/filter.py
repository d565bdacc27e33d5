"""Which groups a method learns from, and how long a run may go on without any."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

from rlbook.grouping import group_by
from rlbook.importing import call_with_list
from rlbook.objectives import Method, PromptFilter
from rlbook.objectives.estimators import describe
from rlbook.training.batch import Rollout
from rlbook.training.rewards import Reward, VerifierReward, reward_name, unboxed

__all__ = ["NoUpdate", "select_groups"]


class NoUpdate(RuntimeError):
    """A run has gone on for `patience` steps without an update."""


def select_groups(rollouts: Sequence[Rollout], method: Method) -> list[Rollout]:
    """The rollouts of the groups that pass the method's prompt filter; all of them without one.

    Raises `ValueError` for a filter that does not say True or False. Chapters 08 and 17.
    """
    if method.prompt_filter is None:
        return list(rollouts)
    passed, what = {}, f"prompt filter {describe(method.prompt_filter)}"
    mend = "it is called with those of a group, return any(… for r in rollouts), True or False"
    for group, members in group_by(rollouts, lambda r: r.group).items():
        said = unboxed(call_with_list(what, method.prompt_filter, members, mend))
        if not isinstance(said, bool):
            raise ValueError(
                f"{what} returned {said!r:.60} for the answers to {members[0].problem.id}: return "
                "True for a group to learn from, else False"
            )
        passed[group] = said
    return [r for r in rollouts if passed[r.group]]


@dataclass
class Patience:
    """How long a run may go on without an update: a first step is a warning, the last an error.

    With `bears` None there is no last: silence is what a null arm may have to show.
    """

    method: Method
    reward: Reward
    bears: int | None
    silent: int = 0  # steps without an update, one after the other

    def note(self, rollouts: Sequence[Rollout], used: Sequence[Rollout]) -> None:
        """A step's rollouts, and those it learned from; `NoUpdate` if it has been too long."""
        self.silent = 0 if used else self.silent + 1
        if self.bears is not None and self.silent >= self.bears:
            why = why_silent(rollouts, self.method, self.reward)
            raise NoUpdate(
                f"no update in {self.silent} steps: {why}. Where silence is the result, as of a "
                "null arm, set patience to null"
            )
        if self.silent == 1:
            why = why_silent(rollouts, self.method, self.reward)
            warnings.warn(f"no update in this step: {why}", RuntimeWarning, stacklevel=3)


def why_silent(rollouts: Sequence[Rollout], method: Method, reward: Reward) -> str:
    """Why nothing is left of these rollouts to learn from, and what to do about it."""
    only, name = method.prompt_filter, reward_name(reward)
    if only is None or not rollouts:
        return "there are no rollouts: hand `learn` those of `collect`"
    which = f"by {getattr(only, 'by', describe(only))}"
    found = f"{name} gives all answers to a prompt the same"
    fix = "choose other data.levels, or raise rollout.max_new_tokens or rollout.group_size"
    if not isinstance(only, PromptFilter):
        found = f"it says False of every prompt ({len(rollouts)} answers)"
    elif only.by == "correct":
        right = sum(r.correct for r in rollouts)
        found = f"{right} of {len(rollouts)} answers are right and no prompt has both kinds"
        if not isinstance(reward, VerifierReward):
            fix = f'let prompts be chosen by {name}: prompt_filter=PromptFilter(by="reward")'
    return f"the prompt filter of {method.name}, {which}, leaves nothing to learn: {found}; {fix}"
