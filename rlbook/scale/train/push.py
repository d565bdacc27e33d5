"""Who gets new weights, and when: level-triggered, by what each generator says it has.

dead, silent                      left alone until it answers
without weights of this run       pushed, then verified by probes: it has just been started
behind the trainer                pushed
level with it, or ahead           left alone (ahead: the trainer is replaying batches)
verified in vain                  without weights again: nobody asks it until another push is right
"""

import asyncio
import time
import warnings
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress

from rlbook.scale.generate.client import SILENCE, GeneratorClient
from rlbook.scale.generate.engine import GenerationFailed, RequestRefused, pause_after
from rlbook.scale.process import HEARTBEAT_SECONDS
from rlbook.scale.train.weight_check import Probe
from rlbook.scale.train.weights import Transport

SLOWER = 10  # a push that takes so many times as long as the slowest before is given up
LEAST_LIMIT = 30.0
MOST_WRONG = 3  # times that every generator may be verified in vain, none ever rightly


class GeneratorPool:
    """Rank 0's view of the generators. `sample` makes a probe of one that has just been pushed.

    A generator that fails is named in a warning and tried again later; the others never wait for
    it longer than one push may take. While it is sent weights its engine answers nobody: that it
    lives is shown for it, by what `heartbeat_of` gives. Chapter 17.
    """

    def __init__(
        self,
        clients: Sequence[GeneratorClient],
        transport: Transport,
        sample: Callable[[GeneratorClient, int], Awaitable[Probe]],
        clear_cache: bool = False,
        limit: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
        heartbeat_of: Callable[[GeneratorClient], Callable[[], None]] = lambda client: lambda: None,
    ):
        self.heartbeat_of = heartbeat_of
        self.clients, self.transport, self.sample = list(clients), transport, sample
        self.clear_cache, self.limit, self.clock = clear_cache, limit, clock
        self.verified: set[str] = set()  # URLs whose present process has passed a probe
        self.wrong: Counter[str] = Counter()  # how often others have been probed in vain
        self.failures: Counter[str] = Counter()
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
        """Whether a generator answers and has older weights, none, or wrong ones."""
        try:
            async with asyncio.timeout(SILENCE):
                own = await client.version()
                alive = own is not None or await client.healthy()
        except (TimeoutError, GenerationFailed, RequestRefused) as error:
            self.failed(client, str(error) or f"no answer within {SILENCE:g} s")
            return False
        if own is None:
            self.verified.discard(client.url)  # another process than before, or a broken update
        return alive and (own is None or own < version or client.url in self.wrong)

    async def push(self, clients: Sequence[GeneratorClient], version: int) -> list[Probe]:
        """Send the weights to all of them; returns probes of new ones."""
        probes = await asyncio.gather(*(self.push_one(client, version) for client in clients))
        return [probe for probe in probes if probe]

    async def push_one(self, client: GeneratorClient, version: int) -> Probe | None:
        """Send the weights to one of them; a probe, if it has just been started."""
        fresh = client.url not in self.verified
        async with self.transport.turn, beating(self.heartbeat_of(client)):
            start = self.clock()
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
        self.verified.add(client.url)
        if client.url not in self.wrong:
            self.failures.pop(client.url, None)
        return probe

    async def judge(self, gaps: Mapping[str, float], tolerance: float) -> None:
        """Take in what probes have shown, mean |Δ log π| by URL.

        Whoever exceeds the tolerance counts as without weights until a push sets it right.
        """
        for client in self.clients:
            gap = gaps.get(client.url)
            if gap is not None and gap <= tolerance:
                self.wrong.pop(client.url, None)
                self.failures.pop(client.url, None)
            elif gap is not None:
                self.wrong[client.url] += 1
                self.verified.discard(client.url)
                with suppress(GenerationFailed, RequestRefused):
                    await client.name_weights(None)
                self.failed(client, wrong_weights(gap, tolerance))

    @property
    def hopeless(self) -> bool:
        """Whether all who were verified have failed again and again, and none is right."""
        wrong = [self.wrong[c.url] for c in self.clients if c.url in self.wrong]
        return bool(wrong) and min(wrong) >= MOST_WRONG and not self.verified

    @property
    def push_limit(self) -> float:
        """Seconds that a push may take."""
        if not self.slowest:
            return self.limit
        return min(self.limit, max(LEAST_LIMIT, SLOWER * self.slowest))

    def failed(self, client: GeneratorClient, reason: object) -> None:
        """Say it, and leave the generator in peace for a while."""
        self.failures[client.url] += 1
        self.retry_at[client.url] = self.clock() + pause_after(self.failures[client.url])
        warnings.warn(f"generator {client.url}: {reason}", RuntimeWarning, stacklevel=2)

    async def resume_all(self) -> None:
        """Wake generators that a trainer paused and did not live to resume."""
        await asyncio.gather(*(self.resume(client) for client in self.clients))

    async def resume(self, client: GeneratorClient) -> None:
        """Let one go on that was left paused."""
        with suppress(GenerationFailed, RequestRefused, TimeoutError):
            async with asyncio.timeout(SILENCE):
                if await client.version() is not None:
                    await client.resume()


@asynccontextmanager
async def beating(heartbeat: Callable[[], None]) -> AsyncIterator[None]:
    """Shows life for as long as the block lasts."""

    async def beat() -> None:
        while True:
            heartbeat()
            await asyncio.sleep(HEARTBEAT_SECONDS)

    task = asyncio.create_task(beat())
    try:
        yield
    finally:
        task.cancel()


def wrong_weights(gap: float, tolerance: float) -> str:
    """Why a generator is left alone, in words."""
    return (
        "its log-probabilities are not those of the weights that were sent (mean |Δ log π| "
        f"{gap:.2g}, tolerance {tolerance:g}), so nobody asks it: check model.policy, dtypes and "
        "versions there"
    )
