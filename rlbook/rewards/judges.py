"""Judges of steps: whether what stands there so far can be the beginning of a right answer."""

from rlbook.tasks import Problem
from rlbook.tasks.arithmetic import value_of

__all__ = ["habits_on_track"]


def habits_on_track(problem: Problem, prefix: str) -> bool:
    """What is computed first follows the right rule, and every result so far is right."""
    *steps, begun = prefix.removeprefix("<think>").split(";")
    first = (steps[0] if steps else begun).partition("=")[0]
    return first == problem.meta["right"] and all(map(is_true, steps))


def is_true(step: str) -> bool:
    """Whether `a+b=c` (or with −, ×) holds; anything else does not."""
    call, _, result = step.partition("=")
    value = value_of(call)
    return value is not None and result == str(value)
