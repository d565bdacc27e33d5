"""What learns, and how: from the rollouts of a step to all of its updates."""

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rlbook.objectives import Method, estimator_state, load_estimator_state
from rlbook.policy.adapters import adapted
from rlbook.policy.loading import frozen_copy
from rlbook.training.batch import Rollout, SampledBatch, TrainBatch, minibatches
from rlbook.training.config import RunConfig, derive_seed
from rlbook.training.critic import Critic, explained_variance
from rlbook.training.metrics import batch_metrics, silent_metrics, update_metrics
from rlbook.training.parallel import LOCAL, LocalProcess, as_policy
from rlbook.training.prepare import BatchBuilder, usable
from rlbook.training.step import adamw, critic_step, train_step, warm_up

__all__ = ["Learner"]


def compares_siblings(method: Method) -> bool:
    """Whether an answer without a sibling has an advantage of 0, whatever it earns."""
    if method.needs != {"rewards", "groups"} or estimator_state(method.advantage):
        return False
    earned = torch.tensor([0.0, 1.0, 0.0, 1.0])
    return not method.advantage(rewards=earned, groups=torch.arange(4)).any()


class Learner:
    """The policy with all that learns beside it: one learner for a notebook and for a cluster.

    `learn` makes the updates of a step: `optimizer.epochs` passes of `optimizer.minibatches` each.
    `step` counts the steps learned, `updates_made` their updates. `parallel` says where models run;
    with several ranks every method is collective. `reference` is the frozen policy of a KL term,
    by default the model without its adapter, or, if it has none, a copy of it as it is now;
    `sampler` the policy that writes the completions, where it is not the model itself.
    """

    measures_staleness = False  # of each token, in steps, where older weights may have written it

    def __init__(
        self,
        config: RunConfig,
        model: nn.Module,
        parallel: LocalProcess = LOCAL,
        *,
        reference: nn.Module | None = None,
        sampler: nn.Module | None = None,
    ):
        self.config, self.method = config, config.resolved_method
        self.model, self.parallel, self.wanted = model, parallel, self.method.requirements()
        self.critic = Critic(as_policy(model)) if "critic" in self.wanted else None
        if reference is None and "reference" in self.wanted:
            reference = model if adapted(model) else frozen_copy(as_policy(model))
        self.reference = reference
        self.optimizers: dict[str, torch.optim.Optimizer] = {
            "model": adamw(model, config.optimizer, **parallel.optimizer_options)
        }
        if self.critic is not None:
            self.optimizers["critic"] = adamw(self.critic, config.optimizer, config.critic.lr)
        self.builder = BatchBuilder(
            config,
            model=model,
            critic=self.critic,
            reference=reference,
            sampler=sampler,
            parallel=parallel,
        )
        self.step = self.updates_made = 0
        if config.rollout.group_size == 1 and compares_siblings(self.method):
            warnings.warn(
                f"rollout.group_size=1: {self.method.name} compares answers to one prompt, so "
                "every advantage is 0; ask for several, or take reinforce_batch_mean",
                RuntimeWarning,
                stacklevel=3,
            )

    def learn(self, rollouts: Sequence[Rollout], fresh: bool = False) -> dict[str, float]:
        """All updates on the rollouts of a step, and their metrics: NaN for no rollouts.

        `fresh`: the policy, as it is, wrote them, so the log-probs they bring are its own.
        """
        if rollouts:
            rollouts = usable(rollouts)
            batch = self.prepare(rollouts, fresh)
            metrics = batch_metrics(rollouts, batch) | self.updates(batch)
        else:
            metrics = silent_metrics(self.wanted)
        self.step += 1
        return metrics

    def prepare(self, rollouts: Sequence[Rollout], fresh: bool = False) -> TrainBatch:
        """Rollouts as tensors with everything the method's loss needs."""
        version = self.step if self.measures_staleness else None
        return self.builder.make_batch(rollouts, fresh, version)

    def updates(self, batch: TrainBatch) -> dict[str, float]:
        """Every pass over a batch, minibatch by minibatch; returns the metrics of them all."""
        done = [
            self.update(part)
            for epoch in range(self.config.optimizer.epochs)
            for part in self.minibatches(batch, epoch)
        ]
        metrics = {"updates": len(done), **update_metrics(done)}
        metrics["learning_rate"] = self.optimizers["model"].param_groups[0]["lr"]
        if batch.values_old is not None:
            rewards = batch.total_rewards[:, None].expand_as(batch.mask)
            explained = explained_variance(batch.values_old, rewards, batch.mask)
            metrics["explained_variance"] = explained
        return metrics

    def minibatches(self, batch: TrainBatch, epoch: int = 0) -> Iterator[TrainBatch]:
        """Minibatches of whole groups; fewer of them if a filter left too few groups."""
        count = min(self.config.optimizer.minibatches, len(batch.groups.unique()))
        return minibatches(batch, count, derive_seed(self.config.seed, self.step, "shuffle", epoch))

    def update(self, minibatch: TrainBatch) -> dict[str, float]:
        """One policy update and, for critic methods, one critic update."""
        settings, critic, optimizers = self.config.optimizer, self.config.critic, self.optimizers
        warm_up(optimizers["model"], settings.lr, self.updates_made, settings.warmup)
        metrics = train_step(
            self.model,
            optimizers["model"],
            minibatch,
            self.method,
            temperature=self.config.rollout.temperature,
            micro_batch_tokens=settings.micro_batch_tokens,
            max_grad_norm=settings.max_grad_norm,
            parallel=self.parallel,
        )
        if self.critic is not None:
            skipped = metrics["skipped_updates"]
            warm_up(optimizers["critic"], critic.lr, self.updates_made, settings.warmup)
            metrics |= critic_step(
                self.critic,
                optimizers["critic"],
                minibatch,
                clip=critic.value_clip,
                micro_batch_tokens=settings.micro_batch_tokens,
                max_grad_norm=settings.max_grad_norm,
            )
            metrics["skipped_updates"] += skipped
        self.updates_made += 1
        return metrics

    def logprobs(self, batch: SampledBatch, model: nn.Module | None = None) -> Float[Tensor, "N T"]:
        """log π(token) of a batch under the policy as it is now, or under another model."""
        return self.builder.logprobs(batch, model or self.model)

    def state(self) -> dict[str, Any]:
        """What is not in weights and moments, JSON-safe."""
        estimator = estimator_state(self.builder.estimator)
        return {"step": self.step, "updates_made": self.updates_made, "estimator": estimator}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from `state()`."""
        self.step = state["step"]
        self.updates_made = state["version" if "version" in state else "updates_made"]  # 0.3's
        load_estimator_state(self.builder.estimator, state["estimator"])
