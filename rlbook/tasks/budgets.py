"""A task whose prompts say how long an answer may be: "24;37+8-5=?"."""

import random
from collections.abc import Sequence
from dataclasses import replace

from rlbook.tasks.base import Problem, Task, Verdict


class Budgeted:
    """Another task's problems, each with a budget of tokens in front of its prompt.

    The number is drawn from `budgets` and stands in `meta["budget"]` too, where a reward finds it;
    the verifier's word does not depend on it. Source: L1, arXiv:2503.04697 ("Think for N tokens").
    """

    def __init__(self, task: Task, budgets: Sequence[int], says: str = "{budget};{prompt}"):
        self.task, self.budgets, self.says = task, tuple(budgets), says
        self.name, self.levels = f"{task.name} within a budget", task.levels

    def sample(self, seed: int, n: int, levels: Sequence[int] | None = None) -> list[Problem]:
        """`n` problems of the task, with budgets drawn uniformly."""
        rng = random.Random(f"budgets {seed}")
        problems = self.task.sample(seed, n, levels)
        return [self.within(problem, rng.choice(self.budgets)) for problem in problems]

    def within(self, problem: Problem, budget: int) -> Problem:
        """The problem, asked for an answer of this length."""
        prompt = self.says.format(budget=budget, prompt=problem.prompt)
        meta = {**problem.meta, "budget": budget}
        return replace(problem, id=f"{budget};{problem.id}", prompt=prompt, meta=meta)

    def verify(self, problem: Problem, completion: str, finished: bool = True) -> Verdict:
        """The task's own verdict."""
        return self.task.verify(problem, completion, finished)
