"""Weights from GPU to GPU, by vLLM's own engines on both sides; they have not run yet: no GPU.

NCCL has no time limit, and a kernel that waits for a dead peer cannot be called back: whatever
this process asked of its GPU next would queue behind it for ever. A transfer that is given up
while it still waits therefore ends this rank. The launcher starts the trainer again, and the
batches since its checkpoint are trained once more, from the spool.
"""

import asyncio
import os
import socket
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from typing import Any, NoReturn, TypeVar
from urllib.parse import urlsplit

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rlbook.scale.generate.client import GeneratorClient
from rlbook.scale.generate.registry import free_port
from rlbook.scale.train.weights import Transport

GRACE = 5.0  # seconds in which a transfer whose peer has refused may end by itself
Result = TypeVar("Result")


class NCCLTransport(Transport):
    """A process group of rank 0 and one generator's workers, made at the first transfer.

    A group per generator: one that is started again remakes its own and disturbs no other.
    """

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.device = self.ranks.device
        self.engines: dict[str, Any] = {}
        self.transfers: dict[str, asyncio.Future] = {}
        self.turn = asyncio.Lock()  # one kernel that waits for a peer at a time

    def gather(self, policy: PreTrainedModel, version: int) -> None:
        super().gather(policy, version)
        torch.cuda.synchronize()  # vLLM packs on streams of its own

    def release(self) -> None:
        self.weights, self.gathered = {}, None

    async def connect(self, client: GeneratorClient, fresh: bool) -> None:
        if fresh or client.url not in self.engines:
            self.forget(client)
            self.engines[client.url] = await self.supervised(client, self.meet)

    async def send(self, client: GeneratorClient) -> None:
        engine = self.engines[client.url]

        def transfer(relay: Relay) -> None:
            engine.client = relay
            engine.send_weights()

        await self.supervised(client, transfer)

    def meet(self, relay: "Relay") -> Any:
        """vLLM's trainer-side engine, once the generator's workers have joined its group."""
        from vllm.distributed.weight_transfer import WeightTransferTrainerFactory
        from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

        host = own_address(relay.generator.url)
        where = NCCLTrainerInitInfo(host, free_port(host), 1 + self.width, rank=0)
        return WeightTransferTrainerFactory.trainer_init(where, client=relay, source=Source(self))

    async def supervised(
        self, client: GeneratorClient, work: Callable[["Relay"], Result]
    ) -> Result:
        """The result of what may wait for a peer in NCCL, or at once the error of that peer."""
        async with self.turn:
            relay = Relay(client)

            def on_device() -> Result:
                if self.ranks.device.type == "cuda":
                    torch.cuda.set_device(self.ranks.device)  # a property of the thread
                return work(relay)

            done = self.transfers[client.url] = in_thread(on_device)
            await asyncio.wait([done, relay.refused], return_when=asyncio.FIRST_COMPLETED)
            if not done.done():
                await asyncio.wait([done], timeout=GRACE)
                relay.refused.result()
            return done.result()

    def forget(self, client: GeneratorClient) -> None:
        """Drop a connection that failed; if something still waits in it, end this rank."""
        self.engines.pop(client.url, None)
        transfer = self.transfers.pop(client.url, None)
        if transfer is not None and not transfer.done():
            end_rank(f"the transfer to {client.url} was given up while it waited for its peer")


class Source:
    """The gathered weights, as vLLM's engine wants them (its `WeightSource`)."""

    def __init__(self, transport: Transport):
        self.transport = transport

    def metadata(self) -> list:
        from vllm.distributed.weight_transfer import ParamMeta

        return [ParamMeta(n, t.dtype, tuple(t.shape)) for n, t in self.transport.weights.items()]

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        return iter(self.transport.weights.items())


class Relay:
    """A generator's control routes, for vLLM's engine, which asks from threads of its own."""

    def __init__(self, generator: GeneratorClient):
        self.generator, self.loop = generator, asyncio.get_running_loop()
        self.refused = self.loop.create_future()
        self.refused.add_done_callback(lambda ended: ended.cancelled() or ended.exception())

    def ask(self, request: Coroutine) -> None:
        try:
            asyncio.run_coroutine_threadsafe(request, self.loop).result()
        except Exception as error:
            self.loop.call_soon_threadsafe(settle, self.refused.set_exception, error)
            raise

    def init_weight_transfer_engine(self, init_info: dict) -> None:
        self.ask(self.generator.init_transfer(init_info))

    def start_weight_update(self) -> None:
        self.ask(self.generator.start_update())

    def update_weights(self, update_info: dict) -> None:
        self.ask(self.generator.update(update_info))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self.ask(self.generator.finish_update())


def end_rank(reason: str) -> NoReturn:
    """End this process at once, whatever its GPU and its threads wait for."""
    print(f"trainer: {reason}; this rank ends and is started again", file=sys.stderr, flush=True)
    os._exit(1)


def own_address(url: str) -> str:
    """The address of this machine that the server at `url` reaches it by."""
    server = urlsplit(url)
    family, kind, _, _, where = socket.getaddrinfo(
        server.hostname, server.port, type=socket.SOCK_DGRAM
    )[0]
    with socket.socket(family, kind) as probe:
        probe.connect(where)  # sends nothing: it chooses the route
        return probe.getsockname()[0]


def in_thread(blocking: Callable[[], Result]) -> "asyncio.Future[Result]":
    """The result of a call in a thread that does not keep the process alive."""
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    future.add_done_callback(lambda ended: ended.cancelled() or ended.exception())

    def run() -> None:
        try:
            outcome = future.set_result, blocking()
        except BaseException as error:
            outcome = future.set_exception, error
        with suppress(RuntimeError):  # the loop has been closed meanwhile
            loop.call_soon_threadsafe(settle, *outcome)

    threading.Thread(target=run, daemon=True).start()
    return future


def settle(method: Callable, value: object) -> None:
    """Set a future's outcome, unless it has one."""
    if not method.__self__.done():
        method(value)
