"""Judges of steps: whether what stands there so far can be the beginning of a right answer."""

import re

from rlbook.tasks import Problem
from rlbook.tasks.arithmetic import value_of
from rlbook.tasks.sums import terms_of

_STEP = re.compile(r"([0-9]+)([+-][0-9]+)=([0-9]*)")


def habits_on_track(problem: Problem, prefix: str) -> bool:
    """What is computed first follows the right rule, and every result so far is right."""
    *steps, begun = prefix.removeprefix("<think>").split(";")
    first = (steps[0] if steps else begun).partition("=")[0]
    return first == problem.meta["right"] and all(map(is_true, steps))


def sums_on_track(problem: Problem, prefix: str) -> bool:
    """The last step is one of this sum: running total, next term, and the result if it is there.

    Earlier mistakes are forgiven: an answer may correct itself.
    """
    *steps, begun = prefix.split(";")
    step = _STEP.search(begun if "=" in begun or not steps else steps[-1])
    if step is None or (step[3] and not is_true(step[0])):
        return False
    terms = terms_of(problem)
    totals = [sum(terms[: i + 1]) for i in range(len(terms))]
    return (int(step[1]), int(step[2])) in zip(totals, terms[1:], strict=False)


def is_true(step: str) -> bool:
    """Whether `a+b=c` (or with −, ×) holds; anything else does not."""
    call, _, result = step.partition("=")
    value = value_of(call)
    return value is not None and result == str(value)
