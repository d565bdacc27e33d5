"""What a task is: problems, completions, verdicts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


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
    `reason` is one machine word, listed by each task ("ok" and "wrong" are common to all).
    """

    correct: bool
    format_ok: bool
    answer: str | None
    reason: str


class Task(Protocol):
    """A family of problems that a program can verify."""

    name: str
    levels: tuple[int, ...]

    def sample(self, seed: int, n: int, levels: Sequence[int] | None = None) -> list[Problem]:
        """`n` problems: a pure function of the arguments."""
        ...

    def verify(self, problem: Problem, completion: str, finished: bool = True) -> Verdict:
        """Judge a completion (EOS excluded); `finished` says whether the policy emitted EOS."""
        ...
