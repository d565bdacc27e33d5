"""Keeps prompts in flight and turns what comes back into batches.

`python -m rlbook.scale.orchestrator <run folder>`. What it knows is in the newest batch of the
spool, so it may be killed and started anew at any moment: whatever was not in a batch is asked
again, whatever was in one is never asked again.
"""

import asyncio
import sys
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from rlbook.objectives import METHODS
from rlbook.policy import load_tokenizer
from rlbook.scale.client import GeneratorClient, HTTPEngine
from rlbook.scale.config import ScaleConfig, load_config
from rlbook.scale.counters import Counters
from rlbook.scale.engine import AsyncEngine, GenerationFailed, RequestRefused
from rlbook.scale.evaluate import Evaluation
from rlbook.scale.groups import GroupSampler
from rlbook.scale.layout import Layout, read_json
from rlbook.scale.process import die_with_parent
from rlbook.scale.spool import end_spool, newest_state, spool_end, write_batch
from rlbook.scale.staleness import Pacing
from rlbook.scale.tickets import Tickets, training_pool
from rlbook.scale.verify import Verifiers
from rlbook.tasks import get_task, held_out_problems, strategy_of
from rlbook.training import Rollout, RunLog, read_jsonl
from rlbook.training.collect import with_spread
from rlbook.training.metrics import rollout_metrics

POLL_SECONDS = 0.05
LONGEST_PAUSE = 5.0  # seconds without new requests after failed ones


@dataclass(frozen=True)
class Asked:
    """A group in flight: a ticket of the training pool, or an index into the held-out problems."""

    ticket: int | None
    held_out: int | None
    since: float


class Orchestrator:
    """State of a run between prompts and batches; `run` drives it. Chapter 17."""

    def __init__(
        self,
        layout: Layout,
        config: ScaleConfig,
        engine: AsyncEngine,
        tokenizer,
        verifiers: Verifiers,
        servers: int = 1,
    ):
        self.layout, self.config, self.engine, self.verifiers = layout, config, engine, verifiers
        self.method, rollout = METHODS[config.trainer.method], config.rollout
        task = get_task(config.data.task)
        held_out = held_out_problems(task, config.eval.prompts, config.data.levels)
        step, state = newest_state(layout)
        self.pacing = Pacing(rollout.prompts, rollout.max_lag, rollout.late, step, config.steps)
        self.tickets = Tickets(training_pool(task, config, held_out), state)
        self.sampler = GroupSampler(engine, tokenizer, verifiers, self.method, rollout)
        evaluated = [row["step"] for row in read_jsonl(layout.log("eval"))]
        self.evaluation = Evaluation(held_out, config.eval, max(evaluated, default=None))
        self.eval_log = RunLog(layout.root, float("inf"), name="eval")
        self.batch_log = RunLog(layout.root, step, name="rollouts")
        self.slots = max(1, servers * config.generator.slots // rollout.group_size)
        self.counters = Counters(servers)
        self.asked: dict[asyncio.Task, Asked] = {}
        self.finished: dict[int, tuple[list[Rollout], float]] = {}  # by ticket, since when
        self.left: list[Rollout] = []  # of groups that left since the last batch
        self.version: int | None = None  # of the generators' weights
        self.failures, self.resume_at = 0, 0.0

    async def run(self) -> None:
        """Until the trainer says that the run is done and the last evaluation is finished."""
        watcher = asyncio.create_task(self.watch())
        try:
            while not self.over():
                self.fill()
                await asyncio.wait(
                    [*self.asked, watcher],
                    timeout=POLL_SECONDS,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if watcher.done():
                    watcher.result()
                for task in [task for task in self.asked if task.done()]:
                    self.settle(task, self.asked.pop(task))
                await self.publish_batches()
                self.end_if_exhausted()
        finally:
            unfinished = [watcher, *self.asked]
            for task in unfinished:
                task.cancel()
            await asyncio.gather(*unfinished, return_exceptions=True)

    async def watch(self) -> None:
        """Keep `version` up to date, without delaying anybody."""
        while True:
            self.version = await self.engine.version()
            await asyncio.sleep(POLL_SECONDS)

    # Asking

    def fill(self) -> None:
        """Start what pacing and slots allow; held-out problems take the slots that are left.

        One of them is always in flight, so that an evaluation ends even if no slot ever is.
        """
        if self.version is None or time.monotonic() < self.resume_at:
            return
        while len(self.asked) < self.slots and self.pacing.may_start(self.version):
            ticket = self.tickets.take()
            if ticket is None:
                break
            self.pacing.start(ticket, self.version)
            self.ask(ticket=ticket)
        if self.evaluation.due(self.version, self.done):
            self.evaluation.begin(self.version)
        while len(self.asked) < self.slots or not self.evaluation.in_flight:
            index = self.evaluation.take()
            if index is None:
                break
            self.ask(held_out=index)

    def ask(self, ticket: int | None = None, held_out: int | None = None) -> None:
        if ticket is None:
            problem, n = self.evaluation.problems[held_out], self.config.eval.samples
        else:
            problem, n = self.tickets.open[ticket], self.config.rollout.group_size
        group = held_out if ticket is None else ticket
        task = asyncio.create_task(self.sampler.sample(problem, group, n))
        self.asked[task] = Asked(ticket, held_out, time.monotonic())
        self.counters.asked()

    # What comes back

    def settle(self, task: asyncio.Task, asked: Asked) -> None:
        """Take a finished request's group, or ask again."""
        self.counters.answered()
        if task.cancelled() or (asked.ticket is not None and asked.ticket not in self.tickets.open):
            return  # became too old while it was written
        try:
            rollouts = task.result()
        except GenerationFailed as error:
            self.ask_again(asked, error)
        except RequestRefused as error:
            self.give_up(asked, error)
        else:
            self.failures = 0
            self.counters.finished(asked.since)
            if asked.ticket is None:
                self.evaluated(asked.held_out, rollouts)
            else:
                self.accept(asked.ticket, rollouts)

    def ask_again(self, asked: Asked, error: Exception) -> None:
        """Back to the queue; after several failures in a row the next try is put off."""
        self.counters.count("failed_requests")
        self.failures += 1
        pause = min(POLL_SECONDS * 2 ** min(self.failures, 10), LONGEST_PAUSE)
        self.resume_at = time.monotonic() + pause
        say(f"asked in vain ({error}), again in {pause:.1f} s")
        if asked.ticket is None:
            self.evaluation.again(asked.held_out)
        else:
            self.pacing.refund(asked.ticket)
            self.tickets.again(asked.ticket)

    def give_up(self, asked: Asked, error: Exception) -> None:
        """A refused training prompt is left out; where every prompt is refused, the run stops."""
        self.counters.count("refused_requests")
        self.failures += 1
        if asked.ticket is None or self.failures > self.config.rollout.prompts:
            raise error
        say(f"problem {self.tickets.open[asked.ticket].id!r} is left out: {error}")
        self.pacing.refund(asked.ticket)
        self.tickets.leave(asked.ticket, [])

    def evaluated(self, index: int, rollouts: list[Rollout]) -> None:
        if row := self.evaluation.add(index, rollouts):
            self.eval_log(row)
            say(f"evaluation of version {row['step']}: pass@1 {row['pass@1']:.3f}")

    def accept(self, ticket: int, rollouts: list[Rollout]) -> None:
        """Keep a group for a batch, unless it is too old or a filter rejects it."""
        if not self.pacing.finish(ticket, min(v for r in rollouts for v in r.versions)):
            self.reject(ticket, rollouts, "late")
        elif self.method.prompt_filter == "resample_zero_variance" and not with_spread(rollouts):
            self.pacing.refund(ticket)
            self.reject(ticket, rollouts, "rejected")
        else:
            self.finished[ticket] = rollouts, time.monotonic()

    def reject(self, ticket: int, rollouts: list[Rollout], why: str) -> None:
        self.counters.count(why)
        self.leave(ticket, rollouts)

    def leave(self, ticket: int, rollouts: list[Rollout]) -> None:
        self.tickets.leave(ticket, rollouts)
        self.left += rollouts

    # Batches

    async def publish_batches(self) -> None:
        """Form what may be formed, at most one batch more than the trainer needs now."""
        trained = self.status.get("version", 0)
        while self.pacing.batch <= trained + 1 and (tickets := self.pacing.next_batch()):
            groups = [self.finished.pop(ticket) for ticket in tickets]
            for ticket, (rollouts, since) in zip(tickets, groups, strict=True):
                self.leave(ticket, rollouts)
                self.counters.batched(since)
            everything = [rollout for rollouts, _ in groups for rollout in rollouts]
            used = everything if self.method.prompt_filter == "none" else with_spread(everything)
            self.counters.count("rejected", len(tickets) - len({r.group for r in used}))
            if used:
                await self.publish(tickets, used)
            else:
                self.counters.count("empty_batches")
                for ticket in tickets:
                    self.pacing.refund(ticket)

    async def publish(self, tickets: list[int], rollouts: list[Rollout]) -> None:
        """Close the batch and make it durable, together with all that a restart has to know."""
        step = self.pacing.batch
        for ticket in self.pacing.close_batch(tickets):
            self.drop(ticket)
        row = self.row(step, rollouts)
        self.batch_log(row)  # first: a row without its batch is dropped at a restart
        state = {"step": step, "statistics": row, **self.tickets.state()}
        await asyncio.to_thread(write_batch, self.layout, step, rollouts, state)

    def drop(self, ticket: int) -> None:
        """Stop or forget a group that has become too old."""
        rollouts, _ = self.finished.pop(ticket, ([], 0.0))
        self.reject(ticket, rollouts, "late")
        for task, asked in self.asked.items():
            if asked.ticket == ticket:
                task.cancel()

    def row(self, step: int, rollouts: list[Rollout]) -> dict:
        """Metrics of all that was sampled since the last batch; `step` as in the trainer's row."""
        label = strategy if self.config.data.task == "sums" else None
        failures, self.verifiers.failures = self.verifiers.failures, type(self.verifiers.failures)()
        row = {
            "step": step + 1,
            **rollout_metrics(self.left, step, label),
            **self.counters.row(),
            "trained_groups": len({r.group for r in rollouts}),
            "interrupted": sum(r.forced is not None for r in self.left) / len(self.left),
            "verify_timeouts": failures["timeout"],
            "verify_errors": failures["error"],
            "retired": len(self.tickets.pool.retired),
            "time": time.time(),
        }
        self.left = []
        return row

    # The end

    @property
    def status(self) -> dict:
        return read_json(self.layout.status, {})

    @property
    def done(self) -> bool:
        return bool(self.status.get("done"))

    def over(self) -> bool:
        """Whether nothing is left to do; without generators the last evaluation is given up."""
        if not self.done:
            return False
        evaluating = self.evaluation.version is not None
        return self.version is None or not (evaluating or self.evaluation.due(self.version, True))

    def end_if_exhausted(self) -> None:
        """Tell the trainer if no further batch can be formed because no prompt is left."""
        training = any(asked.ticket is not None for asked in self.asked.values())
        if not self.tickets.exhausted or training or self.tickets.waiting:
            return
        if not self.pacing.next_batch() and not spool_end(self.layout):
            end_spool(self.layout, self.pacing.batch, self.tickets.exhausted)
            say(f"no further batches: {self.tickets.exhausted}")


def strategy(rollout: Rollout) -> str:
    return strategy_of(rollout.text, not rollout.truncated)


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


async def orchestrate(layout: Layout) -> None:
    """The orchestrator of a run folder, with HTTP generators."""
    config, known = load_config(layout.config), read_json(layout.servers)
    tokenizer = load_tokenizer(config.model.policy)
    data, secret, limit = config.data, config.generator.token, config.rollout.timeout
    verifiers = Verifiers(data.task, data.verifiers, data.verify_seconds)
    async with AsyncExitStack() as stack:
        stack.callback(verifiers.close)
        clients = [
            await stack.enter_async_context(GeneratorClient(url, known["run_id"], secret, limit))
            for url in known["servers"]
        ]
        engine = HTTPEngine(clients)
        await Orchestrator(layout, config, engine, tokenizer, verifiers, len(clients)).run()


def main() -> None:
    die_with_parent()
    if len(sys.argv) != 2:
        sys.exit("usage: python -m rlbook.scale.orchestrator <run folder>")
    asyncio.run(orchestrate(Layout(Path(sys.argv[1]))))


if __name__ == "__main__":
    main()
