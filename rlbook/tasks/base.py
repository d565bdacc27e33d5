"""What a task is: problems, completions, verdicts."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import isfinite
from numbers import Integral
from typing import Any, Protocol, runtime_checkable

from rlbook.importing import errors_of

__all__ = ["HeldOut", "Labelled", "Problem", "Task", "Verdict", "stop_texts"]


@dataclass(frozen=True)
class Problem:
    """One prompt with its reference answer.

    `level` grades difficulty within the task; `meta` holds whatever the verifier needs besides.
    Raises `ValueError` for a field of another kind, as `Verdict` does.
    """

    id: str
    prompt: str
    answer: str
    level: int = 0
    meta: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if isinstance(self.prompt, list | tuple):
            raise ValueError(
                f"Problem.prompt is {self.prompt!r:.60}: give one text; with meta={{'chat': True}} "
                "it is put in the tokenizer's chat template"
            )
        for name, kind, mend in PROBLEM_FIELDS:
            if not isinstance(given := getattr(self, name), kind):
                raise ValueError(f"Problem.{name} is {given!r:.60}: {mend}")


PROBLEM_FIELDS: tuple[tuple[str, type, str], ...] = (
    ("id", str, "give a text"),
    ("prompt", str, "give a text"),
    ("answer", str, "give a text, such as str(answer)"),
    ("level", Integral, "give a whole number"),
    ("meta", Mapping, "give a dictionary, or leave it out"),
)


@dataclass(frozen=True)
class Verdict:
    """What a verifier says about one completion.

    `answer` is the text the verifier took as the answer, None if it found none that counts;
    `reason` is one machine word, listed by each task ("ok" and "wrong" are common to all of ours).
    `score` is what the answer is worth where that is more than right or wrong.
    """

    correct: bool
    format_ok: bool = True
    answer: str | None = None
    reason: str = ""
    score: float | None = None

    def __post_init__(self) -> None:
        for name, mend in VERDICT_FLAGS.items():
            if (given := getattr(self, name)) is not True and given is not False:
                object.__setattr__(self, name, flag(f"Verdict.{name}", given, mend))
        if not (self.answer is None or isinstance(self.answer, str)):
            raise ValueError(f"Verdict.answer is {self.answer!r:.60}: give a text, or None")
        if not isinstance(self.reason, str):
            raise ValueError(f"Verdict.reason is {self.reason!r:.60}: give one word")
        if self.score is not None:
            object.__setattr__(self, "score", number("Verdict.score", self.score))
            if not isfinite(self.score):
                raise ValueError(f"Verdict.score is {self.score}: give a finite number, or None")


VERDICT_FLAGS = {
    "correct": "give True or False, and a number as `score`",
    "format_ok": "give True or False",
}


def flag(what: str, given: Any, mend: str = "give True or False") -> bool:
    """True or False, numpy's too, as Python's own; `ValueError` for all else."""
    if isinstance(given, bool) or (str(getattr(given, "dtype", "")) == "bool" and not given.ndim):
        return bool(given)
    raise ValueError(f"{what} is {given!r:.60}: {mend}")


def number(what: str, given: Any, mend: str = "give a number, or None", where: str = "") -> float:
    """A number of any library as Python's own; `ValueError` for a text and all else."""
    if not isinstance(given, str | bytes):
        with suppress(TypeError, ValueError, OverflowError, RuntimeError):
            return float(given)
    raise ValueError(f"{what} is {given!r:.60}{where}: {mend}")


@runtime_checkable
class Task(Protocol):
    """A family of problems that a program can verify.

    A task may also say how a completion went about it (`Labelled`), which of its problems are not
    for training (`HeldOut`), and with which texts a completion ends (`stop_texts`).
    """

    @property
    def name(self) -> str:
        """One or two words for tables."""
        ...

    @property
    def levels(self) -> tuple[int, ...]:
        """Levels of difficulty, the easiest first."""
        ...

    def sample(self, seed: int, n: int, levels: Sequence[int] | None = None) -> list[Problem]:
        """`n` problems: a pure function of the arguments."""
        ...

    def verify(self, problem: Problem, completion: str, finished: bool = True) -> Verdict:
        """Judge a completion (EOS excluded); `finished` says whether the policy emitted EOS."""
        ...


@runtime_checkable
class Labelled(Protocol):
    """A task that sorts completions into kinds, which metrics then count."""

    def label(self, problem: Problem, completion: str, finished: bool = True) -> str:
        """One word for how this completion goes about its problem, right or wrong."""
        ...


def stop_texts(task: object) -> tuple[str, ...]:
    """Texts with which a completion ends besides the EOS token: the task's `stop`, or none."""
    return listed(f"task {task_name(task)!r}: stop", getattr(task, "stop", ()))


def listed(what: str, given: Any) -> tuple[str, ...]:
    """Texts as a tuple; `ValueError` for a bare text, whose letters would be taken for them."""
    if isinstance(given, str):
        raise ValueError(f"{what} is {given!r}: list the texts, ({given!r},)")
    if isinstance(given, Collection) and all(isinstance(text, str) for text in given):
        return tuple(given)
    raise ValueError(f'{what} is {given!r:.60}: list texts, such as ("\\n",), or leave it out')


def task_name(task: object) -> str:
    """What messages call a task: its name, or that of its class."""
    return str(getattr(task, "name", type(task).__name__))


def verdict_of(task: Task, problem: Problem, completion: str, finished: bool = True) -> Verdict:
    """`task.verify(problem, completion, finished)`; `ValueError` unless that is a verdict."""
    with errors_of(f"task {task.name!r}: verify, for an answer to {problem.id},"):
        verdict = task.verify(problem, completion, finished)
    return checked_verdict(
        f"task {task.name!r}: verify", verdict, f" for an answer to {problem.id}"
    )


def checked_verdict(what: str, given: object, where: str = "") -> Verdict:
    """The verdict itself; `ValueError` for what is none."""
    if isinstance(given, Verdict):
        return given
    raise ValueError(
        f"{what} returned {given!r:.60}{where}: return Verdict(correct=True) or "
        "Verdict(correct=False)"
    )


@runtime_checkable
class HeldOut(Protocol):
    """A task of finitely many problems, some of which `sample` never returns."""

    def held_out(self, n: int, levels: Sequence[int] | None = None) -> list[Problem]:
        """`n` of those, always the same ones."""
        ...
