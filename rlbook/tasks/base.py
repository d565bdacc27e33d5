"""What a task is: problems, completions, verdicts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

__all__ = ["HeldOut", "Labelled", "Problem", "Task", "Verdict", "stop_texts"]


@dataclass(frozen=True)
class Problem:
    """One prompt with its reference answer.

    `level` grades difficulty within the task; `meta` holds whatever the verifier needs besides.
    """

    id: str
    prompt: str
    answer: str
    level: int = 0
    meta: Mapping[str, Any] = field(default_factory=dict, hash=False)


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
    return tuple(getattr(task, "stop", ()))


@runtime_checkable
class HeldOut(Protocol):
    """A task of finitely many problems, some of which `sample` never returns."""

    def held_out(self, n: int, levels: Sequence[int] | None = None) -> list[Problem]:
        """`n` of those, always the same ones."""
        ...
