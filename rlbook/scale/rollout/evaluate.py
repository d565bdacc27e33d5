"""Held-out problems and other sets, asked at intervals of one generator that keeps its weights.

An evaluation has a generator to itself until its last answer is in: the file `pinned` names it, and
the trainer gives it no weights meanwhile. Where there is only one, it writes for training too, as
far as the bound on staleness lets groups start on weights that stand still.

Every answer of a row is by one version. If the generator dies, or an answer has a token by other
weights, the evaluation starts again with the newest weights there are then. One question that is
refused, or asked in vain too often, ends its evaluation without a row; so does the death of all
generators once the trainer has ended. An orchestrator begins with nothing pinned, so no death
leaves anybody waiting.
"""

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from rlbook.durable import read_json, write_json
from rlbook.evaluation import summary
from rlbook.jsonl import last_row
from rlbook.scale.config import EvaluationSet, ScaleConfig
from rlbook.scale.generate.protocol import GenerationFailed, RequestRefused, pause_after
from rlbook.scale.layout import Layout
from rlbook.scale.process import say
from rlbook.scale.rollout.groups import GroupSampler
from rlbook.tasks import AnyTask, Problem, get_task, held_out_problems
from rlbook.tasks.registry import question
from rlbook.training import Rollout, RunLog

if TYPE_CHECKING:
    from rlbook.scale.generate.client import GeneratorClient

ATTEMPTS = 4  # to ask one question
LOOK_SECONDS = 0.05
SILENT_SECONDS = 10.0  # without a generator, after which the last evaluation is given up


@dataclass(frozen=True)
class ProblemSet:
    """Problems and how they are asked; without a name, the run's own held-out ones."""

    task: AnyTask
    problems: Sequence[Problem]
    samples: int
    name: str | None = None
    ks: Sequence[int] | None = None
    how: Mapping[str, Any] = field(default_factory=dict)  # what is not as in training


@dataclass
class Evaluator:
    """One evaluation after another: due every `every` versions, at the start, and at the end."""

    layout: Layout
    sets: Sequence[ProblemSet]
    every: int
    sampler: GroupSampler
    places: int  # questions that are asked at a time

    def __post_init__(self) -> None:
        self.engine = self.sampler.engine
        newest = last_row(self.layout.log("eval"))
        self.last = newest.get("step", -1)  # version of the newest evaluation
        self.log = RunLog(self.layout.root, resume_step=float("inf"), name="eval")
        self.layout.pinned.unlink(missing_ok=True)

    def due(self, version: int, done: bool = False) -> bool:
        """Whether to evaluate the generators' version; `done`: there will be no later one."""
        each = 1 if done else self.every
        return self.every > 0 and version // each > self.last // each

    async def run(self) -> None:
        """Until the trainer has made its last update and that has its rows, or is given up."""
        clock = asyncio.get_running_loop().time
        heard = clock()
        while True:
            status = read_json(self.layout.status, {})
            if done := bool(status.get("done")):
                await self.engine.look()  # a trainer that is done has delivered its last version
            versions = self.engine.versions
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

    async def evaluate(self, generator: "GeneratorClient") -> None:
        """Have a generator keep its weights and, if it is not alone, write for nobody else."""
        write_json(self.layout.pinned, generator.name)
        self.engine.aside = generator
        try:
            if (version := await generator.version()) is not None:
                await self.ask(generator, version)
        finally:
            self.engine.aside = None
            self.layout.pinned.unlink(missing_ok=True)

    async def ask(self, generator: "GeneratorClient", version: int) -> None:
        """Ask it everything and log a row per set, unless it fails on the way."""
        sampler = replace(self.sampler, engine=self.engine.only(generator))
        try:
            answers = await self.answers(sampler, version)
        except (GenerationFailed, RequestRefused) as error:
            if await generator.version() != version:  # it has lost them
                return say(f"the evaluation of version {version} starts again: {error}")
            self.last = version  # it is the questions' fault
            return say(f"the evaluation of version {version} is given up: {error}")
        self.last = version
        rows = [evaluation_row(version, *one) for one in zip(answers, self.sets, strict=True)]
        self.log(*rows)  # at once: after a kill between two of them the second would never come
        for one, row in zip(self.sets, rows, strict=True):
            problems = one.name or "held-out problems"
            say(f"version {version}: pass@1 {row['pass@1']:.3f} on {problems}")

    async def answers(self, sampler: GroupSampler, version: int) -> list[list[Rollout]]:
        """The rollouts of each set, all by `version`. The first error ends all the rest."""
        places = asyncio.Semaphore(self.places)

        async def ask(number: int, problem: Problem, one: ProblemSet) -> list[Rollout]:
            failures = 0
            async with places:
                while True:
                    try:
                        found = await sampler.sample(problem, number, one.samples, **one.how)
                        if others := {v for rollout in found for v in rollout.versions} - {version}:
                            raise GenerationFailed(f"an answer is by version {min(others)}")
                        return found
                    except GenerationFailed:
                        if (failures := failures + 1) == ATTEMPTS:
                            raise
                    await asyncio.sleep(pause_after(failures))

        asked = [
            [asyncio.create_task(ask(*one, of)) for one in enumerate(of.problems)]
            for of in self.sets
        ]
        everyone = list(chain(*asked))
        try:  # a TaskGroup whose tasks fail forgets that it was cancelled
            await asyncio.gather(*everyone)
        finally:
            for task in everyone:
                task.cancel()
            await asyncio.gather(*everyone, return_exceptions=True)
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


def named_set(
    name: str, settings: EvaluationSet, config: ScaleConfig, trained: Collection[Problem] = ()
) -> ProblemSet:
    """A set of `evaluation.sets`, without problems that are `trained`.

    What it does not say is as for the run's own. `ValueError` names it if its task has too few.
    """
    task = get_task(settings.task)
    known = {question(task, problem) for problem in trained}
    try:
        problems = held_out_problems(task, settings.prompts, settings.levels)
        if not (fresh := [problem for problem in problems if question(task, problem) not in known]):
            raise ValueError(f"training asks all {len(problems)} of its problems: choose others")
    except ValueError as error:
        raise ValueError(f"evaluation.sets.{name}: {error}") from None
    samples = settings.samples or config.evaluation.samples
    ks = settings.ks and sorted({1, *settings.ks})
    how = settings.model_dump(include={"task", "temperature", "max_new_tokens"})
    return ProblemSet(task, fresh, samples, name, ks, how)
