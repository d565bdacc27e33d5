"""Chapter 12: where a trained policy differs from its base, and whether entropy finds the places.

The measurement of arXiv:2605.06241 ("sparse policy selection") on the book's own pair of policies.
"""

import pandas as pd
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlbook.evaluation import held_out_rollouts
from rlbook.policy import load_policy
from rlbook.tasks import get_task
from rlbook.tasks.habits import FAMILIES
from rlbook.training import collate

Policy = tuple[PreTrainedModel, PreTrainedTokenizerBase]
SHARE = 0.03  # of the tokens


def footprints(prompts: int = 24, n: int = 2) -> pd.DataFrame:
    """One row per family: the pupil against itself after 80 batches of RLOO, on what that writes.

    Share of tokens whose likeliest choice has changed; of these, how many of the new choices were
    among the base's first five, and their median probability in the base; and how much of the KL
    divergence stands at the `SHARE` of tokens with most base entropy, and with most divergence.
    """
    base, trained = load_policy("tiny-habits"), load_policy("tiny-habits-teacher")
    return pd.DataFrame(
        {
            family: footprint(base, trained, level, prompts, n)
            for level, family in enumerate(FAMILIES, 1)
        }
    ).T


def footprint(base: Policy, trained: Policy, level: int, prompts: int, n: int) -> dict[str, float]:
    """The numbers of one family."""
    rollouts = held_out_rollouts(trained, get_task("habits"), prompts, n, levels=(level,))
    batch = collate(rollouts)
    mask = batch.mask[:, 1:]
    with torch.no_grad():
        old, new = (
            model(batch.ids).logits[:, :-1].log_softmax(-1)[mask] for model, _ in (base, trained)
        )
    now, entropy = new.argmax(-1, keepdim=True), -(old.exp() * old).sum(-1)
    changed, kl = old.argmax(-1) != now[:, 0], (new.exp() * (new - old)).sum(-1)
    before = old.gather(-1, now)[changed]
    return {
        "changed": changed.float().mean().item(),
        "in the first five": ((old[changed] > before).sum(-1) < 5).float().mean().item(),
        "probability before": before.exp().median().item() if len(before) else float("nan"),
        "KL at most entropy": held(kl, entropy),
        "KL at most KL": held(kl, kl),
    }


def held(kl: Tensor, by: Tensor) -> float:
    """The share of all divergence at the tokens where `by` is largest."""
    top = by.topk(max(1, round(SHARE * len(by)))).indices
    return (kl[top].sum() / kl.sum()).item()
