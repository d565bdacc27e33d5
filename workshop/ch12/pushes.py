"""Chapter 12: what one batch would do to the weights, as one vector, and what to entropy."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from rlbook.objectives import Method, totals_of
from rlbook.policy import token_stats
from rlbook.training import Rollout, Trainer
from rlbook.training.step import batch_loss


def push(world: Trainer, method: Method, rollouts: Sequence[Rollout]) -> Float[Tensor, " P"]:
    """The gradient of a method's objective on one batch, all weights as one vector."""
    run = Trainer(world.config.replace(method=method), (world.model, world.tokenizer))
    batch = run.learner.prepare(list(rollouts))
    stats = token_stats(run.model, batch.ids, batch.mask, entropy_grad=method.entropy_bonus > 0)
    totals = totals_of(batch.mask, batch.groups)
    return -flat_gradient(batch_loss(run.method, stats, batch, totals).loss, run.model)


def entropy_slope(world: Trainer, rollouts: Sequence[Rollout]) -> Float[Tensor, " P"]:
    """The gradient of the mean entropy of the next token, in nats, on one batch."""
    batch = world.learner.prepare(list(rollouts))
    stats = token_stats(world.model, batch.ids, batch.mask, entropy_grad=True)
    return flat_gradient(stats.entropy[batch.mask].mean(), world.model)


def flat_gradient(value: Float[Tensor, ""], model: PreTrainedModel) -> Float[Tensor, " P"]:
    """The gradient of a number with respect to all weights, as one vector."""
    parts = torch.autograd.grad(value, list(model.parameters()))
    return torch.cat([part.flatten() for part in parts])
