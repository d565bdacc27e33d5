"""The sharded policy, its optimizer and what the loss needs: one update per batch of rollouts."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rlbook.objectives import Method, sampler_correction
from rlbook.policy import load_policy
from rlbook.scale.checkpoint import Checkpoints
from rlbook.scale.config import ScaleConfig
from rlbook.scale.layout import Layout
from rlbook.scale.parallel import Ranks, ScoredPolicy, shard
from rlbook.training import Batch, Rollout, TrainConfig, find_method, train_step
from rlbook.training.collect import with_spread
from rlbook.training.prepare import Scorer
from rlbook.training.trainer import fitted


class Learner:
    """Takes `train_step` on all ranks together; `version` counts the batches trained.

    Everything random is in the rollouts, so the same batches make the same weights. All methods
    are collective. Chapter 17.
    """

    def __init__(self, config: ScaleConfig, layout: Layout, ranks: Ranks):
        self.config, self.ranks, self.version = config, ranks, 0
        self.method = fitted(find_method(config.trainer.method), train_config(config, ranks))
        self.policy, _ = load_policy(config.model.policy)
        reference = self.frozen() if self.method.needs_reference else None
        self.scored = shard(self.policy, ranks.mesh, config.model)
        self.optimizer = torch.optim.AdamW(
            self.scored.parameters(),
            betas=config.trainer.betas,
            weight_decay=config.trainer.weight_decay,
            foreach=True,  # the same numbers; a sharded parameter costs more to call than to update
        )
        self.scorer = ShardedScorer(self.scored, reference, self.method, config, ranks)
        self.checkpoints = Checkpoints(layout.checkpoints, ranks, config.checkpoint.keep)

    def frozen(self) -> ScoredPolicy:
        """The reference policy, sharded as well."""
        reference, _ = load_policy(self.config.model.policy)
        return shard(reference.requires_grad_(False), self.ranks.mesh, self.config.model)

    def update(self, rollouts: Sequence[Rollout]) -> dict[str, float]:
        """Train the batch of this version; returns the update's metrics.

        A batch with nothing to learn from makes the next version all the same, without an update.
        """
        trainer, temperature = self.config.trainer, self.config.rollout.temperature
        rollouts = rollouts if self.method.prompt_filter == "none" else with_spread(rollouts)
        rate = warmed_up(trainer.lr, self.version, trainer.warmup)
        metrics = {"learning_rate": rate}
        if rollouts:
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            metrics |= train_step(
                self.scored,
                self.optimizer,
                self.scorer.prepare(rollouts, version=self.version),
                self.method,
                temperature=temperature,
                micro_batch_tokens=trainer.micro_batch_tokens,
                max_grad_norm=trainer.max_grad_norm,
                where=self.ranks,
            )
        self.version += 1
        return metrics

    def save(self, orchestrator: dict) -> bool:
        """Write a checkpoint with the orchestrator's state; returns whether it is durable."""
        state = {"advantage": vars(self.scorer.advantage)}  # what it remembers of earlier batches
        return self.checkpoints.save(self.version, self.policy, self.optimizer, state, orchestrator)

    def load(self) -> None:
        """Continue from the newest checkpoint, if there is one."""
        state = self.checkpoints.load(self.policy, self.optimizer)
        if state:
            self.version = state["step"]
            vars(self.scorer.advantage).update(state["advantage"])


class ShardedScorer(Scorer):
    """A `Scorer` whose forward passes are shared out among the ranks.

    With an anchor that is recomputed, the weights of the sampler's tokens are truncated at
    `trainer.truncate_weight`. One update per batch: a recomputed π_old is π_θ itself.
    """

    def __init__(
        self,
        model: ScoredPolicy,
        reference: ScoredPolicy | None,
        method: Method,
        config: ScaleConfig,
        ranks: Ranks,
    ):
        super().__init__(model, None, reference, method, train_config(config, ranks))
        self.ranks, self.cap = ranks, config.trainer.truncate_weight

    def prepare(self, rollouts: Sequence[Rollout], **how) -> Batch:
        batch = super().prepare(rollouts, **how)
        if self.cap and batch.logp_sampler is not None:
            batch.correction = sampler_correction(
                batch.logp_old, batch.logp_sampler, batch.mask, self.cap
            )
        return batch

    def logprobs(self, model: nn.Module, batch: Batch) -> Float[Tensor, "N T"]:
        config = self.config
        return self.ranks.logprobs(model, batch, config.temperature, config.micro_batch_tokens)


def train_config(config: ScaleConfig, ranks: Ranks) -> TrainConfig:
    """What the single-process code needs to know.

    π_old is recomputed where the method says so and it makes a difference: in a ratio, or in the
    weight of the sampler's tokens.
    """
    method = find_method(config.trainer.method)
    matters = method.ratio != "none" or config.trainer.truncate_weight
    recomputed = method.old_logprobs == "recomputed" and matters
    return TrainConfig(
        method=method.name,
        anchor="recomputed" if recomputed else "sampler",
        max_new_tokens=config.rollout.max_new_tokens,
        temperature=config.rollout.temperature,
        micro_batch_tokens=config.trainer.micro_batch_tokens,
        device=str(ranks.device),
    )


def warmed_up(rate: float, version: int, warmup: int) -> float:
    """Learning rate of the update of this version: a linear rise over `warmup` updates."""
    return rate * min(1.0, (version + 1) / warmup) if warmup else rate
