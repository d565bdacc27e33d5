"""From tickets to batches: who is asked, which groups are kept, what becomes durable when."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest

from rlbook.scale.batch_log import end_spool, newest_state, spool_end, write_batch
from rlbook.scale.config import ScaleConfig
from rlbook.scale.layout import Layout
from rlbook.scale.rollout.counters import Counters
from rlbook.scale.rollout.prompt_queue import PromptQueue
from rlbook.scale.rollout.staleness import Pacing
from rlbook.tasks import Problem
from rlbook.training import PromptPool, Rollout, RunLog
from rlbook.training.metrics import rollout_metrics
from rlbook.training.rollouts import select_groups


@dataclass(frozen=True)
class Finished:
    """A group that waits for its batch since `since`; writing and verifying it took `seconds`."""

    rollouts: list[Rollout]
    seconds: float
    since: float


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
        end = spool_end(layout) or {"version": config.steps}
        batches = min(config.steps, end["version"])
        self.pacing = Pacing(
            config.rollout.prompts,
            generate.max_staleness,
            generate.late,
            step,
            batches,
            generate.target_staleness,
        )
        self.tickets = PromptQueue(pool, state)
        self.log = RunLog(layout.root, resume_step=step, name="rollouts")
        self.samples = RunLog(layout.root, resume_step=step, name="samples")
        self.shown = config.launch.shown
        self.finished: dict[int, Finished] = {}  # by ticket
        self.left: list[Rollout] = []  # sampled by groups that left since the last batch
        self.patience = config.launch.silent_batches * config.rollout.prompts
        self.silent = self.unheard = self.correct = 0  # groups without spread, their answers

    def start(self, version: int) -> tuple[int, Problem] | None:
        """The next ticket for weights of this version; None if there is no credit or no prompt."""
        if not self.pacing.may_start(version) or (ticket := self.tickets.take()) is None:
            return None
        self.pacing.start(ticket, version)
        return ticket, self.tickets.open[ticket]

    def again(self, ticket: int) -> None:
        """Its request failed: credit back, asked again."""
        self.pacing.refund(ticket)
        self.tickets.again(ticket)

    def give_up(self, ticket: int) -> None:
        """Its prompt cannot be asked: credit back, not asked again."""
        self.pacing.refund(ticket)
        self.tickets.leave(ticket, [])

    def accept(self, ticket: int, rollouts: list[Rollout], seconds: float = 0.0) -> None:
        """Keep a group that took `seconds`, unless it is too old or a filter rejects it."""
        oldest = min(version for rollout in rollouts for version in rollout.versions)
        if not self.pacing.finish(ticket, oldest):
            self.reject(ticket, rollouts, "late")
        elif self.asks_again and not select_groups(rollouts, self.method):
            self.pacing.refund(ticket)
            self.note_silence(rollouts)
            self.reject(ticket, rollouts, "rejected")
        else:
            self.finished[ticket] = Finished(rollouts, seconds, self.counters.clock())

    def reject(self, ticket: int, rollouts: Sequence[Rollout], why: str) -> None:
        """Count a group under the reason why no batch will hold it, and let it go."""
        self.counters.events[why] += 1
        self.leave(ticket, rollouts)

    def leave(self, ticket: int, rollouts: Sequence[Rollout]) -> None:
        """The group's prompt may be asked again; its rollouts count in the next batch's metrics."""
        self.tickets.leave(ticket, rollouts)
        self.left += rollouts

    def publish_due(self, trained: int) -> list[int]:
        """Publish what may be formed, at most one batch more than a trainer at `trained` needs.

        Returns tickets that are no longer wanted: they have become too old.
        """
        unwanted = []
        self.pacing.keep_pace(trained)
        while self.pacing.batch <= trained + 1 and (tickets := self.pacing.next_batch()):
            if used := self.trainable(tickets):
                unwanted += self.publish(tickets, used)
            else:
                self.counters.events["empty_batches"] += 1
                for ticket in tickets:
                    self.pacing.refund(ticket)
        return unwanted

    def trainable(self, tickets: Sequence[int]) -> list[Rollout]:
        """Rollouts of these groups that pass the filter; all the groups leave."""
        rollouts = []
        for ticket in tickets:
            group = self.finished.pop(ticket)
            self.counters.batched(group.seconds, group.since)
            self.leave(ticket, group.rollouts)
            rollouts += group.rollouts
        used = select_groups(rollouts, self.method)
        if not used:
            self.note_silence(rollouts)
        self.counters.events["rejected"] += len(tickets) - group_count(used)
        return used

    def publish(self, tickets: Sequence[int], rollouts: list[Rollout]) -> list[int]:
        """Close a batch and make it durable with all that a restart has to know."""
        step = self.pacing.batch
        self.silent = self.unheard = self.correct = 0
        late = self.pacing.close_batch(tickets)
        for ticket in late:
            group = self.finished.pop(ticket, None)
            self.reject(ticket, group.rollouts if group else [], "late")
        row = self.row(step, rollouts)
        self.log(row)  # first: a row without its batch is dropped at a restart
        self.show(step, rollouts)
        state = {"step": step, "statistics": row, **self.tickets.state()}
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
            "retired": len(self.tickets.pool.retired),
            "target_staleness": self.pacing.target,
            "time": time.time(),
        }

    def note_silence(self, rollouts: Sequence[Rollout]) -> None:
        """Groups that the filter dropped, since the last batch."""
        if not self.silent:
            self.show(self.pacing.batch, rollouts)
        self.silent += group_count(rollouts)
        self.unheard += len(rollouts)
        self.correct += sum(rollout.correct for rollout in rollouts)

    def show(self, step: int, rollouts: Sequence[Rollout]) -> None:
        """Keep some answers to be read."""
        for rollout in to_read(rollouts, self.shown):
            self.samples(sample_row(step, rollout))

    def end_if_silent(self) -> str | None:
        """If no prompt seems to pass the filter, announce the end; returns why."""
        if self.silent < self.patience or spool_end(self.layout):
            return None
        by = self.method.prompt_filter and self.method.prompt_filter.by
        kinds = "answers of different reward" if by == "reward" else "both right and wrong answers"
        reason = (
            f"no prompt of {self.silent} in a row had {kinds}: accuracy "
            f"{self.correct / self.unheard:.3f} over {self.unheard:,} answers; read some in "
            f"{self.layout.log('samples')}, choose another task or data.levels, or raise "
            "rollout.max_new_tokens"
        )
        end_spool(self.layout, self.pacing.batch, reason, failed=True)
        self.pacing.batches = self.pacing.batch
        return reason

    def end_if_exhausted(self) -> str | None:
        """If no prompt is left for a further batch, announce the end; returns why, the first time.

        To be asked when nothing is in flight.
        """
        reason = self.tickets.exhausted
        if not reason or self.tickets.waiting or self.pacing.next_batch() or spool_end(self.layout):
            return None
        end_spool(self.layout, self.pacing.batch, reason)
        return reason


def to_read(rollouts: Sequence[Rollout], n: int) -> list[Rollout]:
    """`n` of them, right and wrong by turns as long as there are both."""
    right = [rollout for rollout in rollouts if rollout.correct]
    wrong = [rollout for rollout in rollouts if not rollout.correct]
    by_turns = chain.from_iterable(zip_longest(right, wrong))
    return [rollout for rollout in by_turns if rollout is not None][:n]


def sample_row(step: int, rollout: Rollout) -> dict:
    """What a reader wants to see of an answer; `step` as in the row of its update."""
    return {
        "step": step + 1,
        "prompt": rollout.problem.prompt,
        "answer": rollout.text,
        "expected": rollout.problem.answer,
        "correct": rollout.correct,
        "reward": rollout.reward,
        "truncated": rollout.truncated,
        "tokens": rollout.length,
        "staleness": step - min(rollout.versions),
    }


def group_count(rollouts: Sequence[Rollout]) -> int:
    """How many groups the rollouts are of."""
    return len({rollout.group for rollout in rollouts})
