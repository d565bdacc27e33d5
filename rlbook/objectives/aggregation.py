"""From a loss per token to one number: who gets how much of the gradient?

Every mode is a fixed weight per token, so the choice is the choice of `token_weights`.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rlbook.objectives.shapes import check_tokens

Aggregation = Literal["sequence_mean", "token_mean", "prompt_mean", "constant", "token_sum"]


@dataclass(frozen=True)
class Totals:
    """The denominators of one optimizer update: counts over all its micro-batches and ranks.

    With the same totals everywhere, the losses of the parts add up to the loss of the whole.
    `prompt_ids` (P,), sorted, and `tokens_per_prompt` (P,) serve `prompt_mean`. Totals of ranks
    add up with `+`, also where a prompt's completions are spread over several ranks.
    """

    num_tokens: int
    num_sequences: int
    num_prompts: int
    prompt_ids: Int[Tensor, " P"] | None = None
    tokens_per_prompt: Int[Tensor, " P"] | None = None

    def __add__(self, other: "Totals") -> "Totals":
        tokens = self.num_tokens + other.num_tokens
        sequences = self.num_sequences + other.num_sequences
        mine, theirs = self.tokens_per_prompt, other.tokens_per_prompt
        if self.prompt_ids is None or other.prompt_ids is None or mine is None or theirs is None:
            return Totals(tokens, sequences, 0)
        ids = torch.cat([self.prompt_ids, other.prompt_ids])
        counts = torch.cat([mine, theirs])
        ids, index = torch.unique(ids, return_inverse=True)
        merged = counts.new_zeros(len(ids)).index_add(0, index, counts)
        return Totals(tokens, sequences, len(ids), ids, merged)


def totals_of(
    mask: Bool[Tensor, "N T"], groups: Int[Tensor, " N"] | None = None, count_empty: bool = True
) -> Totals:
    """Count tokens, sequences and prompts of a batch.

    `count_empty`: a sequence without a trained token (an overlong one that was filtered, say)
    still counts in the number of sequences, as in TRL and in the papers' 1/G; False leaves such
    sequences, and prompts that consist of them, out of the count, as in verl. Chapter 07.
    """
    check_tokens(mask)
    lengths = mask.sum(1)
    chosen = torch.ones_like(lengths, dtype=torch.bool) if count_empty else lengths > 0
    sequences = int(chosen.sum())
    if groups is None:
        return Totals(int(lengths.sum()), sequences, 0)
    ids, index = torch.unique(groups[chosen], return_inverse=True)
    counts = lengths.new_zeros(len(ids)).index_add(0, index, lengths[chosen])
    return Totals(int(lengths.sum()), sequences, len(ids), ids, counts)


def aggregate(
    per_token: Float[Tensor, "N T"],
    mask: Bool[Tensor, "N T"],
    how: Aggregation,
    groups: Int[Tensor, " N"] | None = None,
    constant: float | None = None,
    totals: Totals | None = None,
) -> Float[Tensor, ""]:
    """Weighted sum of the loss over trained tokens, with the weights of `token_weights`.

    `totals` are the denominators of the whole update (default: those of this batch). Masked
    positions are excluded by selection, not by multiplication: a NaN there stays there.
    Raises `ValueError` for an unknown mode or a missing argument. Chapters 07 and 08.
    """
    check_tokens(mask, per_token=per_token)
    weights = token_weights(mask, how, groups, constant, totals, per_token.dtype)
    return (torch.where(mask, per_token, 0.0) * weights).sum()


def token_weights(
    mask: Bool[Tensor, "N T"],
    how: Aggregation,
    groups: Int[Tensor, " N"] | None = None,
    constant: float | None = None,
    totals: Totals | None = None,
    dtype: torch.dtype = torch.float64,
) -> Float[Tensor, "N T"]:
    """Share of each token in the loss; 0 outside the mask. N sequences, P prompts, lengths |y|:

    sequence_mean  1 / (N |y_i|)          mean over sequences of the token mean (GRPO, GSPO)
    token_mean     1 / Σ|y|               every token alike (DAPO's code, LitePPO, GPG, PPO)
    prompt_mean    1 / (P Σ_{prompt}|y|)  mean over prompts of the token mean (ScaleRL, CISPO)
    constant       1 / (N constant)       independent of the lengths (Dr. GRPO)
    token_sum      1 / N                  mean over sequences of the sum (REINFORCE, RLOO, DPPO)

    The first three coincide when all lengths and all group sizes are equal; the last two then
    differ from them by a factor.
    """
    if how not in get_args(Aggregation):
        raise ValueError(f"unknown aggregation {how!r}; choose from {get_args(Aggregation)}")
    totals = totals or totals_of(mask, groups)
    weight, sequences = mask.to(dtype), max(totals.num_sequences, 1)
    if how == "token_mean":
        return weight / max(totals.num_tokens, 1)
    if how == "sequence_mean":
        return weight / (sequences * mask.sum(1, keepdim=True).clamp(min=1))
    if how == "prompt_mean":
        return weight / (max(totals.num_prompts, 1) * prompt_tokens(mask, groups, totals))
    if how == "constant":
        if not constant or constant <= 0:
            raise ValueError('"constant" needs constant > 0, e.g. the generation limit in tokens')
        return weight / (sequences * constant)
    return weight / sequences


def prompt_tokens(
    mask: Bool[Tensor, "N T"], groups: Int[Tensor, " N"] | None, totals: Totals
) -> Int[Tensor, "N 1"]:
    """Trained tokens of each sequence's prompt, at least 1."""
    if groups is None or totals.prompt_ids is None or totals.tokens_per_prompt is None:
        raise ValueError('"prompt_mean" needs groups here and in totals_of(mask, groups)')
    match = groups[:, None] == totals.prompt_ids
    if (mask.any(1) & ~match.any(1)).any():
        raise ValueError("a prompt of this batch is missing in totals: count the whole update")
    return (match * totals.tokens_per_prompt).sum(1, keepdim=True).clamp(min=1)
