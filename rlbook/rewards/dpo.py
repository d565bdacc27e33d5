"""Direct preference optimisation: the policy as its own reward model, trained offline."""

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.optim import AdamW
from transformers import PreTrainedModel

from rlbook.policy import logprobs
from rlbook.rewards.preferences import Preference
from rlbook.rewards.reward_model import bradley_terry_loss
from rlbook.training import Rollout
from rlbook.training.sft import Answer, descend, padded, shuffled_batches

__all__ = ["answer_logprobs", "dpo_loss", "implicit_reward", "train_dpo"]


def implicit_reward(
    logp: Float[Tensor, " N"], logp_ref: Float[Tensor, " N"], beta: float
) -> Float[Tensor, " N"]:
    """β log(π(y | x) / π_ref(y | x)): the reward for which π is the KL-regularised optimum.

    True up to a number per prompt, which no comparison of two answers to one prompt can see.
    Log-probabilities are those of whole answers, summed over tokens.
    Source: Rafailov et al. 2023, arXiv:2305.18290, equation 5. Chapter 04.
    """
    return beta * (logp - logp_ref)


def dpo_loss(
    chosen: Float[Tensor, " N"],
    rejected: Float[Tensor, " N"],
    chosen_ref: Float[Tensor, " N"],
    rejected_ref: Float[Tensor, " N"],
    beta: float = 0.1,
) -> Float[Tensor, ""]:
    """`bradley_terry_loss` of the implicit rewards, from log-probabilities of whole answers.

    −mean log σ(β [log π(y_w)/π_ref(y_w) − log π(y_l)/π_ref(y_l)])
    Source: Rafailov et al. 2023, arXiv:2305.18290, equation 7. Chapter 04.
    """
    return bradley_terry_loss(
        implicit_reward(chosen, chosen_ref, beta), implicit_reward(rejected, rejected_ref, beta)
    )


def train_dpo(
    model: PreTrainedModel,
    pairs: Sequence[Preference],
    *,
    beta: float = 0.1,
    epochs: int = 1,
    batch: int = 32,
    lr: float = 1e-4,
    seed: int = 0,
) -> Iterator[float]:
    """Train `model` in place on preferences, without sampling; yields the loss of each update.

    The reference is the model as it was given: its log-probabilities are computed once.
    Raises `ValueError` for no pairs.
    """
    if not pairs:
        raise ValueError("DPO needs at least one preference")
    parts = [pairs[i : i + batch] for i in range(0, len(pairs), batch)]
    with torch.no_grad():
        chosen_ref, rejected_ref = torch.cat([pair_logprobs(model, p) for p in parts], dim=1)
    optimizer = AdamW(model.parameters(), lr, weight_decay=0.0)
    for some in shuffled_batches(range(len(pairs)), batch, epochs, seed):
        chosen, rejected = pair_logprobs(model, [pairs[i] for i in some])
        loss = dpo_loss(chosen, rejected, chosen_ref[some], rejected_ref[some], beta)
        yield descend(model, optimizer, loss)


def pair_logprobs(model: PreTrainedModel, pairs: Sequence[Preference]) -> Float[Tensor, "2 N"]:
    """log π(y | x) of the chosen answers and of the rejected ones, with gradient."""
    both = [p.chosen for p in pairs] + [p.rejected for p in pairs]
    return answer_logprobs(model, both).reshape(2, -1)


def answer_logprobs(
    model: PreTrainedModel, answers: Sequence[Answer | Rollout]
) -> Float[Tensor, " N"]:
    """log π(y | x) of whole answers, with gradient."""
    return logprobs(model, *padded(answers, model.device)).sum(1)
