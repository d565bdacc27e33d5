"""Which problems are asked: running numbers, and what a crash must not forget."""

from collections import deque
from collections.abc import Sequence

from rlbook.tasks import Problem
from rlbook.training import PromptPool, Rollout


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
