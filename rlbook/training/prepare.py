"""From rollouts to a batch: everything a loss needs, computed without gradient."""

import math
import warnings
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rlbook.objectives import Method, compute_advantages, token_rewards
from rlbook.policy import logprobs
from rlbook.training.batch import Batch, Rollout, collate, lags_of, micro_batch_rows
from rlbook.training.config import TrainConfig
from rlbook.training.critic import Critic


class Scorer:
    """Turns rollouts into a `Batch` with the method's advantages.

    Holds the run's advantage estimator, which may keep state between batches.
    """

    def __init__(
        self,
        model: nn.Module,
        critic: Critic | None,
        reference: nn.Module | None,
        method: Method,
        config: TrainConfig,
    ):
        self.model, self.critic, self.reference = model, critic, reference
        self.method, self.config = method, config
        self.advantage = method.new_advantage()

    def prepare(
        self,
        rollouts: Sequence[Rollout],
        greedy_rewards: Tensor | None = None,
        version: int | None = None,
    ) -> Batch:
        """Tensors, anchor and reference log-probs, values, advantages.

        With `version`, that of the weights to be trained, also each token's lag.
        Rollouts whose reward is not finite are named in a warning and left out.
        """
        finite = torch.tensor([math.isfinite(r.reward) for r in rollouts])
        rollouts = usable(rollouts)
        batch = collate(rollouts).to(self.config.device)
        if self.config.anchor == "recomputed":
            batch.logp_sampler, batch.logp_old = batch.logp_old, self.logprobs(self.model, batch)
        if version is not None:
            batch.lag = lags_of(rollouts, version, batch.ids)
        if self.reference is not None:
            batch.logp_ref = self.logprobs(self.reference, batch)
        if self.critic is not None:
            batch.values_old = self.in_micro_batches(self.critic, batch)
        rewards = token_rewards(
            batch.rewards, batch.mask, self.method.kl, batch.logp_old, batch.logp_ref
        )
        advantages = compute_advantages(
            self.advantage,
            rewards=rewards if self.critic is not None else rewards.sum(1),
            groups=batch.groups,
            mask=batch.mask,
            lengths=batch.mask.sum(1),
            values=batch.values_old,
            gamma=self.config.gamma,
            lam=self.config.lam,
            greedy_rewards=None if greedy_rewards is None else greedy_rewards[finite],
        )
        if self.critic is not None:
            batch.advantages, batch.returns = advantages
        else:
            batch.advantages = advantages
        if self.method.reward_shaping == "overlong_filter":
            finished = torch.tensor([not r.truncated for r in rollouts])
            batch.mask = batch.mask & finished.to(batch.mask.device)[:, None]
        return batch

    def logprobs(self, model: nn.Module, batch: Batch) -> Float[Tensor, "N T"]:
        """log π(token) of the batch under `model`, at the run's temperature."""
        temperature = self.config.temperature
        return self.in_micro_batches(
            lambda ids, mask: logprobs(model, ids, mask, temperature), batch
        )

    @torch.no_grad()
    def in_micro_batches(self, compute: Callable[[Tensor, Tensor], Tensor], batch: Batch) -> Tensor:
        """(N, T) result of `compute(ids, mask)`, evaluated slice by slice."""
        result = torch.zeros_like(batch.logp_old)
        for rows in micro_batch_rows(batch, self.config.micro_batch_tokens):
            micro = batch.select(rows)
            result[rows, : micro.ids.shape[1]] = compute(micro.ids, micro.mask)
        return result


def usable(rollouts: Sequence[Rollout]) -> list[Rollout]:
    """Rollouts with a finite reward; the others are named and left out.

    Raises `ValueError` if none is left.
    """
    for rollout in rollouts:
        if not math.isfinite(rollout.reward):
            warnings.warn(
                f"a rollout of {rollout.problem.id} is skipped: its reward is not finite, "
                f"{rollout.rewards}",
                RuntimeWarning,
                stacklevel=2,
            )
    finite = [r for r in rollouts if math.isfinite(r.reward)]
    if not finite:
        raise ValueError(f"no rollout has a finite reward (of {len(rollouts)})")
    return finite
