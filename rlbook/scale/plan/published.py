"""Published runs, planned again: how far the budget is from what others measured. Chapter 17."""

import tomllib
from dataclasses import dataclass
from functools import cache
from math import log

from rlbook.paths import data_dir
from rlbook.scale.config import ScaleConfig
from rlbook.scale.plan.budget import Budget, Prompts
from rlbook.scale.plan.shape import ModelShape, described_shape
from rlbook.training.config import apply_override

BAND = (0.5, 1.5)  # predicted over published, of all runs that are not marked as outside
COMMON = (
    "model.device=cuda",
    "optimizer.minibatches=1",
    "train.dtype=bfloat16",
    "generate.dtype=bfloat16",
    "train.activation_checkpointing=true",
)


@dataclass(frozen=True)
class Published:
    """A published run, the `quantity` of a budget that it measured, and its `value`.

    `note`: what was done otherwise there. `assumed`: what the plan needs and was not published.
    `outside`: the ratio is not within `BAND`, for a reason that we do not know.
    """

    name: str
    source: str
    model: str
    quantity: str
    value: float
    settings: tuple[str, ...]
    note: str = ""
    assumed: str = ""
    outside: bool = False

    @property
    def config(self) -> ScaleConfig:
        document: dict = {}
        for override in (*COMMON, *self.settings):
            apply_override(document, override)
        return ScaleConfig(**document)

    @property
    def plan(self) -> Budget:
        """Our budget of that run."""
        config = self.config
        return Budget(config, shape_of(self.model), Prompts(*config.budget.prompt_tokens))

    @property
    def predicted(self) -> float:
        return getattr(self.plan, self.quantity)

    @property
    def ratio(self) -> float:
        """Predicted over published."""
        return self.predicted / self.value


@cache
def read() -> dict:
    return tomllib.loads((data_dir() / "published_runs.toml").read_text())


@cache
def shape_of(model: str) -> ModelShape:
    return described_shape(read()["models"][model])


def published_runs() -> list[Published]:
    """All of them, a run that measured two things twice. Source: data/published_runs.toml."""
    return [
        Published(quantity=quantity, value=value, **row | {"settings": tuple(row["settings"])})
        for entry in read()["runs"]
        for row in [{name: part for name, part in entry.items() if name != "measured"}]
        for quantity, value in entry["measured"].items()
    ]


def nearest(budget: Budget) -> list[Published]:
    """For each quantity the published run nearest in parameters and slots."""

    def distance(run: Published) -> float:
        sizes = shape_of(run.model).parameters / budget.shape.parameters
        slots = run.config.generate.slots / budget.config.generate.slots
        return abs(log(sizes)) + abs(log(slots))

    runs = [run for run in published_runs() if not run.outside]
    return [
        min((run for run in runs if run.quantity == quantity), key=distance)
        for quantity in dict.fromkeys(run.quantity for run in runs)
    ]
