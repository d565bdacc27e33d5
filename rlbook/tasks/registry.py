"""Tasks by name."""

from rlbook.tasks.base import Task
from rlbook.tasks.sums import SumsTask

NAMES = ("sums", "reasoning_gym:<dataset>")


def get_task(name: str) -> Task:
    """The task called `name`: "sums", or "reasoning_gym:" and one of that library's data sets.

    Raises `ValueError` for an unknown name and `ImportError` if an optional library is missing.
    """
    if name == "sums":
        return SumsTask()
    family, _, dataset = name.partition(":")
    if family == "reasoning_gym" and dataset:
        from rlbook.tasks.gym import ReasoningGymTask

        return ReasoningGymTask(dataset)
    raise ValueError(f"unknown task {name!r}: choose one of {', '.join(NAMES)}")
