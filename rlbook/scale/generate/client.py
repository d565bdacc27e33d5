"""Client of the generator servers, for the orchestrator and the trainer. The routes are vLLM's."""

import asyncio
import json
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp

from rlbook.policy import Completion
from rlbook.scale.config import ScaleConfig
from rlbook.scale.generate.protocol import (
    RELOAD_ROUTE,
    GenerationFailed,
    RequestRefused,
    all_of,
    labelled_version,
    pause_after,
    read_completions,
    reload_request,
    sampling_params,
    weight_label,
)
from rlbook.scale.generate.registry import published
from rlbook.scale.layout import Layout

STATUS_SECONDS = 10.0  # for questions a live server answers at once
SILENCE = 5.0  # seconds after which a generator that accepts connections counts as silent
SERVER_SILENCE = 120.0  # seconds after which it counts as hung, unless it is sent weights
LOOK_SECONDS = 1.0  # between two looks into the registry
KEEP_ALIVE = {"TCP_KEEPIDLE": 20, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4}  # gone within 40 s
RETRYABLE = (408, 429)


class GeneratorClient:
    """One generator server, as `async with GeneratorClient(where, run_id) as client`.

    `where` is its URL, or its file in a run's registry: a server that has been started again may
    be elsewhere. `timeout` limits every request, in seconds. All methods raise `GenerationFailed`
    (the server is in trouble) or `RequestRefused` (the request is wrong), with URL and reason.
    """

    def __init__(
        self, where: str | Path, run_id: str, token: str | None = None, timeout: float = 600.0
    ):
        self.where, self.run_id, self.timeout = where, run_id, timeout
        self.url, self.look_at = str(where).rstrip("/"), 0.0
        self.name = where.stem if isinstance(where, Path) else self.url
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.heard = 0.0  # when it last answered, on the monotonic clock

    async def __aenter__(self) -> "GeneratorClient":
        # A connection that the server closes just as it is used again would fail its request.
        connector = aiohttp.TCPConnector(limit=0, force_close=True, socket_factory=watched_socket)
        self._session = aiohttp.ClientSession(headers=self._headers, connector=connector)
        return self

    async def __aexit__(self, *error) -> None:
        await self._session.close()

    def look_up(self) -> None:
        """Take the URL from the registry, if that names another by now."""
        if isinstance(self.where, Path) and time.monotonic() >= self.look_at:
            self.look_at = time.monotonic() + LOOK_SECONDS
            self.url = published(self.where) or self.url

    async def complete_at(
        self, version: int, prompt: list[int], n: int, *, max_new_tokens: int, temperature: float
    ) -> list[Completion]:
        """`n` completions of one prompt, sampled from softmax(logits / temperature), untruncated.

        Cached prompts are shared only among requests sent at the same `version`, the server's own.
        Its weights must be of this run throughout.
        """
        copies, asked = (n, 1) if temperature == 0 else (1, n)  # vLLM decodes greedily only once
        body = {
            "token_ids": prompt,
            "cache_salt": weight_label(self.run_id, version),
            "sampling_params": sampling_params(asked, max_new_tokens, temperature),
        }
        reply = await self._ask("/inference/v1/generate", body)
        try:
            return copies * read_completions(reply, asked, max_new_tokens, self.run_id)
        except ValueError as error:
            raise GenerationFailed(f"{self.url} sent a malformed reply: {error}") from None

    async def version(self) -> int | None:
        """Version of the server's weights; None if they are not of this run, or it is silent."""
        try:
            reply = await self._ask("/weight_info", method="GET", seconds=STATUS_SECONDS)
        except GenerationFailed:
            return None
        label = reply.get("weight_version") if isinstance(reply, dict) else None
        return labelled_version(label, self.run_id) if isinstance(label, str) else None

    async def healthy(self) -> bool:
        """Whether the server and the engine behind it are alive."""
        try:
            await self._ask("/health", method="GET", seconds=STATUS_SECONDS)
        except GenerationFailed:
            return False
        return True

    @asynccontextmanager
    async def new_weights(self, version: int, clear_cache: bool) -> AsyncIterator[None]:
        """The update to `version`: inside, weights are sent; afterwards generation goes on.

        If sending fails the server stays paused and without a version. It cannot generate with
        weights it has received in part (vLLM would die of it); the next update revives it.
        """
        await self.pause(clear_cache)
        await self.name_weights(None)
        yield
        await self.name_weights(version)
        await self.resume()

    async def pause(self, clear_cache: bool) -> None:
        """Freeze running requests between two tokens.

        With `clear_cache` their keys and values are computed again under the next weights.
        """
        await self._ask(f"/pause?mode=keep&clear_cache={str(clear_cache).lower()}")

    async def resume(self) -> None:
        """Let frozen and waiting requests go on; without effect on a server that runs."""
        await self._ask("/resume")

    async def name_weights(self, version: int | None) -> None:
        """From now on tokens carry `version`; None: it counts as a server without weights."""
        label = weight_label(self.run_id, version)
        await self._ask("/update_weight_version", {"new_version": label})

    async def reload(self, folder: str) -> None:
        """Have the server load the safetensors files of a folder it can read."""
        await self._ask(RELOAD_ROUTE, reload_request(folder))

    async def init_transfer(self, info: dict) -> None:
        """Have vLLM's transfer engine meet the trainer's; returns when both have met."""
        await self._ask("/init_weight_transfer_engine", {"init_info": info})

    async def start_update(self) -> None:
        """Open an update of vLLM's transfer engine, closing one that a dead trainer left open."""
        try:
            await self._ask("/start_weight_update")
        except GenerationFailed:
            await self.finish_update()
            await self._ask("/start_weight_update")

    async def update(self, info: dict) -> None:
        """Have vLLM's transfer engine receive the tensors that `info` announces."""
        await self._ask("/update_weights", {"update_info": info})

    async def finish_update(self) -> None:
        """End the update; all weights announced have come."""
        await self._ask("/finish_weight_update")

    async def _ask(
        self, route: str, body: Any = None, method: str = "POST", seconds: float | None = None
    ) -> Any:
        """The reply, None for an empty one."""
        where, seconds = f"{self.url}{route}", seconds or self.timeout
        limit = aiohttp.ClientTimeout(total=seconds)
        try:
            async with self._session.request(method, where, timeout=limit, json=body) as response:
                content, status = await response.read(), response.status
                self.heard = time.monotonic()
        except TimeoutError:
            raise GenerationFailed(f"{where}: no answer within {seconds:g} s") from None
        except aiohttp.ClientError as error:
            raise GenerationFailed(f"{where}: {type(error).__name__}: {error}") from None
        if status >= 400:
            kind = GenerationFailed if status >= 500 or status in RETRYABLE else RequestRefused
            raise kind(f"{where}: HTTP {status}: {content[:500].decode(errors='replace')}")
        try:
            return json.loads(content or b"null")
        except ValueError:
            raise GenerationFailed(f"{where} sent no JSON but {content[:200]!r}") from None


def watched_socket(address: tuple) -> socket.socket:
    """A connection that breaks when the other machine is gone, however long it may be silent."""
    family, kind, protocol, *_ = address
    connection = socket.socket(family, kind, protocol)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEP_ALIVE.items():
        if option := getattr(socket, name, None):  # not on every system
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
    return connection


def clients_of(config: ScaleConfig, layout: Layout) -> list[GeneratorClient]:
    """A client for each generator of a run. Raises `FileNotFoundError` if it was never started."""
    if not layout.run_id.exists():
        raise FileNotFoundError(f"no {layout.run_id}: runs are started by `rlbook scale`")
    generate, run_id = config.generate, layout.run_id.read_text()
    return [
        GeneratorClient(layout.server(f"generator{i}"), run_id, generate.token, generate.timeout)
        for i in range(generate.count)
    ]


class HTTPEngine:
    """Several generators as one: a request goes to the least busy with this run's weights.

    The one whose name is `aside` is asked nothing as long as another can do the work.
    """

    def __init__(self, clients: Sequence[GeneratorClient]):
        self.clients = list(clients)
        self.aside: str | None = None
        self._running: Counter[str] = Counter()
        self._silent: dict[str, asyncio.Task] = {}  # by URL: asks until the server is heard again

    def only(self, generator: str) -> "HTTPEngine":
        """One generator by itself."""
        return HTTPEngine([client for client in self.clients if client.name == generator])

    async def admitted(self) -> list[tuple[GeneratorClient, int]]:
        """The servers to ask, which hold weights of this run, with their versions.

        One that accepts connections and does not answer holds up the others once, for `SILENCE`
        seconds; then it is left out until it answers again.
        """
        for client in self.clients:
            client.look_up()
        asked = [client for client in self.clients if client.url not in self._silent]
        versions = await asyncio.gather(*map(self._version_of, asked))
        pairs = zip(asked, versions, strict=True)
        having = [(client, version) for client, version in pairs if version is not None]
        return [pair for pair in having if pair[0].name != self.aside] or having

    async def _version_of(self, client: GeneratorClient) -> int | None:
        try:
            async with asyncio.timeout(SILENCE):
                return await client.version()
        except TimeoutError:
            url = client.url
            if url not in self._silent:  # another call has waited for it as long
                self._silent[url] = asyncio.create_task(self._until_heard(client, url))
            return None

    async def _until_heard(self, client: GeneratorClient, url: str) -> None:
        """Ask a silent server beside all else, with growing pauses; a dead one is heard at once."""
        for failures in count(1):
            await asyncio.sleep(pause_after(failures))
            with suppress(TimeoutError):
                async with asyncio.timeout(SILENCE):
                    await client.version()
                    break
        del self._silent[url]

    async def versions(self) -> dict[str, int]:
        """Those in use, by generator; none if no server is admitted."""
        return {client.name: version for client, version in await self.admitted()}

    async def complete(
        self, prompt: list[int], n: int, *, max_new_tokens: int, temperature: float
    ) -> list[Completion]:
        """`n` completions of one prompt, each a request of its own; all to one server.

        It keeps the prompt's keys and values for all of them. A completion that fails is asked
        once more, of whoever is the least busy then; its siblings are not.
        """
        limits: Any = {"max_new_tokens": max_new_tokens, "temperature": temperature}
        client, version = await self.least_busy()

        async def one() -> Completion:
            try:
                return (await client.complete_at(version, prompt, 1, **limits))[0]
            except GenerationFailed:
                other, its_version = await self.least_busy()
                with self._busy(other, 1):
                    return (await other.complete_at(its_version, prompt, 1, **limits))[0]

        with self._busy(client, n):
            if temperature == 0:  # they are all alike
                return await client.complete_at(version, prompt, n, **limits)
            return await all_of(one() for _ in range(n))

    async def least_busy(self) -> tuple[GeneratorClient, int]:
        """The admitted server with the fewest completions to write, and its version."""
        if admitted := await self.admitted():
            return min(admitted, key=lambda pair: self._running[pair[0].url])
        servers = ", ".join(client.url for client in self.clients)
        raise GenerationFailed(f"no generator has weights of this run: {servers or 'no URLs'}")

    @contextmanager
    def _busy(self, client: GeneratorClient, n: int) -> Iterator[None]:
        url = client.url  # it may be another when the block ends
        self._running[url] += n
        try:
            yield
        finally:
            self._running[url] -= n
