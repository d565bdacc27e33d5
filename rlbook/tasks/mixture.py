"""Problems of several tasks in one run, each judged by its own."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from random import Random

from rlbook.tasks.base import Labelled, Problem, Task, Verdict, stop_texts

PREFIX = "mixture:"  # of its name, before the weights as JSON


class MixtureTask:
    """Problems of tasks in proportion to weights: each is drawn of a task by chance.

    `meta["mixture"]` names a problem's task, which verifies it. Held out are those that the tasks
    hold out, in the same proportions.
    """

    name = "mixture"

    def __init__(
        self,
        weights: Mapping[str, float],
        tasks: Mapping[str, Task],
        held_out: Callable[[Task, int, Sequence[int] | None], list[Problem]],
    ):
        self.weights, self.tasks, self.held_out_of = dict(weights), dict(tasks), held_out

    @property
    def stop(self) -> tuple[str, ...]:
        """The texts with which completions of its tasks end; `ValueError` where they differ."""
        of_tasks = {name: stop_texts(task) for name, task in self.tasks.items()}
        if len(set(of_tasks.values())) > 1:
            raise ValueError(
                f"data.mixture: its tasks end completions with different texts, {of_tasks}: set "
                "rollout.stop"
            )
        return next(iter(of_tasks.values()))

    @property
    def levels(self) -> tuple[int, ...]:
        """All levels that any of the tasks has."""
        return tuple(sorted(set(chain(*(task.levels for task in self.tasks.values())))))

    def sample(self, seed: int, n: int, levels: Sequence[int] | None = None) -> list[Problem]:
        """`n` problems, in the order in which their tasks were drawn."""
        drawn = Random(f"{seed}/mixture").choices(
            list(self.weights), list(self.weights.values()), k=n
        )
        return self.problems(drawn, lambda task, k: task.sample(seed, k, own(task, levels)))

    def held_out(self, n: int, levels: Sequence[int] | None = None) -> list[Problem]:
        """`n` that are for evaluation, by turns of the tasks."""
        turns: list[str] = []
        total = sum(self.weights.values())
        for i in range(1, n + 1):  # whoever is furthest behind its share
            behind = {k: i * w / total - turns.count(k) for k, w in self.weights.items()}
            turns.append(max(behind, key=behind.__getitem__))
        return self.problems(turns, lambda task, k: self.held_out_of(task, k, own(task, levels)))

    def problems(
        self, sources: Sequence[str], ask: Callable[[Task, int], list[Problem]]
    ) -> list[Problem]:
        """The problems that tasks give when asked, in the order of `sources`."""
        counts = Counter(sources)
        given = {name: iter(ask(self.tasks[name], k)) for name, k in counts.items()}
        return [marked(next(given[name]), name) for name in sources]

    def verify(self, problem: Problem, completion: str, finished: bool = True) -> Verdict:
        """The verdict of the problem's own task."""
        return self.tasks[problem.meta["mixture"]].verify(problem, completion, finished)

    def label(self, problem: Problem, completion: str, finished: bool = True) -> str:
        """What the problem's own task calls this completion; the task's name if it has no word."""
        task = self.tasks[problem.meta["mixture"]]
        if isinstance(task, Labelled):
            return task.label(problem, completion, finished)
        return str(problem.meta["mixture"])


def own(task: Task, levels: Sequence[int] | None) -> list[int] | None:
    """Of the levels asked for those that a task has; all of them if it has none of these."""
    return [level for level in levels or () if level in task.levels] or None


def marked(problem: Problem, source: str) -> Problem:
    """A problem that says whose it is."""
    meta = {**problem.meta, "mixture": source}
    return replace(problem, id=f"{source}/{problem.id}", meta=meta)


def mixture_name(weights: Mapping[str, float]) -> str:
    """The name by which `get_task` makes a mixture."""
    return PREFIX + json.dumps(dict(weights))


def read_weights(name: str) -> dict[str, float]:
    """The weights in a `mixture_name`; `ValueError` if it has none."""
    try:
        weights = json.loads(name.removeprefix(PREFIX))
        if isinstance(weights, dict) and weights and all(w > 0 for w in weights.values()):
            return weights
    except (ValueError, TypeError):
        pass
    raise ValueError(f'{name!r}: write mixture:{{"<task>": <weight above 0>, …}}')
