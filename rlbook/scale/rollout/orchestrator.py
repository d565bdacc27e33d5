"""Keeps prompts in flight and hands what comes back to its batches.

`python -m rlbook.scale.rollout.orchestrator <run folder>`. All it has to remember is in the newest
batch of the spool, so it may be killed and started anew at any moment: what was in a batch is never
asked again, what was not yet is.
"""

import asyncio
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from rlbook.policy import load_tokenizer
from rlbook.scale.config import ScaleConfig, load_config
from rlbook.scale.generate.client import GeneratorClient, HTTPEngine, clients_of
from rlbook.scale.generate.engine import AsyncEngine, GenerationFailed, RequestRefused
from rlbook.scale.layout import Layout, read_json
from rlbook.scale.process import PULSE_SECONDS, Pulse, die_with_parent
from rlbook.scale.rollout.batches import Batches
from rlbook.scale.rollout.counters import Counters
from rlbook.scale.rollout.evaluate import Evaluation
from rlbook.scale.rollout.groups import GroupSampler
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
    """A group in flight: ticket of the training pool, or index into the held-out problems."""

    number: int
    problem: Problem
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
        self.sampler = GroupSampler(engine, tokenizer, verifiers, config)
        self.counters = Counters(servers, verifiers.failures)
        pool = training_pool(task, config, problems)
        self.batches = Batches(layout, config, pool, self.counters, labeller(task))
        evaluated = [row["step"] for row in read_jsonl(layout.log("eval"))]
        every, last = config.updates_per_evaluation, max(evaluated, default=None)
        self.evaluation = Evaluation(problems, every, last, task)
        self.eval_log = RunLog(layout.root, resume_step=float("inf"), name="eval")
        slots = servers * config.generate.slots
        self.most_asked = max(1, ASKED_PER_SLOT * slots // config.rollout.group_size)
        self.asked: dict[asyncio.Task, Asked] = {}
        self.version: int | None = None  # of the generators' weights
        self.heard = time.monotonic()  # when it was last known
        self.failures = self.refusals = 0  # in a row
        self.resume_at = 0.0

    async def run(self) -> None:
        """Until the trainer says that the run is done, and the last evaluation is over."""
        if waiting := self.batches.tickets.waiting:
            say(f"{len(waiting)} prompts were open and are asked again")
        watcher = asyncio.create_task(self.watch())
        try:
            while not self.over():
                self.fill()
                await first_of([*self.asked, watcher])
                if watcher.done():
                    watcher.result()  # it only ends by an error
                for task in [task for task in self.asked if task.done()]:
                    self.settle(task, self.asked.pop(task))
                self.cancel(self.batches.publish_due(self.trained))
                if reason := self.batches.end_if_silent():
                    say(reason)
                if not self.training and (reason := self.batches.end_if_exhausted()):
                    say(f"no further batches: {reason}")
        finally:
            await cancelled([watcher, *self.asked])

    async def watch(self) -> None:
        """Keep `version` up to date; a silent server must not hold up the others."""
        while True:
            self.version = await self.engine.version()
            if self.version is not None:
                self.heard = time.monotonic()
            await asyncio.sleep(POLL_SECONDS)

    def fill(self) -> None:
        """Ask whatever pacing and servers allow; held-out problems take the places that are left.

        One of those is always in flight, so that an evaluation ends even if none is ever left.
        """
        if self.version is None or time.monotonic() < self.resume_at:
            return
        while len(self.asked) < self.most_asked and (started := self.batches.start(self.version)):
            self.ask(*started)
        evaluation, done = self.evaluation, self.done
        version = self.trained if done else self.version
        if evaluation.due(version, done):
            evaluation.begin(version)
        while len(self.asked) < self.most_asked or not evaluation.in_flight:
            if (index := evaluation.take()) is None:
                break
            self.ask(index, evaluation.problems[index], held_out=True)

    def ask(self, number: int, problem: Problem, held_out: bool = False) -> None:
        n = self.config.evaluation.samples if held_out else self.config.rollout.group_size
        group = self.sampler.sample(problem, number, n, rewarded=not held_out)
        task = asyncio.create_task(group)
        self.asked[task] = Asked(number, problem, held_out, time.monotonic())
        self.counters.asked()

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
        (self.evaluation if asked.held_out else self.batches).again(asked.number)

    def give_up(self, asked: Asked, error: Exception) -> None:
        """Leave a prompt out that a generator refuses; if it refuses all of them, stop."""
        self.counters.count("refused_requests")
        self.refusals += 1
        if asked.held_out or self.refusals > self.config.prompts_per_update:
            raise error
        say(f"problem {asked.problem.id} is left out: {error}")
        self.batches.give_up(asked.number)

    def evaluate(self, index: int, rollouts: list[Rollout]) -> None:
        if row := self.evaluation.add(index, rollouts):
            self.eval_log(row)
            say(f"version {row['step']}: pass@1 {row['pass@1']:.3f} on held-out problems")

    def cancel(self, tickets: list[int]) -> None:
        """Stop writing groups that no batch can take any more."""
        for task, asked in list(self.asked.items()):
            if not asked.held_out and asked.number in tickets:
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
    def training(self) -> bool:
        """Whether a group for a batch is in flight."""
        return not all(asked.held_out for asked in self.asked.values())

    def over(self) -> bool:
        """Whether nothing is left to do; without generators the last evaluation is given up."""
        if not self.done:
            return False
        silent = time.monotonic() - self.heard > SILENT_SECONDS
        under_way = self.evaluation.version is not None
        return silent or not (under_way or self.evaluation.due(self.trained, True))


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
