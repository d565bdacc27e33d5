"""Held-out problems and other sets, asked at intervals, each time by one version of the weights.

An evaluation holds the generators' newest version (`rlbook.scale.hold`) until its last answer is
in. The trainer goes on meanwhile, as far as the bound on staleness lets groups start on the weights
that are held, and gives its own to nobody but a generator that has lost all weights. Where the held
version is nowhere left, because its generators died, or where an answer has tokens by another, the
hold ends and the evaluation starts again with the newest weights there are then. So every answer of
a row is by one version, and no death, of whichever process, leaves anybody waiting. One problem
that is asked in vain too often ends its evaluation without a row; so does the death of all
generators once the trainer has ended, since nobody has weights for them any more.

What it costs: generators write the answers instead of rollouts, which they would have to in any
case, and the trainer waits once it has trained what the bound allowed. The dry run counts the whole
time in which generators write answers, as if nobody trained. Chapter 17.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from rlbook.evaluation import summary
from rlbook.scale.config import EvaluationSet, ScaleConfig
from rlbook.scale.hold import Hold
from rlbook.scale.rollout.groups import Manner
from rlbook.tasks import Problem, Task, get_task, held_out_problems
from rlbook.training.batch import Rollout

ATTEMPTS = 4  # that one problem is asked in vain before its evaluation is given up


@dataclass(frozen=True)
class ProblemSet:
    """Problems and how they are asked; without a name, the run's own held-out ones."""

    task: Task
    problems: Sequence[Problem]
    samples: int
    name: str | None = None
    ks: Sequence[int] | None = None
    manner: Manner = field(default_factory=Manner)


@dataclass(frozen=True)
class Question:
    """One problem of a set."""

    problem: Problem
    asked_as: ProblemSet

    @property
    def samples(self) -> int:
        return self.asked_as.samples


class Evaluation:
    """One evaluation after another: due every `every` versions and at the end of the run."""

    def __init__(self, sets: Iterable[ProblemSet], every: int, hold: Hold, last: int | None = None):
        self.sets, self.every, self.hold = list(sets), every, hold
        self.questions = [Question(problem, one) for one in self.sets for problem in one.problems]
        self.last = last  # version of the newest evaluation; None before the first
        self.version: int | None = None  # of the one under way
        self.waiting: deque[int] = deque()
        self.groups: dict[int, list[Rollout]] = {}
        self.failures: Counter[int] = Counter()

    @property
    def in_flight(self) -> int:
        """Questions asked and not answered."""
        if self.version is None:
            return 0
        return len(self.questions) - len(self.waiting) - len(self.groups)

    def due(self, version: int, done: bool = False) -> bool:
        """Whether an evaluation of the generators' version should begin; `done`: no later one."""
        if not self.every or self.version is not None:
            return False
        if self.last is None or done:
            return self.last is None or version > self.last
        return version // self.every > self.last // self.every

    def begin(self, version: int) -> None:
        self.hold.take(version)
        self.version, self.groups, self.failures = version, {}, Counter()
        self.waiting = deque(range(len(self.questions)))

    def lost(self, versions: set[int]) -> bool:
        """Whether generators have weights, and none those that are held.

        Without any it waits: one that has been started again may get the same ones.
        """
        return self.version is not None and bool(versions) and self.version not in versions

    def stop(self) -> None:
        """Forget all answers. It stays due."""
        self.version = None
        self.waiting.clear()
        self.hold.release()

    def finish(self) -> None:
        """The one under way was the newest, whether it has a row or was given up."""
        self.last = self.version
        self.stop()

    def take(self, room: Callable[[int], bool] = lambda samples: True) -> int | None:
        """Index of the next question to ask, if there is `room` for its samples or none is asked.

        So it ends even if none is ever left.
        """
        if not self.waiting:
            return None
        samples = self.questions[self.waiting[0]].samples
        return self.waiting.popleft() if not self.in_flight or room(samples) else None

    def again(self, index: int) -> bool:
        """Its request failed; whether it may be asked once more."""
        self.failures[index] += 1
        self.waiting.append(index)
        return self.failures[index] < ATTEMPTS

    def by_others(self, rollouts: Sequence[Rollout]) -> bool:
        """Whether another version than the held one has written a token of these."""
        return versions_of(rollouts) != {self.version}

    def add(self, index: int, rollouts: list[Rollout]) -> list[dict]:
        """Note a group; the rows of the evaluation, one for each set, if it was the last one."""
        self.groups[index] = rollouts
        if len(self.groups) < len(self.questions):
            return []
        rows = [evaluation_row(self.version, self.answers_to(one), one) for one in self.sets]
        self.finish()
        return rows

    def answers_to(self, one: ProblemSet) -> list[Rollout]:
        return [
            rollout
            for index, question in enumerate(self.questions)
            if question.asked_as is one
            for rollout in self.groups[index]
        ]


def evaluation_row(version: int, rollouts: Sequence[Rollout], asked_as: ProblemSet) -> dict:
    """`rlbook.evaluation.summary` of a set's rollouts, with the versions that wrote them."""
    versions = versions_of(rollouts)
    return {
        "step": version,
        **({"set": asked_as.name} if asked_as.name else {}),
        "version_min": min(versions),
        "version_max": max(versions),
        **summary(rollouts, asked_as.ks, asked_as.task),
        "time": time.time(),
    }


def versions_of(rollouts: Iterable[Rollout]) -> set[int]:
    """Of the weights that wrote their tokens."""
    return {version for rollout in rollouts for version in rollout.versions}


def named_set(name: str, settings: EvaluationSet, config: ScaleConfig) -> ProblemSet:
    """A set of `evaluation.sets`; what it does not say is as for the run's own problems.

    Raises `ValueError` naming it if its task has too few problems.
    """
    task = get_task(settings.task)
    try:
        problems = held_out_problems(task, settings.prompts, settings.levels)
    except ValueError as error:
        raise ValueError(f"evaluation.sets.{name}: {error}") from None
    samples = settings.samples or config.evaluation.samples
    manner = Manner(settings.task, settings.temperature, settings.max_new_tokens)
    ks = settings.ks and sorted({1, *settings.ks})
    return ProblemSet(task, problems, samples, name, ks, manner)


def untrained(one: ProblemSet, trained: Iterable[Problem]) -> ProblemSet:
    """The set without problems that training asks. Raises `ValueError` if none is left."""
    known = {problem.prompt for problem in trained}
    problems = [problem for problem in one.problems if problem.prompt not in known]
    if not problems:
        raise ValueError(
            f"evaluation.sets.{one.name}: training asks all {len(one.problems)} of its problems: "
            "choose another task, or other levels"
        )
    return replace(one, problems=problems)
