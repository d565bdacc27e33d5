"""Held-out problems, asked at intervals while the run goes on."""

import time
from collections import deque
from collections.abc import Sequence

from rlbook.evaluation import summary
from rlbook.tasks import Problem, Task
from rlbook.training.batch import Rollout


class Evaluation:
    """One evaluation after another: due every `every` versions and at the end of the run.

    Generators need not hold still for it: a row names the versions that wrote its answers. With a
    `task` it also counts the kinds of answers that this labels.
    """

    def __init__(
        self,
        problems: Sequence[Problem],
        every: int,
        last: int | None = None,
        task: Task | None = None,
    ):
        self.problems, self.every, self.task = list(problems), every, task
        self.last = last  # version of the newest evaluation; None before the first
        self.version: int | None = None  # of the one under way
        self.waiting: deque[int] = deque()
        self.groups: dict[int, list[Rollout]] = {}

    @property
    def in_flight(self) -> int:
        """Problems asked and not answered."""
        if self.version is None:
            return 0
        return len(self.problems) - len(self.waiting) - len(self.groups)

    def due(self, version: int, done: bool = False) -> bool:
        """Whether an evaluation of the generators' version should begin; `done`: no later one."""
        if not self.every or self.version is not None:
            return False
        if self.last is None or done:
            return self.last is None or version > self.last
        return version // self.every > self.last // self.every

    def begin(self, version: int) -> None:
        self.version, self.groups = version, {}
        self.waiting = deque(range(len(self.problems)))

    def take(self) -> int | None:
        """Index of the next held-out problem to ask."""
        return self.waiting.popleft() if self.waiting else None

    def again(self, index: int) -> None:
        """Its request failed."""
        self.waiting.append(index)

    def add(self, index: int, rollouts: list[Rollout]) -> dict | None:
        """Note a group; the row of the evaluation if it was the last one."""
        self.groups[index] = rollouts
        if len(self.groups) < len(self.problems):
            return None
        rollouts = [rollout for group in self.groups.values() for rollout in group]
        row = evaluation_row(self.version, rollouts, self.task)
        self.last, self.version = self.version, None
        return row


def evaluation_row(version: int, rollouts: Sequence[Rollout], task: Task | None = None) -> dict:
    """`rlbook.evaluation.summary` of held-out rollouts, with the versions that wrote them."""
    versions = [v for rollout in rollouts for v in rollout.versions]
    return {
        "step": version,
        "version_min": min(versions),
        "version_max": max(versions),
        **summary(rollouts, task=task),
        "time": time.time(),
    }
