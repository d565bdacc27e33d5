"""Credit for steps: advantages per token, from values of prefixes or from an implicit reward model.

A completion is cut into steps; `steps` (N, T) holds the number of the step each token belongs to,
0 for the first. What the tokens of a step get is how much the step changed.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rlbook.objectives.advantages import leave_one_out, reward_to_go
from rlbook.objectives.estimators import needs
from rlbook.objectives.shapes import check_rewards, check_tokens, zero_masked


@needs("rewards", "mask", token_rewards=True)
def token_credit(rewards: Float[Tensor, "N T"], mask: Bool[Tensor, "N T"]) -> Float[Tensor, "N T"]:
    """Each token's reward is its advantage: A_t = r_t, and 0 outside the mask.

    For rewards that are credit already, a difference of values or a reward less its baseline;
    what comes later is part of the value, so nothing is summed. Chapter 15.
    """
    check_tokens(mask, rewards=rewards)
    return zero_masked(mask, rewards)[0]


def step_gains(
    values: Float[Tensor, "N S1"], steps: Int[Tensor, "N T"], mask: Bool[Tensor, "N T"]
) -> Float[Tensor, "N T"]:
    """What a step changes, given to each of its tokens: A_t = V(after the step) − V(before it).

    `values[n, j]` is the value of what stands before step j of completion n; after the last step
    it is the reward itself. Over the steps the gains sum to r − V(prompt). 0 outside the mask.
    Raises `ValueError` where a token's step has no value after it.
    Source: VinePPO, arXiv:2410.01679, with γ = 1 and no reward before the end. Chapter 15.
    """
    check_tokens(mask, steps=steps)
    if (last := int((steps * mask).max())) + 1 >= values.shape[1]:
        raise ValueError(
            f"step {last} needs values[:, {last + 1}], but values has {values.shape[1]} columns"
        )
    (steps,) = zero_masked(mask, steps)
    gains = values.diff(dim=1).gather(1, steps)
    return torch.where(mask, gains, 0.0)


def implicit_rewards(
    logp: Float[Tensor, "N T"],
    logp_ref: Float[Tensor, "N T"],
    mask: Bool[Tensor, "N T"],
    beta: float = 0.05,
) -> Float[Tensor, "N T"]:
    """The reward of a token under an implicit process reward model: r_t = β log π_φ / π_ref.

    The sum up to a token is β log E_ref[exp(r(y)/β) | prefix], a soft mean of what completions of
    the prefix earn: so r_t is the change that the token makes to it. 0 outside the mask.
    Sources: arXiv:2412.01981, proposition 3.1; PRIME, arXiv:2502.01456. Chapter 15.
    """
    check_tokens(mask, logp=logp, logp_ref=logp_ref)
    logp, logp_ref = zero_masked(mask, logp, logp_ref)
    return beta * (logp - logp_ref)


def implicit_reward_loss(
    rewards: Float[Tensor, "N T"], outcomes: Float[Tensor, " N"]
) -> Float[Tensor, ""]:
    """Cross-entropy of the outcome, predicted by the sum of a completion's implicit rewards.

    −mean[o log σ(r) + (1 − o) log(1 − σ(r))] with r = Σ_t r_t: labels of whole answers are all it
    takes. Source: PRIME, arXiv:2502.01456. Chapter 15.
    """
    check_rewards(outcomes)
    return torch.nn.functional.binary_cross_entropy_with_logits(rewards.sum(1), outcomes)


def prime(
    rewards: Float[Tensor, "N T"],
    outcomes: Float[Tensor, " N"],
    groups: Int[Tensor, " N"],
    mask: Bool[Tensor, "N T"],
    gamma: float = 1.0,
) -> Float[Tensor, "N T"]:
    """Implicit process rewards to go and the outcome, each less its leave-one-out baseline.

    A_t = Σ_{s≥t} γ^{s−t} (r_s − b) + o − b_o, with b the mean over siblings of their mean reward
    per token and b_o the mean of their outcomes. 0 for a completion without siblings.
    Source: PRIME, arXiv:2502.01456, before it is whitened over the batch. Chapter 15.
    """
    check_tokens(mask, rewards=rewards)
    (rewards,) = zero_masked(mask, rewards)
    per_token = rewards.sum(1) / mask.sum(1).clamp(min=1)
    baseline = per_token - leave_one_out(per_token, groups)
    dense = torch.where(mask, rewards - baseline[:, None], 0.0)
    lone = (groups[:, None] == groups).sum(1) == 1
    advantages = reward_to_go(dense, mask, gamma) + leave_one_out(outcomes, groups)[:, None]
    return torch.where(mask & ~lone[:, None], advantages, 0.0)
