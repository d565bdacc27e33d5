"""How far a policy has gone from its reference."""

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from rlbook.policy import logprobs
from rlbook.training import Rollout, collate

__all__ = ["kl_of_answers"]


@torch.no_grad()
def kl_of_answers(rollouts: Sequence[Rollout], reference: PreTrainedModel) -> float:
    """KL(π ‖ π_ref) in nats an answer: mean of log π(y | x) − log π_ref(y | x) over rollouts of π.

    π is the policy that sampled them, as its sampler reported it: k1, summed over tokens. It is
    the penalty that `KLPenalty("k1", β, "reward")` charges, divided by β. Chapter 04.
    """
    batch = collate(rollouts)
    gap = batch.logp_sampler - logprobs(reference, batch.ids, batch.mask)
    return (gap * batch.mask).sum(1).mean().item()
