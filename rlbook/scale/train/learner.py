"""The learner of `rlbook.training`, its policy sharded over ranks, its checkpoints with it."""

from collections.abc import Sequence

from transformers import PreTrainedModel

from rlbook.policy import load_policy
from rlbook.policy.loading import (
    empty_policy,
    freeze_below,
    load_tokenizer,
    materialise,
    policy_folder,
)
from rlbook.scale.config import ScaleConfig, TrainConfig
from rlbook.scale.layout import Layout
from rlbook.scale.train.checkpoint import Checkpoints, read_tensors, stored_names
from rlbook.scale.train.parallel import Ranks, shard
from rlbook.training import Learner, Rollout, TrainBatch


class ShardedLearner(Learner):
    """Learns the batches of a full-scale run on all ranks together; every method is collective.

    Everything random is in the rollouts and in the seed: the same batches make the same weights.
    Those after `step` batches are the version of that number. Chapter 17.
    """

    parallel: Ranks

    def __init__(self, config: ScaleConfig, layout: Layout, ranks: Ranks):
        start = config.model.policy, ranks, config.train, config.model.trainable_layers
        self.settings, self.tokenizer = config, load_tokenizer(config.model.policy)
        self.policy, wanted = load_sharded(*start), config.method.requirements()
        frozen = load_sharded(*start, frozen=True) if "reference" in wanted else None
        super().__init__(config, self.policy, ranks, reference=frozen)
        self.checkpoints = Checkpoints(layout, ranks, config.checkpoint.keep)

    def prepare(self, rollouts: Sequence[Rollout]) -> TrainBatch:
        """Rollouts as tensors, each token with its staleness in versions."""
        return self.builder.make_batch(rollouts, version=self.step)

    def begin_save(self, orchestrator: dict) -> None:
        """Have a checkpoint with the orchestrator's state written; see `Checkpoints.settle`."""
        run = {"config": self.settings.shared(), "dtype": self.settings.train.dtype}
        policy, optimizer = (self.policy, self.tokenizer), self.optimizers["model"]
        self.checkpoints.begin(policy, optimizer, run | self.state(), orchestrator)

    def load(self) -> None:
        """Continue from the newest checkpoint, if there is one."""
        if state := self.checkpoints.load(self.policy, self.optimizers["model"]):
            self.load_state(state)


def load_sharded(
    name: str,
    ranks: Ranks,
    config: TrainConfig,
    trainable_layers: int | None = None,
    frozen: bool = False,
) -> PreTrainedModel:
    """A policy by name (see `load_policy`), float32, spread over the ranks; collective.

    Every rank reads its own rows, none ever holds the rest. Where a model's class names its weights
    otherwise than its files do (experts that are stored one by one, say), every rank loads the
    whole of it, as `load_policy` does, and keeps its part.
    """
    folder = policy_folder(name)
    model = empty_policy(folder)
    by_rows = dict(model.named_parameters()).keys() <= stored_names(folder)
    if not by_rows:
        model, _ = load_policy(name, device=str(ranks.device))
    model.requires_grad_(not frozen)
    if trainable_layers and not frozen:
        freeze_below(model, trainable_layers)
    shard(model, ranks.mesh, config)
    if by_rows:
        materialise(model, ranks.device)
        read_tensors(dict(model.named_parameters()), folder, ranks)
    return model
