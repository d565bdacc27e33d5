"""From rollouts to a batch: everything a loss needs, computed without gradient."""

import math
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from rlbook.objectives import Selection, estimate, imitation_weights, token_rewards
from rlbook.objectives.shapes import expand_to_tokens
from rlbook.objectives.shaping import overlong_filter
from rlbook.policy import logprobs, token_stats, topk_logprobs
from rlbook.policy.adapters import without_adapter
from rlbook.training.batch import Rollout, SampledBatch, TrainBatch, collate
from rlbook.training.config import RunConfig
from rlbook.training.critic import Critic
from rlbook.training.parallel import LOCAL, LocalProcess

__all__ = ["BatchBuilder"]


class BatchBuilder:
    """Turns rollouts into a `TrainBatch` with the advantages of the run's method.

    Holds the run's advantage estimator, which may keep state between batches. `sampler` is the
    policy that writes the completions, where it is not the model itself.
    """

    def __init__(
        self,
        config: RunConfig,
        model: nn.Module,
        critic: Critic | None = None,
        reference: nn.Module | None = None,
        sampler: nn.Module | None = None,
        parallel: LocalProcess = LOCAL,
    ):
        self.config, self.model, self.critic = config, model, critic
        self.reference, self.sampler, self.parallel = reference, sampler, parallel
        self.method = config.resolved_method
        self.wanted, self.estimator = self.method.requirements(), self.method.new_advantage()
        self.temperature = config.rollout.temperature
        self.limit = config.optimizer.micro_batch_tokens

    def make_batch(
        self, rollouts: Sequence[Rollout], fresh: bool = False, version: int | None = None
    ) -> TrainBatch:
        """Old and reference log-probs, values, advantages; with `version`, that of the weights to
        be trained, also each token's staleness.

        `fresh`: the model, as it is, wrote them, so its log-probs need no second pass.
        Rollouts whose reward is not finite are named in a warning and left out. Raises
        `ValueError` if none is left.
        """
        rollouts = usable(rollouts)
        batch, method = collate(rollouts), self.method
        check_vocabulary(batch, getattr(self.model, "config", None))
        batch = batch.to(self.config.model.device)
        old = self.old_logprobs(batch, fresh)
        reference = self.reference_logprobs(batch)
        values = None
        if self.critic is not None:
            (values,) = self.parallel.over(Critic.forward, self.critic, batch, self.limit)
        parts = parts_of(rollouts) if "reward parts" in self.wanted else None
        advantages, returns = self.estimates(batch, old, reference, values, parts)
        correction, selection, mask = method.sampler_correction, method.selection, batch.mask
        if method.reward_shaping == "overlong_filter":
            mask = overlong_filter(mask, batch.finished)
        return batch.prepared(
            logp_old=old,
            logp_ref=reference,
            values_old=values,
            advantages=advantages,
            returns=returns,
            correction=correction and correction(old, batch.logp_sampler, batch.mask),
            staleness=None if version is None else staleness_of(batch, version),
            mask=mask,
            selected=selection and self.selected(selection, batch, old, advantages, mask),
            imitated=imitated(rollouts, mask) if method.likelihood else None,
            **(self.topk(batch) if "top-k" in self.wanted else {}),
        )

    def old_logprobs(self, batch: SampledBatch, fresh: bool) -> Float[Tensor, "N T"]:
        """log π_old: the sampler's own, or computed again by the trainer, as the method says.

        Of `fresh` rollouts both are the same numbers but for rounding (2e-7 nats).
        """
        same = fresh and self.method.sampler_correction is None
        if same or self.method.old_logprobs == "sampler":
            return batch.logp_sampler
        return self.logprobs(batch, self.model)

    def reference_logprobs(self, batch: SampledBatch) -> Float[Tensor, "N T"] | None:
        """log π_ref, where there is a reference; of a policy with an adapter that is its base."""
        if self.reference is None:
            return None
        with without_adapter(self.model) if self.reference is self.model else nullcontext():
            return self.logprobs(batch, self.reference)

    def estimates(
        self,
        batch: SampledBatch,
        old: Float[Tensor, "N T"],
        reference: Float[Tensor, "N T"] | None,
        values: Float[Tensor, "N T"] | None,
        parts: Float[Tensor, "N K"] | None = None,
    ) -> tuple[Tensor, Float[Tensor, "N T"] | None]:
        """The estimator's advantages, of the rewards with the KL penalty where it sits there.

        Beside them what the critic, if there is one, learns: the estimator's own returns, or else
        A + V.
        """
        advantages, returns = estimate(
            self.estimator,
            rewards=self.credited(batch, old, reference),
            groups=batch.groups,
            mask=batch.mask,
            lengths=batch.mask.sum(1),
            values=values,
            gamma=self.config.critic.gamma,
            lam=self.config.critic.lam,
            greedy_rewards=batch.greedy_rewards,
            parts=None if parts is None else parts.to(batch.rewards.device),
        )
        if values is not None and returns is None:
            returns = (advantages + values) * batch.mask
        return advantages, returns

    def credited(
        self,
        batch: SampledBatch,
        old: Float[Tensor, "N T"],
        reference: Float[Tensor, "N T"] | None,
    ) -> Float[Tensor, " N"] | Float[Tensor, "N T"]:
        """The rewards that the estimator takes, (N,) or one per token, with a KL penalty in them.

        A reward of the whole answer stands at its last token, which for (N,) is never spelled out.
        """
        kl, whole = self.method.kl, "token rewards" not in self.wanted
        penalised = kl is not None and kl.where == "reward"
        if whole and not penalised and batch.token_rewards is None:
            return batch.rewards
        rewards = token_rewards(batch.rewards, batch.mask, kl, old, reference)
        if batch.token_rewards is not None:
            rewards = rewards + batch.token_rewards
        return rewards.sum(1) if whole else rewards

    def selected(
        self,
        selection: Selection,
        batch: SampledBatch,
        old: Float[Tensor, "N T"],
        advantages: Tensor,
        mask: Bool[Tensor, "N T"],
    ) -> Bool[Tensor, "N T"]:
        """The tokens that a selection picks among those to train (`mask`), for all minibatches.

        A draw derives from the tokens themselves, so that a resumed run repeats it.
        """
        _, entropies = self.parallel.over(
            token_stats, self.model, batch, self.limit, self.temperature
        )
        advantages = expand_to_tokens(advantages, mask)
        return selection(old, entropies, advantages, mask, seed=int(batch.ids.sum()))

    def topk(self, batch: SampledBatch) -> dict[str, Tensor]:
        """The most likely tokens under π_old and their log-probs."""
        old = self.model if self.method.old_logprobs == "recomputed" else self.sampler
        model, k = old or self.model, self.method.top_k
        ids, logps = self.parallel.over(
            topk_logprobs, model, batch, self.limit, k, self.temperature
        )
        return {"topk_ids": ids, "topk_logp_old": logps}

    def logprobs(self, batch: SampledBatch, model: nn.Module) -> Float[Tensor, "N T"]:
        """log π(token) under a model, at the run's temperature."""
        return self.parallel.over(logprobs, model, batch, self.limit, self.temperature)[0]


def staleness_of(batch: SampledBatch, version: int) -> Int[Tensor, "N T"]:
    """Updates between each token's sampling and its training at `version`; 0 outside the mask."""
    return torch.where(batch.mask, version - batch.versions, 0)


def imitated(rollouts: Sequence[Rollout], mask: Bool[Tensor, "N T"]) -> Float[Tensor, "N T"]:
    """What the tokens of right answers weigh among those to train."""
    right = torch.tensor([r.correct for r in rollouts], device=mask.device)
    return imitation_weights(right, mask)


def parts_of(rollouts: Sequence[Rollout]) -> Float[Tensor, "N K"]:
    """The K parts of each reward per completion; 0 for a part that a rollout has not."""
    names = dict.fromkeys(name for r in rollouts for name in r.rewards)
    return torch.tensor([[float(r.rewards.get(name, 0.0)) for name in names] for r in rollouts])


def usable(rollouts: Sequence[Rollout]) -> list[Rollout]:
    """Rollouts with a finite reward; the others are named and left out.

    Raises `ValueError` if none is left.
    """
    finite = [r for r in rollouts if math.isfinite(r.reward)]
    for rollout in (r for r in rollouts if not math.isfinite(r.reward)):
        warnings.warn(
            f"a rollout of {rollout.problem.id} is skipped: its reward is not finite, "
            f"{rollout.rewards | rollout.token_rewards}",
            RuntimeWarning,
            stacklevel=2,
        )
    if not finite:
        parts = [part for r in rollouts for part in (r.rewards | r.token_rewards).items()]
        odd = dict.fromkeys(name for name, values in parts if not np.isfinite(values).all())
        raise ValueError(
            f"no rollout has a finite reward (of {len(rollouts)}): it is nan or inf in "
            f"{', '.join(map(repr, odd))}; let the reward give numbers there"
        )
    return finite


def check_vocabulary(batch: SampledBatch, config: Any) -> None:
    """Require tokens that a model with this configuration has, where it says how many."""
    size, largest = getattr(config, "vocab_size", None), int(batch.ids.max())
    if size is not None and largest >= size:
        raise ValueError(
            f"token id {largest} is beyond the model's vocabulary of {size}: let the engine sample "
            "with the policy's tokenizer"
        )
