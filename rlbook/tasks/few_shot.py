"""Questions behind a few that are answered already: a task for a model that was told nothing."""

import random
import re
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import NamedTuple

from rlbook.tasks.base import Problem, Verdict

__all__ = ["Example", "FewShotTask"]

_LAST_INTEGER = re.compile(r"(?<![\w.])(-?\d{1,18})\s*\.?\s*$")


class Example(NamedTuple):
    """A question, an answer to it written out, and the answer that the verifier compares."""

    question: str
    worked: str
    answer: str


def last_integer(line: str) -> str | None:
    """The integer at the end of a line, a full stop behind it allowed; None without one."""
    found = _LAST_INTEGER.search(line)
    return None if found is None else str(int(found[1]))


class FewShotTask:
    """Problems of any generator, each behind `shots` that are worked out, one a line.

    `make(rng, level)` draws an `Example`; `shots` are the levels of the worked ones, which are the
    same for all problems; `line` says how question and answer stand in a line. The levels of
    problems alternate. `held_out` has the first `kept` different problems of a stream of its own,
    and `sample` never returns one of these. A completion ends with the line (`stop`); what stands
    behind is not read. `read` takes the answer from the line, by default its last integer.
    `Verdict.reason` is ``ok``, ``wrong``, ``no_answer`` or ``truncated``.
    """

    stop = ("\n",)

    def __init__(
        self,
        name: str,
        make: Callable[[random.Random, int], Example],
        levels: Sequence[int] = (0,),
        shots: Sequence[int] = (0, 0, 0),
        line: str = "{question} = {worked}",
        read: Callable[[str], str | None] = last_integer,
        kept: int = 240,
    ):
        self.name, self.make, self.levels, self.kept = name, make, tuple(levels), kept
        self.line, self.read = line, read
        rng = random.Random(f"{name}, shots")
        self.shots = [make(rng, level) for level in shots]

    def sample(self, seed: int, n: int, levels: Sequence[int] | None = None) -> list[Problem]:
        """`n` problems for training; the first ones do not depend on `n`."""
        rng, drawn = random.Random(f"{self.name} {seed}"), list[Problem]()
        levels = self.of(levels)
        kept = {problem.id for problem in self._held_out}
        while len(drawn) < n:
            problem = self.problem(rng, levels[len(drawn) % len(levels)])
            drawn += [problem] if problem.id not in kept else []
        return drawn

    def held_out(self, n: int, levels: Sequence[int] | None = None) -> list[Problem]:
        """`n` different problems that `sample` never returns, always the same ones.

        Raises `ValueError` if there are fewer.
        """
        kept = [problem for problem in self._held_out if problem.level in self.of(levels)]
        if n > len(kept):
            raise ValueError(f"{self.name} holds {len(kept)} such problems out, not {n}")
        return kept[:n]

    def verify(self, problem: Problem, completion: str, finished: bool = True) -> Verdict:
        """Compare the answer in the first line as text."""
        line, ended, _ = completion.partition("\n")
        if not (ended or finished):
            return Verdict(False, False, None, "truncated")
        answer = self.read(line)
        if answer is None:
            return Verdict(False, False, None, "no_answer")
        correct = answer == problem.answer
        return Verdict(correct, True, answer, "ok" if correct else "wrong")

    def problem(self, rng: random.Random, level: int) -> Problem:
        """A question of this level behind the worked ones."""
        made = self.make(rng, level)
        worked = "".join(self.line.format(**shot._asdict()) + "\n" for shot in self.shots)
        asked = self.line.format(question=made.question, worked="").rstrip()
        meta = {"worked": made.worked}
        return Problem(made.question, worked + asked, made.answer, level, meta)

    def of(self, levels: Sequence[int] | None) -> tuple[int, ...]:
        """These levels, all of them if none are named; raises `ValueError` for unknown ones."""
        levels = self.levels if levels is None else tuple(levels)
        if not levels or not set(levels) <= set(self.levels):
            raise ValueError(f"{self.name} has the levels {self.levels}, got {levels}")
        return levels

    @cached_property
    def _held_out(self) -> list[Problem]:
        rng, kept, draws = random.Random(f"{self.name}, held out"), dict[str, Problem](), 0
        while len(kept) < self.kept:
            problem = self.problem(rng, self.levels[len(kept) % len(self.levels)])
            kept.setdefault(problem.id, problem)
            draws += 1
            if draws > 100 * self.kept:
                raise ValueError(f"{self.name} makes {len(kept)} different problems: lower kept")
        return list(kept.values())
