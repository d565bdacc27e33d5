"""Who gets new weights, and when: level-triggered, by what each generator says it has.

dead, silent                      left alone until it answers
without weights of this run       pushed, then verified by probes: it has just been started
behind the trainer                pushed
level with it, or ahead           left alone (ahead: the trainer is replaying batches)
"""

import asyncio
import time
import warnings
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from rlbook.scale.generate.client import SILENCE, GeneratorClient, pause_after
from rlbook.scale.generate.engine import GenerationFailed, RequestRefused
from rlbook.scale.train.probes import Probe
from rlbook.scale.train.weights import Transport

SLOWER = 10  # a push that takes so many times as long as the slowest before is given up
LEAST_LIMIT = 30.0


class Generators:
    """Rank 0's view of the generators. `sample` makes a probe of one that has just been pushed.

    A generator that fails is named in a warning and tried again later; the others never wait for
    it longer than one push may take. Chapter 17.
    """

    def __init__(
        self,
        clients: Sequence[GeneratorClient],
        transport: Transport,
        sample: Callable[[GeneratorClient, int], Awaitable[Probe]],
        clear_cache: bool = False,
        limit: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.clients, self.transport, self.sample = list(clients), transport, sample
        self.clear_cache, self.limit, self.clock = clear_cache, limit, clock
        self.verified: set[str] = set()  # URLs whose present process has passed a probe
        self.failures: dict[str, int] = {}
        self.retry_at: dict[str, float] = {}
        self.slowest = 0.0

    async def behind(self, version: int) -> list[GeneratorClient]:
        """The generators that answer and lack these weights."""
        for client in self.clients:
            client.look_up()
        due = [c for c in self.clients if self.clock() >= self.retry_at.get(c.url, 0.0)]
        lacking = await asyncio.gather(*(self.lacks(client, version) for client in due))
        return [client for client, lacks in zip(due, lacking, strict=True) if lacks]

    async def lacks(self, client: GeneratorClient, version: int) -> bool:
        try:
            async with asyncio.timeout(SILENCE):
                own = await client.version()
                alive = own is not None or await client.healthy()
        except (TimeoutError, GenerationFailed, RequestRefused) as error:
            self.failed(client, str(error) or f"no answer within {SILENCE:g} s")
            return False
        if own is None:
            self.verified.discard(client.url)  # another process than before, or a broken update
        return alive and (own is None or own < version)

    async def push(self, clients: Sequence[GeneratorClient], version: int) -> list[Probe]:
        """Send the gathered weights to all of them at once; returns probes of new ones."""
        probes = await asyncio.gather(*(self.push_one(client, version) for client in clients))
        return [probe for probe in probes if probe]

    async def push_one(self, client: GeneratorClient, version: int) -> Probe | None:
        fresh, start = client.url not in self.verified, self.clock()
        try:
            async with asyncio.timeout(self.push_limit):
                await self.transport.connect(client, fresh)
                async with client.new_weights(version, self.clear_cache):
                    await self.transport.send(client)
                probe = await self.sample(client, version) if fresh else None
        except Exception as error:
            self.transport.forget(client)
            reason = "time limit" if isinstance(error, TimeoutError) else error
            self.failed(client, f"version {version} is not delivered: {reason}")
            return None
        self.slowest = max(self.slowest, self.clock() - start)
        self.failures.pop(client.url, None)
        self.verified.add(client.url)
        return probe

    @property
    def push_limit(self) -> float:
        """Seconds that a push may take."""
        if not self.slowest:
            return self.limit
        return min(self.limit, max(LEAST_LIMIT, SLOWER * self.slowest))

    def failed(self, client: GeneratorClient, reason: object) -> None:
        """Say it, and leave the generator in peace for a while."""
        count = self.failures[client.url] = self.failures.get(client.url, 0) + 1
        self.retry_at[client.url] = self.clock() + pause_after(count)
        warnings.warn(f"generator {client.url}: {reason}", RuntimeWarning, stacklevel=2)

    async def resume_all(self) -> None:
        """Wake generators that a trainer paused and did not live to resume."""
        await asyncio.gather(*(self.resume(client) for client in self.clients))

    async def resume(self, client: GeneratorClient) -> None:
        with suppress(GenerationFailed, RequestRefused, TimeoutError):
            async with asyncio.timeout(SILENCE):
                if await client.version() is not None:
                    await client.resume()
