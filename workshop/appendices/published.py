"""Published runs, planned again: how far the budget is from what others measured. Chapter 18."""

import tomllib
from dataclasses import dataclass
from functools import cache

from rlbook.paths import data_dir
from rlbook.scale.config import ScaleConfig
from rlbook.scale.plan.budget import Budget, Prompts
from rlbook.scaling.shape import ModelShape, described_shape
from rlbook.training.config import changed

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
        common = changed({}, COMMON, ScaleConfig)
        return ScaleConfig(**changed(common, self.settings, ScaleConfig))

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
