"""What a check says: right and why, not yet and where to look, or nothing attempted."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

SOLUTION = "solution"  # the tag of the two cells that show one, and run it for lines not written


def right(because: str) -> bool:
    """Say that it is right, and why."""
    print(f"right: {because}")
    return True


def not_yet(hint: str) -> bool:
    """Say that something is missing, and where to look."""
    print(f"not yet: {hint}")
    return False


def not_attempted() -> bool:
    """Say that the exercise waits."""
    print("not attempted yet")
    return False


def check_numbers(
    answer: Any,
    expected: Sequence[float] | float,
    because: str,
    mistakes: Mapping[tuple[float, ...] | float, str],
    otherwise: str,
    tolerance: float = 1e-3,
) -> bool:
    """Judge one number or several: tuples, lists, arrays and tensors are read alike.

    `mistakes` holds what a reader gets who errs, with the hint for him; `otherwise` is the hint
    where none of them fits. `tolerance` is absolute: wide enough for float32 and for an answer
    rounded to three digits.
    """
    if answer is None:
        return not_attempted()
    given, wanted = numbers(answer), numbers(expected)
    if len(given) != len(wanted):
        return not_yet(f"give {len(wanted)} number{'s' * (len(wanted) > 1)}, not {len(given)}")
    if same(given, wanted, tolerance):
        return right(because)
    fitting = (hint for wrong, hint in mistakes.items() if same(given, wrong, tolerance))
    return not_yet(next(fitting, otherwise))


def numbers(answer: Any) -> np.ndarray:
    """An answer as a row of floats."""
    return np.atleast_1d(np.asarray(answer, dtype=float)).ravel()


def same(given: Any, wanted: Any, tolerance: float = 1e-3) -> bool:
    """Whether two numbers, or lists of them, agree to a tolerance."""
    given, wanted = numbers(given), numbers(wanted)
    return len(given) == len(wanted) and bool((abs(given - wanted) <= tolerance).all())


def check_lines(
    mine: Callable[..., Any],
    reference: Callable[..., Any],
    twins: Mapping[str, Callable[..., Any]],
    probes: Iterable[tuple],
    because: str,
    otherwise: str,
    outcome: Callable[..., Any] = lambda function, *probe: function(*probe),
) -> bool:
    """Judge lines that the reader has written by what they compute; True if they are right.

    `twins` are the mistakes that are made, by the hint for whoever makes them: the first that
    agrees with `mine` on every probe names the mistake. `outcome(function, *probe)` is what is
    compared, a tensor or what `torch.as_tensor` makes one of; a gradient, for instance.
    """
    probes = list(probes)
    try:
        given = [outcome(mine, *probe) for probe in probes]
    except Exception as error:  # the reader's code may fail in any way
        unwritten = any(word in str(error) for word in ("ellipsis", "Ellipsis", "NoneType"))
        return not_attempted() if unwritten else lines_are_wrong(f"{type(error).__name__}: {error}")
    if any(value is None or value is ... for value in given):
        return not_attempted()
    wanted = [tensor_of(outcome(reference, *probe)) for probe in probes]
    try:
        found = [tensor_of(value) for value in given]
    except (TypeError, ValueError, RuntimeError):
        return lines_are_wrong(f"give numbers, not {type(given[0]).__name__}")
    for value, expected in zip(found, wanted, strict=True):
        if value.shape != expected.shape:
            hint = f"the shape is {tuple(value.shape)}, it should be {tuple(expected.shape)}"
            return lines_are_wrong(hint_of(found, twins, probes, outcome) or hint)
    if agree(found, wanted):
        return right(because)
    hint = hint_of(found, twins, probes, outcome)
    if hint is None and any(value.isnan().any() for value in found):
        hint = "there is a NaN in it: 0/0, or the logarithm of 0"
    return lines_are_wrong(hint or otherwise)


def lines_are_wrong(hint: str) -> bool:
    """Say where to look, and with whose lines the chapter goes on."""
    return not_yet(f"{hint} (until then, what follows uses the book's lines)")


def hint_of(
    found: Sequence[Tensor],
    twins: Mapping[str, Callable[..., Any]],
    probes: Sequence[tuple],
    outcome: Callable[..., Any],
) -> str | None:
    """The hint of the first wrong twin that computes what was found."""
    for hint, twin in twins.items():
        if agree(found, [tensor_of(outcome(twin, *probe)) for probe in probes]):
            return hint
    return None


def tensor_of(value: Any) -> Tensor:
    """A value in float64, without its gradient."""
    return torch.as_tensor(value).detach().double()


def agree(found: Sequence[Tensor], wanted: Sequence[Tensor], tolerance: float = 1e-4) -> bool:
    """Whether values are the same but for rounding."""
    return all(
        value.shape == other.shape
        and torch.allclose(value, other, rtol=tolerance, atol=tolerance, equal_nan=True)
        for value, other in zip(found, wanted, strict=True)
    )


def same_weights(
    start: Iterable[Tensor], loop: Iterable[Tensor], package: Iterable[Tensor], name: str = "loop"
) -> float:
    """The largest difference of a weight between a loop and the package, and prints it.

    Raises `ValueError` where that is a hundredth or more of what the loop changed since `start`.
    """
    trios = zip(start, loop, package, strict=True)
    pairs = [((b - a).abs().max().item(), (b - c).abs().max().item()) for a, b, c in trios]
    moved, apart = map(max, zip(*pairs, strict=True))
    print(f"weights moved by up to {moved:.1e}; {name} and Trainer differ by {apart:.1e}")
    if apart >= moved / 100:
        raise ValueError("the loop is not the package's")
    return apart
