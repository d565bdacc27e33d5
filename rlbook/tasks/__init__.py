"""What is asked, and how an answer is verified."""

from rlbook.tasks.base import HeldOut, Labelled, Problem, Task, Verdict
from rlbook.tasks.registry import get_task, held_out_problems
from rlbook.tasks.sums import SumsTask, corrects_itself, is_lost, strategy_of

__all__ = [
    "HeldOut",
    "Labelled",
    "Problem",
    "SumsTask",
    "Task",
    "Verdict",
    "corrects_itself",
    "get_task",
    "held_out_problems",
    "is_lost",
    "strategy_of",
]
