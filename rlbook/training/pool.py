"""A finite set of problems, and what a run remembers about each of them."""

import random
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from rlbook.tasks import AnyTask, Environment, HeldOut, Problem, held_out_problems
from rlbook.tasks.registry import question, sampled
from rlbook.training.batch import Rollout
from rlbook.training.config import RunConfig, derive_seed

__all__ = ["PromptPool"]


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
        """What a resumed run goes on from, JSON-safe."""
        return {"drawn": self.drawn, "memory": self.memory}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from `state()`."""
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


class InOrder(PromptPool):
    """Problems in the order given, in every epoch: a longer list goes on where a shorter ended."""

    def _order(self, epoch: int) -> list[str]:
        return list(self.problems)


def prompt_pool(task: AnyTask, config: RunConfig) -> PromptPool | None:
    """The `training_pool` of a run that asks for one; None: new problems in every step."""
    if config.data.pool is None:
        return None
    if isinstance(task, HeldOut):  # which trains on others anyway
        return training_pool(task, config, [])
    held_out = held_out_problems(task, config.evaluation.prompts, config.data.levels)
    return training_pool(task, config, held_out)


def training_pool(task: AnyTask, config: RunConfig, held_out: Sequence[Problem]) -> PromptPool:
    """The run's training problems, without those it is evaluated on.

    Raises `ValueError` if there are no others; an environment with so few beginnings is evaluated
    on the same ones, with other luck, and that is said.
    """
    data, kept = config.data, {question(task, problem) for problem in held_out}
    problems = training_problems(task, config)
    fresh = [p for p in problems if question(task, p) not in kept]
    if not fresh and isinstance(task, Environment):
        warnings.warn(
            f"all beginnings of {task.name} are evaluated and trained on: its episodes differ in "
            "their luck only",
            stacklevel=2,
        )
        fresh = problems
    if not fresh:
        raise ValueError(
            f"data.pool: all {len(problems)} training problems of {task.name} are held out for "
            "evaluation: enlarge data.pool, or lower evaluation.prompts"
        )
    return (InOrder if data.pool is None else PromptPool)(fresh, config.seed, data.retire_at)


def training_problems(task: AnyTask, config: RunConfig) -> list[Problem]:
    """The different problems that training draws from: `data.pool` of them.

    Without it, those that `Trainer` asks, step by step; what filters cost beyond them is made up
    for by asking the first ones again.
    """
    data, prompts = config.data, config.rollout.prompts
    if data.pool is not None:
        problems = sampled(task, config.seed, data.pool, data.levels)
    else:
        seeds = [derive_seed(config.seed, step, "prompts", 0) for step in range(config.steps)]
        problems = [p for seed in seeds for p in sampled(task, seed, prompts, data.levels)]
    return list(by_id(task, problems).values())


def by_id(task: AnyTask, problems: Sequence[Problem]) -> dict[str, Problem]:
    """Problems by id; `ValueError` if two that ask different things have one."""
    found: dict[str, Problem] = {}
    for problem in problems:
        if question(task, found.setdefault(problem.id, problem)) != question(task, problem):
            raise ValueError(
                f"task {task.name!r}: two different problems have the id {problem.id!r}: give each "
                "its own, by which a pool remembers it"
            )
    return found
