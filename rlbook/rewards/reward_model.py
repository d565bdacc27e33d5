"""A reward learned from preferences: the Bradley–Terry model on a policy's trunk."""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import logsigmoid
from torch.optim import AdamW
from transformers import PreTrainedModel

from rlbook.rewards.preferences import Preference
from rlbook.training import Rollout
from rlbook.training.sft import Answer, descend, padded, shuffled_batches

__all__ = ["ProxyReward", "RewardModel", "bradley_terry_loss", "calibration", "margins"]
__all__ += ["train_reward_model"]

AT_ONCE = 256  # answers scored in one forward pass


class RewardModel(nn.Module):
    """A score for every completed answer: a policy's trunk, copied, and a scalar read at its end.

    r(x, y) = w · h(last token of y). The head starts at zero, and has no bias: a preference
    compares two answers to one prompt, so what all answers share would never be learned.
    Source: Ouyang et al. 2022, arXiv:2203.02155, §3.5. Chapter 04.
    """

    def __init__(self, policy: PreTrainedModel):
        super().__init__()
        self.trunk = copy.deepcopy(policy.base_model)
        embedding = cast(Tensor, policy.get_input_embeddings().weight)
        self.head = nn.Linear(embedding.shape[1], 1, bias=False, device=embedding.device)
        nn.init.zeros_(self.head.weight)

    def forward(self, answers: Sequence[Answer | Rollout]) -> Float[Tensor, " N"]:
        """Scores of completions, each after its prompt."""
        return self.read(*padded(answers, self.head.weight.device))

    def read(self, ids: Int[Tensor, "N T"], mask: Bool[Tensor, "N T"]) -> Float[Tensor, " N"]:
        """Scores of prompts and completions; `mask` is True on the completions' tokens."""
        hidden = self.trunk(ids, use_cache=False).last_hidden_state
        last = mask.shape[1] - 1 - mask.flip(1).int().argmax(1)
        return cast(Tensor, self.head(hidden[torch.arange(len(ids)), last]).squeeze(-1))

    @torch.no_grad()
    def scores(self, answers: Sequence[Answer | Rollout]) -> Float[Tensor, " N"]:
        """The same without gradient, a slice at a time; an answer given twice is read once."""
        both = torch.cat(padded(answers, self.head.weight.device), dim=1)
        rows, place = both.unique(dim=0, return_inverse=True)
        slices = (part.chunk(2, dim=1) for part in rows.split(AT_ONCE))
        return torch.cat([self.read(ids, mask.bool()) for ids, mask in slices])[place]


@dataclass(frozen=True)
class ProxyReward:
    """A reward model in the verifier's place: its score is the reward's one part, "proxy".

    What the verifier would have said stays in `Rollout.correct`, unused: it is the truth that the
    proxy stands for.
    """

    model: RewardModel

    def __call__(self, rollouts: Sequence[Rollout]) -> dict[str, list[float]]:
        return {"proxy": self.model.scores(rollouts).tolist()}


def bradley_terry_loss(
    chosen: Float[Tensor, " N"], rejected: Float[Tensor, " N"]
) -> Float[Tensor, ""]:
    """−mean log σ(r_chosen − r_rejected): the likelihood of the preferences, in nats a pair.

    Sources: Bradley and Terry 1952, doi:10.1093/biomet/39.3-4.324; as a reward model's loss
    Christiano et al. 2017, arXiv:1706.03741, equation 1. Chapter 04.
    """
    return -logsigmoid(chosen - rejected).mean()


def train_reward_model(
    model: RewardModel,
    pairs: Sequence[Preference],
    *,
    epochs: int = 1,
    batch: int = 32,
    lr: float = 3e-4,
    seed: int = 0,
) -> Iterator[float]:
    """Fit a reward model in place to preferences; yields the loss of each update.

    Raises `ValueError` for no pairs.
    """
    if not pairs:
        raise ValueError("a reward model needs at least one preference")
    optimizer = AdamW(model.parameters(), lr, weight_decay=0.0)
    for part in shuffled_batches(pairs, batch, epochs, seed):
        scores = model([p.chosen for p in part] + [p.rejected for p in part])
        loss = bradley_terry_loss(scores[: len(part)], scores[len(part) :])
        yield descend(model, optimizer, loss)


def margins(model: RewardModel, pairs: Sequence[Preference]) -> Float[Tensor, " N"]:
    """r(chosen) − r(rejected) of every pair: above 0 where the model agrees with the label."""
    scores = model.scores([p.chosen for p in pairs] + [p.rejected for p in pairs])
    return scores[: len(pairs)] - scores[len(pairs) :]


def calibration(margins: Float[Tensor, " N"], bins: int = 5) -> list[dict[str, float]]:
    """How often the labels agree with the model, by how sure it is: a row for each bin of pairs.

    A pair's confidence is σ(|margin|), the probability that the model gives its favourite. The
    bins hold equally many pairs, the least sure first. Rows have `confidence` and `agreement`,
    the means over the bin's pairs, and `pairs`, their number. A calibrated model has
    agreement = confidence. Raises `ValueError` for fewer pairs than bins.
    """
    if len(margins) < bins:
        raise ValueError(f"{bins} bins need at least {bins} pairs, got {len(margins)}")
    order = margins.abs().argsort(stable=True)
    return [
        {
            "confidence": part.abs().sigmoid().mean().item(),
            "agreement": (part > 0).float().mean().item(),
            "pairs": len(part),
        }
        for part in margins[order].tensor_split(bins)
    ]
