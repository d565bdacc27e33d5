"""What is asked, and how an answer is verified."""

from rlbook.tasks.base import Problem, Task, Verdict
from rlbook.tasks.registry import get_task, held_out_problems
from rlbook.tasks.strategies import (
    STRATEGIES,
    Demonstration,
    corrects_itself,
    demonstrations,
    is_lost,
    strategy_of,
)
from rlbook.tasks.sums import SumsTask

__all__ = [
    "STRATEGIES",
    "Demonstration",
    "Problem",
    "SumsTask",
    "Task",
    "Verdict",
    "corrects_itself",
    "demonstrations",
    "get_task",
    "held_out_problems",
    "is_lost",
    "strategy_of",
]
