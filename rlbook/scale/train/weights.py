"""How weights travel from the trainer to a generator: one class per transport.

Nothing is ever whole on a rank but a tensor at a time. Gathering it takes all ranks: while rank 0
sends, the others `follow`.
"""

import asyncio
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
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
        return whole_tensors(self.policy, self.dtype, self.adapter, alive)

    def prepare(self, version: int) -> None:
        """What can be done once for a version, while generators still write."""

    def expect(self, clients: Sequence[GeneratorClient]) -> None:
        """To these the weights will be sent; each of them may `leave` instead."""

    def leave(self, client: GeneratorClient) -> None:
        """It cannot be sent anything now."""

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

    A process group of rank 0 and the workers of all generators that lack a version: it is gathered
    and sent once. Who is started again, or left out of a transfer, makes another group necessary;
    the one before is closed at both ends. Weights are gathered as they go, so that no GPU ever
    holds them all: to vLLM's engine this is the source of the weights (its `WeightSource`).

    NCCL has no time limit, and a kernel that waits for a dead peer cannot be called back. A
    transfer that fails or takes too long therefore ends this rank. The launcher starts the trainer
    again, and the batches since its checkpoint are trained once more, from the log.
    """

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.engine: Any = None
        self.members: list[str] = []  # URLs of the group's generators
        self.awaited: set[str] = set()  # names of those who will be part of the next transfer
        self.ready: dict[str, tuple[GeneratorClient, bool]] = {}  # paused; whether it is fresh
        self.begun = asyncio.Event()
        self.transfer: asyncio.Future[None]

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        return gathered_first(super().__iter__(), self.ranks.device)

    def metadata(self) -> list:
        """Name, dtype and shape of every tensor that will come."""
        from vllm.distributed.weight_transfer import ParamMeta

        state = self.policy.state_dict()
        return [ParamMeta(name, self.dtype, tuple(tensor.shape)) for name, tensor in state.items()]

    def expect(self, clients: Sequence[GeneratorClient]) -> None:
        """All of these are to be paused before the weights go to any, unless one has to `leave`."""
        self.awaited, self.ready = {client.name for client in clients}, {}
        self.begun = asyncio.Event()

    def leave(self, client: GeneratorClient) -> None:
        """Nobody waits for it; without effect once the weights are on their way."""
        if not self.begun.is_set():
            self.ready.pop(client.name, None)
            self.awaited.discard(client.name)
            self.begin()

    def begin(self) -> None:
        """Start the transfer if all who are awaited are there."""
        if self.ready and self.ready.keys() == self.awaited:
            self.transfer = asyncio.ensure_future(self.send_all())
            self.begun.set()

    async def send(self, client: GeneratorClient, fresh: bool) -> None:
        """Send all to a paused generator, as soon as the others are; one may be `fresh`."""
        self.ready[client.name] = client, fresh
        self.begin()
        await self.begun.wait()
        try:
            await asyncio.shield(self.transfer)
        except asyncio.CancelledError as error:
            end_rank([client], error)

    async def send_all(self) -> None:
        """Send all to those who are ready; if they are no group yet, they first make one."""
        clients = [self.ready[name][0] for name in sorted(self.ready)]
        urls = [client.url for client in clients]
        new = urls != self.members or any(fresh for _, fresh in self.ready.values())
        for client in clients if new else ():
            with suppress(GenerationFailed, RequestRefused):  # it has none, or a dead trainer's
                await client.transfer("shutdown_weight_transfer_engine")
        routes = routes_of(clients, self.width, asyncio.get_running_loop())

        def transfer() -> None:
            if self.ranks.device.type == "cuda":
                torch.cuda.set_device(self.ranks.device)  # a property of the thread
                torch.cuda.synchronize()  # vLLM packs on streams of its own
            if new and self.engine:
                self.engine.shutdown()  # vLLM waits some seconds at most for a peer that is gone
            if new:
                self.engine, self.members = self.meet(routes, len(clients)), urls
            self.engine.send_weights()

        try:
            await asyncio.to_thread(transfer)
        except Exception as error:
            end_rank(clients, error)

    def meet(self, routes: SimpleNamespace, generators: int) -> Any:
        """vLLM's trainer-side engine, once all the generators' workers have joined its group."""
        from vllm.distributed.weight_transfer import WeightTransferTrainerFactory
        from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

        host, size = own_host(), 1 + generators * self.width
        where = NCCLTrainerInitInfo(host, free_port(host), size, rank=0)
        return WeightTransferTrainerFactory.trainer_init(where, client=routes, source=self)


def routes_of(
    clients: Sequence[GeneratorClient], width: int, loop: asyncio.AbstractEventLoop
) -> SimpleNamespace:
    """All generators' routes of a transfer as vLLM's engine asks one's, from its own threads.

    The engine gives the first worker rank 1 of the group; every generator has `width` of them.
    """

    async def ask_all(step: str, *information: dict) -> None:
        steps = []
        for number, client in enumerate(clients):
            own = [
                {**one, "rank_offset": one["rank_offset"] + number * width}
                if "rank_offset" in one
                else one
                for one in information
            ]
            steps.append(client.transfer(step, **dict(zip(TRANSFER[step], own, strict=True))))
        await asyncio.gather(*steps)  # the first that fails: others may wait for it in NCCL

    def ask(step: str, *information: dict) -> None:
        try:
            asyncio.run_coroutine_threadsafe(ask_all(step, *information), loop).result()
        except Exception as error:  # whoever waits in NCCL would never hear of it
            end_rank(clients, error)

    return SimpleNamespace(**{step: partial(ask, step) for step in TRANSFER})


def end_rank(clients: Sequence[GeneratorClient], error: BaseException) -> NoReturn:
    """End this process at once, whatever its GPU and its threads wait for."""
    reason, urls = str(error) or "time limit", ", ".join(client.url for client in clients)
    print(f"trainer: the transfer to {urls} failed ({reason})", file=sys.stderr, flush=True)
    os._exit(1)


def whole_tensors(
    policy: PreTrainedModel,
    dtype: torch.dtype,
    adapter: bool = False,
    alive: Callable[[], None] = lambda: None,
) -> Iterator[tuple[str, Tensor]]:
    """All tensors, whole, one after the other, under their Hugging Face names; collective.

    They travel in the generators' dtype already, adapters merged; or the `adapter` alone, in its
    own, under peft's names. A tied head comes with a name of its own: vLLM on a CPU packs the
    head's weights and would keep the old ones otherwise.
    """
    own = ((name, full_tensor(part)) for name, part in adapter_weights(policy).items())
    for name, tensor in own if adapter else plain_weights(policy, dtype, full_tensor):
        alive()
        yield name, tensor.detach().contiguous()


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
