"""The sharded policy, its optimizer and what the loss needs: one update per batch of rollouts."""

from collections.abc import Sequence

from rlbook.objectives import estimator_state, load_estimator_state
from rlbook.policy import load_policy
from rlbook.scale.config import ScaleConfig
from rlbook.scale.layout import Layout
from rlbook.scale.train.checkpoint import Checkpoints
from rlbook.scale.train.parallel import Ranks, ScoredPolicy, shard
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
        self.policy, self.tokenizer = load_policy(config.model.policy)
        reference = self.frozen() if self.method.needs_reference else None
        self.scored = shard(self.policy, ranks.mesh, config.train)
        # foreach: the same numbers; a sharded parameter costs more to call than to update
        self.optimizer = adamw(self.scored, config.optimizer, foreach=True)
        self.builder = BatchBuilder(config, self.scored, reference=reference, parallel=ranks)
        self.checkpoints = Checkpoints(layout.checkpoints, ranks, config.checkpoint.keep)

    def frozen(self) -> ScoredPolicy:
        """The reference policy, sharded as well."""
        reference, _ = load_policy(self.config.model.policy)
        return shard(reference.requires_grad_(False), self.ranks.mesh, self.config.train)

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

    def save(self, orchestrator: dict) -> bool:
        """Write a checkpoint with the orchestrator's state; returns whether it is durable."""
        state = {
            "config": self.config.shared(),
            "dtype": self.config.train.dtype,
            "step": self.version,
            "estimator": estimator_state(self.builder.estimator),
        }
        policy = (self.policy, self.tokenizer)
        return self.checkpoints.save(policy, self.optimizer, state, orchestrator)

    def load(self) -> None:
        """Continue from the newest checkpoint, if there is one."""
        state = self.checkpoints.load(self.policy, self.optimizer)
        if state:
            self.version = state["step"]
            load_estimator_state(self.builder.estimator, state["estimator"])
