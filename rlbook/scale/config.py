"""Settings of a full-scale run: those of any run, and what many processes need besides."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from rlbook.scale.conflicts import (
    evaluation_conflicts,
    generate_conflicts,
    placement_conflicts,
    run_conflicts,
)
from rlbook.scale.sections import (
    BudgetConfig,
    CheckpointConfig,
    EvaluationConfig,
    EvaluationSet,
    GenerateConfig,
    Interruption,
    LaunchConfig,
    TrainConfig,
)
from rlbook.training import config as training
from rlbook.training.config import RunConfig, dump_config

__all__ = [
    "BudgetConfig",
    "CheckpointConfig",
    "EvaluationConfig",
    "EvaluationSet",
    "GenerateConfig",
    "Interruption",
    "LaunchConfig",
    "ScaleConfig",
    "TrainConfig",
    "dump_config",
    "load_config",
]


class ScaleConfig(RunConfig):
    """Everything that decides a full-scale run. The file of any run is one of these as well.

    `steps` counts batches of rollouts, as in every run: `rollout.prompts` prompts, trained in
    `optimizer.minibatches` updates. Those are what processes exchange here, so all that is counted
    while a run goes on (versions, staleness, checkpoints, rows of metrics) is counted in updates.
    Every update has fresh rollouts of its own: what a method takes over a whole batch, such as a
    mean of all rewards, it takes over that update's share of the prompts, and a π_old that it
    recomputes is the policy about to be updated.
    """

    run: str = Field("runs/scale", description="folder of the run")
    evaluation: EvaluationConfig = EvaluationConfig()
    generate: GenerateConfig = GenerateConfig()
    train: TrainConfig = TrainConfig()
    launch: LaunchConfig = LaunchConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    budget: BudgetConfig = BudgetConfig()

    @property
    def folder(self) -> Path:
        return Path(self.run)

    @property
    def updates(self) -> int:
        """Optimizer updates of the whole run."""
        return self.steps * self.optimizer.minibatches

    @property
    def prompts_per_update(self) -> int:
        return self.rollout.prompts // self.optimizer.minibatches

    @property
    def batch_size(self) -> int:
        """Completions per update, before filters."""
        return self.prompts_per_update * self.rollout.group_size

    @property
    def gpus(self) -> int:
        """GPUs of trainers and generators, shared ones once, if `model.device` is cuda."""
        generate = self.generate
        own = 0 if generate.colocated else generate.count * generate.tensor_parallel
        return self.train.processes + own

    @property
    def updates_per_evaluation(self) -> int:
        """Updates from one evaluation to the next; 0: none."""
        return self.evaluation.every * self.optimizer.minibatches

    def shared(self) -> dict[str, Any]:
        """The settings of the `RunConfig` that this run would be on one process."""
        settings = {
            name: value for name, value in self.to_dict().items() if name in RunConfig.model_fields
        }
        del settings["evaluation"]["sets"]
        return settings

    @model_validator(mode="after")
    def _same_precision(self) -> Self:
        if self.generate.dtype is None:
            generate = self.generate.model_copy(update={"dtype": self.train.dtype})
            object.__setattr__(self, "generate", generate)  # frozen
        return self

    @model_validator(mode="after")
    def _can_work(self) -> Self:
        for problem in chain(
            run_conflicts(self),
            evaluation_conflicts(self.evaluation),
            generate_conflicts(self, self.generate),
            placement_conflicts(self.generate, self.train, self.launch),
        ):
            raise ValueError(problem)
        return self


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> ScaleConfig:
    """The settings in a YAML file, or of a run folder, with `section.field=value` overrides.

    Raises `ValueError` naming file, field and fix.
    """
    path = Path(path)
    return training.load_config(
        path / "config.yaml" if path.is_dir() else path, overrides, ScaleConfig
    )
