"""Two processes meet: addresses, ports, and doing one's own part while the other does its."""

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from typing import TypeVar
from urllib.parse import urlsplit

from torch.distributed import TCPStore

LIMIT = timedelta(seconds=120)
Result = TypeVar("Result")


def own_address(url: str) -> str:
    """The address of this machine that the server at `url` reaches it by."""
    server = urlsplit(url)
    family, kind, _, _, where = socket.getaddrinfo(
        server.hostname, server.port, type=socket.SOCK_DGRAM
    )[0]
    with socket.socket(family, kind) as probe:
        probe.connect(where)  # sends nothing: it chooses the route
        return probe.getsockname()[0]


def listening_store(host: str, world_size: int) -> TCPStore:
    """A store that listens on this address alone, on a free port."""
    listening = socket.create_server((host, 0))
    port = listening.getsockname()[1]
    return TCPStore(
        host,
        port,
        world_size,
        is_master=True,
        timeout=LIMIT,
        wait_for_workers=False,
        master_listen_fd=listening.detach(),
    )


def free_port(host: str) -> int:
    with socket.create_server((host, 0)) as listening:
        return listening.getsockname()[1]


async def both(blocking: Callable[[], Result], request: Awaitable) -> Result:
    """Run `blocking` in a thread while awaiting `request`; returns what the former does.

    If one of them fails its error is raised at once: the other may wait for it in vain.
    """
    own, other = in_thread(blocking), asyncio.ensure_future(request)
    try:
        done, _ = await asyncio.wait([own, other], return_when=asyncio.FIRST_EXCEPTION)
        for part in (other, own):
            if part in done:
                part.result()
        return own.result()
    finally:
        other.cancel()


def in_thread(blocking: Callable[[], Result]) -> "asyncio.Future[Result]":
    """The result of a call in a thread that does not keep the process alive."""
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    future.add_done_callback(lambda ended: ended.cancelled() or ended.exception())

    def settle(method: Callable, value: object) -> None:
        if not future.done():
            method(value)

    def run() -> None:
        try:
            outcome = future.set_result, blocking()
        except BaseException as error:
            outcome = future.set_exception, error
        with suppress(RuntimeError):  # the loop has been closed meanwhile
            loop.call_soon_threadsafe(settle, *outcome)

    threading.Thread(target=run, daemon=True).start()
    return future
