"""Which prompts learn: the choice of a method, carried out by `rlbook.training.select_groups`.

A filter is a function of the rollouts of one prompt, True for a group to learn from:

    def some_right(rollouts): return any(r.correct for r in rollouts)
    replace(METHODS["dapo"], prompt_filter=some_right)

or a frozen dataclass with a `__call__`, and a field `resample` if it wants the batch filled up.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rlbook.objectives.options import Choice

__all__ = ["PromptFilter"]


@dataclass(frozen=True)
class PromptFilter(Choice):
    """Only prompts whose completions differ learn, and `by` says in what.

    "correct": in the verifier's word, whatever a shaped reward makes of it (DAPO's dynamic
    sampling, arXiv:2503.14476, equation 11; CISPO takes it over). "reward": in the reward, which
    need not be the verifier's (ScaleRL's zero-variance filter, arXiv:2510.13786).
    With `resample` further prompts are asked until the batch is full; without, it is smaller.
    """

    by: Literal["correct", "reward"]
    resample: bool = False

    def __call__(self, rollouts: Iterable[Any]) -> bool:
        """Whether these completions of one prompt differ."""
        return len({getattr(rollout, self.by) for rollout in rollouts}) > 1


Filter = Callable[[Sequence[Any]], bool]
