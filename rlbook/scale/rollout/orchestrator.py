"""Keeps prompts in flight and hands what comes back to its batches.

`python -m rlbook.scale.rollout.orchestrator <run folder>`. All it has to remember is in the newest
batch of the spool, so it may be killed and started anew at any moment: what was in a batch is never
asked again, what was not yet is.
"""

import asyncio
import math
import sys
import time
from collections.abc import Collection, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from rlbook.policy import load_tokenizer
from rlbook.scale.config import ScaleConfig, load_config
from rlbook.scale.generate.client import GeneratorClient, HTTPEngine, clients_of
from rlbook.scale.generate.engine import AsyncEngine, GenerationFailed, RequestRefused
from rlbook.scale.hold import Hold
from rlbook.scale.layout import Layout, read_json
from rlbook.scale.process import PULSE_SECONDS, Pulse, die_with_parent
from rlbook.scale.rollout.batches import Batches
from rlbook.scale.rollout.counters import Counters
from rlbook.scale.rollout.evaluate import Evaluation, ProblemSet, named_set, untrained
from rlbook.scale.rollout.groups import AS_IN_TRAINING, GroupSampler, Manner
from rlbook.scale.rollout.tickets import training_pool
from rlbook.scale.rollout.verify import Verifiers
from rlbook.tasks import Problem, get_task, held_out_problems
from rlbook.training import Rollout, RunLog, read_jsonl
from rlbook.training.collect import labeller

POLL_SECONDS = 0.05
LONGEST_PAUSE = 5.0  # seconds without new requests after failed ones
ASKED_PER_SLOT = 2  # a group comes back with its longest answer; its other slots must not wait
OWN_SILENCE, SERVER_SILENCE = 60.0, 120.0  # seconds after which a process counts as hung
SILENT_SECONDS = 10.0  # without a generator, after which the last evaluation is given up


@dataclass(frozen=True)
class Asked:
    """A group of `n` in flight: ticket of the training pool, or number of a held-out question."""

    number: int
    problem: Problem
    n: int
    held_out: bool
    since: float


class Orchestrator:
    """The loop between generators and batches, evaluation on the side. Chapter 17."""

    def __init__(
        self,
        layout: Layout,
        config: ScaleConfig,
        engine: AsyncEngine,
        tokenizer,
        verifiers: Verifiers,
        servers: int = 1,
    ):
        self.layout, self.config, self.engine = layout, config, engine
        task = get_task(config.data.task)
        problems = held_out_problems(task, config.evaluation.prompts, config.data.levels)
        held_out = ProblemSet(task, problems, config.evaluation.samples)
        self.sampler = GroupSampler(engine, tokenizer, verifiers, config)
        self.counters = Counters(servers, verifiers.failures)
        pool = training_pool(task, config, problems)
        self.batches = Batches(layout, config, pool, self.counters, labeller(task))
        evaluated = [row["step"] for row in read_jsonl(layout.log("eval"))]
        every, last = config.updates_per_evaluation, max(evaluated, default=None)
        named = (named_set(*one, config) for one in config.evaluation.sets.items())
        others = [untrained(one, pool.problems.values()) for one in named]
        self.evaluation = Evaluation([held_out, *others], every, Hold(layout.hold), last)
        self.eval_log = RunLog(layout.root, resume_step=float("inf"), name="eval")
        self.most_asked = ASKED_PER_SLOT * servers * config.generate.slots  # completions
        self.asked: dict[asyncio.Task, Asked] = {}
        self.versions: set[int] = set()  # of the generators' weights
        self.heard = time.monotonic()  # when there was one
        self.looked, self.ended = 0.0, math.inf  # when they were last asked, and the run was done
        self.failures = self.refusals = 0  # in a row
        self.resume_at = 0.0

    async def run(self) -> None:
        """Until the trainer says that the run is done, and the last evaluation is over."""
        if waiting := self.batches.tickets.waiting:
            say(f"{len(waiting)} prompts were open and are asked again")
        watcher = asyncio.create_task(self.watch())
        try:
            while not self.over():
                self.oversee()
                self.fill()
                await first_of([*self.asked, watcher])
                if watcher.done():
                    watcher.result()  # it only ends by an error
                for task in [task for task in self.asked if task.done()]:
                    if asked := self.asked.pop(task, None):
                        self.settle(task, asked)
                late = self.batches.publish_due(self.trained, self.holding)
                self.cancel(held_out=False, numbers=late)
                if reason := self.batches.end_if_silent():
                    say(reason)
                if not self.training and (reason := self.batches.end_if_exhausted()):
                    say(f"no further batches: {reason}")
        finally:
            await cancelled([watcher, *self.asked])
            self.evaluation.stop()

    async def watch(self) -> None:
        """Keep `versions` up to date; a silent server must not hold up the others."""
        while True:
            asked = time.monotonic()
            self.versions, self.looked = await self.engine.versions(), asked
            if self.versions:
                self.heard = time.monotonic()
            self.evaluation.hold.renew()
            await asyncio.sleep(POLL_SECONDS)

    def oversee(self) -> None:
        """Begin the evaluation that is due; start one again whose version is nowhere left."""
        evaluation = self.evaluation
        if evaluation.lost(self.versions):
            self.start_over("no generator has those weights any more")
        if self.versions and evaluation.due(newest := max(self.versions), self.done):
            evaluation.begin(newest)

    def start_over(self, reason: str) -> None:
        say(f"the evaluation of version {self.evaluation.version} starts again: {reason}")
        self.evaluation.stop()
        self.cancel(held_out=True)

    def fill(self) -> None:
        """Ask whatever pacing and servers allow.

        An evaluation takes the places that are left. What it leaves goes to training once more,
        for as long as it holds new weights back.
        """
        if not self.versions or time.monotonic() < self.resume_at:
            return
        self.ask_training()
        evaluation = self.evaluation
        while evaluation.version in self.versions:
            if (index := evaluation.take(self.room)) is None:
                break
            self.ask_held_out(index)
        if self.holding:
            self.ask_training(held=True)

    def ask_training(self, held: bool = False) -> None:
        oldest, n = min(self.versions), self.config.rollout.group_size
        while self.room(n) and (started := self.batches.start(oldest, held)):
            self.ask(Asked(*started, n, False, time.monotonic()))

    def ask_held_out(self, index: int) -> None:
        question = self.evaluation.questions[index]
        manner = replace(question.asked_as.manner, version=self.evaluation.version)
        asked = Asked(index, question.problem, question.samples, True, time.monotonic())
        self.ask(asked, manner)

    def ask(self, asked: Asked, manner: Manner = AS_IN_TRAINING) -> None:
        group = self.sampler.sample(
            asked.problem, asked.number, asked.n, rewarded=not asked.held_out, manner=manner
        )
        self.asked[asyncio.create_task(group)] = asked
        self.counters.asked()

    def room(self, n: int) -> bool:
        """Whether servers should be asked for so many completions more."""
        written = sum(asked.n for asked in self.asked.values())
        return not written or written + n <= self.most_asked

    def settle(self, task: asyncio.Task, asked: Asked) -> None:
        """Take in the group that a request brought, or ask again."""
        self.counters.answered()
        if task.cancelled():
            return
        try:
            rollouts = task.result()
        except GenerationFailed as error:
            self.ask_again(asked, error)
        except RequestRefused as error:
            self.give_up(asked, error)
        else:
            self.failures = self.refusals = 0
            if asked.held_out:
                self.evaluate(asked.number, rollouts)
            else:
                self.batches.accept(asked.number, rollouts, time.monotonic() - asked.since)

    def ask_again(self, asked: Asked, error: Exception) -> None:
        """Back to the queue. As long as nothing succeeds, pauses get longer."""
        self.counters.count("failed_requests")
        if time.monotonic() >= self.resume_at:
            pause = min(POLL_SECONDS * 2**self.failures, LONGEST_PAUSE)
            self.failures, self.resume_at = self.failures + 1, time.monotonic() + pause
        say(f"{asked.problem.id}: asked in vain: {error}")
        if not asked.held_out:
            self.batches.again(asked.number)
        elif not self.evaluation.again(asked.number):
            say(f"the evaluation of version {self.evaluation.version} is given up: {error}")
            self.evaluation.finish()
            self.cancel(held_out=True)

    def give_up(self, asked: Asked, error: Exception) -> None:
        """Leave a prompt out that a generator refuses; if it refuses all of them, stop."""
        self.counters.count("refused_requests")
        self.refusals += 1
        if asked.held_out or self.refusals > self.config.prompts_per_update:
            raise error
        say(f"problem {asked.problem.id} is left out: {error}")
        self.batches.give_up(asked.number)

    def evaluate(self, index: int, rollouts: list[Rollout]) -> None:
        if self.evaluation.by_others(rollouts):
            return self.start_over("an answer is by other weights")
        for row in self.evaluation.add(index, rollouts):
            self.eval_log(row)
            problems = row.get("set", "held-out problems")
            say(f"version {row['step']}: pass@1 {row['pass@1']:.3f} on {problems}")

    def cancel(self, held_out: bool, numbers: Collection[int] | None = None) -> None:
        """Stop writing groups that nobody can take any more: all of a kind, or those named."""
        for task, asked in list(self.asked.items()):
            if asked.held_out == held_out and (numbers is None or asked.number in numbers):
                task.cancel()
                task.add_done_callback(lambda task: task.cancelled() or task.exception())
                self.counters.answered()
                del self.asked[task]

    @property
    def trained(self) -> int:
        """The trainer's version."""
        return read_json(self.layout.status, {}).get("version", 0)

    @property
    def done(self) -> bool:
        return bool(read_json(self.layout.status, {}).get("done"))

    @property
    def holding(self) -> bool:
        """Whether an evaluation is under way, for which generators keep their weights."""
        return self.evaluation.version is not None

    @property
    def training(self) -> bool:
        """Whether a group for a batch is in flight."""
        return not all(asked.held_out for asked in self.asked.values())

    def over(self) -> bool:
        """Whether nothing is left to do; without generators the last evaluation is given up.

        Versions that were asked for before the end may lack the last one.
        """
        if not self.done:
            return False
        self.ended = min(self.ended, time.monotonic())
        evaluation, newest = self.evaluation, max(self.versions, default=self.trained)
        if self.looked < self.ended:
            newest = self.trained
        if evaluation.version is None and not evaluation.due(newest, done=True):
            return True
        if silent := time.monotonic() - self.heard > SILENT_SECONDS:
            version = newest if evaluation.version is None else evaluation.version
            say(f"the evaluation of version {version} is given up: no generator has weights")
        return silent


async def first_of(tasks: list[asyncio.Task]) -> None:
    """Until one of them has ended, or it is time to look around."""
    await asyncio.wait(tasks, timeout=POLL_SECONDS, return_when=asyncio.FIRST_COMPLETED)


async def cancelled(tasks: list[asyncio.Task]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


async def show_life(layout: Layout, clients: Sequence[GeneratorClient]) -> None:
    """Signs of life of this process, and of every generator that it hears."""
    own = Pulse(layout.alive("orchestrator"), OWN_SILENCE)
    pulses = [Pulse(layout.alive(f"generator{i}"), SERVER_SILENCE) for i in range(len(clients))]
    last = [client.heard for client in clients]
    while True:
        own()
        heard = [client.heard for client in clients]
        for pulse, before, now in zip(pulses, last, heard, strict=True):
            if now > before:
                pulse()
        last = heard
        await asyncio.sleep(PULSE_SECONDS)


async def orchestrate(layout: Layout) -> None:
    """The orchestrator of a run folder, with HTTP generators."""
    config = load_config(layout.config)
    tokenizer = load_tokenizer(config.model.policy)
    generate = config.generate
    verifiers = Verifiers(config.data.task, generate.verifiers, generate.verify_seconds)
    async with AsyncExitStack() as stack:
        stack.callback(verifiers.close)
        clients = [await stack.enter_async_context(client) for client in clients_of(config, layout)]
        life = asyncio.create_task(show_life(layout, clients))
        stack.callback(life.cancel)
        engine = HTTPEngine(clients)
        await Orchestrator(layout, config, engine, tokenizer, verifiers, len(clients)).run()


def main() -> None:
    die_with_parent()
    if len(sys.argv) != 2:
        sys.exit("usage: python -m rlbook.scale.rollout.orchestrator <run folder>")
    asyncio.run(orchestrate(Layout(Path(sys.argv[1]))))


if __name__ == "__main__":
    main()
