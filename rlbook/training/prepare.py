"""From rollouts to a batch: everything a loss needs, computed without gradient."""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from rlbook.objectives import Method, compute_advantages, token_rewards
from rlbook.objectives.shapes import expand_to_tokens
from rlbook.policy import token_stats, topk_logprobs
from rlbook.training.batch import Batch, Collated, Rollout, collate, micro_batch_rows
from rlbook.training.config import RunConfig
from rlbook.training.critic import Critic
from rlbook.training.step import LOCAL, LocalProcess, as_policy, in_micro_batches


@dataclass
class BatchBuilder:
    """Turns rollouts into a `Batch` with the advantages of the run's method.

    Holds the run's advantage estimator, which may keep state between batches. `sampler` is the
    policy that writes the completions, where it is not the model itself.
    """

    config: RunConfig
    model: nn.Module
    critic: Critic | None = None
    reference: nn.Module | None = None
    sampler: nn.Module | None = None
    parallel: LocalProcess = LOCAL
    method: Method = field(init=False)
    estimator: Callable[..., Any] = field(init=False)

    def __post_init__(self) -> None:
        self.method = self.config.resolved_method
        self.estimator = self.method.new_advantage()

    def __call__(
        self,
        rollouts: Sequence[Rollout],
        greedy_rewards: Float[Tensor, " N"] | None = None,
        version: int | None = None,
    ) -> Batch:
        """Old and reference log-probs, values, advantages; with `version`, that of the weights to
        be trained, also each token's staleness.

        `greedy_rewards` holds one reward per rollout. Rollouts whose reward is not finite are named
        in a warning and left out. Raises `ValueError` if none is left.
        """
        finite = [i for i, r in enumerate(rollouts) if is_finite(r)]
        rollouts = usable(rollouts)
        batch = collate(rollouts).to(self.config.model.device)
        old = self.old_logprobs(batch)
        reference = None if self.reference is None else self.logprobs(batch, self.reference)
        values = None if self.critic is None else self.values(batch)
        greedy = None if greedy_rewards is None else greedy_rewards[finite].to(batch.rewards)
        advantages = self.advantages(batch, old, reference, values, greedy)
        correction = self.method.sampler_correction
        return batch.prepared(
            logp_old=old,
            logp_ref=reference,
            values_old=values,
            advantages=advantages,
            returns=None if values is None else (advantages + values) * batch.mask,
            correction=correction and correction(old, batch.logp_sampler, batch.mask),
            staleness=None if version is None else staleness_of(batch, version),
            mask=self.trained(batch),
            selected=self.selected(batch, old, advantages),
            **self.topk(batch),
        )

    def old_logprobs(self, batch: Collated) -> Float[Tensor, "N T"]:
        """log π_old: the sampler's own, or computed again by the trainer, as the method says."""
        if self.method.old_logprobs == "sampler":
            return batch.logp_sampler
        return self.logprobs(batch, self.model)

    def advantages(
        self,
        batch: Collated,
        old: Float[Tensor, "N T"],
        reference: Float[Tensor, "N T"] | None,
        values: Float[Tensor, "N T"] | None,
        greedy_rewards: Float[Tensor, " N"] | None,
    ) -> Tensor:
        """The estimator's advantages, of the rewards with the KL penalty where it sits there."""
        rewards = token_rewards(batch.rewards, batch.mask, self.method.kl, old, reference)
        if batch.token_rewards is not None:
            rewards = rewards + batch.token_rewards
        return compute_advantages(
            self.estimator,
            rewards=rewards if self.method.needs_token_rewards else rewards.sum(1),
            groups=batch.groups,
            mask=batch.mask,
            lengths=batch.mask.sum(1),
            values=values,
            gamma=self.config.critic.gamma,
            lam=self.config.critic.lam,
            greedy_rewards=greedy_rewards,
        )

    def trained(self, batch: Collated) -> Tensor:
        """The mask of the tokens to train: truncated completions may count in baselines alone."""
        if self.method.reward_shaping == "overlong_filter":
            return batch.mask & batch.finished[:, None]
        return batch.mask

    @torch.no_grad()
    def selected(
        self, batch: Collated, old: Float[Tensor, "N T"], advantages: Tensor
    ) -> Bool[Tensor, "N T"] | None:
        """The tokens that the method's selection picks among those to train, for all minibatches.

        A draw derives from the tokens themselves, so that a resumed run repeats it.
        """
        selection, mask = self.method.selection, self.trained(batch)
        if selection is None:
            return None
        advantages = expand_to_tokens(advantages, mask)
        return selection(old, self.entropies(batch), advantages, mask, seed=int(batch.ids.sum()))

    def entropies(self, batch: Collated) -> Float[Tensor, "N T"]:
        """Entropy of the distribution each token was drawn from, under the model as it is."""
        policy, temperature = as_policy(self.model), self.config.rollout.temperature
        return in_micro_batches(
            lambda ids, mask: token_stats(policy, ids, mask, temperature).entropy,
            batch,
            self.config.optimizer.micro_batch_tokens,
        )

    def logprobs(self, batch: Collated | Batch, model: nn.Module) -> Float[Tensor, "N T"]:
        """log π(token) under a model, at the run's temperature."""
        temperature = self.config.rollout.temperature
        limit = self.config.optimizer.micro_batch_tokens
        return self.parallel.logprobs(model, batch, temperature, limit)

    @torch.no_grad()
    def values(self, batch: Collated) -> Float[Tensor, "N T"]:
        """The critic's value of the state before each token."""
        assert self.critic is not None
        return in_micro_batches(self.critic, batch, self.config.optimizer.micro_batch_tokens)

    @torch.no_grad()
    def topk(self, batch: Collated) -> dict[str, Tensor]:
        """The most likely tokens under π_old and their log-probs, if the method compares them."""
        k = self.method.needs_topk
        if k is None:
            return {}
        old = self.model if self.method.old_logprobs == "recomputed" else self.sampler
        policy, temperature = as_policy(old or self.model), self.config.rollout.temperature
        listed: dict[str, Tensor] = {}
        for rows in micro_batch_rows(batch, self.config.optimizer.micro_batch_tokens):
            micro = batch.select(rows)
            parts = topk_logprobs(policy, micro.ids, micro.mask, k, temperature)
            for name, part in zip(("topk_ids", "topk_logp_old"), parts, strict=True):
                whole = listed.setdefault(name, part.new_zeros(*batch.ids.shape, part.shape[-1]))
                whole[rows, : part.shape[1]] = part
        return listed


def staleness_of(batch: Collated, version: int) -> Int[Tensor, "N T"]:
    """Updates between each token's sampling and its training at `version`; 0 outside the mask."""
    return torch.where(batch.mask, version - batch.versions, 0)


def is_finite(rollout: Rollout) -> bool:
    return math.isfinite(rollout.reward)


def usable(rollouts: Sequence[Rollout]) -> list[Rollout]:
    """Rollouts with a finite reward; the others are named and left out.

    Raises `ValueError` if none is left.
    """
    for rollout in rollouts:
        if not is_finite(rollout):
            warnings.warn(
                f"a rollout of {rollout.problem.id} is skipped: its reward is not finite, "
                f"{rollout.rewards | rollout.token_rewards}",
                RuntimeWarning,
                stacklevel=2,
            )
    finite = [r for r in rollouts if is_finite(r)]
    if not finite:
        raise ValueError(f"no rollout has a finite reward (of {len(rollouts)})")
    return finite
