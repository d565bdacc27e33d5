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
from concurrent.futures import Future
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
    """

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.source = Source(self)
        self.engines: dict[str, Any] = {}
        self.transfers: dict[str, asyncio.Future] = {}
        self.turn = asyncio.Lock()  # one kernel that waits for a peer at a time

    def gather(self, policy: PreTrainedModel, version: int) -> None:
        """Name the policy; its tensors are gathered as they are sent."""
        self.source.policy = policy
        torch.cuda.synchronize()  # vLLM packs on streams of its own

    def follow(self) -> None:
        """Gather along, as often as rank 0 sends."""
        while self.ranks.share():
            self.source.begin()
            self.source.drain()

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

        def transfer(relay: Relay) -> None:
            engine.client = relay
            engine.send_weights()

        try:
            await self.supervised(client, transfer)
        except Exception:
            if self.transfers[client.url].done():
                await asyncio.wait([self.on_device(client, self.source.drain)])
            raise

    def meet(self, relay: "Relay") -> Any:
        """vLLM's trainer-side engine, once the generator's workers have joined its group."""
        from vllm.distributed.weight_transfer import WeightTransferTrainerFactory
        from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

        host = own_address(relay.generator.url)
        where = NCCLTrainerInitInfo(host, free_port(host), 1 + self.width, rank=0)
        return WeightTransferTrainerFactory.trainer_init(where, client=relay, source=self.source)

    async def supervised(
        self, client: GeneratorClient, work: Callable[["Relay"], Result]
    ) -> Result:
        """The result of what may wait for a peer in NCCL, or at once the error of that peer."""
        relay = Relay(client)
        done = self.on_device(client, lambda: work(relay))
        await asyncio.wait([done, relay.refused], return_when=asyncio.FIRST_COMPLETED)
        if not done.done():
            await asyncio.wait([done], timeout=GRACE)
            relay.refused.result()
        return done.result()

    def on_device(
        self, client: GeneratorClient, work: Callable[[], Result]
    ) -> "asyncio.Future[Result]":
        """The result of a call in a thread; `forget` looks whether it has come."""

        def run() -> Result:
            if self.ranks.device.type == "cuda":
                torch.cuda.set_device(self.ranks.device)  # a property of the thread
            return work()

        done = self.transfers[client.url] = in_thread(run)
        return done

    def forget(self, client: GeneratorClient) -> None:
        """Drop a connection that failed; if something still waits in it, end this rank."""
        self.engines.pop(client.url, None)
        transfer = self.transfers.pop(client.url, None)
        if transfer is not None and not transfer.done():
            end_rank(f"the transfer to {client.url} was given up while it waited for its peer")


class Source:
    """The policy's weights, as vLLM's engine wants them (its `WeightSource`): a pass per transfer.

    The other ranks are told of a pass and gather along. What a transfer that failed has left of it
    is to be drained, or they wait for ever.
    """

    def __init__(self, transport: NCCLTransport):
        self.transport = transport
        self.policy: PreTrainedModel | None = None
        self.left: Iterator[tuple[str, Tensor]] = iter(())

    @property
    def weights(self) -> PreTrainedModel:
        """The policy, which `gather` has named."""
        assert self.policy is not None
        return self.policy

    def metadata(self) -> list:
        """Name, dtype and shape of every tensor that will come."""
        from vllm.distributed.weight_transfer import ParamMeta

        state, dtype = self.weights.state_dict(), self.transport.dtype
        return [ParamMeta(name, dtype, tuple(tensor.shape)) for name, tensor in state.items()]

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        self.transport.ranks.share(True)
        return self.begin()

    def begin(self) -> Iterator[tuple[str, Tensor]]:
        """A pass; every rank begins it."""
        self.left = whole_tensors(self.weights, self.transport.dtype)
        return self.left

    def drain(self) -> None:
        """Go through what is left of a pass."""
        for _ in self.left:
            pass


class Relay:
    """A generator's control routes, for vLLM's engine, which asks from threads of its own."""

    def __init__(self, generator: GeneratorClient):
        self.generator, self.loop = generator, asyncio.get_running_loop()
        self.refused = self.loop.create_future()
        self.refused.add_done_callback(lambda ended: ended.cancelled() or ended.exception())

    def ask(self, request: Coroutine) -> None:
        """Send a request and wait; its error ends the transfer."""
        try:
            asyncio.run_coroutine_threadsafe(request, self.loop).result()
        except Exception as error:
            self.loop.call_soon_threadsafe(settle, self.refused.set_exception, error)
            raise

    def init_weight_transfer_engine(self, init_info: dict) -> None:
        """Have the generator's workers join the group."""
        self.ask(self.generator.init_transfer(init_info))

    def start_weight_update(self) -> None:
        """Say that weights are about to come."""
        self.ask(self.generator.start_update())

    def update_weights(self, update_info: dict) -> None:
        """Say which tensors come next."""
        self.ask(self.generator.update(update_info))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Say that all weights have come."""
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
    called: Future[Result] = Future()
    called.set_running_or_notify_cancel()  # nobody who stops waiting cancels it

    def run() -> None:
        try:
            called.set_result(blocking())
        except BaseException as error:
            called.set_exception(error)

    waited = asyncio.wrap_future(called)
    waited.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    threading.Thread(target=run, daemon=True).start()
    return waited


def settle(method: Callable, value: object) -> None:
    """Set a future's outcome, unless it has one."""
    if not method.__self__.done():  # type: ignore[attr-defined]
        method(value)
