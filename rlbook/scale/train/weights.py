"""How weights travel from the trainer to a generator: one class per transport.

Nothing is ever whole on a rank but a tensor at a time. Gathering it takes all ranks: while rank 0
sends, the others `follow`.
"""

import asyncio
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

from rlbook.durable import publish_folder
from rlbook.policy.adapters import adapter_weights, plain_weights, save_adapter
from rlbook.scale.config import ScaleConfig
from rlbook.scale.generate.client import GeneratorClient
from rlbook.scale.generate.protocol import TRANSFER, GenerationFailed, RequestRefused
from rlbook.scale.generate.vllm_adapter import takes_adapters
from rlbook.scale.layout import Layout
from rlbook.scale.plan.budget import PUSH_BUFFER
from rlbook.scale.process import free_port, own_host
from rlbook.scale.train.parallel import Ranks
from rlbook.training.step import full_tensor

FILE_BYTES = 2 * 2**30  # of weights in one file: as much of the host's memory is taken


class Transport:
    """A policy's weights, tensor by tensor. Subclasses `send` them to generators, on rank 0."""

    turn: AbstractAsyncContextManager = nullcontext()  # to be held by whoever sends

    def __init__(self, config: ScaleConfig, layout: Layout, ranks: Ranks, policy: PreTrainedModel):
        self.dtype = getattr(torch, str(config.generate.dtype))
        self.adapter = takes_adapters(config)  # they travel alone
        self.width = config.generate.tensor_parallel
        self.layout, self.ranks, self.policy = layout, ranks, policy

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        self.ranks.share(True)
        return self.tensors(self.ranks.alive)

    def tensors(self, alive: Callable[[], None] = lambda: None) -> Iterator[tuple[str, Tensor]]:
        """What generators lack: all weights, or the adapter's."""
        if self.adapter:
            return own_weights(self.policy, torch.float32, alive)
        return whole_tensors(self.policy, self.dtype, alive)

    def prepare(self, version: int) -> None:
        """What can be done once for a version, while generators still write."""

    def follow(self) -> None:
        """What the other ranks do until rank 0 shares False: gather along, as often as it does."""
        while self.ranks.share():
            for _ in self.tensors():
                pass


class FileTransport(Transport):
    """A folder of safetensors that the generators read; needs a file system they share."""

    written: int | None = None  # version

    def prepare(self, version: int) -> None:
        """Publish the folder. Raises what keeps it from being written, such as a full disk."""
        if self.written == version:
            return
        self.folder, tensors = self.layout.version(version), iter(self)
        try:
            publish_folder(self.folder, partial(self.write, tensors), durable=False)
        finally:
            for _ in tensors:  # the other ranks wait in it
                pass
        self.written = version
        others = set(self.layout.weights.glob("v*")) - {self.folder}
        before = sorted(others, key=lambda folder: folder.stat().st_mtime)[-1:]  # may be being read
        for old in set(self.layout.weights.iterdir()) - {self.folder, *before}:
            shutil.rmtree(old, ignore_errors=True)

    def write(self, tensors: Iterator[tuple[str, Tensor]], folder: Path) -> None:
        """Fill the folder."""
        if self.adapter:
            save_adapter(self.policy, folder, {name: t.cpu() for name, t in tensors})
        else:
            write_files(tensors, folder)

    async def send(self, client: GeneratorClient, fresh: bool) -> None:
        """Have a paused generator load the folder."""
        folder = str(self.folder.resolve())
        await (client.load_adapter(folder, fresh) if self.adapter else client.reload(folder))


class NCCLTransport(Transport):
    """From GPU to GPU, by vLLM's own engines on both sides; they have not run yet: no GPU.

    A process group of rank 0 and one generator's workers, so that one that is started again
    disturbs no other; the group of the process before it is closed at both ends. Every transfer
    gathers the weights once more, so that no GPU ever holds them all: to vLLM's engine this is the
    source of the weights (its `WeightSource`).

    NCCL has no time limit, and a kernel that waits for a dead peer cannot be called back. A
    transfer that fails or takes too long therefore ends this rank. The launcher starts the trainer
    again, and the batches since its checkpoint are trained once more, from the log.
    """

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.engines: dict[str, Any] = {}  # by the generator's name: its URL may change
        self.turn = asyncio.Lock()  # one pass over the weights at a time

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        return gathered_first(super().__iter__(), self.ranks.device)

    def metadata(self) -> list:
        """Name, dtype and shape of every tensor that will come."""
        from vllm.distributed.weight_transfer import ParamMeta

        state = self.policy.state_dict()
        return [ParamMeta(name, self.dtype, tuple(tensor.shape)) for name, tensor in state.items()]

    async def send(self, client: GeneratorClient, fresh: bool) -> None:
        """Send all to a paused generator; one that is `fresh` first has to join a process group."""
        routes, name = routes_of(client, asyncio.get_running_loop()), client.name
        if fresh:
            with suppress(GenerationFailed, RequestRefused):  # of a trainer that has died since
                await client.transfer("shutdown_weight_transfer_engine")

        def transfer() -> None:
            if self.ranks.device.type == "cuda":
                torch.cuda.set_device(self.ranks.device)  # a property of the thread
                torch.cuda.synchronize()  # vLLM packs on streams of its own
            if fresh and (old := self.engines.pop(name, None)):
                old.shutdown()  # vLLM waits some seconds at most for a peer that is gone
            if name not in self.engines:
                self.engines[name] = self.meet(routes)
            self.engines[name].send_weights()

        try:
            await asyncio.to_thread(transfer)
        except (Exception, asyncio.CancelledError) as error:
            end_rank(client, error)

    def meet(self, routes: SimpleNamespace) -> Any:
        """vLLM's trainer-side engine, once the generator's workers have joined its group."""
        from vllm.distributed.weight_transfer import WeightTransferTrainerFactory
        from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

        host = own_host()
        where = NCCLTrainerInitInfo(host, free_port(host), 1 + self.width, rank=0)
        return WeightTransferTrainerFactory.trainer_init(where, client=routes, source=self)


def routes_of(client: GeneratorClient, loop: asyncio.AbstractEventLoop) -> SimpleNamespace:
    """A generator's routes of a transfer, for vLLM's engine, which asks from its own threads."""

    def ask(step: str, *information: dict) -> None:
        try:
            told = dict(zip(TRANSFER[step], information, strict=True))
            asyncio.run_coroutine_threadsafe(client.transfer(step, **told), loop).result()
        except Exception as error:  # whoever waits in NCCL would never hear of it
            end_rank(client, error)

    return SimpleNamespace(**{step: partial(ask, step) for step in TRANSFER})


def end_rank(client: GeneratorClient, error: BaseException) -> NoReturn:
    """End this process at once, whatever its GPU and its threads wait for."""
    reason = str(error) or "time limit"
    print(f"trainer: the transfer to {client.url} failed ({reason})", file=sys.stderr, flush=True)
    os._exit(1)


def whole_tensors(
    policy: PreTrainedModel, dtype: torch.dtype, alive: Callable[[], None] = lambda: None
) -> Iterator[tuple[str, Tensor]]:
    """All tensors, whole, one after the other, under their Hugging Face names; collective.

    They travel in the generators' dtype already, adapters merged. A tied head comes with a name of
    its own: vLLM on a CPU packs the head's weights and would keep the old ones otherwise.
    """
    for name, tensor in plain_weights(policy, dtype, full_tensor):
        alive()
        yield name, tensor.contiguous()


def own_weights(
    policy: PreTrainedModel, dtype: torch.dtype, alive: Callable[[], None] = lambda: None
) -> Iterator[tuple[str, Tensor]]:
    """The tensors of the policy's adapter alone, whole, or, where it has none, `whole_tensors`."""
    adapter = adapter_weights(policy)
    if not adapter:
        yield from whole_tensors(policy, dtype, alive)
    for name, tensor in adapter.items():
        alive()
        yield name, full_tensor(tensor.detach()).contiguous()


def gathered_first(
    tensors: Iterator[tuple[str, Tensor]], device: torch.device
) -> Iterator[tuple[str, Tensor]]:
    """The same, `PUSH_BUFFER` bytes at a time, gathered before the first of them is handed over.

    Whoever asks may be inside a stream of his own, as vLLM is when it fills its buffers. A gather
    enqueued there is in another order than on the other ranks, between the broadcasts of another
    communicator: so two of them wait for each other. Here every gather is on the default stream,
    and over.
    """
    gpu, ended = device.type == "cuda", False
    while not ended:
        chunk, size = [], 0
        with torch.cuda.stream(torch.cuda.default_stream(device)) if gpu else nullcontext():
            while size < PUSH_BUFFER and not ended:
                if (pair := next(tensors, None)) is None:
                    ended = True
                else:
                    chunk.append(pair)
                    size += pair[1].nbytes
            if gpu:
                torch.cuda.default_stream(device).synchronize()
        for name, tensor in chunk:
            if gpu:  # else the next gather gets its memory too soon
                tensor.record_stream(torch.cuda.current_stream(device))
            yield name, tensor


def write_files(tensors: Iterator[tuple[str, Tensor]], folder: Path) -> None:
    """Fill a folder with safetensors; a file is written as soon as `FILE_BYTES` are together."""
    part: dict[str, Tensor] = {}
    written = size = 0
    for name, tensor in tensors:
        part[name] = tensor.to("cpu", copy=True)
        size += tensor.nbytes
        if size >= FILE_BYTES:
            save_file(part, folder / f"model-{written:05d}.safetensors")
            part, size, written = {}, 0, written + 1
    if part:
        save_file(part, folder / f"model-{written:05d}.safetensors")
