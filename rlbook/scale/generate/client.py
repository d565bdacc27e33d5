"""Client of the generator servers, for the orchestrator and the trainer. The routes are vLLM's."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from rlbook.policy import Completion
from rlbook.scale.config import ScaleConfig
from rlbook.scale.generate.protocol import (
    ADAPTER,
    ADAPTER_ROUTE,
    RELOAD_ROUTE,
    GenerationFailed,
    RequestRefused,
    all_of,
    labelled_version,
    read_completions,
    reload_request,
    sampling_params,
    weight_label,
)
from rlbook.scale.generate.vllm_adapter import takes_adapters
from rlbook.scale.layout import Layout
from rlbook.scale.process import Heartbeat, published

STATUS_SECONDS = 10.0  # for questions a live server answers at once
SILENCE = 5.0  # seconds after which a generator that accepts connections counts as silent
SERVER_SILENCE = 120.0  # seconds after which it counts as hung, unless it is sent weights
LOOK_SECONDS = 0.05  # between two questions for a server's version
KEEP_ALIVE = {"TCP_KEEPIDLE": 20, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4}  # gone within 40 s


class GeneratorClient:
    """One generator server, as `async with GeneratorClient(where, run_id) as client`.

    `where` is its URL, or its file in a run's registry: a server that has been started again may
    be elsewhere. `timeout` limits every request, in seconds; `heartbeat()` follows every reply. All
    methods raise `GenerationFailed` or `RequestRefused`, with URL and reason.
    """

    def __init__(
        self,
        where: str | Path,
        run_id: str,
        token: str | None = None,
        timeout: float = 600.0,
        heartbeat: Callable[[], None] = lambda: None,
        adapter: bool = False,
    ):
        self.where, self.run_id, self.timeout, self.heartbeat = where, run_id, timeout, heartbeat
        self.model = {"model": ADAPTER} if adapter else {}  # who answers, beside the base
        self.url = str(where).rstrip("/")
        self.name = where.stem if isinstance(where, Path) else self.url
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.held: int | None = None  # the `version` that was heard last
        self.running = 0  # completions that an engine waits for

    async def __aenter__(self) -> "GeneratorClient":
        # A connection that the server closes just as it is used again would fail its request.
        connector = aiohttp.TCPConnector(limit=0, force_close=True, socket_factory=watched_socket)
        self._session = aiohttp.ClientSession(headers=self._headers, connector=connector)
        return self

    async def __aexit__(self, *error) -> None:
        await self._session.close()

    def look_up(self) -> None:
        """Take the URL from the registry, if that names another by now."""
        if isinstance(self.where, Path):
            self.url = published(self.where) or self.url

    async def complete_at(
        self,
        version: int,
        prompt: list[int],
        n: int,
        *,
        max_new_tokens: int,
        temperature: float,
        stop: Sequence[int] = (),
    ) -> list[Completion]:
        """`n` completions of one prompt, sampled from softmax(logits / temperature), untruncated.

        Cached prompts are shared only among requests sent at the same `version`, the server's own.
        Its weights must be of this run throughout.
        """
        body = self.model | {
            "token_ids": prompt,
            "cache_salt": weight_label(self.run_id, version),
            "sampling_params": sampling_params(n, max_new_tokens, temperature, stop),
        }
        reply = await self._ask("/inference/v1/generate", body)
        try:
            return read_completions(reply, n, max_new_tokens, self.run_id)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise GenerationFailed(f"{self.url} sent a malformed reply: {error!r}") from None

    async def version(self) -> int | None:
        """Version of the server's weights; None if they are not of this run, or it is silent."""
        if self.held is None:
            self.look_up()
        reply = None
        with suppress(GenerationFailed):
            reply = await self._ask("/weight_info", method="GET")
        self.held = labelled_version(str((reply or {}).get("weight_version")), self.run_id)
        return self.held

    async def healthy(self) -> bool:
        """Whether the server and the engine behind it are alive."""
        with suppress(GenerationFailed):
            await self._ask("/health", method="GET")
            return True
        return False

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
        """Freeze requests between two tokens; with `clear_cache` they are read anew afterwards."""
        await self._ask(f"/pause?mode=keep&clear_cache={str(clear_cache).lower()}")

    async def resume(self) -> None:
        """Let frozen and waiting requests go on; without effect on a server that runs."""
        await self._ask("/resume")

    async def sleep(self) -> None:
        """Move weights to the host's memory and drop all keys and values; requests are kept."""
        await self._ask("/sleep?level=1&mode=keep")

    async def wake(self) -> None:
        """Take the memory back and go on; without effect on a server that is awake."""
        await self._ask("/wake_up")
        await self.resume()

    async def name_weights(self, version: int | None) -> None:
        """From now on tokens carry `version`; None: it counts as a server without weights."""
        label = weight_label(self.run_id, version)
        await self._ask("/update_weight_version", {"new_version": label})

    async def reload(self, folder: str) -> None:
        """Have the server load the safetensors files of a folder it can read."""
        await self._ask(RELOAD_ROUTE, reload_request(folder))

    async def load_adapter(self, folder: str, fresh: bool) -> None:
        """Have vLLM's workers take the adapter in a folder; a `fresh` server learns its name first.

        Not by `load_inplace`: requests that are being answered would load the old one again.
        """
        if fresh:
            with suppress(RequestRefused):  # it knows the name from a trainer that has died
                named = {"lora_name": ADAPTER, "lora_path": folder}
                await self._ask(ADAPTER_ROUTE, named, read=bytes.decode)
        await self._ask(RELOAD_ROUTE, reload_request(folder, "load_adapter"))

    async def transfer(self, step: str, **information: dict) -> None:
        """A step of `TRANSFER`; an update that a dead trainer has left open is closed first."""
        try:
            await self._ask(f"/{step}", information or None)
        except GenerationFailed:
            if step not in ("start_weight_update", "shutdown_weight_transfer_engine"):
                raise
            await self._ask("/finish_weight_update")
            await self._ask(f"/{step}")

    async def _ask(self, route: str, body: Any = None, method="POST", read=json.loads) -> Any:
        """The reply, None for an empty one."""
        where, seconds = f"{self.url}{route}", STATUS_SECONDS if method == "GET" else self.timeout
        limit = aiohttp.ClientTimeout(total=seconds)
        try:
            async with self._session.request(method, where, timeout=limit, json=body) as response:
                content, status = await response.read(), response.status
                self.heartbeat()
        except TimeoutError:
            raise GenerationFailed(f"{where}: no answer within {seconds:g} s") from None
        except aiohttp.ClientError as error:
            raise GenerationFailed(f"{where}: {type(error).__name__}: {error}") from None
        if status >= 400:
            passes = status >= 500 or status in (408, 429)
            kind = GenerationFailed if passes else RequestRefused
            raise kind(f"{where}: HTTP {status}: {content[:500].decode(errors='replace')}")
        try:
            return read(content or b"null")
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
    """A client for each generator of a run, which shows that it lives whenever it is heard.

    Raises `FileNotFoundError` if the run was never started.
    """
    if not layout.run_id.exists():
        raise FileNotFoundError(f"no {layout.run_id}: runs are started by `rlbook scale`")
    generate, run_id = config.generate, layout.run_id.read_text()

    def client(name: str) -> GeneratorClient:
        return GeneratorClient(
            layout.server(name),
            run_id,
            generate.token,
            generate.timeout,
            heartbeat=Heartbeat(layout.alive(name), SERVER_SILENCE),
            adapter=takes_adapters(config),
        )

    return [client(f"generator{i}") for i in range(generate.count)]


@dataclass
class Stay:
    """Where an episode is written, and the version under which its past is cached there.

    With `keep` a cache that is older than the weights is read on, as `generate.kv: keep` has it.
    """

    keep: bool
    client: GeneratorClient | None = None
    version: int = -1

    def at(
        self, free: GeneratorClient, versions: Mapping[GeneratorClient, int]
    ) -> tuple[GeneratorClient, int]:
        """The server of the last turn while it is in use, or the one that is free."""
        client = self.client if self.client and self.client in versions else free
        if client is not self.client or not self.keep:
            self.client, self.version = client, versions[client]
        return client, self.version


class HTTPEngine:
    """Several generators as one: a request goes to the least busy with this run's weights.

    The one that is `aside` is asked nothing as long as another can do the work.
    """

    def __init__(self, clients: Sequence[GeneratorClient]):
        self.clients = clients
        self.aside: GeneratorClient | None = None

    def only(self, client: GeneratorClient) -> "HTTPEngine":
        """One generator by itself."""
        return HTTPEngine([client])

    @property
    def versions(self) -> dict[GeneratorClient, int]:
        """Of the generators in use, as they were heard last."""
        having = {client: client.held for client in self.clients if client.held is not None}
        return {client: held for client, held in having.items() if client != self.aside} or having

    async def look(self) -> None:
        """Bring `versions` up to date now."""
        await asyncio.gather(*(client.version() for client in self.clients))

    async def watch(self) -> None:
        """Do so for ever; a silent server holds up none but itself."""

        async def watch_one(client: GeneratorClient) -> None:
            while True:
                await client.version()
                await asyncio.sleep(LOOK_SECONDS)

        await asyncio.gather(*map(watch_one, self.clients))

    async def complete(
        self,
        prompt: list[int],
        n: int,
        max_new_tokens: int,
        temperature: float,
        stop: Sequence[int] = (),
        stay: Stay | None = None,
        again: bool = True,
    ) -> list[Completion]:
        """`n` completions of one prompt, each a request of its own; all to one server.

        It keeps the prompt's keys and values for all of them; with `stay`, an episode's next turn
        comes back to them. `stop` are tokens that end a completion besides the EOS. A server that
        fails is not in use until it is heard again. A request that fails is made `again`, once; its
        siblings are not.
        """
        limits: Any = {"max_new_tokens": max_new_tokens, "temperature": temperature, "stop": stop}
        asked = 1 if temperature == 0 else n  # greedy ones are all alike
        if not self.versions:
            await self.look()  # they may have just been updated
        if not self.versions:
            servers = ", ".join(client.url for client in self.clients)
            raise GenerationFailed(f"no generator has weights of this run: {servers}")
        client, version = min(self.versions.items(), key=lambda pair: pair[0].running)
        if stay:
            client, version = stay.at(client, self.versions)

        async def ask() -> Completion:
            try:
                return (await client.complete_at(version, prompt, 1, **limits))[0]
            except GenerationFailed:
                client.held = None
                if not again:
                    raise
                return (await self.complete(prompt, 1, **limits, stay=stay, again=False))[0]

        client.running += asked
        try:
            return n // asked * await all_of(ask() for _ in range(asked))
        finally:
            client.running -= asked
