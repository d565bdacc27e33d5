"""From tickets to batches: who is asked, which groups are kept, what becomes durable when."""

import math
import shutil
import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, islice, zip_longest

from rlbook.grouping import mean
from rlbook.objectives.table import filter_text
from rlbook.scale.batch_log import end_log, log_end, newest_state, write_batch
from rlbook.scale.config import ScaleConfig
from rlbook.scale.layout import Layout
from rlbook.scale.rollout.staleness import Pacing
from rlbook.tasks import AnyTask, Problem
from rlbook.training import PromptPool, Rollout, RunLog
from rlbook.training.filter import select_groups
from rlbook.training.judge import labeller
from rlbook.training.metrics import UNJUDGED, rollout_metrics
from rlbook.training.rollouts import MAX_ROUNDS

COUNTED = (
    *("rejected", "late", "failed_requests", "refused_requests", "world_failures"),
    *UNJUDGED,
)
Finished = tuple[list[Rollout], float, float]  # a group, the seconds it took, when it was there


class Counters:
    """Events and time averages since the last `row`; others may count `events` as well."""

    def __init__(self, events: Counter[str], servers: int):
        self.events, self.servers = events, servers
        self.in_flight, self.now = 0, time.monotonic()
        self.seconds: dict[int, float] = defaultdict(float)  # with so many groups in flight

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Inside, one more group is being written."""
        self._advance(1)
        try:
            yield
        finally:
            self._advance(-1)

    def _advance(self, more: int) -> None:
        before, self.now = self.now, time.monotonic()
        self.seconds[self.in_flight] += self.now - before
        self.in_flight += more

    def row(self) -> dict[str, float]:
        """By their names in the metrics; n groups in flight keep n servers busy."""
        self._advance(0)
        seconds = max(sum(self.seconds.values()), 1e-9)
        busy = sum(s * min(n, self.servers) for n, s in self.seconds.items())
        row = {
            "batch_seconds": seconds,
            "groups_in_flight": sum(s * n for n, s in self.seconds.items()) / seconds,
            "generator_idle": 1 - busy / (seconds * self.servers),
            **{name: self.events[name] for name in COUNTED},
        }
        self.seconds.clear()
        self.events.clear()
        return row


class Batches:
    """Starts tickets within the bound on staleness, filters what comes back, publishes batches.

    A ticket is a problem of the pool under a running number. It is open until its group leaves,
    exactly once: in a batch, or in none. Until then it survives a crash in the newest batch's
    state, and is asked again under its old number. Chapter 18.
    """

    def __init__(
        self,
        layout: Layout,
        config: ScaleConfig,
        pool: PromptPool,
        counters: Counters,
        task: AnyTask,
    ):
        self.layout, self.config, self.pool, self.counters = layout, config, pool, counters
        self.method, self.label = config.method, labeller(task)
        step, state = newest_state(layout)
        last = log_end(layout).get("version", config.steps)
        prompts, generate = config.rollout.prompts, config.generate
        bound, late, target = generate.max_staleness, generate.late, generate.target_staleness
        self.pacing = Pacing(prompts, bound, late, step, min(last, config.steps), target)
        self.open: dict[int, Problem] = {}  # by ticket
        self.next = 0
        if state:
            self.restore(state)
        self.waiting = deque(sorted(self.open))  # tickets to be asked again
        for unfinished in layout.batches.glob(".batch_*.partial"):
            shutil.rmtree(unfinished, ignore_errors=True)
        self.exhausted: str | None = None  # why nothing more can be asked
        self.log = RunLog(layout.root, resume_step=step, name="rollouts")
        self.samples = RunLog(layout.root, resume_step=step, name="samples")
        self.finished: dict[int, Finished] = {}  # by ticket: they wait for their batch
        self.unreported: list[Rollout] = []  # sampled by groups that left since the last batch
        self.silent: list[float] = []  # accuracies of those in which the filter found no spread

    def restore(self, state: dict) -> None:
        """Go on from the state in a batch; `ValueError` if the data changed under the run."""
        self.pool.load(state["pool"])
        problems, self.next = self.pool.problems, state["next_ticket"]
        if lost := sorted(set(state["open"].values()) - problems.keys()):
            raise ValueError(
                f"an open ticket is for problem {lost[0]!r}, which is not in the pool: were "
                "data.task, data.levels, data.pool (without it, steps) or the data changed since "
                "the run began?"
            )
        self.open = {int(ticket): problems[name] for ticket, name in state["open"].items()}

    def start(self, version: int) -> int | None:
        """A ticket for weights of this version; None if there is no credit, or no prompt left."""
        if not self.pacing.may_start(version):
            return None
        if not self.waiting:
            try:
                (self.open[self.next],) = self.pool.draw(1)
            except ValueError as error:
                self.exhausted = str(error)
                return None
            self.waiting.append(self.next)
            self.next, self.exhausted = self.next + 1, None
        ticket = self.waiting.popleft()
        self.pacing.start(ticket, version)
        return ticket

    def again(self, ticket: int) -> None:
        """Its request failed: credit back, asked again."""
        self.counters.events["failed_requests"] += 1
        self.pacing.release(ticket)
        self.waiting.append(ticket)

    def give_up(self, ticket: int) -> None:
        """Its prompt is refused: credit back, not asked again."""
        self.pacing.release(ticket)
        self.leave(ticket, [], "refused_requests")

    def accept(self, ticket: int, rollouts: list[Rollout], seconds: float) -> None:
        """Keep a group that took `seconds`, unless it is too old or a filter rejects it."""
        oldest = min(version for rollout in rollouts for version in rollout.versions)
        if not self.pacing.finish(ticket, oldest):
            self.leave(ticket, rollouts, "late")
        elif self.method.resamples and not select_groups(rollouts, self.method):
            self.reject(ticket, rollouts)
        else:
            self.finished[ticket] = rollouts, seconds, time.monotonic()

    def leave(self, ticket: int, rollouts: Sequence[Rollout], why: str | None = None) -> None:
        """A group is in a batch or, counted under the reason `why`, in none.

        Only now do its rollouts count: in its problem's pass rate, and the next batch's metrics.
        """
        del self.open[ticket]
        self.pool.record(rollouts)
        self.unreported += rollouts
        if why:
            self.counters.events[why] += 1

    def reject(self, ticket: int, rollouts: Sequence[Rollout]) -> None:
        """A group has nothing to teach: credit back."""
        self.pacing.release(ticket)
        self.leave(ticket, rollouts, "rejected")
        if not self.silent:
            self.show(rollouts)
        self.silent.append(mean(rollout.correct for rollout in rollouts))

    def publish_due(self, trained: int) -> list[int]:
        """Publish what may be formed, at most one batch more than a trainer at `trained` needs.

        Returns the tickets that have become too old.
        """
        unwanted = []
        self.pacing.keep_pace(trained)
        while self.pacing.batch <= trained + 1 and (tickets := self.pacing.next_batch()):
            groups = {ticket: self.finished.pop(ticket) for ticket in tickets}
            everyone = [rollout for rollouts, *_ in groups.values() for rollout in rollouts]
            if used := select_groups(everyone, self.method):
                unwanted += self.publish(groups, used)
            else:
                for ticket, (rollouts, *_) in groups.items():
                    self.reject(ticket, rollouts)
        return unwanted

    def publish(self, groups: Mapping[int, Finished], used: list[Rollout]) -> list[int]:
        """Make a batch durable with all a restart needs; returns tickets it has made too old."""
        step, now = self.pacing.batch, time.monotonic()
        self.counters.events["rejected"] += len(groups.keys() - {one.group for one in used})
        self.show(used)
        late = self.pacing.close_batch(groups)
        for ticket, (rollouts, *_) in groups.items():
            self.leave(ticket, rollouts)
        for ticket in late:
            self.leave(ticket, self.finished.pop(ticket, ([],))[0], "late")
        measured = rollout_metrics(self.unreported, step, self.label)
        self.counters.events.update({name: int(measured[name]) for name in UNJUDGED})  # adds
        row = {
            "step": step + 1,  # as in the trainer's row of it
            **measured,
            **self.counters.row(),
            "group_seconds": mean(seconds for _, seconds, _ in groups.values()),
            "queue_seconds": mean(now - since for *_, since in groups.values()),
            "interrupted": mean(rollout.forced is not None for rollout in self.unreported),
            "retired": len(self.pool.retired),
            "target_staleness": self.pacing.target,
            "time": time.time(),
        }
        self.log(row)  # first: a row without its batch is dropped at a restart
        state = {
            "step": step,
            "statistics": row,
            "pool": self.pool.state(),
            "next_ticket": self.next,
            "open": {str(ticket): problem.id for ticket, problem in self.open.items()},
        }
        write_batch(self.layout, step, used, state)
        self.unreported, self.silent = [], []
        return late

    def show(self, rollouts: Sequence[Rollout]) -> None:
        """Keep some answers to be read, right and wrong by turns as long as there are both."""
        right = [rollout for rollout in rollouts if rollout.correct]
        wrong = [rollout for rollout in rollouts if not rollout.correct]
        by_turns = filter(None, chain.from_iterable(zip_longest(right, wrong)))
        for rollout in islice(by_turns, self.config.launch.shown):
            row = {
                "step": self.pacing.batch + 1,  # as in the row of its update
                "prompt": rollout.problem.prompt,
                "answer": rollout.text,
                "expected": rollout.problem.answer,
                "correct": rollout.correct,
                "reward": rollout.reward,
                "truncated": rollout.truncated,
                "tokens": rollout.length,
                "staleness": self.pacing.batch - min(rollout.versions),
            }
            self.samples(row)

    def end_if_stuck(self, idle: bool) -> str | None:
        """If no further batch can come, announce the end; returns why, the first time.

        No prompt seems to pass the filter, or none is left and nothing is in flight (`idle`).
        """
        reason, groups, rollout = self.exhausted, len(self.silent), self.config.rollout
        steps = (self.config.patience or math.inf) * (MAX_ROUNDS if self.method.resamples else 1)
        hopeless = groups >= steps * rollout.prompts
        if hopeless and (only := self.method.prompt_filter):
            reason = (
                f"no prompt of {groups} in a row passed the filter ({filter_text(only)}): "
                f"accuracy {mean(self.silent):.3f} over {groups * rollout.group_size:,} answers; "
                f"read some in {self.layout.log('samples')}, choose another task or data.levels, "
                "or raise rollout.max_new_tokens, or patience"
            )
        elif not idle or self.waiting or self.pacing.next_batch():
            return None
        if not reason or log_end(self.layout):
            return None
        end_log(self.layout, self.pacing.batch, reason, failed=hopeless)
        self.pacing.batches = self.pacing.batch
        return reason
