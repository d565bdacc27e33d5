"""The learner of `rlbook.training`, its policy sharded over ranks, its checkpoints with it."""

from collections.abc import Sequence

from rlbook.scale.config import ScaleConfig
from rlbook.scale.layout import Layout
from rlbook.scale.train.checkpoint import Checkpoints
from rlbook.scale.train.loading import load_sharded
from rlbook.scale.train.parallel import Ranks
from rlbook.training import Learner, Rollout, TrainBatch


class ShardedLearner(Learner):
    """Learns the batches of a full-scale run on all ranks together; every method is collective.

    The weights after `step` batches are the version of that number, whatever updates made them.
    Everything random is in the rollouts and in the seed: the same batches make the same weights.
    Chapter 17.
    """

    parallel: Ranks

    def __init__(self, config: ScaleConfig, layout: Layout, ranks: Ranks):
        start = config.model.policy, ranks, config.train
        self.settings, (self.scored, self.tokenizer) = config, load_sharded(*start)
        self.policy, wanted = self.scored.policy, config.method.requirements()
        frozen = load_sharded(*start, frozen=True)[0] if "reference" in wanted else None
        super().__init__(config, self.scored, ranks, reference=frozen)
        self.checkpoints = Checkpoints(layout.checkpoints, ranks, config.checkpoint.keep)

    def prepare(self, rollouts: Sequence[Rollout]) -> TrainBatch:
        """Rollouts as tensors, each token with its staleness in versions."""
        return self.builder.make_batch(rollouts, version=self.step)

    def update(self, minibatch: TrainBatch) -> dict[str, float]:
        """One update; its learning rate is a metric."""
        metrics = super().update(minibatch)
        return metrics | {"learning_rate": self.optimizers["model"].param_groups[0]["lr"]}

    def begin_save(self, orchestrator: dict) -> None:
        """Have a checkpoint with the orchestrator's state written; see `Checkpoints.settle`."""
        run = {"config": self.settings.shared(), "dtype": self.settings.train.dtype}
        policy, optimizer = (self.policy, self.tokenizer), self.optimizers["model"]
        self.checkpoints.begin(policy, optimizer, run | self.state(), orchestrator)

    def load(self) -> None:
        """Continue from the newest checkpoint, if there is one."""
        if state := self.checkpoints.load(self.policy, self.optimizers["model"]):
            self.load_state(state)
