"""The trainer's processes: what each keeps, what each runs, what they tell each other."""

import os
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from rlbook.scale.config import TrainConfig
from rlbook.training.batch import lengths_of, pack
from rlbook.training.forward import AnyBatch, LocalProcess, Rows

TENSOR_LIMIT = timedelta(minutes=10)  # a collective on GPUs that takes longer never ends
WORD_LIMIT = timedelta(hours=1)  # rank 0 may send weights for minutes while the others wait
Result = TypeVar("Result")


class Ranks(LocalProcess):
    """The processes that the launcher started, or this one alone; `parallel` for `train_step`.

    Every rank holds the whole batch and runs its own micro-batches. All methods are collective:
    every rank calls them, in the same order. With `accumulate` gradients stay whole on each rank
    until the last micro-batch of an update: they are summed over ranks once. Chapter 17.
    """

    def __init__(self, device: str = "cpu", accumulate: bool = False):
        join_process_group(device)
        self.rank, self.count = dist.get_rank(), dist.get_world_size()
        self.first = self.rank == 0
        self.words = dist.new_group(backend="gloo", timeout=WORD_LIMIT)
        self.mesh = init_device_mesh(device, (self.count,))
        self.device = torch.device(device)
        if device == "cuda":
            self.device = torch.device("cuda", torch.cuda.current_device())
        self.accumulate, self.last = accumulate, True
        self.alive: Callable[[], None] = lambda: None  # called again and again in whatever is long
        # The same numbers; a sharded parameter costs more to call than to update.
        self.optimizer_options = {"fused" if device == "cuda" else "foreach": True}

    def micro_batches(self, batch: AnyBatch, max_tokens: int) -> Iterator[tuple[Rows, AnyBatch]]:
        """This rank's micro-batches; every rank has the same number of them.

        One rank alone takes those of any single process, so that both make the same weights.
        """
        parts = list(super().micro_batches(batch, max_tokens))
        if self.count > 1:
            own = plan(lengths_of(batch.mask).tolist(), self.count, max_tokens)[self.rank]
            parts = [(torch.tensor(rows, dtype=torch.int64), select(batch, rows)) for rows in own]
        for number, part in enumerate(parts, 1):
            self.alive()
            self.last = number == len(parts)
            yield part

    def call(
        self, score: Callable[..., Result], model: nn.Module, *arguments: object, **how: object
    ) -> Result:
        """`score` of the policy that is in a `ScoredPolicy`."""
        if self.accumulate:
            cast(FSDPModule, model).set_requires_gradient_sync(self.last)
        return model(score, *arguments, **how)

    def whole(self, model: nn.Module, part: Tensor) -> Tensor:
        """The sum of all ranks' parts; the model is sharded again."""
        dist.all_reduce(part)
        # What a forward pass without backward leaves gathered would go stale.
        cast(FSDPModule, model).reshard()
        return part

    def gather(self, parts: list[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
        """The sums of all ranks' micro-batches, in float64."""
        names = list(parts[0])
        own = torch.stack([torch.stack([part[n].double() for n in names]) for part in parts]).cpu()
        everyone = [torch.empty_like(own) for _ in range(self.count)]
        dist.all_gather(everyone, own)
        return [dict(zip(names, row, strict=True)) for row in torch.cat(everyone)]

    def share(self, value: Any = None) -> Any:
        """The value of the first rank, on all of them; the others' values do not count."""
        shared = [value]
        dist.broadcast_object_list(shared, group=self.words)
        return shared[0]

    def collect(self, value: Any) -> list:
        """The values of all ranks."""
        found = [None] * self.count
        dist.all_gather_object(found, value, self.words)
        return found

    def all(self, fine: bool) -> bool:
        """Whether it is fine on every rank."""
        return all(self.collect(fine))


class ScoredPolicy(nn.Module):
    """A language model whose forward pass scores tokens.

    FSDP gathers a module's weights around its forward pass. The head's weight is used outside the
    language model's own, hence this module around both.
    """

    def __init__(self, policy: PreTrainedModel, fp32_head: bool = True):
        super().__init__()
        self.policy, self.fp32_head = policy, fp32_head

    def forward(self, score: Callable[..., Result], *arguments: Any, **how: Any) -> Result:
        """`score(policy, …)`, such as `token_stats`."""
        return score(self.policy, *arguments, fp32_head=self.fp32_head, **how)


def shard(policy: PreTrainedModel, mesh: DeviceMesh, config: TrainConfig) -> ScoredPolicy:
    """Spread a policy over the ranks (FSDP2), layer by layer; the model itself is changed.

    Master weights and gradients stay float32; with `dtype` bfloat16 layers compute in it.
    Gradients are summed over ranks, not averaged: the loss is divided by the totals of the whole
    batch already.
    """
    precision = MixedPrecisionPolicy()
    if config.dtype == "bfloat16":
        precision = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    scored = ScoredPolicy(policy, config.fp32_head)
    for layer in layers_of(policy):
        if config.activation_checkpointing:
            layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
        fully_shard(layer, mesh=mesh, mp_policy=precision)
    fully_shard(scored, mesh=mesh, mp_policy=precision)
    for module in scored.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    return scored


def layers_of(policy: PreTrainedModel) -> nn.ModuleList:
    """The decoder layers: the outermost list of modules."""
    return next(m for m in policy.base_model.modules() if isinstance(m, nn.ModuleList))


def plan(lengths: Sequence[int], ranks: int, max_tokens: int) -> list[list[list[int]]]:
    """Rows of every rank's micro-batches, `plan(…)[rank][i]`; the same number of them per rank.

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


def select(batch: AnyBatch, rows: list[int]) -> AnyBatch:
    """The given rows; without any, one row with nothing to train, so that the rank takes part."""
    if rows:
        return batch.select(torch.tensor(rows, device=batch.ids.device))
    nothing = replace(batch, mask=torch.zeros_like(batch.mask))
    return nothing.select(torch.tensor([0], device=batch.ids.device))


def join_process_group(device: str) -> None:
    """Meet the ranks that the environment names, as for torchrun; without any, be the only one."""
    if dist.is_initialized():
        return
    backend = "gloo"
    if device == "cuda":
        os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
        backend = "cpu:gloo,cuda:nccl"
    alone: dict[str, Any] = (
        {} if "RANK" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    )
    dist.init_process_group(backend, timeout=TENSOR_LIMIT, **alone)
