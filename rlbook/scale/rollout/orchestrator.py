"""Keeps prompts in flight and hands what comes back to its batches.

`python -m rlbook.scale.rollout.orchestrator <run folder>`. All it has to remember is in the newest
batch of the log: it may be killed and started anew at any moment.
"""

import asyncio
import sys
import time
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from rlbook.policy import load_tokenizer
from rlbook.scale.config import load_config
from rlbook.scale.generate.client import HTTPEngine, clients_of
from rlbook.scale.generate.protocol import GenerationFailed, RequestRefused
from rlbook.scale.layout import Layout
from rlbook.scale.process import Heartbeat, allow_open_files, die_with_parent, say
from rlbook.scale.rollout.batches import Batches, Counters
from rlbook.scale.rollout.evaluate import Evaluator, ProblemSet, named_set
from rlbook.scale.rollout.groups import GroupSampler, Verifiers
from rlbook.scale.rollout.worlds import Worlds
from rlbook.tasks import get_task, held_out_problems
from rlbook.training.pool import training_pool

POLL_SECONDS = 0.05
PAUSE = 5.0  # seconds before a group that was asked in vain is asked again
ASKED_PER_SLOT = 2  # a group comes back with its longest answer; its other slots must not wait
ATTEMPTS = 12  # to have one group written, before its problem is left out
OWN_SILENCE = 60.0  # seconds after which this process counts as hung


class Orchestrator:
    """The loop between generators and batches, evaluation on the side."""

    def __init__(self, layout: Layout, sampler: GroupSampler):
        self.layout, self.engine, config = layout, sampler.engine, sampler.config
        self.heartbeat = Heartbeat(layout.alive("orchestrator"), OWN_SILENCE)
        task, evaluation = get_task(config.data.task), config.evaluation
        held_out = held_out_problems(task, evaluation.prompts, config.data.levels)
        pool = training_pool(task, config, held_out)
        counters = Counters(sampler.verifiers.events, config.generate.count)
        self.batches = Batches(layout, config, pool, counters, task)
        self.sampler = replace(sampler, asking=counters.asking)
        sets = [ProblemSet(task, held_out, evaluation.samples)]
        sets += [named_set(*one, config, pool.problems.values()) for one in evaluation.sets.items()]
        asked = ASKED_PER_SLOT * config.generate.slots  # completions, of each server
        places = max(1, asked // max(one.samples for one in sets))
        self.evaluator = Evaluator(layout, sets, evaluation.every, self.sampler, places)
        self.most_asked = max(1, asked * config.generate.count // config.rollout.group_size)
        self.being_written: dict[int, asyncio.Task] = {}  # groups that are being written, by ticket
        self.failures: Counter[int] = Counter()  # by ticket, while others were written
        self.written = False  # whether a group was, since this process began
        self.left_out = 0  # problems in a row

    async def run(self) -> None:
        """Until the trainer says that the run is done, and the last evaluation is over."""
        if waiting := self.batches.waiting:
            say(f"{len(waiting)} prompts were open and are asked again")
        watching = asyncio.create_task(self.engine.watch())
        evaluating = asyncio.create_task(self.evaluator.run())
        try:
            while not evaluating.done():
                self.heartbeat()
                self.fill()
                work = [*self.being_written.values(), watching, evaluating]
                done, _ = await asyncio.wait(
                    work, timeout=POLL_SECONDS, return_when="FIRST_COMPLETED"
                )
                for task in done:
                    task.result()  # or its error
                for ticket in self.batches.publish_due(self.layout.trained()):
                    if ticket in self.being_written:  # no batch can take it any more
                        self.being_written.pop(ticket).cancel()
                if reason := self.batches.end_if_stuck(idle=not self.being_written):
                    say(f"no further batches: {reason}")
        finally:
            work = [*self.being_written.values(), watching, evaluating]
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)

    def fill(self) -> None:
        """Ask for groups while servers have room and pacing lets one start."""
        versions = self.engine.versions.values()
        while versions and len(self.being_written) < self.most_asked:
            if (ticket := self.batches.start(min(versions))) is None:
                return
            self.being_written[ticket] = asyncio.create_task(self.ask(ticket))

    async def ask(self, ticket: int) -> None:
        """Have a group written, verified and rewarded, and hand it in; or have it asked again."""
        problem, began = self.batches.open[ticket], time.monotonic()
        try:
            rollouts = await self.sampler.rewarded(problem, ticket)
            self.batches.accept(ticket, rollouts, time.monotonic() - began)
            self.written, self.left_out = True, 0
        except (GenerationFailed, RequestRefused) as error:
            works = self.written and self.engine.versions  # or it is not the problem's fault
            self.failures[ticket] += bool(works)
            if isinstance(error, GenerationFailed) and self.failures[ticket] < ATTEMPTS:
                say(f"{problem.id}: asked in vain: {error}")
                await asyncio.sleep(PAUSE)
                self.batches.again(ticket)
            else:
                self.left_out += 1
                if self.left_out > self.sampler.config.rollout.prompts:
                    raise  # it seems to be so with all of them
                say(f"problem {problem.id} is left out: {error}")
                self.batches.give_up(ticket)
        self.being_written.pop(ticket, None)


async def orchestrate(layout: Layout) -> None:
    """The orchestrator of a run folder, with HTTP generators."""
    config = load_config(layout.config)
    tokenizer, generate = load_tokenizer(config.model.policy), config.generate
    verifiers = Verifiers(config.data.task, generate.verifiers, generate.verify_seconds)
    async with AsyncExitStack() as stack:
        stack.callback(verifiers.close)
        clients = [await stack.enter_async_context(client) for client in clients_of(config, layout)]
        worlds = Worlds(generate.worlds, generate.turn_seconds, verifiers.events)
        stack.callback(worlds.close)
        sampler = GroupSampler(HTTPEngine(clients), tokenizer, verifiers, config, worlds=worlds)
        await Orchestrator(layout, sampler).run()


def main() -> None:
    """The orchestrator process of the run folder named on the command line."""
    die_with_parent()
    allow_open_files()  # a connection for each completion that is being written
    asyncio.run(orchestrate(Layout(Path(sys.argv[1]))))


if __name__ == "__main__":
    main()
