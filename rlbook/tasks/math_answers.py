r"""Mathematical answers in `\boxed{…}`, compared by value with math-verify."""

from rlbook.extras import require
from rlbook.tasks.base import Verdict
from rlbook.tasks.formats import boxed_answers
from rlbook.tasks.sandbox.bounded import WORKER

MAX_COMPLETION_CHARS, MAX_ANSWER_CHARS = 200_000, 1_000


def verify_math(
    completion: str,
    reference: str,
    finished: bool = True,
    several: str = "last",
    seconds: float = 3.0,
) -> Verdict:
    r"""Judge a completion whose answer is in `\boxed{…}` against a LaTeX reference.

    `several` says what more than one box means: "last" takes the last one, "reject" none.
    `format_ok` is True if exactly one box was closed. The comparison runs in a worker process
    that is killed after `seconds`, so it is safe in any thread. `Verdict.reason` is one of
    ``ok``, ``wrong``, ``truncated``, ``too_long``, ``no_answer``, ``two_answers``,
    ``unparsable``, ``timeout``, ``error``.

    Raises `ImportError` if math-verify is missing and `ValueError` if it cannot read the
    reference. Chapter 05.
    """
    if several not in ("last", "reject"):
        raise ValueError(f"several must be 'last' or 'reject', got {several!r}")
    require("tasks", "math_verify")
    if len(completion) > MAX_COMPLETION_CHARS:
        return Verdict(False, False, None, "too_long")
    if not finished:
        return Verdict(False, False, None, "truncated")
    answers = boxed_answers(completion)
    if not answers or not answers[-1].strip():
        return Verdict(False, False, None, "no_answer")
    if len(answers) > 1 and several == "reject":
        return Verdict(False, False, None, "two_answers")
    answer, format_ok = answers[-1].strip(), len(answers) == 1
    if len(answer) > MAX_ANSWER_CHARS:
        return Verdict(False, format_ok, None, "too_long")
    correct, reason = _equal(answer, reference, seconds)
    return Verdict(correct, format_ok, answer, reason)


def _equal(answer: str, reference: str, seconds: float) -> tuple[bool, str]:
    request = {"scorer": "math", "answer": answer, "reference": reference}
    try:
        reply = WORKER.call(request, seconds)
    except TimeoutError:
        return False, "timeout"
    except RuntimeError:
        return False, "error"
    if not reply["reference_parsed"]:
        raise ValueError(f"math-verify cannot read the reference answer {reference!r}")
    if not reply["parsed"]:
        return False, "unparsable"
    return reply["correct"], "ok" if reply["correct"] else "wrong"
