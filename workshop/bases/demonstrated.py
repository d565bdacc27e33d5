"""The book's two small worlds: what is asked, how the base was taught, and in which words."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rlbook.tasks import SumsTask, Task
from rlbook.tasks.habits import HabitsTask
from workshop.bases.demonstrations import Demonstration, demonstrations
from workshop.bases.habits import habit_demonstrations
from workshop.bases.model import VOCABULARY


@dataclass(frozen=True)
class World:
    """A task, the demonstrations its base model imitates, its vocabulary, steps of pretraining."""

    task: Callable[[], Task]
    demonstrations: Callable[[int], Iterator[Demonstration]]
    vocabulary: tuple[str, ...]
    steps: int
    folder: Path


WORLDS = {
    "sums": World(SumsTask, demonstrations, VOCABULARY, 1300, Path("data/tiny-sums")),
    "habits": World(
        HabitsTask, habit_demonstrations, (*VOCABULARY, *"*()^"), 2400, Path("data/tiny-habits")
    ),
}
