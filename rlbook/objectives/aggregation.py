"""From a loss per token to one number: who gets how much of the gradient?

Every mode is a fixed share per token, a function of what there is to count. One of your own is
such a function too, or a frozen dataclass with a `__call__`:

    def by_root(c): return 1 / (c.sequences * c.lengths.sqrt())
    replace(METHODS["grpo"], aggregation=by_root)
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Real

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rlbook.objectives.estimators import describe
from rlbook.objectives.shapes import check_tokens

__all__ = ["Aggregation", "Counts", "Totals", "aggregate", "token_weights", "totals_of"]


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


@dataclass(frozen=True)
class Counts:
    """What an aggregation looks at: the batch's mask and prompts, and the totals of the update.

    `sequences`, `prompts` and `tokens` are those of the whole update. Counts are at least 1, so
    that they divide. `limit` is the row's `constant`, `dtype` that of the shares.
    """

    mask: Bool[Tensor, "N T"]
    totals: Totals
    groups: Int[Tensor, " N"] | None = None
    limit: float | None = None
    dtype: torch.dtype = torch.float64

    @property
    def sequences(self) -> int:
        """Completions of the update."""
        return max(self.totals.num_sequences, 1)

    @property
    def prompts(self) -> int:
        """Prompts of the update."""
        return max(self.totals.num_prompts, 1)

    @property
    def tokens(self) -> int:
        """Trained tokens of the update."""
        return max(self.totals.num_tokens, 1)

    @property
    def lengths(self) -> Float[Tensor, "N 1"]:
        """Trained tokens of each sequence."""
        return self.mask.sum(1, keepdim=True).clamp(min=1).to(self.dtype)

    @property
    def prompt_tokens(self) -> Float[Tensor, "N 1"]:
        """Trained tokens of each sequence's prompt; `ValueError` where no prompts are given."""
        groups, ids, counts = self.groups, self.totals.prompt_ids, self.totals.tokens_per_prompt
        if groups is None or ids is None or counts is None:
            raise ValueError('"prompt_mean" needs groups here and in totals_of(mask, groups)')
        match = groups[:, None] == ids
        if (self.mask.any(1) & ~match.any(1)).any():
            raise ValueError("a prompt of this batch is missing in totals: count the whole update")
        return (match * counts).sum(1, keepdim=True).clamp(min=1).to(self.dtype)

    @property
    def constant(self) -> float:
        """The row's normaliser, tokens; `ValueError` where it has none."""
        if not self.limit or self.limit <= 0:
            raise ValueError('"constant" needs constant > 0, e.g. the generation limit in tokens')
        return self.limit


Share = float | Tensor  # of a token: one number, (N, 1) or (N, T)
Aggregation = str | Callable[[Counts], Share]


def sequence_mean(c: Counts) -> Share:
    """1 / (N |y_i|): the mean over sequences of the token mean (GRPO, GSPO)."""
    return 1 / (c.sequences * c.lengths)


def token_mean(c: Counts) -> Share:
    """1 / Σ|y|: every token alike (DAPO's code, LitePPO, GPG, PPO)."""
    return 1 / c.tokens


def prompt_mean(c: Counts) -> Share:
    """1 / (P Σ_{prompt}|y|): the mean over prompts of the token mean (ScaleRL, CISPO)."""
    return 1 / (c.prompts * c.prompt_tokens)


def constant(c: Counts) -> Share:
    """1 / (N constant): independent of the lengths (Dr. GRPO)."""
    return 1 / (c.sequences * c.constant)


def sequence_sum(c: Counts) -> Share:
    """1 / N: the mean over sequences of the sum (REINFORCE, RLOO, DPPO)."""
    return 1 / c.sequences


AGGREGATIONS: Mapping[str, Callable[[Counts], Share]] = {
    share.__name__: share
    for share in (sequence_mean, token_mean, prompt_mean, constant, sequence_sum)
}


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
    """Share of each token in the loss; 0 outside the mask. `how` names one of `AGGREGATIONS`:

    sequence_mean, token_mean, prompt_mean, constant, sequence_sum; or it is a function of `Counts`.
    The first three coincide when all lengths and all group sizes are equal; the last two then
    differ from them by a factor. Chapter 07.
    """
    if isinstance(how, str) and how not in AGGREGATIONS:
        raise ValueError(f"unknown aggregation {how!r}; choose from {', '.join(AGGREGATIONS)}")
    share = AGGREGATIONS[how] if isinstance(how, str) else how
    given = share(Counts(mask, totals or totals_of(mask, groups), groups, constant, dtype))
    if not isinstance(how, str):
        check_shares(f"aggregation {describe(how)}", given, mask)
    shares = torch.as_tensor(given, dtype=dtype, device=mask.device)
    return torch.where(mask, shares, 0.0)


def check_shares(what: str, given: object, mask: Bool[Tensor, "N T"]) -> None:
    """Require shares of tokens: a number above 0, or some that are not below it.

    Raises `ValueError` naming the function that gave something else.
    """
    n, width = mask.shape
    if isinstance(given, bool) or not isinstance(given, Real | Tensor):
        got = type(given).__name__
    elif (shape := tuple(getattr(given, "shape", ()))) not in ((), (n, 1), (n, width)):
        got = f"a tensor {shape}"
    else:
        shares = torch.as_tensor(given, device=mask.device).expand(mask.shape)[mask]
        wanted = shares >= 0 if shape else shares > 0
        if bool((wanted & (shares < torch.inf)).all()):
            return
        got = f"a share of {float(shares.min()):g}"
    raise ValueError(
        f"{what} returned {got}: return what of the loss each token has, a number above 0 or a "
        f"tensor ({n}, 1) or ({n}, {width}) of them"
    )
