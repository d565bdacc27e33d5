"""Which problems are asked: running numbers, and what a crash must not forget."""

from collections import deque
from collections.abc import Sequence

from rlbook.scale.config import ScaleConfig
from rlbook.tasks import Problem, Task
from rlbook.training import PromptPool, Rollout
from rlbook.training.collect import derive_seed


class Tickets:
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
        return {
            "pool": self.pool.state(),
            "next_ticket": self.next,
            "open": {str(ticket): problem.id for ticket, problem in self.open.items()},
        }

    def problem(self, id_: str) -> Problem:
        if id_ not in self.pool.problems:
            raise ValueError(
                f"the run has an open ticket for problem {id_!r}, which its pool no longer has: "
                "were data.task, data.levels, data.pool or the data changed since it began?"
            )
        return self.pool.problems[id_]


class InOrder(PromptPool):
    """Problems in the order given, in every epoch: a longer list goes on where a shorter ended."""

    def _order(self, epoch: int) -> list[str]:
        return list(self.problems)


def training_pool(task: Task, config: ScaleConfig, held_out: Sequence[Problem]) -> PromptPool:
    """The run's training problems, without those it is evaluated on."""
    data, kept = config.data, {problem.prompt for problem in held_out}
    problems = training_problems(task, config)
    fresh = [p for p in problems if p.prompt not in kept]
    if not fresh:
        raise ValueError(
            f"data.pool: all {len(problems)} training problems of {task.name} are held out for "
            "evaluation: enlarge data.pool, or lower evaluation.prompts"
        )
    return (InOrder if data.pool is None else PromptPool)(fresh, config.seed, data.retire_at)


def training_problems(task: Task, config: ScaleConfig) -> list[Problem]:
    """The different problems that training draws from: `data.pool` of them.

    Without it, those that the same run on one process asks, batch by batch; what filters cost
    beyond them is made up for by asking the first ones again.
    """
    data, prompts = config.data, config.rollout.prompts
    if data.pool is not None:
        problems = task.sample(config.seed, data.pool, data.levels)
    else:
        seeds = [derive_seed(config.seed, step, "prompts", 0) for step in range(config.steps)]
        problems = [p for seed in seeds for p in task.sample(seed, prompts, data.levels)]
    return list({p.id: p for p in problems}.values())
