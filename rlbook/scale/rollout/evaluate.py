"""Held-out problems and other sets, asked at intervals of one generator that keeps its weights.

An evaluation has a generator to itself until its last answer is in: the file `pinned` names it, the
trainer gives it no weights meanwhile, and the other generators go on with training under newer and
newer ones. Where there is only one, it writes for training too, as far as the bound on staleness
lets groups start on weights that stand still.

Every answer of a row is by one version. If the generator dies, or an answer has a token by other
weights, the evaluation starts again with the newest weights there are then. One question that is
asked in vain too often ends its evaluation without a row; so does the death of all generators once
the trainer has ended, since nobody has weights for them any more. An orchestrator begins with
nothing pinned, so no death, of whichever process, leaves anybody waiting. Chapter 17.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Any

from rlbook.durable import read_json, write_json
from rlbook.evaluation import summary
from rlbook.jsonl import read_jsonl
from rlbook.scale.config import EvaluationSet, ScaleConfig
from rlbook.scale.generate.protocol import GenerationFailed, pause_after
from rlbook.scale.layout import Layout
from rlbook.scale.process import say
from rlbook.scale.rollout.groups import AS_IN_TRAINING, GroupSampler, Manner
from rlbook.tasks import Problem, Task, get_task, held_out_problems
from rlbook.training import Rollout, RunLog

if TYPE_CHECKING:
    from rlbook.scale.generate.client import HTTPEngine

ATTEMPTS = 4  # to ask one question
LOOK_SECONDS = 0.05
SILENT_SECONDS = 10.0  # without a generator, after which the last evaluation is given up


class OtherWeights(RuntimeError):
    """An answer has tokens by another version than the one that is evaluated."""


@dataclass(frozen=True)
class ProblemSet:
    """Problems and how they are asked; without a name, the run's own held-out ones."""

    task: Task
    problems: Sequence[Problem]
    samples: int
    name: str | None = None
    ks: Sequence[int] | None = None
    manner: Manner = AS_IN_TRAINING


class Evaluator:
    """One evaluation after another: due every `every` versions, at the start, and at the end.

    `sampler` makes what asks an engine; `places` questions are asked at a time, each inside
    `asking()`.
    """

    def __init__(
        self,
        layout: Layout,
        sets: Sequence[ProblemSet],
        every: int,
        engine: "HTTPEngine",
        sampler: Callable[["HTTPEngine"], GroupSampler],
        places: int,
        asking: Callable[[], AbstractContextManager] = nullcontext,
    ):
        self.layout, self.sets, self.every = layout, sets, every
        self.engine, self.sampler = engine, sampler
        self.places, self.asking = places, asking
        done = [row["step"] for row in read_jsonl(layout.log("eval"))]
        self.last = max(done, default=None)  # version of the newest evaluation
        self.log = RunLog(layout.root, resume_step=float("inf"), name="eval")
        layout.pinned.unlink(missing_ok=True)

    def due(self, version: int, done: bool = False) -> bool:
        """Whether to evaluate the generators' version; `done`: there will be no later one."""
        if not self.every or self.last is None:
            return bool(self.every)
        if done:
            return version > self.last
        return version // self.every > self.last // self.every

    async def run(self) -> None:
        """Until the trainer has made its last update and that has its rows, or is given up."""
        clock = asyncio.get_running_loop().time
        heard = clock()
        while True:
            # Before the versions: a trainer that is done has delivered its last one.
            status = read_json(self.layout.status, {})
            done, versions = bool(status.get("done")), await self.engine.versions()
            heard = clock() if versions else heard
            newest = max(versions.values(), default=status.get("version", 0))
            if not self.due(newest, done):
                if done:
                    return
            elif versions:
                await self.evaluate(max(versions, key=versions.__getitem__))
            elif done and clock() - heard > SILENT_SECONDS:
                return say(f"the evaluation of version {newest} is given up: no generator has it")
            await asyncio.sleep(LOOK_SECONDS)

    async def evaluate(self, generator: str) -> None:
        """Ask a generator everything and log a row per set, unless it fails on the way."""
        version = None
        try:
            with self.pinned(generator):
                alone = self.engine.only(generator)
                if (version := (await alone.versions()).get(generator)) is None:
                    return
                answers = await self.answers(self.sampler(alone), version)
        except (GenerationFailed, OtherWeights) as error:
            if (await self.engine.versions()).get(generator) != version:  # it has lost them
                return say(f"the evaluation of version {version} starts again: {error}")
            self.last = version  # it is the questions' fault
            return say(f"the evaluation of version {version} is given up: {error}")
        self.last = version
        for one, rollouts in zip(self.sets, answers, strict=True):
            self.log(row := evaluation_row(version, rollouts, one))
            problems = one.name or "held-out problems"
            say(f"version {version}: pass@1 {row['pass@1']:.3f} on {problems}")

    @contextmanager
    def pinned(self, generator: str) -> Iterator[None]:
        """Inside, a generator keeps its weights and writes for nobody else, if it is not alone."""
        write_json(self.layout.pinned, generator)
        self.engine.aside = generator
        try:
            yield
        finally:
            self.engine.aside = None
            self.layout.pinned.unlink(missing_ok=True)

    async def answers(self, sampler: GroupSampler, version: int) -> list[list[Rollout]]:
        """The rollouts of each set, all by `version`. The first error ends all the rest."""
        places = asyncio.Semaphore(self.places)

        async def answer(number: int, problem: Problem, one: ProblemSet) -> list[Rollout]:
            request: dict[str, Any] = {"rewarded": False, "manner": one.manner}
            async with places:
                for failures in count(1):
                    try:
                        with self.asking():
                            found = await sampler.sample(problem, number, one.samples, **request)
                        break
                    except GenerationFailed:
                        if failures == ATTEMPTS:
                            raise
                        await asyncio.sleep(pause_after(failures))
            if others := {v for rollout in found for v in rollout.versions} - {version}:
                raise OtherWeights(f"an answer is by version {min(others)}")
            return found

        try:
            async with asyncio.TaskGroup() as group:
                asked = [
                    [group.create_task(answer(*one, of)) for one in enumerate(of.problems)]
                    for of in self.sets
                ]
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return [[rollout for task in tasks for rollout in task.result()] for tasks in asked]


def evaluation_row(version: int, rollouts: Sequence[Rollout], asked_as: ProblemSet) -> dict:
    """`rlbook.evaluation.summary` of a set's rollouts, with the versions that wrote them."""
    versions = {version for rollout in rollouts for version in rollout.versions}
    return {
        "step": version,
        **({"set": asked_as.name} if asked_as.name else {}),
        "version_min": min(versions),
        "version_max": max(versions),
        **summary(rollouts, asked_as.ks, asked_as.task),
        "time": time.time(),
    }


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
