"""What a check says: right and why, not yet and where to look, or nothing attempted."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def right(because: str) -> None:
    """Say that it is right, and why."""
    print(f"right: {because}")


def not_yet(hint: str) -> None:
    """Say that something is missing, and where to look."""
    print(f"not yet: {hint}")


def not_attempted() -> None:
    """Say that the exercise waits."""
    print("not attempted yet")


def check_numbers(
    answer: Any,
    expected: Sequence[float] | float,
    because: str,
    mistakes: Mapping[tuple[float, ...] | float, str],
    otherwise: str,
    tolerance: float = 1e-3,
) -> None:
    """Judge one number or several: tuples, lists, arrays and tensors are read alike.

    `mistakes` holds what a reader gets who errs, with the hint for him; `otherwise` is the hint
    where none of them fits. `tolerance` is absolute: wide enough for float32 and for an answer
    rounded to three digits.
    """
    if answer is None:
        not_attempted()
        return
    given, wanted = numbers(answer), numbers(expected)
    if len(given) != len(wanted):
        not_yet(f"give {len(wanted)} number{'s' * (len(wanted) > 1)}, not {len(given)}")
    elif same(given, wanted, tolerance):
        right(because)
    else:
        fitting = (hint for wrong, hint in mistakes.items() if same(given, wrong, tolerance))
        not_yet(next(fitting, otherwise))


def numbers(answer: Any) -> np.ndarray:
    """An answer as a row of floats."""
    return np.atleast_1d(np.asarray(answer, dtype=float)).ravel()


def same(given: Any, wanted: Any, tolerance: float = 1e-3) -> bool:
    """Whether two numbers, or lists of them, agree to a tolerance."""
    given, wanted = numbers(given), numbers(wanted)
    return len(given) == len(wanted) and bool((abs(given - wanted) <= tolerance).all())
