"""When a group may start and which groups make a batch: the bound on staleness, as arithmetic.

Of the groups started and not yet trained, in order of start, let the i-th (from 0) have been
started on weights of version start_i. With B groups per batch and `batch` the next one to form,

    batch + i // B ≤ start_i + K        for every i

says: trained oldest first, none comes later than K updates after its first token. A new group
takes the last place, so the rule for starting one,

    batch · B + groups started and not trained < (version + T + 1) · B,

is the same statement about itself, with the target T ≤ K in the place of the bound. A group that
leaves moves all others forward, so its place (its credit) can be given away: rejected and failed
groups cannot block the run. Chapter 18.
"""

from collections.abc import Iterable
from typing import Literal

PATIENCE = 4  # updates in a row for which a batch too many has to be ready


def in_time(batch: int, place: int, version: int, prompts: int, max_staleness: int) -> bool:
    """The bound for a group at `place` in the order of start, `batch` being the next one to form.

    `version` is that of its oldest token, or of the weights it would be started on.
    """
    return batch + place // prompts <= version + max_staleness


class Pacing:
    """Hands out credit for new groups and forms batches; K is `max_staleness`.

    A `target` of None is as low as throughput allows (see `keep_pace`). For a group that a further
    batch would make too old, the batch waits if `late` is "wait"; if "drop", nobody waits, but long
    completions are lost more often than short ones. Nothing is started that none of the run's
    `batches` would use.
    """

    def __init__(
        self,
        prompts: int,
        max_staleness: int,
        late: Literal["wait", "drop"] = "wait",
        batch: int = 0,
        batches: int | None = None,
        target: int | None = None,
    ):
        self.prompts, self.max_staleness, self.late = prompts, max_staleness, late
        self.batch, self.batches = batch, batches
        self.steered = target is None
        self.target = min(1, max_staleness) if target is None else target
        self.trained, self.early = batch, 0  # the trainer's version; updates with a batch too many
        self.started: dict[int, int] = {}  # the oldest weights by ticket, in order of start
        self.finished: set[int] = set()

    def may_start(self, version: int) -> bool:
        """Whether a group may start on a server with weights of this version."""
        place = len(self.started)
        used = self.batches is None or self.batch + place // self.prompts < self.batches
        return used and in_time(self.batch, place, version, self.prompts, self.target)

    def keep_pace(self, trained: int) -> None:
        """Steer the target, to be told of every version of the trainer.

        As an update begins, its batch has to be ready. If it is not, the trainer waits: groups are
        started one update earlier from now on. If the batch after it is ready as well, that one
        lies idle for a whole update: if this lasts, they are started one update later.
        """
        if not self.steered or trained <= self.trained:
            return
        self.trained = trained
        ready = self.batch - trained + len(self.finished) // self.prompts
        self.early = self.early + 1 if ready > 1 else 0
        if ready < 1:
            self.target = min(self.target + 1, self.max_staleness)
        elif self.early >= PATIENCE:
            self.target, self.early = max(self.target - 1, 0), 0

    def start(self, ticket: int, version: int) -> None:
        """A group begins, on weights of this version."""
        self.started[ticket] = version

    def finish(self, ticket: int, oldest: int) -> bool:
        """Accept a finished group by the oldest version that wrote a token of it, or release it.

        That may be lower than the one it was started on. False: it has become too old.
        """
        self.started[ticket] = oldest
        self.finished.add(ticket)
        place = list(self.started).index(ticket) if self.late == "wait" else 0
        if self._in_time(self.batch, place, oldest):
            return True
        self.release(ticket)
        return False

    def release(self, ticket: int) -> None:
        """Free the place of a group: it is trained, rejected, too old, or its request failed."""
        del self.started[ticket]
        self.finished.discard(ticket)

    def next_batch(self) -> list[int]:
        """Tickets of the oldest finished groups if they may be trained now; otherwise none."""
        chosen = [ticket for ticket in self.started if ticket in self.finished][: self.prompts]
        if len(chosen) < self.prompts:
            return []
        taken = set(chosen)
        left = [version for ticket, version in self.started.items() if ticket not in taken]
        later = (self._in_time(self.batch + 1, *group) for group in enumerate(left))
        return chosen if self.late == "drop" or all(later) else []

    def close_batch(self, tickets: Iterable[int]) -> list[int]:
        """Count these groups as the batch; returns those it made too old, released too."""
        for ticket in tickets:
            self.release(ticket)
        self.batch += 1
        late = [t for t, oldest in self.started.items() if not self._in_time(self.batch, 0, oldest)]
        for ticket in late:
            self.release(ticket)
        return late

    def _in_time(self, batch: int, place: int, version: int) -> bool:
        return in_time(batch, place, version, self.prompts, self.max_staleness)
