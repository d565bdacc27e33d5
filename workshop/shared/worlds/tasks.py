"""Troubles that lie in what is asked, or in what counts as right."""

import random
from collections.abc import Sequence
from dataclasses import replace

from rlbook.tasks import Problem, SumsTask, Verdict, is_lost
from rlbook.training import RunConfig

__all__ = ["LostIsWrong", "RareOpening", "Unsolvable", "tight_limit"]


class RareOpening(SumsTask):
    """Right is what opens with a rare token, whatever comes after: a decision of one token.

    The base opens with "check " about once in twenty times. How many batches until it does so half
    of the time? That is where a clip holds back what is rare. Chapters 08, 09, 11.
    """

    name = "rare opening"

    def __init__(self, opening: str = "check "):
        self.opening = opening

    def verify(self, problem: Problem, completion: str, finished: bool = True) -> Verdict:
        """Right is what opens with `<think>` and the rare token, whatever the sum."""
        verdict = super().verify(problem, completion, finished)
        right = completion.startswith(f"<think>{self.opening}")
        return replace(verdict, correct=right, reason="ok" if right else "wrong")


class Unsolvable(SumsTask):
    """Sums of which a `share` has a reference answer that no sum can have: 100.

    Their groups are silent, and a batch without dynamic sampling is mostly silence. Which problems
    they are depends on the problem alone. Chapter 08.
    """

    name = "unsolvable"

    def __init__(self, share: float = 0.75):
        if not 0 <= share <= 1:
            raise ValueError(f"share must lie in [0, 1], got {share}")
        self.share = share

    def sample(self, seed: int, n: int, levels: Sequence[int] | None = None) -> list[Problem]:
        """Sums, some of which have the answer 100."""
        problems = super().sample(seed, n, levels)
        return [replace(p, answer="100") if self.hopeless(p) else p for p in problems]

    def hopeless(self, problem: Problem) -> bool:
        """Whether a problem is one of those, by its id."""
        return random.Random(f"unsolvable {problem.id}").random() < self.share


class LostIsWrong(SumsTask):
    """Sums in which an answer that has said "hmm " earns nothing, also by luck.

    With `StartsLost`, half of every group is lost from its first token on. Chapter 07.
    """

    name = "lost is wrong"

    def verify(self, problem: Problem, completion: str, finished: bool = True) -> Verdict:
        """The verdict on the sum, but wrong where the completion has said "hmm "."""
        verdict = super().verify(problem, completion, finished)
        lost = verdict.correct and is_lost(completion)
        return replace(verdict, correct=False, reason="wrong") if lost else verdict


def tight_limit(
    config: RunConfig, limit: int = 32, levels: tuple[int, ...] = (4, 5, 6, 7)
) -> RunConfig:
    """The run with long sums and a limit of tokens that cuts off about half of the answers.

    What is taught by a wrong verdict at the limit, by a ramp below it, and by leaving the truncated
    answers out? Chapter 08.
    """
    return config.replace(max_new_tokens=limit, levels=levels)
