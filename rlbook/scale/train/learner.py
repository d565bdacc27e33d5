"""The learner of `rlbook.training`, its policy sharded over ranks, its checkpoints with it."""

import torch
from transformers import PreTrainedModel

from rlbook.policy import load_policy
from rlbook.policy.adapters import base_weights, start_adapter
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
from rlbook.training import Learner
from rlbook.training.trainer import add_lora


class ShardedLearner(Learner):
    """Learns the batches of a full-scale run on all ranks together; every method is collective.

    Everything random is in the rollouts and in the seed: the same batches make the same weights.
    Those after `step` batches are the version of that number. Chapter 18.
    """

    parallel: Ranks
    measures_staleness = True

    def __init__(self, config: ScaleConfig, layout: Layout, ranks: Ranks):
        name, train = config.model.policy, config.train
        self.settings, self.tokenizer = config, load_tokenizer(name)
        self.policy, frozen = load_sharded(name, ranks, train, config), None
        if "reference" in config.method.requirements() and not config.model.lora:
            frozen = load_sharded(name, ranks, train)
        super().__init__(config, self.policy, ranks, reference=frozen)
        self.checkpoints = Checkpoints(layout, ranks, config.checkpoint.keep)

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
    run: ScaleConfig | None = None,
) -> PreTrainedModel:
    """A policy by name (see `load_policy`), spread over the ranks; collective.

    Of a `run` those parameters learn that `run.model` says, of none none does. All are float32 but
    the base of an adapter, which is in the dtype of the passes.

    Every rank reads its own rows, none ever holds the rest. Where a model's class names its weights
    otherwise than its files do (experts that are stored one by one, say), every rank loads the
    whole of it, as `load_policy` does, and keeps its part.
    """
    folder, seed = policy_folder(name), run.seed if run else 0
    frozen = config.dtype if run and run.model.lora else None
    dtype = getattr(torch, frozen or "float32")
    model = empty_policy(folder, dtype)
    by_rows = dict(model.named_parameters()).keys() <= stored_names(folder)
    if not by_rows:
        model, _ = load_policy(name, dtype, str(ranks.device))
    model.requires_grad_(run is not None)
    if run and run.model.trainable_layers:
        freeze_below(model, run.model.trainable_layers)
    if run:
        add_lora(model, run)
    if not by_rows:
        start_adapter(model, seed, ranks.device)
    shard(model, ranks.mesh, config)
    if by_rows:
        materialise(model, ranks.device)
        read_tensors(base_weights(model), folder, ranks)
        start_adapter(model, seed, ranks.device)
    return model
