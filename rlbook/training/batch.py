"""Rollouts: what was sampled, from which policy, and what it earned."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rlbook.tasks import Problem


@dataclass
class Rollout:
    """One completion with its full provenance.

    `logps[t]` is the behaviour policy's log-probability of `token_ids[t]`; `versions[t]` is the
    number of optimizer steps its weights had taken. `rewards` keeps the reward's parts by name.
    `forced[t]` marks a token that was put there, not sampled: it is context, never trained on.
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
    forced: list[bool] | None = None

    @property
    def reward(self) -> float:
        """Sum of the reward's parts."""
        return float(sum(self.rewards.values()))

    @property
    def length(self) -> int:
        """Completion length in tokens, the EOS included."""
        return len(self.token_ids)

    @property
    def truncated(self) -> bool:
        return self.finish_reason == "length"


@dataclass
class Batch:
    """Right-padded tensors of N rollouts; every (N, T) tensor is aligned to the token itself.

    `mask` is True on trained completion tokens; `logp_old` holds the anchor's log-probabilities;
    `advantages` is (N,) or (N, T). Optional fields are None when the method has no use for them:
    `lag` counts the updates between a token's sampling and its training; `logp_sampler` are the
    sampler's log-probabilities where the anchor is another, `correction` the weight for that.
    """

    ids: Int[Tensor, "N T"]
    mask: Bool[Tensor, "N T"]
    logp_old: Float[Tensor, "N T"]
    rewards: Float[Tensor, " N"]
    groups: Int[Tensor, " N"]
    advantages: Tensor | None = None
    logp_ref: Float[Tensor, "N T"] | None = None
    values_old: Float[Tensor, "N T"] | None = None
    returns: Float[Tensor, "N T"] | None = None
    lag: Int[Tensor, "N T"] | None = None
    logp_sampler: Float[Tensor, "N T"] | None = None
    correction: Float[Tensor, "N T"] | None = None

    def __len__(self) -> int:
        return self.ids.shape[0]

    def to(self, device) -> "Batch":
        return self._map(lambda tensor: tensor.to(device))

    def select(self, rows: Tensor) -> "Batch":
        """The given rows, with columns that are padding in all of them cut off."""
        width = int(lengths_of(self.mask[rows]).max().clamp(min=1))
        return self._map(
            lambda tensor: tensor[rows][..., :width] if tensor.ndim == 2 else tensor[rows]
        )

    def _map(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        present = {f.name: getattr(self, f.name) for f in fields(self)}
        return Batch(**{name: t if t is None else change(t) for name, t in present.items()})


def collate(rollouts: Sequence[Rollout], pad_id: int = 0) -> Batch:
    """Rollouts as right-padded tensors, prompt and completion contiguous from column 0."""
    if not rollouts:
        raise ValueError("collate needs at least one rollout")
    n, width = len(rollouts), max(len(r.prompt_ids) + r.length for r in rollouts)
    ids = torch.full((n, width), pad_id)
    mask = torch.zeros(n, width, dtype=torch.bool)
    logp_old = torch.zeros(n, width)
    for row, r in enumerate(rollouts):
        start, stop = len(r.prompt_ids), len(r.prompt_ids) + r.length
        ids[row, :stop] = torch.tensor(r.prompt_ids + r.token_ids)
        mask[row, start:stop] = ~torch.tensor(r.forced) if r.forced else True
        logp_old[row, start:stop] = torch.tensor(r.logps)
    rewards = torch.tensor([r.reward for r in rollouts])
    return Batch(ids, mask, logp_old, rewards, torch.tensor([r.group for r in rollouts]))


def lengths_of(mask: Bool[Tensor, "N T"]) -> Int[Tensor, " N"]:
    """Columns up to and including each row's last trained token; 0 for an empty row."""
    columns = torch.arange(1, mask.shape[1] + 1, device=mask.device)
    return (mask * columns).amax(dim=1)


def lags_of(rollouts: Sequence[Rollout], version: int, like: Tensor) -> Int[Tensor, "N T"]:
    """Updates between each token's sampling and its training at `version`, in the shape of `like`.

    0 outside completions.
    """
    lags = torch.zeros(like.shape, dtype=torch.int64)
    for row, r in enumerate(rollouts):
        start, stop = len(r.prompt_ids), len(r.prompt_ids) + r.length
        lags[row, start:stop] = version - torch.tensor(r.versions)
    return lags.to(like.device)


def micro_batch_rows(batch: Batch, max_tokens: int) -> Iterator[Tensor]:
    """Row indices of slices of similar length, each at most `max_tokens` padded (one row at least).

    Sorting by length removes most padding; the summed gradient does not depend on the slicing
    because the loss is divided by the totals of the whole minibatch.
    """
    lengths = lengths_of(batch.mask)
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


def minibatches(batch: Batch, count: int, generator: torch.Generator) -> Iterator[Batch]:
    """Shuffled minibatches of whole groups, as equal in number of groups as `count` allows.

    Raises `ValueError` if there are fewer groups than minibatches.
    """
    group_ids = batch.groups.unique()
    if len(group_ids) < count:
        raise ValueError(
            f"{count} minibatches need at least {count} prompts with rollouts; "
            f"this batch has {len(group_ids)}: lower `minibatches` or raise `prompts`"
        )
    shuffled = group_ids[torch.randperm(len(group_ids), generator=generator)]
    for part in shuffled.tensor_split(count):
        yield batch.select(torch.isin(batch.groups, part).nonzero().squeeze(1))
