"""A finite set of problems, and what a run remembers about each of them."""

import random
from collections.abc import Iterator, Sequence
from typing import Any

from rlbook.tasks import Problem, Task
from rlbook.training.batch import Rollout
from rlbook.training.config import DataConfig


class PromptPool:
    """Problems in an order shuffled anew every epoch, each with its pass rate so far.

    With `retire_at`, a problem whose pass rate over the whole run has reached it is not drawn
    again (no-positive-resampling, 0.9 in ScaleRL, arXiv:2510.13786). `state` and `load` carry the
    position and the memory through a checkpoint.
    Raises `ValueError` for an empty pool or two problems with one id.
    """

    def __init__(self, problems: Sequence[Problem], seed: int = 0, retire_at: float | None = None):
        self.problems = {p.id: p for p in problems}
        if not problems or len(self.problems) < len(problems):
            raise ValueError(
                f"a pool needs problems with distinct ids: got {len(problems)} problems "
                f"and {len(self.problems)} ids"
            )
        self.seed, self.retire_at = seed, retire_at
        self.drawn = 0
        self._shuffled: tuple[int | None, list[str]] = (None, [])
        self.memory: dict[str, list[int]] = {}

    def draw(self, n: int) -> list[Problem]:
        """The next `n` problems that are not retired, over as many epochs as that takes.

        Raises `ValueError` when all of them are.
        """
        if len(self.retired) == len(self.problems):
            raise ValueError(
                f"all {len(self.problems)} problems of the pool are retired (pass rate ≥ "
                f"{self.retire_at}): the run is over, or enlarge the pool"
            )
        fresh = self._upcoming()
        return [next(fresh) for _ in range(n)]

    def record(self, rollouts: Sequence[Rollout]) -> None:
        """Remember which rollouts of this pool's problems were right."""
        for rollout in rollouts:
            solved, tried = self.memory.get(rollout.problem.id, (0, 0))
            self.memory[rollout.problem.id] = [solved + rollout.correct, tried + 1]

    def pass_rate(self, problem_id: str) -> float | None:
        """Share of right rollouts of a problem over the run; None before its first."""
        solved, tried = self.memory.get(problem_id, (0, 0))
        return solved / tried if tried else None

    @property
    def retired(self) -> set[str]:
        """Ids of the problems that will not be drawn again."""
        if self.retire_at is None:
            return set()
        return {key for key in self.memory if (self.pass_rate(key) or 0.0) >= self.retire_at}

    def state(self) -> dict[str, Any]:
        return {"drawn": self.drawn, "memory": self.memory}

    def load(self, state: dict[str, Any]) -> None:
        self.drawn, self.memory = state["drawn"], dict(state["memory"])

    def _upcoming(self) -> Iterator[Problem]:
        """Problems from the current position on; moves the position."""
        retired, size = self.retired, len(self.problems)
        while True:
            epoch, position = divmod(self.drawn, size)
            for key in self._order(epoch)[position:]:
                self.drawn += 1
                if key not in retired:
                    yield self.problems[key]

    def _order(self, epoch: int) -> list[str]:
        """Ids in the order of an epoch; the last one asked for is remembered."""
        if self._shuffled[0] != epoch:
            ids = list(self.problems)
            order = random.Random(f"{self.seed}/{epoch}").sample(ids, len(ids))
            self._shuffled = epoch, order
        return self._shuffled[1]


def prompt_pool(task: Task, data: DataConfig, seed: int = 0) -> PromptPool | None:
    """The pool a run's settings ask for: `data.pool` problems of the task, or None."""
    if data.pool is None:
        return None
    problems = {p.id: p for p in task.sample(seed, data.pool, data.levels)}
    return PromptPool(list(problems.values()), seed, data.retire_at)
