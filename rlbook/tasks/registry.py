"""Tasks by name."""

from collections.abc import Sequence

from rlbook.tasks.base import Problem, Task
from rlbook.tasks.sums import SumsTask

NAMES = ("sums", "reasoning_gym:<dataset>", "dataset:<file, folder or hub id>")
HELD_OUT_SEED = 1_000_003  # training seeds stay small, so these problems never meet a training run


def get_task(name: str) -> Task:
    """The task called `name`: "sums", or a family and one of its data sets after a colon.

    "reasoning_gym:<dataset>" is one of that library's data sets; "dataset:<source>" takes
    questions and answers from a JSONL file, a folder or the Hugging Face hub (`DatasetTask`).
    Raises `ValueError` for an unknown name and `ImportError` if an optional library is missing.
    """
    if name == "sums":
        return SumsTask()
    family, _, source = name.partition(":")
    if family == "reasoning_gym" and source:
        from rlbook.tasks.gym import ReasoningGymTask

        return ReasoningGymTask(source)
    if family == "dataset" and source:
        from rlbook.tasks.dataset import DatasetTask

        return DatasetTask(source)
    raise ValueError(f"unknown task {name!r}: choose one of {', '.join(NAMES)}")


def held_out_problems(task: Task, n: int, levels: Sequence[int] | None = None) -> list[Problem]:
    """`n` problems that training never asks: the task's own held-out part, or a distant seed."""
    sample = getattr(task, "held_out", None)
    return sample(n, levels) if sample else task.sample(HELD_OUT_SEED, n, levels)
