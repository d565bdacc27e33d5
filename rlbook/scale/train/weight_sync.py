"""From the sharded policy to the generators: gather on all ranks, send from rank 0, verify.

Who gets new weights, and when, follows from what each generator says it has:

dead, silent                      left alone until it answers
without weights of this run       pushed, then verified by a probe: it has just been started
behind the trainer                pushed
level with it, or ahead           left alone (ahead: the trainer is replaying batches)
verified in vain                  without weights again: nobody asks it until another push is right
"""

import asyncio
import time
import warnings
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial

from rlbook.scale.config import ScaleConfig
from rlbook.scale.generate.client import SERVER_SILENCE, SILENCE, GeneratorClient, clients_of
from rlbook.scale.generate.protocol import GenerationFailed, RequestRefused, pause_after
from rlbook.scale.layout import Layout
from rlbook.scale.process import HEARTBEAT_SECONDS, Heartbeat
from rlbook.scale.train.learner import ShardedLearner
from rlbook.scale.train.nccl import NCCLTransport
from rlbook.scale.train.parallel import Ranks, ScoredPolicy
from rlbook.scale.train.weights import FileTransport, Transport
from rlbook.tasks import Problem
from rlbook.training import Rollout, collate

CHECK_SECONDS = 0.5
SLOWER = 10  # a push that takes so many times as long as the slowest before is given up
LEAST_LIMIT = 30.0
MOST_WRONG = 3  # times that every generator may be verified in vain, none ever rightly
PROMPT_TOKENS, TOKENS, COPIES = 16, 16, 4  # of a probe
TOLERANCE = {"float32": 1e-3, "bfloat16": 0.15}  # mean |Δ log π|; of other weights 1 and more
TRANSPORTS = {"file": FileTransport, "nccl": NCCLTransport}
Probe = tuple[str, list[Rollout]]  # a generator's URL, and what it has written


class WrongWeights(RuntimeError):
    """No generator computes with the weights that it was sent."""


class WeightSync:
    """Brings the learner's weights to whoever lacks them.

    `deliver` is collective; everything that speaks to generators happens on rank 0. A generator
    that a dead trainer has paused goes on as soon as there is a trainer again.
    """

    def __init__(self, config: ScaleConfig, layout: Layout, learner: ShardedLearner):
        self.config, self.learner, self.ranks = config, learner, learner.parallel
        self.transport = TRANSPORTS[config.generate.transport](config, layout, self.ranks)
        self.asked: tuple[int, str | None] | None = None
        self.ask_at = 0.0
        self.due: list[GeneratorClient] = []
        if self.ranks.first:
            self.generators = GeneratorPool(
                clients_of(config, layout),
                self.transport,
                partial(probe, config, learner.policy.config.vocab_size),
                clear_cache=config.generate.kv == "clear",
                limit=config.generate.timeout,
                heartbeat_of=lambda client: Heartbeat(layout.alive(client.name), SERVER_SILENCE),
            )
            self.runner, self.sessions = asyncio.Runner(), AsyncExitStack()
            for client in self.generators.clients:
                self.runner.run(self.sessions.enter_async_context(client))
            self.runner.run(self.generators.resume_all())

    def is_due(self, pinned: str | None = None) -> bool:
        """Whether a generator that answers lacks the learner's weights (rank 0).

        Asked at every new version, otherwise now and then: for those that have been started again.
        The generator that is `pinned` keeps what it has: an evaluation asks it.
        """
        now, question = time.monotonic(), (self.learner.step, pinned)
        if question == self.asked and now < self.ask_at:
            return False
        self.asked, self.ask_at = question, now + CHECK_SECONDS
        behind = self.runner.run(self.generators.behind(self.learner.step))
        self.due = [client for client in behind if client.name != pinned]
        return bool(self.due)

    def deliver(self) -> None:
        """Give the learner's weights to the generators that are due.

        Those that do not compute with what they were sent get no requests. Raises `WrongWeights` on
        all ranks if that is every one of them, again and again.
        """
        probes, hopeless = [], False
        self.transport.gather(self.learner.policy, self.learner.step)
        if self.ranks.first:
            probes = self.runner.run(self.send())
            self.transport.release()
        else:
            self.transport.follow()
        if gaps := gaps_of(probes, self.ranks, self.learner.scored, self.config):
            if self.ranks.first:
                self.runner.run(self.generators.judge(gaps, tolerance(self.config)))
                hopeless = self.generators.hopeless
            if self.ranks.share(hopeless):
                raise WrongWeights(
                    f"{', '.join(gaps)}: no generator computes with the weights that it is sent: "
                    "check model.policy, dtypes and versions there"
                )

    async def send(self) -> list[Probe]:
        """Rank 0's part; this process shows life meanwhile, however long a push may take."""
        async with beating(self.ranks.alive):
            return await self.generators.push(self.due, self.learner.step)

    def close(self) -> None:
        """End the sessions with the generators."""
        if self.ranks.first:
            self.runner.run(self.sessions.aclose())
            self.runner.close()


@dataclass
class GeneratorPool:
    """Rank 0's view of the generators. `sample` makes a probe of one that has just been pushed.

    A generator that fails is named in a warning and tried again later; the others never wait for
    it longer than one push may take. While it is sent weights its engine answers nobody: that it
    lives is shown for it, by what `heartbeat_of` gives. Chapter 17.
    """

    clients: Sequence[GeneratorClient]
    transport: Transport
    sample: Callable[[GeneratorClient, int], Awaitable[Probe]]
    clear_cache: bool = False
    limit: float = 600.0
    clock: Callable[[], float] = time.monotonic
    heartbeat_of: Callable[[GeneratorClient], Callable[[], None]] = lambda client: lambda: None
    verified: set[str] = field(default_factory=set)  # URLs whose present process passed a probe
    wrong: Counter[str] = field(default_factory=Counter)  # how often others were probed in vain
    failures: Counter[str] = field(default_factory=Counter)
    retry_at: dict[str, float] = field(default_factory=dict)
    slowest: float = 0.0

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
                    found = await self.sample(client, version) if fresh else None
            except Exception as error:
                self.transport.forget(client)
                reason = "time limit" if isinstance(error, TimeoutError) else error
                self.failed(client, f"version {version} is not delivered: {reason}")
                return None
            self.slowest = max(self.slowest, self.clock() - start)
        self.verified.add(client.url)
        if client.url not in self.wrong:
            self.failures.pop(client.url, None)
        return found

    async def judge(self, gaps: Mapping[str, float], tolerance: float) -> None:
        """Take in what probes have shown, mean |Δ log π| by URL.

        Whoever exceeds the tolerance counts as without weights until a push sets it right.
        """
        for client in (client for client in self.clients if client.url in gaps):
            if (gap := gaps[client.url]) <= tolerance:
                self.wrong.pop(client.url, None)
                self.failures.pop(client.url, None)
                continue
            self.wrong[client.url] += 1
            self.verified.discard(client.url)
            with suppress(GenerationFailed, RequestRefused):
                await client.name_weights(None)
            self.failed(
                client,
                "its log-probabilities are not those of the weights that were sent (mean |Δ log π| "
                f"{gap:.2g}, tolerance {tolerance:g}), so nobody asks it: check model.policy, "
                "dtypes and versions there",
            )

    @property
    def hopeless(self) -> bool:
        """Whether all who were verified have failed again and again, and none is right."""
        wrong = [self.wrong[c.url] for c in self.clients if c.url in self.wrong]
        return bool(wrong) and min(wrong) >= MOST_WRONG and not self.verified

    @property
    def push_limit(self) -> float:
        """Seconds that a push may take."""
        usual = max(LEAST_LIMIT, SLOWER * self.slowest) if self.slowest else self.limit
        return min(self.limit, usual)

    def failed(self, client: GeneratorClient, reason: object) -> None:
        """Say it, and leave the generator in peace for a while."""
        self.failures[client.url] += 1
        self.retry_at[client.url] = self.clock() + pause_after(self.failures[client.url])
        warnings.warn(f"generator {client.url}: {reason}", RuntimeWarning, stacklevel=2)

    async def resume_all(self) -> None:
        """Wake generators that a trainer paused and did not live to resume."""

        async def resume(client: GeneratorClient) -> None:
            with suppress(GenerationFailed, RequestRefused, TimeoutError):
                async with asyncio.timeout(SILENCE):
                    if await client.version() is not None:
                        await client.resume()

        await asyncio.gather(*map(resume, self.clients))


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


async def probe(
    config: ScaleConfig, vocabulary: int, client: GeneratorClient, version: int
) -> Probe:
    """Completions of a prompt of arbitrary tokens: there, two policies differ most."""
    prompt = [7919 * (i + 1) % vocabulary for i in range(PROMPT_TOKENS)]
    copies, temperature = min(COPIES, config.generate.slots), config.rollout.temperature
    written = await client.complete_at(
        version, prompt, copies, max_new_tokens=TOKENS, temperature=temperature
    )
    problem = Problem("probe", "", "")
    return client.url, [
        Rollout(problem, 0, prompt, c.token_ids, c.logps, [0] * len(c.token_ids), "length", "")
        for c in written
    ]


def gaps_of(
    probes: Sequence[Probe], ranks: Ranks, policy: ScoredPolicy, config: ScaleConfig
) -> dict[str, float]:
    """Mean |log π_trainer − log π_generator| of rank 0's probes by URL, scored on all ranks."""
    temperature, most = config.rollout.temperature, config.optimizer.micro_batch_tokens
    gaps = {}
    for url, rollouts in ranks.share(probes):
        batch = collate(rollouts).to(ranks.device)
        logp = ranks.logprobs(policy, batch, temperature, most)
        gaps[url] = float((logp - batch.logp_sampler)[batch.mask].abs().mean())
    return gaps


def tolerance(config: ScaleConfig) -> float:
    """Rounding that the coarser of the two dtypes excuses."""
    return max(TOLERANCE[str(part.dtype)] for part in (config.train, config.generate))
