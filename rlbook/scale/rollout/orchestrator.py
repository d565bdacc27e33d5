"""Keeps prompts in flight and hands what comes back to its batches.

`python -m rlbook.scale.rollout.orchestrator <run folder>`. All it has to remember is in the newest
batch of the log, so it may be killed and started anew at any moment: what was in a batch is never
asked again, what was not yet is.
"""

import asyncio
import sys
import time
from collections.abc import Collection, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from rlbook.durable import read_json
from rlbook.policy import load_tokenizer
from rlbook.scale.config import ScaleConfig, load_config
from rlbook.scale.generate.client import SERVER_SILENCE, GeneratorClient, HTTPEngine, clients_of
from rlbook.scale.generate.protocol import GenerationFailed, RequestRefused
from rlbook.scale.layout import Layout
from rlbook.scale.process import HEARTBEAT_SECONDS, Heartbeat, die_with_parent, say
from rlbook.scale.rollout.batches import Batches, Counters
from rlbook.scale.rollout.evaluate import Evaluator, ProblemSet, named_set, untrained
from rlbook.scale.rollout.groups import GroupSampler
from rlbook.scale.rollout.verify import Verifiers
from rlbook.tasks import Problem, get_task, held_out_problems
from rlbook.training import Rollout
from rlbook.training.pool import training_pool
from rlbook.training.rollouts import labeller

POLL_SECONDS = 0.05
LONGEST_PAUSE = 5.0  # seconds without new requests after failed ones
ASKED_PER_SLOT = 2  # a group comes back with its longest answer; its other slots must not wait
OWN_SILENCE = 60.0  # seconds after which this process counts as hung


@dataclass(frozen=True)
class InFlight:
    """A group that is being written."""

    ticket: int
    problem: Problem
    since: float


class Orchestrator:
    """The loop between generators and batches, evaluation on the side. Chapter 17."""

    def __init__(
        self,
        layout: Layout,
        config: ScaleConfig,
        engine: HTTPEngine,
        tokenizer,
        verifiers: Verifiers,
        servers: int = 1,
    ):
        self.layout, self.config, self.engine = layout, config, engine
        task = get_task(config.data.task)
        held_out = held_out_problems(task, config.evaluation.prompts, config.data.levels)
        pool = training_pool(task, config, held_out)
        self.counters = Counters(servers, verifiers.failures)
        self.batches = Batches(layout, config, pool, self.counters, labeller(task))

        def sampler(engine: HTTPEngine) -> GroupSampler:
            return GroupSampler(engine, tokenizer, verifiers, config)

        sets = [ProblemSet(task, held_out, config.evaluation.samples)]
        for one in config.evaluation.sets.items():
            sets.append(untrained(named_set(*one, config), pool.problems.values()))
        asked = ASKED_PER_SLOT * config.generate.slots  # completions, of each server
        places = max(1, asked // max(one.samples for one in sets))
        every, asking = config.evaluation.every, self.counters.asking
        self.evaluator = Evaluator(layout, sets, every, engine, sampler, places, asking)
        self.sampler, self.most_asked = sampler(engine), asked * servers
        self.asked: dict[asyncio.Task, InFlight] = {}
        self.versions: set[int] = set()  # of the generators' weights
        self.failures = self.refusals = 0  # in a row
        self.resume_at = 0.0

    async def run(self) -> None:
        """Until the trainer says that the run is done, and the last evaluation is over."""
        if waiting := self.batches.queue.waiting:
            say(f"{len(waiting)} prompts were open and are asked again")
        watching = asyncio.create_task(self.watch())
        evaluating = asyncio.create_task(self.evaluator.run())
        try:
            while not evaluating.done():
                self.fill()
                tasks = [*self.asked, watching, evaluating]
                await asyncio.wait(tasks, timeout=POLL_SECONDS, return_when="FIRST_COMPLETED")
                if watching.done():
                    watching.result()  # it only ends by an error
                for task in [task for task in self.asked if task.done()]:
                    self.settle(task, self.asked.pop(task))
                trained = read_json(self.layout.status, {}).get("version", 0)
                self.cancel(self.batches.publish_due(trained))
                if reason := self.batches.end_if_silent():
                    say(reason)
                if not self.asked and (reason := self.batches.end_if_exhausted()):
                    say(f"no further batches: {reason}")
            evaluating.result()
        finally:
            tasks = [watching, evaluating, *self.asked]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def watch(self) -> None:
        """Keep `versions` up to date; a silent server must not hold up the others."""
        while True:
            self.versions = set((await self.engine.versions()).values())
            await asyncio.sleep(POLL_SECONDS)

    def fill(self) -> None:
        """Ask for groups while servers have room and pacing lets one start."""
        size = self.config.rollout.group_size
        if not self.versions or time.monotonic() < self.resume_at:
            return
        while not self.asked or (len(self.asked) + 1) * size <= self.most_asked:
            if not (started := self.batches.start(min(self.versions))):
                return
            group = asyncio.create_task(self.sample(*started))
            self.asked[group] = InFlight(*started, time.monotonic())

    async def sample(self, ticket: int, problem: Problem) -> list[Rollout]:
        """Have a group written, verified and rewarded; `settle` takes it in."""
        with self.counters.asking():
            return await self.sampler.sample(problem, ticket, self.config.rollout.group_size)

    def settle(self, task: asyncio.Task, asked: InFlight) -> None:
        """Take in the group that a request brought, or ask again."""
        try:
            rollouts = task.result()
        except GenerationFailed as error:
            self.ask_again(asked, error)
        except RequestRefused as error:
            self.give_up(asked, error)
        else:
            self.failures = self.refusals = 0
            self.batches.accept(asked.ticket, rollouts, time.monotonic() - asked.since)

    def ask_again(self, asked: InFlight, error: Exception) -> None:
        """Back to the queue. As long as nothing succeeds, pauses get longer."""
        self.counters.events["failed_requests"] += 1
        if time.monotonic() >= self.resume_at:
            pause = min(POLL_SECONDS * 2**self.failures, LONGEST_PAUSE)
            self.failures, self.resume_at = self.failures + 1, time.monotonic() + pause
        say(f"{asked.problem.id}: asked in vain: {error}")
        self.batches.again(asked.ticket)

    def give_up(self, asked: InFlight, error: Exception) -> None:
        """Leave a prompt out that a generator refuses; if it refuses all of them, stop."""
        self.counters.events["refused_requests"] += 1
        self.refusals += 1
        if self.refusals > self.config.rollout.prompts:
            raise error
        say(f"problem {asked.problem.id} is left out: {error}")
        self.batches.give_up(asked.ticket)

    def cancel(self, tickets: Collection[int]) -> None:
        """Stop writing groups that no batch can take any more."""
        for task in [task for task, asked in self.asked.items() if asked.ticket in tickets]:
            task.cancel()
            task.add_done_callback(lambda task: task.cancelled() or task.exception())
            del self.asked[task]


async def show_life(layout: Layout, clients: Sequence[GeneratorClient]) -> None:
    """Signs of life of this process, and of every generator that it hears."""
    own = Heartbeat(layout.alive("orchestrator"), OWN_SILENCE)
    of = {c: Heartbeat(layout.alive(c.name), SERVER_SILENCE) for c in clients}
    last = {client: client.heard for client in clients}
    while True:
        own()
        for client, heartbeat in of.items():
            if client.heard > last[client]:
                last[client] = client.heard
                heartbeat()
        await asyncio.sleep(HEARTBEAT_SECONDS)


async def orchestrate(layout: Layout) -> None:
    """The orchestrator of a run folder, with HTTP generators."""
    config = load_config(layout.config)
    tokenizer, generate = load_tokenizer(config.model.policy), config.generate
    verifiers = Verifiers(config.data.task, generate.verifiers, generate.verify_seconds)
    async with AsyncExitStack() as stack:
        stack.callback(verifiers.close)
        clients = [await stack.enter_async_context(client) for client in clients_of(config, layout)]
        life = asyncio.create_task(show_life(layout, clients))
        stack.callback(life.cancel)
        engine = HTTPEngine(clients)
        await Orchestrator(layout, config, engine, tokenizer, verifiers, len(clients)).run()


def main() -> None:
    """The orchestrator process of the run folder named on the command line."""
    die_with_parent()
    if len(sys.argv) != 2:
        sys.exit("usage: python -m rlbook.scale.rollout.orchestrator <run folder>")
    asyncio.run(orchestrate(Layout(Path(sys.argv[1]))))


if __name__ == "__main__":
    main()
