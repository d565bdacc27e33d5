"""Sums for a model that was never told the task: `37 + 8 =`, behind one that is worked out."""

import random
from collections.abc import Sequence

from rlbook.tasks.base import Problem, Verdict
from rlbook.tasks.sums import compared, is_integer

SHOWN = (47, 5)
EXAMPLE = "47 + 5 = 52\n"
WITHOUT_CARRY, WITH_CARRY = LEVELS = (1, 2)
HELD_OUT = 160  # of 809


class FewShotSums:
    """A number of two digits plus one of one digit; the level is 1, or 2 where a ten is carried.

    The answer is what the policy writes up to the end of the line, or before its EOS token: one
    canonical integer, white space around it allowed. What follows the line is not read: a policy
    that goes on with sums of its own is not wrong. Reasons are ``ok``, ``wrong``,
    ``not_an_integer`` and ``truncated`` (neither a line nor an answer has ended).
    """

    name = "few_shot_sums"
    levels = LEVELS

    def sample(self, seed: int, n: int, levels: Sequence[int] | None = None) -> list[Problem]:
        """`n` problems for training, drawn with replacement; the first do not depend on `n`."""
        rng = random.Random(f"few-shot sums {seed}")
        return rng.choices(of_levels(TRAINING, levels), k=n)

    def held_out(self, n: int, levels: Sequence[int] | None = None) -> list[Problem]:
        """`n` different problems that `sample` never returns, always the same ones.

        Raises `ValueError` if there are fewer.
        """
        kept = of_levels(KEPT, levels)
        if n > len(kept):
            raise ValueError(f"{self.name} holds {len(kept)} such problems out, not {n}")
        return kept[:n]

    def verify(self, problem: Problem, completion: str, finished: bool = True) -> Verdict:
        """Compare the line with the reference as text; nothing is evaluated."""
        line, ended, _ = completion.partition("\n")
        if not (ended or finished):
            return Verdict(False, False, None, "truncated")
        answer = line.strip()
        return compared(problem, answer, format_ok=is_integer(answer))


def all_problems() -> list[Problem]:
    """All problems but the one that is worked out in every prompt, shuffled."""
    pairs = [(a, b) for a in range(10, 100) for b in range(1, 10)]
    problems = [problem_of(a, b) for a, b in pairs if (a, b) != SHOWN]
    random.Random("few-shot sums, held out").shuffle(problems)
    return problems


def problem_of(a: int, b: int) -> Problem:
    """The sum of a number of two digits and one of one, behind the example."""
    level = WITH_CARRY if a % 10 + b >= 10 else WITHOUT_CARRY
    return Problem(id=f"{a}+{b}", prompt=f"{EXAMPLE}{a} + {b} =", answer=str(a + b), level=level)


def of_levels(problems: Sequence[Problem], levels: Sequence[int] | None) -> list[Problem]:
    """The problems of these levels; raises `ValueError` for other levels."""
    levels = LEVELS if levels is None else tuple(levels)
    if not levels or not set(levels) <= set(LEVELS):
        raise ValueError(f"few-shot sums have the levels {LEVELS}, got {levels}")
    return [problem for problem in problems if problem.level in levels]


PROBLEMS = all_problems()
KEPT, TRAINING = PROBLEMS[:HELD_OUT], PROBLEMS[HELD_OUT:]
