"""The trainer's processes: what each keeps, what each runs, what they tell each other."""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, Concatenate, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import fsdp
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from rlbook.scale.config import TrainConfig
from rlbook.training.batch import balance, lengths_of
from rlbook.training.parallel import AnyBatch, Arguments, LocalProcess, Result, Rows

TENSOR_LIMIT = timedelta(minutes=10)  # a collective on GPUs that takes longer never ends
WORD_LIMIT = timedelta(hours=1)  # rank 0 may send weights for minutes while the others wait


class Ranks(LocalProcess):
    """The processes that the launcher started, or this one alone; `parallel` for `train_step`.

    Every rank holds the whole batch and runs its own micro-batches. All methods are collective:
    every rank calls them, in the same order. Weights are spread over `shard` ranks, or all; there
    are as many copies of them as there are such groups. With `accumulate` gradients are summed over
    ranks once, after the last micro-batch of an update: until then they stay whole on each rank,
    or, where there are copies, in its group. Chapter 18.
    """

    def __init__(self, device: str = "cpu", accumulate: bool = False, shard: int | None = None):
        if not dist.is_initialized():
            join_process_group(device)
        self.rank, self.count = dist.get_rank(), dist.get_world_size()
        self.first = self.rank == 0
        self.words = dist.new_group(backend="gloo", timeout=WORD_LIMIT)
        self.background = dist.new_group(backend="gloo", timeout=WORD_LIMIT)  # of other threads
        self.shards = shard or self.count
        sizes = {"copies": self.count // self.shards, "shards": self.shards}
        if self.shards == self.count:
            del sizes["copies"]
        self.mesh = init_device_mesh(device, (*sizes.values(),), mesh_dim_names=(*sizes,))
        self.device = torch.device(device)
        if device == "cuda":
            self.device = torch.device("cuda", torch.cuda.current_device())
        self.accumulate, self.last = accumulate, True
        self.alive: Callable[[], None] = lambda: None  # called again and again in whatever is long
        # Both give the same numbers; a fused step pays for every sharded tensor it is called with.
        self.optimizer_options = {"fused" if device == "cuda" else "foreach": True}

    def micro_batches(self, batch: AnyBatch, max_tokens: int) -> Iterator[tuple[Rows, AnyBatch]]:
        """This rank's micro-batches; every rank has the same number of them.

        One rank alone takes those of any single process, so that both make the same weights. A rank
        for which no rows are left takes part with one that has nothing to train.
        """
        parts = list(super().micro_batches(batch, max_tokens))
        if self.count > 1:
            own = balance(lengths_of(batch.mask).tolist(), self.count, max_tokens)[self.rank]
            numbers = [torch.tensor(rows, dtype=torch.int64) for rows in own]
            nothing = replace(batch, mask=torch.zeros_like(batch.mask)).select(torch.tensor([0]))
            parts = [(rows, batch.select(rows) if len(rows) else nothing) for rows in numbers]
        for number, part in enumerate(parts, 1):
            self.alive()
            self.last = number == len(parts)
            yield part

    def call(
        self,
        score: Callable[Concatenate[Any, Arguments], Result],
        model: nn.Module,
        *arguments: Arguments.args,
        **options: Arguments.kwargs,
    ) -> Result:
        """`score` of a policy that is spread over the ranks."""
        if self.accumulate:
            sharded = cast(fsdp.FSDPModule, model)
            copies = self.shards < self.count
            sums = sharded.set_requires_all_reduce if copies else sharded.set_requires_gradient_sync
            sums(self.last)
        return cast(Result, cast(Any, model).score(score, *arguments, **options))

    def whole(self, model: nn.Module, part: Tensor) -> Tensor:
        """The sum of all ranks' parts; the model is sharded again."""
        dist.all_reduce(part)
        # What a forward pass without backward leaves gathered would go stale.
        cast(fsdp.FSDPModule, model).reshard()
        return part

    def gather(self, parts: list[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
        """The sums of all ranks' micro-batches, in float64."""
        names = list(parts[0])
        own = torch.stack([torch.stack([part[n].double() for n in names]) for part in parts]).cpu()
        everyone = [torch.empty_like(own) for _ in range(self.count)]
        dist.all_gather(everyone, own)
        return [dict(zip(names, row, strict=True)) for row in torch.cat(everyone)]

    def share(self, value: Any = None, group: dist.ProcessGroup | None = None) -> Any:
        """The value of the first rank, on all of them; the others' values do not count."""
        shared = [value]
        dist.broadcast_object_list(shared, group=group or self.words)
        return shared[0]

    def collect(self, value: Any, group: dist.ProcessGroup | None = None) -> list:
        """The values of all ranks."""
        found = [None] * self.count
        dist.all_gather_object(found, value, group or self.words)
        return found


def shard(policy: PreTrainedModel, mesh: DeviceMesh, config: TrainConfig) -> None:
    """Spread a policy over the ranks (FSDP2), layer by layer; `policy.score` scores tokens with it.

    Master weights and gradients stay float32; with `dtype` bfloat16 layers compute in it.
    Gradients are summed over ranks, not averaged: the loss is divided by the totals of the whole
    batch already. FSDP gathers weights around a forward pass: scores use the head's beside that.
    """
    precision = fsdp.MixedPrecisionPolicy()
    if config.dtype == "bfloat16":
        precision = fsdp.MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    layers = next(m for m in policy.base_model.modules() if isinstance(m, nn.ModuleList))
    cast(Any, policy).compiled_head = config.compile_head
    for layer in layers:
        if config.compile_layers:  # what FSDP does around a layer stays as it is
            layer.forward = torch.compile(layer.forward, dynamic=True)
        if config.activation_checkpointing:
            layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
        fsdp.fully_shard(layer, mesh=mesh, mp_policy=precision)
    fsdp.fully_shard(policy, mesh=mesh, mp_policy=precision)
    for module in policy.modules():
        if isinstance(module, fsdp.FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)

    def score(function: Callable[..., Result], *arguments: Any, **options: Any) -> Result:
        return function(policy, *arguments, fp32_head=config.fp32_head, **options)

    cast(Any, policy).score = score
    fsdp.register_fsdp_forward_method(policy, "score")


def join_process_group(device: str, limit: timedelta = TENSOR_LIMIT) -> None:
    """Meet the ranks that the environment names, as for torchrun; without any, be the only one."""
    alone: Any = {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    backend = "gloo"
    if device == "cuda":
        os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
        backend = "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend, timeout=limit, **({} if "RANK" in os.environ else alone))
