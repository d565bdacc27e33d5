"""The sharded policy, its optimizer and what the loss needs: one update per batch of rollouts."""

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from rlbook.objectives import estimator_state, load_estimator_state
from rlbook.scale.config import ScaleConfig
from rlbook.scale.layout import Layout
from rlbook.scale.train.checkpoint import Checkpoints
from rlbook.scale.train.loading import load_sharded
from rlbook.scale.train.parallel import Ranks, ScoredPolicy
from rlbook.training import BatchBuilder, Rollout, adamw, train_step
from rlbook.training.collect import with_spread
from rlbook.training.step import warm_up


class Learner:
    """Takes `train_step` on all ranks together; `version` counts the batches trained.

    One update per batch: a π_old that the method has recomputed is π_θ itself. Everything random
    is in the rollouts, so the same batches make the same weights. All methods are collective.
    Chapter 17.
    """

    def __init__(self, config: ScaleConfig, layout: Layout, ranks: Ranks):
        self.config, self.ranks, self.version = config, ranks, 0
        self.method = config.resolved_method
        self.scored, self.tokenizer = self.load_sharded()
        self.policy = self.scored.policy
        reference = self.load_sharded(frozen=True)[0] if self.method.needs_reference else None
        # The same numbers; a sharded parameter costs more to call than to update.
        how = {"fused": True} if ranks.device.type == "cuda" else {"foreach": True}
        self.optimizer = adamw(self.scored, config.optimizer, **how)
        self.builder = BatchBuilder(config, self.scored, reference=reference, parallel=ranks)
        self.checkpoints = Checkpoints(layout.checkpoints, ranks, config.checkpoint.keep)

    def load_sharded(self, frozen: bool = False) -> tuple[ScoredPolicy, PreTrainedTokenizerBase]:
        """The policy that the run starts from; the reference is one, `frozen`."""
        config = self.config
        return load_sharded(config.model.policy, self.ranks, config.train, frozen)

    def update(self, rollouts: Sequence[Rollout]) -> dict[str, float]:
        """Train the batch of this version; returns the update's metrics.

        A batch with nothing to learn from makes the next version all the same, without an update.
        """
        settings, temperature = self.config.optimizer, self.config.rollout.temperature
        rollouts = rollouts if self.method.prompt_filter == "none" else with_spread(rollouts)
        rate = warm_up(self.optimizer, settings.lr, self.version, settings.warmup)
        metrics = {"learning_rate": rate}
        if rollouts:
            metrics |= train_step(
                self.scored,
                self.optimizer,
                self.builder(rollouts, version=self.version),
                self.method,
                temperature=temperature,
                micro_batch_tokens=settings.micro_batch_tokens,
                max_grad_norm=settings.max_grad_norm,
                parallel=self.ranks,
            )
        self.version += 1
        return metrics

    def begin_save(self, orchestrator: dict) -> None:
        """Have a checkpoint with the orchestrator's state written; see `Checkpoints.settle`."""
        state = {
            "config": self.config.shared(),
            "dtype": self.config.train.dtype,
            "step": self.version,
            "estimator": estimator_state(self.builder.estimator),
        }
        policy = (self.policy, self.tokenizer)
        self.checkpoints.begin(policy, self.optimizer, state, orchestrator)

    def load(self) -> None:
        """Continue from the newest checkpoint, if there is one."""
        state = self.checkpoints.load(self.policy, self.optimizer)
        if state:
            self.version = state["step"]
            load_estimator_state(self.builder.estimator, state["estimator"])
