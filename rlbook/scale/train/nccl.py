"""Weights from GPU to GPU, by vLLM's own engines on both sides; they have not run yet: no GPU.

NCCL has no time limit, and a kernel that waits for a dead peer cannot be called back: whatever
this process asked of its GPU next would queue behind it for ever. A transfer that is given up
while it still waits therefore ends this rank. The launcher starts the trainer again, and the
batches since its checkpoint are trained once more, from the log.
"""

import asyncio
import os
import socket
import sys
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, NoReturn, TypeVar
from urllib.parse import urlsplit

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rlbook.scale.generate.client import GeneratorClient
from rlbook.scale.generate.registry import free_port
from rlbook.scale.train.weights import Transport, whole_tensors

GRACE = 5.0  # seconds in which a transfer whose peer has refused may end by itself
Result = TypeVar("Result")


class NCCLTransport(Transport):
    """A process group of rank 0 and one generator's workers, made at the first transfer.

    A group per generator: one that is started again remakes its own and disturbs no other. Every
    transfer gathers the weights once more, tensor by tensor, so that no GPU ever holds them all.
    To vLLM's engine this is also the source of the weights (its `WeightSource`).
    """

    policy: PreTrainedModel

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.left: Iterator[tuple[str, Tensor]] = iter(())  # of a pass over the weights
        self.engines: dict[str, Any] = {}
        self.transfers: dict[str, asyncio.Future] = {}
        self.turn = asyncio.Lock()  # one kernel that waits for a peer at a time

    def gather(self, policy: PreTrainedModel, version: int) -> None:
        """Name the policy; its tensors are gathered as they are sent."""
        self.policy = policy
        torch.cuda.synchronize()  # vLLM packs on streams of its own

    def metadata(self) -> list:
        """Name, dtype and shape of every tensor that will come."""
        from vllm.distributed.weight_transfer import ParamMeta

        state = self.policy.state_dict()
        return [ParamMeta(name, self.dtype, tuple(tensor.shape)) for name, tensor in state.items()]

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        self.ranks.share(True)
        return self.begin()

    def begin(self) -> Iterator[tuple[str, Tensor]]:
        """A pass over the weights, which every rank begins as it is told of it."""
        self.left = whole_tensors(self.policy, self.dtype)
        return self.left

    def drain(self) -> None:
        """Go through the rest of a pass: the others wait in it, should the transfer fail."""
        for _ in self.left:
            pass

    def follow(self) -> None:
        """Gather along, as often as rank 0 sends."""
        while self.ranks.share():
            self.begin()
            self.drain()

    def release(self) -> None:
        """Tell the other ranks that nothing more will be sent."""
        self.ranks.share(False)

    async def connect(self, client: GeneratorClient, fresh: bool) -> None:
        """Make the process group with a generator that has none, or is `fresh`."""
        if fresh or client.url not in self.engines:
            self.forget(client)
            self.engines[client.url] = await self.supervised(client, self.meet)

    async def send(self, client: GeneratorClient) -> None:
        """Send all weights; an error leaves no rank in the middle of a pass."""
        engine = self.engines[client.url]

        def transfer(relay: _Relay) -> None:
            engine.client = relay
            engine.send_weights()

        try:
            await self.supervised(client, transfer)
        except Exception:
            if self.transfers[client.url].done():
                await asyncio.wait([self.on_device(client, self.drain)])
            raise

    def meet(self, relay: "_Relay") -> Any:
        """vLLM's trainer-side engine, once the generator's workers have joined its group."""
        from vllm.distributed.weight_transfer import WeightTransferTrainerFactory
        from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

        host = own_address(relay.generator.url)
        where = NCCLTrainerInitInfo(host, free_port(host), 1 + self.width, rank=0)
        return WeightTransferTrainerFactory.trainer_init(where, client=relay, source=self)

    async def supervised(
        self, client: GeneratorClient, work: Callable[["_Relay"], Result]
    ) -> Result:
        """The result of what may wait for a peer in NCCL, or at once the error of that peer."""
        relay = _Relay(client)
        done = self.on_device(client, lambda: work(relay))
        refused = asyncio.wrap_future(relay.refused)
        either: list[asyncio.Future[Any]] = [done, refused]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not done.done():
            await asyncio.wait([done], timeout=GRACE)
            refused.result()
        return done.result()

    def on_device(
        self, client: GeneratorClient, work: Callable[[], Result]
    ) -> "asyncio.Future[Result]":
        """The result of a call in a thread; `forget` looks whether it has come."""

        def run() -> Result:
            if self.ranks.device.type == "cuda":
                torch.cuda.set_device(self.ranks.device)  # a property of the thread
            return work()

        done = self.transfers[client.url] = asyncio.get_running_loop().run_in_executor(None, run)
        return done

    def forget(self, client: GeneratorClient) -> None:
        """Drop a connection that failed; if something still waits in it, end this rank."""
        self.engines.pop(client.url, None)
        transfer = self.transfers.pop(client.url, None)
        if transfer is not None and not transfer.done():
            end_rank(f"the transfer to {client.url} was given up while it waited for its peer")


class _Relay:
    """A generator's control routes, for vLLM's engine, which asks from threads of its own."""

    def __init__(self, generator: GeneratorClient):
        self.generator, self.loop = generator, asyncio.get_running_loop()
        self.refused: Future[None] = Future()

    def ask(self, request: Coroutine) -> None:
        """Send a request and wait; its error ends the transfer."""
        try:
            asyncio.run_coroutine_threadsafe(request, self.loop).result()
        except Exception as error:
            with suppress(InvalidStateError):  # another was the first
                self.refused.set_exception(error)
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
    address = server.hostname, server.port
    family, kind, *_, where = socket.getaddrinfo(*address, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(where)  # sends nothing: it chooses the route
        return probe.getsockname()[0]
