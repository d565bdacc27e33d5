"""Rollouts: what was sampled, from which policy, what it earned; and the same as tensors."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rlbook.tasks import Problem

__all__ = ["Rollout", "SampledBatch", "TrainBatch", "collate", "micro_batch_rows", "minibatches"]


@dataclass
class Rollout:
    """One completion with its full provenance.

    `logps[t]` is the sampler's log-probability of `token_ids[t]`; `versions[t]` is the number of
    the weights that sampled it: `Trainer` counts them by updates, `rlbook.scale`, which hands out
    those of a whole step, by steps. `rewards` keeps the parts of the reward by name,
    `token_rewards` those that come per token. `forced[t]` marks a token that was put there, not
    sampled: it is context, never trained on. `answer` is what the verifier took as the answer
    (`Verdict.answer`), None if it found none that counts; `reason` and `score` are the verdict's
    too. `greedy_reward` is what the greedy answer to the same prompt earned, where the method
    compares with it (ReMax).

    An answer in several turns says of each token its turn (`turn_of`), where the world stood before
    each turn and at the end (`places`), what the world paid for each turn (`earned`, None from one
    that pays at the end), and how long it took the world to answer.
    """

    problem: Problem
    group: int
    prompt_ids: list[int]
    token_ids: list[int]
    logps: list[float]
    versions: list[int]
    finish_reason: str
    text: str
    correct: bool = False
    format_ok: bool = False
    rewards: dict[str, float] = field(default_factory=dict)
    token_rewards: dict[str, list[float]] = field(default_factory=dict)
    forced: list[bool] | None = None
    answer: str | None = None
    reason: str = ""
    score: float | None = None
    greedy_reward: float | None = None
    turn_of: list[int] | None = None
    places: list[str | None] | None = None
    earned: list[float] | None = None
    world_seconds: float = field(default=0.0, compare=False)

    @property
    def reward(self) -> float:
        """Sum of all parts of the reward, those per token included."""
        return float(sum(self.rewards.values()) + sum(map(sum, self.token_rewards.values())))

    @property
    def length(self) -> int:
        """Completion length in tokens, the EOS included."""
        return len(self.token_ids)

    @property
    def worth(self) -> float:
        """The verifier's score, or 1 for a right answer and 0 for any other."""
        return float(self.correct) if self.score is None else self.score

    @property
    def turns(self) -> list[int]:
        """The turn of each token; an answer without turns has one."""
        return self.turn_of or [0] * self.length

    @property
    def turn_count(self) -> int:
        """How many turns it has."""
        return self.turns[-1] + 1

    @property
    def truncated(self) -> bool:
        """Whether the limit ended it."""
        return self.finish_reason == "length"


@dataclass(frozen=True)
class SampledBatch:
    """Right-padded tensors of N rollouts; every (N, T) tensor is aligned to the token itself.

    `mask` is True on the tokens to train: at first on all that the policy sampled; `logp_sampler`
    holds the log-probabilities that the sampler reported; `rewards` the reward per completion,
    `token_rewards` what is earned token by token besides (None: nothing); `finished` is False for a
    truncated completion; `versions` numbers the weights that sampled each token; `greedy_rewards`
    what the greedy answer to each prompt earned (None: nobody asked for one).
    """

    ids: Int[Tensor, "N T"]
    mask: Bool[Tensor, "N T"]
    logp_sampler: Float[Tensor, "N T"]
    rewards: Float[Tensor, " N"]
    groups: Int[Tensor, " N"]
    finished: Bool[Tensor, " N"]
    versions: Int[Tensor, "N T"]
    token_rewards: Float[Tensor, "N T"] | None = None
    greedy_rewards: Float[Tensor, " N"] | None = None

    def __len__(self) -> int:
        return self.ids.shape[0]

    def to(self, device: torch.device | str) -> Self:
        """The same on another device."""
        return self._map(lambda tensor: tensor.to(device))

    def select(self, rows: Int[Tensor, " R"]) -> Self:
        """The given rows, with columns that are padding in all of them cut off."""
        width = int(lengths_of(self.mask[rows]).max().clamp(min=1))
        return self._map(
            lambda tensor: tensor[rows] if tensor.ndim == 1 else tensor[rows][:, :width]
        )

    def prepared(self, **computed: Any) -> "TrainBatch":
        """The `TrainBatch` with these tensors besides; the sampler's log-probs are the old ones."""
        return TrainBatch(**{"logp_old": self.logp_sampler} | vars(self) | computed)

    def _map(self, change: Callable[[Tensor], Tensor]) -> Self:
        tensors = {name: change(t) for name, t in vars(self).items() if t is not None}
        return replace(self, **tensors)


@dataclass(frozen=True, kw_only=True)
class TrainBatch(SampledBatch):
    """A `SampledBatch` with all that the loss needs; the method may have taken tokens off its mask.

    `logp_old` are the log-probabilities the ratio is taken to; `advantages` (N,) or (N, T). The
    others are None where the method has no use for them: `logp_ref` under the reference,
    `values_old` and `returns` for a critic, `correction` the weight of the sampler's tokens,
    `staleness` the updates between a token's sampling and its training, `topk_ids` and
    `topk_logp_old` (N, T, K+1) the tokens over which a divergence is taken, `selected` the tokens
    that the method's selection picked, `imitated` what those of right answers weigh.
    """

    logp_old: Float[Tensor, "N T"]
    advantages: Tensor
    logp_ref: Float[Tensor, "N T"] | None = None
    values_old: Float[Tensor, "N T"] | None = None
    returns: Float[Tensor, "N T"] | None = None
    correction: Float[Tensor, "N T"] | None = None
    staleness: Int[Tensor, "N T"] | None = None
    topk_ids: Int[Tensor, "N T K"] | None = None
    topk_logp_old: Float[Tensor, "N T K"] | None = None
    selected: Bool[Tensor, "N T"] | None = None
    imitated: Float[Tensor, "N T"] | None = None

    @property
    def total_rewards(self) -> Float[Tensor, " N"]:
        """What each completion earned, the rewards per token included."""
        dense = self.token_rewards
        return self.rewards if dense is None else self.rewards + dense.sum(1)


def collate(rollouts: Sequence[Rollout], pad_id: int = 0) -> SampledBatch:
    """Rollouts as right-padded tensors, prompt and completion contiguous from column 0."""
    if not rollouts:
        raise ValueError("collate needs at least one rollout")
    n, width = len(rollouts), max(len(r.prompt_ids) + r.length for r in rollouts)
    ids = torch.full((n, width), pad_id)
    mask = torch.zeros(n, width, dtype=torch.bool)
    logps, dense = torch.zeros(2, n, width)
    versions = torch.zeros(n, width, dtype=torch.long)
    greedy = [r.greedy_reward for r in rollouts]
    for row, r in enumerate(rollouts):
        start, stop = len(r.prompt_ids), len(r.prompt_ids) + r.length
        ids[row, :stop] = torch.tensor([*r.prompt_ids, *r.token_ids])
        mask[row, start:stop] = ~torch.tensor(r.forced) if r.forced else True
        logps[row, start:stop] = torch.tensor(r.logps)
        versions[row, start:stop] = torch.tensor(r.versions)
        for part in r.token_rewards.values():
            dense[row, start:stop] += torch.tensor(part)
    return SampledBatch(
        ids,
        mask,
        logps,
        rewards=torch.tensor([float(sum(r.rewards.values())) for r in rollouts]),
        groups=torch.tensor([r.group for r in rollouts]),
        finished=torch.tensor([not r.truncated for r in rollouts]),
        versions=versions,
        token_rewards=dense if any(r.token_rewards for r in rollouts) else None,
        greedy_rewards=None if None in greedy else torch.tensor(greedy),
    )


def lengths_of(mask: Bool[Tensor, "N T"]) -> Int[Tensor, " N"]:
    """Columns up to and including each row's last trained token; 0 for an empty row."""
    columns = torch.arange(1, mask.shape[1] + 1, device=mask.device)
    return (mask * columns).amax(dim=1)


def micro_batch_rows(batch: SampledBatch, max_tokens: int) -> Iterator[Int[Tensor, " R"]]:
    """Row indices of slices of similar length, each at most `max_tokens` padded (one row at least).

    Sorting by length removes most padding; the summed gradient does not depend on the slicing
    because the loss is divided by the totals of the whole minibatch. A batch that fits in one
    slice keeps its order.
    """
    lengths = lengths_of(batch.mask)
    if len(lengths) * int(lengths.max()) <= max_tokens:
        yield torch.arange(len(lengths), device=lengths.device)
        return
    order = torch.argsort(lengths, stable=True)
    for start, stop in pack(lengths[order].tolist(), max_tokens):
        yield order[start:stop]


def pack(lengths: Sequence[int], max_tokens: int) -> list[tuple[int, int]]:
    """Ranges of ascending lengths, filled in order, of at most `max_tokens` padded each."""
    ranges, start = [], 0
    for stop in range(1, len(lengths) + 1):
        if stop == len(lengths) or (stop + 1 - start) * lengths[stop] > max_tokens:
            ranges.append((start, stop))
            start = stop
    return ranges


def balance(lengths: Sequence[int], ranks: int, max_tokens: int) -> list[list[list[int]]]:
    """Rows of every rank's micro-batches, `balance(…)[rank][i]`; the same number of them per rank.

    Ranks wait for each other in every micro-batch, so those that run at the same time are alike:
    neighbours by length, cut by the smallest token budget that needs no further round. A rank for
    which nothing is left in a round has no rows in it.
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    ascending = [lengths[row] for row in order]
    rounds = -(-len(pack(ascending, max_tokens)) // ranks)

    def suffices(budget: int) -> bool:
        return len(pack(ascending, budget)) <= rounds * ranks

    budget = bisect_left(range(max_tokens), True, key=suffices)
    slices = [order[start:stop] for start, stop in pack(ascending, budget)]
    slices += [[]] * (rounds * ranks - len(slices))
    return [slices[rank::ranks] for rank in range(ranks)]


def minibatches(batch: TrainBatch, count: int, seed: int) -> Iterator[TrainBatch]:
    """Shuffled minibatches of whole groups, as equal in number of groups as `count` allows.

    Raises `ValueError` if there are fewer groups than minibatches.
    """
    group_ids = batch.groups.unique()
    if len(group_ids) < count:
        raise ValueError(
            f"{count} minibatches need at least {count} prompts with rollouts; "
            f"this batch has {len(group_ids)}: lower `minibatches` or raise `prompts`"
        )
    order = torch.randperm(len(group_ids), generator=torch.Generator().manual_seed(seed))
    for part in group_ids[order].tensor_split(count):
        yield batch.select(torch.isin(batch.groups, part).nonzero().squeeze(1))
