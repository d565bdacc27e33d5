r"""Mathematical answers in `\boxed{…}`, compared by value: exactly, or with math-verify."""

import re
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache

from rlbook.extras import require
from rlbook.tasks.answers import read
from rlbook.tasks.base import Verdict
from rlbook.tasks.compare import matched, same
from rlbook.tasks.formats import answer_in_boxes, box_spans
from rlbook.tasks.sandbox.bounded import WORKER
from rlbook.tasks.units import in_same_units, measure, same_kind, unit_of_value
from rlbook.tasks.values import (
    Expression,
    Group,
    Named,
    Unreadable,
    Value,
    Word,
    as_matrix,
    twelve_hours,
    unread,
)

MAX_COMPLETION_CHARS, MAX_ANSWER_CHARS = 200_000, 1_000


def verify_math(
    completion: str,
    reference: str,
    finished: bool = True,
    several: str = "last",
    seconds: float = 3.0,
) -> Verdict:
    r"""Judge a completion whose answer is in `\boxed{…}` against a LaTeX reference.

    Only what follows `</think>` counts, if there is one. `several` says what more than one box
    means: "last" takes the last one, or all that stand beside it where the reference is several
    values; "reject" none. `format_ok` is True if exactly one box was closed. Numbers, intervals,
    sets, tuples, words are compared as such (`rlbook.tasks.compare`), quantities in the same units
    (`rlbook.tasks.units`); for what is left math-verify
    runs in a worker process that is killed after `seconds`, so it is safe in any thread.
    `Verdict.reason` is one of ``ok``, ``wrong``, ``truncated``, ``too_long``, ``no_answer``,
    ``two_answers``, ``unparsable``, ``timeout``, ``error``.

    Raises `ImportError` if math-verify is missing where it is needed and `ValueError` if the
    reference cannot be read. Chapter 05.
    """
    if several not in ("last", "reject"):
        raise ValueError(f"several must be 'last' or 'reject', got {several!r}")
    if len(completion) > MAX_COMPLETION_CHARS:
        return Verdict(False, False, None, "too_long")
    if not finished:
        return Verdict(False, False, None, "truncated")
    completion = completion.rpartition("</think>")[2]
    boxes = box_spans(completion)
    if not boxes or not completion[slice(*boxes[-1])].strip():
        return Verdict(False, False, None, "no_answer")
    if len(boxes) > 1 and several == "reject":
        return Verdict(False, False, None, "two_answers")
    meant = reference_of(reference)
    answer = completion[slice(*boxes[-1])].strip()
    if isinstance(meant, Group) and len(meant.items) > 1:
        answer = answer_in_boxes(completion, boxes)
    if len(answer) > MAX_ANSWER_CHARS:
        return Verdict(False, len(boxes) == 1, None, "too_long")
    reason = judge(read(answer), meant, seconds)
    return Verdict(reason == "ok", len(boxes) == 1, answer, reason)


@lru_cache(maxsize=65_536)
def reference_of(text: str) -> Value:
    """The reference as a value; `ValueError` if there is none in it."""
    value = read(text)
    if problem := next(unread(value), None):
        raise ValueError(f"cannot read the reference answer {text!r}: {problem.why}")
    return value


def contradict(one: str, other: str, seconds: float = 3.0) -> bool:
    """Whether two references, both of which can be read, are met by different answers."""
    meant = read(one), read(other)
    if one == other or any(next(unread(value), None) for value in meant):
        return False
    return "ok" not in (judge(*meant, seconds), judge(*meant[::-1], seconds))


def judge(answer: Value, reference: Value, seconds: float) -> str:
    """The reason of a verdict: ok, wrong, or why there could be no comparison."""
    if isinstance(answer, Unreadable):
        return "unparsable"

    def ask(one: str, other: str, tolerance: Fraction | None) -> bool:
        require("tasks", "math_verify")
        request = {"scorer": "math", "answer": one, "reference": other}
        reply = WORKER.call(request | {"tolerance": tolerance and str(tolerance)}, seconds)
        if not reply["reference_parsed"]:
            raise ValueError(f"math-verify cannot read the reference answer {other!r}")
        return bool(reply["correct"])

    try:
        pair = comparable(answer, reference)
        return "ok" if pair and same(*pair, ask) else "wrong"
    except TimeoutError:
        return "timeout"
    except RuntimeError:
        return "error"


def comparable(answer: Value, reference: Value) -> tuple[Value, Value] | None:
    """Both in the same units and of the same kind; None if they are about different things."""
    if isinstance(answer, Named) or isinstance(reference, Named):
        return same_name(answer, reference)
    if not isinstance(reference, Group):
        return in_same_units(answer, reference)
    if isinstance(answer, Word | Expression):
        return chosen_letters(answer, reference), reference
    return same_groups(answer, reference) if isinstance(answer, Group) else (answer, reference)


def same_name(answer: Value, reference: Value) -> tuple[Value, Value] | None:
    """Assignments to the same variable, with their last links in the same units."""
    names = {side.name for side in (answer, reference) if isinstance(side, Named)}
    if len(names) == 2 and all(re.fullmatch("[a-z]", name) for name in names):
        return None
    sides = [s.links if isinstance(s, Named) else (s,) for s in (answer, reference)]
    pair = comparable(sides[0][-1], sides[1][-1])
    if pair is None or len(sides[0]) > 1 or len(sides[1]) > 1:
        return pair and (answer, reference)
    mine, theirs = (
        replace(side, links=(link,)) if isinstance(side, Named) else link
        for side, link in zip((answer, reference), pair, strict=True)
    )
    return mine, theirs


def same_groups(answer: Group, reference: Group) -> tuple[Group, Group] | None:
    """Several values of the same units; a matrix in brackets as one, a time of day in 12 hours."""
    if "matrix" in (answer.kind, reference.kind):
        return as_matrix(answer), as_matrix(reference)
    if answer.kind == reference.kind == "clock" and bool(answer.unit) != bool(reference.unit):
        return twelve_hours(answer), twelve_hours(reference)
    mine, theirs = ([unit_of_value(item) for item in g.items] for g in (answer, reference))
    if len(mine) != len(theirs) or not all((*mine, *theirs)):
        return answer, reference
    paired = matched(mine, theirs, lambda a, b: same_kind(measure(a), measure(b)))
    return (answer, reference) if paired else None


def chosen_letters(answer: Word | Expression, reference: Group) -> Value:
    """Letters side by side as several choices, where several choices are the reference."""
    letters = [item.choice for item in reference.items if isinstance(item, Word)]
    chosen = answer.text.casefold()
    several = len(letters) == len(reference.items) == len(chosen) and all(letters)
    return Group("list", tuple(Word(one, one) for one in chosen)) if several else answer
