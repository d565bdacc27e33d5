"""From tickets to batches: who is asked, which groups are kept, what becomes durable when."""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, zip_longest

from rlbook.scale.batch_log import end_log, log_end, newest_state, write_batch
from rlbook.scale.config import ScaleConfig
from rlbook.scale.layout import Layout
from rlbook.scale.rollout.staleness import Pacing
from rlbook.tasks import Problem
from rlbook.training import PromptPool, Rollout, RunLog
from rlbook.training.metrics import mean, rollout_metrics
from rlbook.training.rollouts import select_groups

COUNTED = (
    *("rejected", "late", "empty_batches", "failed_requests", "refused_requests"),
    *("verify_timeouts", "verify_errors"),
)


class Counters:
    """Events, waiting times and time averages since the last `row`; names as in the metrics.

    `failures` is a counter that somebody else fills.
    """

    def __init__(
        self,
        servers: int = 1,
        failures: Counter[str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.servers, self.clock = servers, clock
        self.failures = Counter() if failures is None else failures
        self.in_flight = 0
        self._reset()

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Inside, one more group is being written."""
        self._advance()
        self.in_flight += 1
        try:
            yield
        finally:
            self._advance()
            self.in_flight -= 1

    def batched(self, seconds: float, since: float) -> None:
        """A group that took `seconds` and had its verdicts at `since` is in a batch."""
        self.group_seconds.append(seconds)
        self.queue_seconds.append(self.clock() - since)

    def row(self) -> dict[str, float]:
        """Everything since the last row. A server without a request of its own counts as idle."""
        self._advance()
        seconds = max(self._now - self._began, 1e-9)
        row = {
            "batch_seconds": seconds,
            "group_seconds": mean(self.group_seconds),
            "queue_seconds": mean(self.queue_seconds),
            "groups_in_flight": self._flow / seconds,
            "generator_idle": self._idle / (seconds * self.servers),
            **{name: (self.events + self.failures)[name] for name in COUNTED},
        }
        self._reset()
        return row

    def _reset(self) -> None:
        self._began = self._now = self.clock()
        self._flow = self._idle = 0.0
        self.events: Counter[str] = Counter()
        self.failures.clear()
        self.group_seconds: list[float] = []
        self.queue_seconds: list[float] = []

    def _advance(self) -> None:
        now = self.clock()
        seconds, self._now = now - self._now, now
        self._flow += seconds * self.in_flight
        self._idle += seconds * max(0, self.servers - self.in_flight)


class PromptQueue:
    """Problems of a pool under running numbers; a problem asked twice has two tickets.

    A ticket is open until its group leaves: trained, or rejected. `state` goes with every batch;
    from it, all that was open is asked again, under its old number. Chapter 17.
    """

    def __init__(self, pool: PromptPool, state: dict | None = None):
        self.pool, self.next = pool, 0
        self.open: dict[int, Problem] = {}
        self.exhausted: str | None = None  # why nothing more can be asked
        if state:
            pool.load(state["pool"])
            self.next = state["next_ticket"]
            self.open = {int(ticket): self.problem(id_) for ticket, id_ in state["open"].items()}
        self.waiting = deque(sorted(self.open))

    def take(self) -> int | None:
        """The next ticket to ask, those asked in vain first; None if nothing is left to ask."""
        if self.waiting:
            return self.waiting.popleft()
        try:
            (problem,) = self.pool.draw(1)
        except ValueError as error:
            self.exhausted = str(error)
            return None
        self.exhausted, ticket = None, self.next
        self.open[ticket], self.next = problem, ticket + 1
        return ticket

    def again(self, ticket: int) -> None:
        """Its request failed."""
        self.waiting.append(ticket)

    def leave(self, ticket: int, rollouts: Sequence[Rollout]) -> None:
        """Its group was trained or rejected. Only now do its answers count in the pass rate."""
        del self.open[ticket]
        self.pool.record(rollouts)

    def state(self) -> dict:
        """What a checkpoint keeps: the pool, open tickets, the next number."""
        return {
            "pool": self.pool.state(),
            "next_ticket": self.next,
            "open": {str(ticket): problem.id for ticket, problem in self.open.items()},
        }

    def problem(self, id_: str) -> Problem:
        """The pool's problem of this id; `ValueError` if the data changed under the run."""
        if id_ not in self.pool.problems:
            raise ValueError(
                f"the run has an open ticket for problem {id_!r}, which its pool no longer has: "
                "were data.task, data.levels, data.pool or the data changed since it began?"
            )
        return self.pool.problems[id_]


class Batches:
    """Starts tickets within the bound on staleness, filters what comes back, publishes batches.

    A group leaves exactly once: in a batch, or rejected. Until then it survives a crash as an open
    ticket in the newest batch's state, and is asked again. Chapter 17.
    """

    def __init__(
        self,
        layout: Layout,
        config: ScaleConfig,
        pool: PromptPool,
        counters: Counters,
        label: Callable[[Rollout], str] | None = None,
    ):
        self.layout, self.counters, self.label = layout, counters, label
        self.method, generate = config.method, config.generate
        self.asks_again = bool(self.method.prompt_filter and self.method.prompt_filter.resample)
        step, state = newest_state(layout)
        end = log_end(layout) or {"version": config.steps}
        batches = min(config.steps, end["version"])
        self.pacing = Pacing(
            config.rollout.prompts,
            generate.max_staleness,
            generate.late,
            step,
            batches,
            generate.target_staleness,
        )
        self.queue = PromptQueue(pool, state)
        self.log = RunLog(layout.root, resume_step=step, name="rollouts")
        self.samples = RunLog(layout.root, resume_step=step, name="samples")
        self.shown = config.launch.shown
        self.finished: dict[int, tuple[list[Rollout], float, float]] = {}  # by ticket, with
        # the seconds it took to write and verify and the time since which it waits for its batch
        self.left: list[Rollout] = []  # sampled by groups that left since the last batch
        self.patience = config.launch.silent_batches * config.rollout.prompts
        self.silent: Counter[str] = Counter()  # groups, answers, right ones without spread

    def start(self, version: int) -> tuple[int, Problem] | None:
        """The next ticket for weights of this version; None if there is no credit or no prompt."""
        if not self.pacing.may_start(version) or (ticket := self.queue.take()) is None:
            return None
        self.pacing.start(ticket, version)
        return ticket, self.queue.open[ticket]

    def again(self, ticket: int) -> None:
        """Its request failed: credit back, asked again."""
        self.pacing.refund(ticket)
        self.queue.again(ticket)

    def give_up(self, ticket: int) -> None:
        """Its prompt cannot be asked: credit back, not asked again."""
        self.pacing.refund(ticket)
        self.leave(ticket)

    def leave(self, ticket: int, rollouts: Sequence[Rollout] = (), why: str | None = None) -> None:
        """A group is in a batch or, counted under the reason `why`, in none.

        Its prompt may be asked again; its rollouts count in the next batch's metrics.
        """
        self.queue.leave(ticket, rollouts)
        self.left += rollouts
        if why:
            self.counters.events[why] += 1

    def accept(self, ticket: int, rollouts: list[Rollout], seconds: float = 0.0) -> None:
        """Keep a group that took `seconds`, unless it is too old or a filter rejects it."""
        oldest = min(version for rollout in rollouts for version in rollout.versions)
        if not self.pacing.finish(ticket, oldest):
            self.leave(ticket, rollouts, "late")
        elif self.asks_again and not select_groups(rollouts, self.method):
            self.pacing.refund(ticket)
            self.note_silence(rollouts)
            self.leave(ticket, rollouts, "rejected")
        else:
            self.finished[ticket] = rollouts, seconds, self.counters.clock()

    def publish_due(self, trained: int) -> list[int]:
        """Publish what may be formed, at most one batch more than a trainer at `trained` needs.

        Returns tickets that are no longer wanted: they have become too old.
        """
        unwanted = []
        self.pacing.keep_pace(trained)
        while self.pacing.batch <= trained + 1 and (tickets := self.pacing.next_batch()):
            rollouts = []
            for ticket in tickets:
                group, *times = self.finished.pop(ticket)
                self.counters.batched(*times)
                self.leave(ticket, group)
                rollouts += group
            used = select_groups(rollouts, self.method)
            self.counters.events["rejected"] += len(tickets) - group_count(used)
            if used:
                unwanted += self.publish(tickets, used)
                continue
            self.note_silence(rollouts)
            self.counters.events["empty_batches"] += 1
            for ticket in tickets:
                self.pacing.refund(ticket)
        return unwanted

    def publish(self, tickets: Sequence[int], rollouts: list[Rollout]) -> list[int]:
        """Close a batch and make it durable with all that a restart has to know."""
        step = self.pacing.batch
        self.silent.clear()
        late = self.pacing.close_batch(tickets)
        for ticket in late:
            self.leave(ticket, self.finished.pop(ticket, ([],))[0], "late")
        row = self.row(step, rollouts)
        self.log(row)  # first: a row without its batch is dropped at a restart
        self.show(step, rollouts)
        state = {"step": step, "statistics": row, **self.queue.state()}
        write_batch(self.layout, step, rollouts, state)
        return late

    def row(self, step: int, rollouts: Sequence[Rollout]) -> dict:
        """Metrics of all that was sampled for the batch; `step` as in the trainer's row of it."""
        sampled, self.left = self.left, []
        return {
            "step": step + 1,
            **rollout_metrics(sampled, step, self.label),
            **self.counters.row(),
            "trained_groups": group_count(rollouts),
            "interrupted": sum(r.forced is not None for r in sampled) / len(sampled),
            "retired": len(self.queue.pool.retired),
            "target_staleness": self.pacing.target,
            "time": time.time(),
        }

    def note_silence(self, rollouts: Sequence[Rollout]) -> None:
        """Groups that the filter dropped, since the last batch."""
        if not self.silent:
            self.show(self.pacing.batch, rollouts)
        self.silent["groups"] += group_count(rollouts)
        self.silent["answers"] += len(rollouts)
        self.silent["right"] += sum(rollout.correct for rollout in rollouts)

    def show(self, step: int, rollouts: Sequence[Rollout]) -> None:
        """Keep some answers to be read, right and wrong by turns as long as there are both."""
        right = [rollout for rollout in rollouts if rollout.correct]
        wrong = [rollout for rollout in rollouts if not rollout.correct]
        by_turns = chain.from_iterable(zip_longest(right, wrong))
        for rollout in [rollout for rollout in by_turns if rollout][: self.shown]:
            row = {
                "step": step + 1,  # as in the row of its update
                "prompt": rollout.problem.prompt,
                "answer": rollout.text,
                "expected": rollout.problem.answer,
                "correct": rollout.correct,
                "reward": rollout.reward,
                "truncated": rollout.truncated,
                "tokens": rollout.length,
                "staleness": step - min(rollout.versions),
            }
            self.samples(row)

    def end_if_silent(self) -> str | None:
        """If no prompt seems to pass the filter, announce the end; returns why."""
        groups, answers = self.silent["groups"], self.silent["answers"]
        if groups < self.patience or log_end(self.layout):
            return None
        by = self.method.prompt_filter and self.method.prompt_filter.by
        kinds = "answers of different reward" if by == "reward" else "both right and wrong answers"
        reason = (
            f"no prompt of {groups} in a row had {kinds}: accuracy "
            f"{self.silent['right'] / answers:.3f} over {answers:,} answers; read some in "
            f"{self.layout.log('samples')}, choose another task or data.levels, or raise "
            "rollout.max_new_tokens"
        )
        end_log(self.layout, self.pacing.batch, reason, failed=True)
        self.pacing.batches = self.pacing.batch
        return reason

    def end_if_exhausted(self) -> str | None:
        """If no prompt is left for a further batch, announce the end; returns why, the first time.

        To be asked when nothing is in flight.
        """
        reason = self.queue.exhausted
        if not reason or self.queue.waiting or self.pacing.next_batch() or log_end(self.layout):
            return None
        end_log(self.layout, self.pacing.batch, reason)
        return reason


def group_count(rollouts: Sequence[Rollout]) -> int:
    """How many groups the rollouts are of."""
    return len({rollout.group for rollout in rollouts})
