"""From the sharded policy to the generators: gather on all ranks, send from rank 0, verify.

Who gets new weights, and when, follows from what each generator says it has:

dead, silent                      left alone until it answers
without weights of this run       pushed, then verified by a probe: it has just been started
behind the trainer                pushed
level with it, or ahead           left alone (ahead: the trainer is replaying batches)
verified in vain                  without weights again: nobody asks it until another push is right
"""

import asyncio
import warnings
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from time import monotonic

import torch
from safetensors import SafetensorError

from rlbook.durable import read_json
from rlbook.scale.config import ScaleConfig
from rlbook.scale.generate.client import SILENCE, GeneratorClient, clients_of
from rlbook.scale.generate.protocol import GenerationFailed, RequestRefused, all_of, pause_after
from rlbook.scale.layout import Layout
from rlbook.scale.plan.budget import push_seconds
from rlbook.scale.process import HEARTBEAT_SECONDS
from rlbook.scale.train.learner import ShardedLearner
from rlbook.scale.train.weights import FileTransport, NCCLTransport
from rlbook.tasks import Problem
from rlbook.training import Rollout, collate

CHECK_SECONDS = 0.5
SLOWER = 10  # a push that takes so many times as long as the slowest before is given up,
LATER = 5  # and before there was one, so many times as long as is planned
LEAST_LIMIT = 60.0
MOST_WRONG = 3  # times that every generator may be verified in vain, none ever rightly
PROMPT_TOKENS, TOKENS, COPIES = 16, 16, 4  # of a probe
TOLERANCE = {"float32": 1e-3, "bfloat16": 0.15}  # mean |Δ log π|; of other weights 1 and more
TRANSPORTS = {"file": FileTransport, "nccl": NCCLTransport}


class WrongWeights(RuntimeError):
    """No generator computes with the weights that it was sent."""


class WeightSync:
    """Brings the learner's weights to whoever lacks them.

    `deliver` is collective; rank 0 alone speaks to generators. One that fails is named in a warning
    and tried again later; the others never wait for it longer than one push may take. Chapter 18.
    """

    def __init__(self, config: ScaleConfig, layout: Layout, learner: ShardedLearner):
        self.config, self.learner, self.ranks = config, learner, learner.parallel
        transport = TRANSPORTS[config.generate.transport]
        self.transport = transport(config, layout, self.ranks, learner.policy)
        self.looked_for: tuple[int, str | None] | None = None
        self.ask_at = 0.0
        self.slowest = read_json(layout.status, {}).get("slowest_push", 0.0)  # before a restart
        parameters = sum(weight.numel() for weight in learner.policy.parameters())
        self.planned = push_seconds(config, parameters)
        self.due: list[GeneratorClient] = []
        # Of generators, by URL: a process that is started again has another one.
        self.verified: set[str] = set()  # whose last probe was right
        self.wrong: Counter[str] = Counter()  # probes in vain, one after the other
        self.paused: set[str] = set()  # URLs whose update has not ended
        self.given_up_after = 0.0  # seconds of the newest push that was too slow
        self.failures: Counter[str] = Counter()
        self.retry_at: dict[str, float] = {}
        self.clients = clients_of(config, layout) if self.ranks.first else []
        self.runner, self.sessions = asyncio.Runner(), AsyncExitStack()
        self.runner.run(all_of(map(self.greet, self.clients)))

    async def greet(self, client: GeneratorClient) -> None:
        """Open a session; wake a generator that a trainer paused and did not live to resume."""
        await self.sessions.enter_async_context(client)
        with suppress(GenerationFailed, RequestRefused, TimeoutError):
            async with asyncio.timeout(SILENCE):
                if await client.version() is not None:
                    await (client.wake() if self.config.generate.sleep else client.resume())

    @contextmanager
    def asleep(self) -> Iterator[None]:
        """With `generate.sleep` no generator takes GPU memory but for its context in the block.

        It wakes as it was, with the weights that it had, but has to read again what it was writing.
        """
        if not self.config.generate.sleep:
            yield
            return
        self.have_all(GeneratorClient.sleep)
        try:
            yield
        finally:
            if self.ranks.device.type == "cuda":
                torch.cuda.empty_cache()  # the memory of the update is theirs now
            self.have_all(GeneratorClient.wake)

    def have_all(self, act: Callable[[GeneratorClient], Awaitable[None]]) -> None:
        """Have every generator with weights do something, once all ranks are here; collective."""

        async def ask(client: GeneratorClient) -> None:
            try:
                async with beating(self.ranks.alive, client.heartbeat):
                    async with asyncio.timeout(self.limit):
                        if await client.version() is not None:
                            await act(client)
            except (TimeoutError, GenerationFailed, RequestRefused) as error:
                self.failed(client, str(error) or "time limit")

        self.ranks.collect(None)
        if self.ranks.first:
            self.runner.run(all_of(map(ask, self.clients)))
        self.ranks.share()

    def is_due(self, pinned: str | None = None) -> bool:
        """Whether a generator that answers lacks the learner's weights (rank 0).

        Asked at every new version, otherwise now and then: for those that have been started again.
        The generator that is `pinned` keeps what it has: an evaluation asks it.
        """
        now, question = monotonic(), (self.learner.step, pinned)
        if question == self.looked_for and now < self.ask_at:
            return False
        self.looked_for, self.ask_at = question, now + CHECK_SECONDS
        self.due = [c for c in self.runner.run(self.behind()) if c.name != pinned]
        return bool(self.due)

    async def behind(self) -> list[GeneratorClient]:
        """The generators that answer and lack the learner's weights."""
        for client in self.clients:
            client.look_up()
        asked = [c for c in self.clients if monotonic() >= self.retry_at.get(c.url, 0.0)]
        lacking = await all_of(map(self.lacks, asked))
        return [client for client, lacks in zip(asked, lacking, strict=True) if lacks]

    async def lacks(self, client: GeneratorClient) -> bool:
        """Whether a generator answers and has older weights, none, or wrong ones."""
        try:
            async with asyncio.timeout(SILENCE):
                if (own := await client.version()) is None:
                    self.verified.discard(client.url)  # started again, or a broken update
                    return await client.healthy()
        except (TimeoutError, GenerationFailed, RequestRefused) as error:
            self.failed(client, str(error) or f"no answer within {SILENCE:g} s")
            return False
        behind = own < self.learner.step or self.wrong[client.url] > 0
        return behind or client.url in self.paused

    def deliver(self) -> None:
        """Give the learner's weights to the generators that are due, and verify the new ones.

        Raises `WrongWeights` on all ranks if every one is verified in vain, again and again.
        """
        probes: dict[str, list[Rollout]] = {}
        if self.ranks.first:
            probes = self.runner.run(self.push())
            self.ranks.share(False)
        else:
            self.transport.follow()
        if gaps := self.gaps(self.ranks.share(probes)):
            if self.ranks.first:
                self.runner.run(self.judge(gaps))
            probed = (c.url for c in self.clients if c.url in self.verified | self.wrong.keys())
            if self.ranks.share(min((self.wrong[url] for url in probed), default=0) >= MOST_WRONG):
                raise WrongWeights(
                    f"{', '.join(gaps)}: no generator computes with the weights that it is sent: "
                    "check model.policy, dtypes and versions there"
                )

    async def push(self) -> dict[str, list[Rollout]]:
        """Rank 0 sends the weights to all who are due; returns what new ones then write, by URL."""
        try:
            self.transport.prepare(self.learner.step)
        except (OSError, SafetensorError) as error:
            for client in self.due:
                self.failed(client, f"version {self.learner.step} is not delivered: {error}")
            return {}
        self.transport.expect(self.due)
        written = await all_of(map(self.push_one, self.due))
        return {c.url: rollouts for c, rollouts in zip(self.due, written, strict=True) if rollouts}

    async def push_one(self, client: GeneratorClient) -> list[Rollout]:
        """Send the weights to one generator; what it then writes, if it has just been started.

        Its engine answers nobody meanwhile: that it lives is shown for it, as for this process.
        """
        version, fresh = self.learner.step, client.url not in self.verified
        # An adapter is nothing at first, so that a probe says little of it: there are some more.
        probed = fresh or (self.transport.adapter and version.bit_count() == 1)
        async with beating(self.ranks.alive, client.heartbeat):
            start = monotonic()
            try:
                async with asyncio.timeout(self.limit):
                    if self.config.generate.sleep and await client.version() is not None:
                        await client.wake()  # or it would load them into memory that it has not
                    self.paused.add(client.url)
                    async with client.new_weights(version, self.config.generate.kv == "clear"):
                        await self.transport.send(client, fresh)
                    self.paused.discard(client.url)
                    written = await self.probe(client) if probed else []
            except Exception as error:
                self.transport.leave(client)
                reason = str(error) or self.too_slow()
                self.failed(client, f"version {version} is not delivered: {reason}")
                return []
            self.slowest = max(self.slowest, monotonic() - start)
            self.given_up_after = 0.0
        if not probed:
            self.failures[client.url] = 0
        return written

    @property
    def limit(self) -> float:
        """Seconds after which a generator is given up that has been sent something."""
        likely = max(LEAST_LIMIT, SLOWER * self.slowest, LATER * self.planned)
        likely = max(likely, 2 * self.given_up_after)
        return min(self.config.generate.timeout, likely)

    def too_slow(self) -> str:
        """Why a push was given up; the next has twice the time, until one succeeds."""
        taken = self.limit
        self.given_up_after = taken
        return (
            f"time limit of {taken:.0f} s: if it is always too short, lower budget.push_gb to what "
            "is measured here, or raise generate.timeout"
        )

    def failed(self, client: GeneratorClient, reason: str) -> None:
        """Say it, and leave the generator in peace for a while."""
        self.failures[client.url] += 1
        self.retry_at[client.url] = monotonic() + pause_after(self.failures[client.url])
        warnings.warn(f"generator {client.url}: {reason}", RuntimeWarning, stacklevel=2)

    async def probe(self, client: GeneratorClient) -> list[Rollout]:
        """Completions of a prompt of arbitrary tokens: there, two policies differ most."""
        vocabulary, config = self.learner.policy.config.vocab_size, self.config
        prompt = [7919 * (i + 1) % vocabulary for i in range(PROMPT_TOKENS)]
        written = await client.complete_at(
            self.learner.step,
            prompt,
            min(COPIES, config.generate.slots),
            max_new_tokens=TOKENS,
            temperature=config.rollout.temperature,
        )
        problem = Problem("probe", "", "")
        return [
            Rollout(problem, 0, prompt, c.token_ids, c.logps, [0] * len(c.token_ids), "length", "")
            for c in written
        ]

    def gaps(self, probes: Mapping[str, Sequence[Rollout]]) -> dict[str, float]:
        """Mean |log π_trainer − log π_generator| of probes, by URL; scored on all ranks."""
        gaps = {}
        for url, rollouts in probes.items():
            batch = collate(rollouts).to(self.ranks.device)
            logp = self.learner.logprobs(batch)
            gaps[url] = float((logp - batch.logp_sampler)[batch.mask].abs().mean())
        return gaps

    async def judge(self, gaps: Mapping[str, float]) -> None:
        """Take in what probes have shown: who errs beyond rounding counts as without weights."""
        parts = self.config.train, self.config.generate
        tolerance = max(TOLERANCE[str(part.dtype)] for part in parts)
        for client in (client for client in self.due if client.url in gaps):
            if (gap := gaps[client.url]) <= tolerance:
                self.verified.add(client.url)
                del self.wrong[client.url]
                self.failures[client.url] = 0
                continue
            self.verified.discard(client.url)
            self.wrong[client.url] += 1
            with suppress(GenerationFailed, RequestRefused):
                await client.name_weights(None)
            self.failed(
                client,
                "its log-probabilities are not those of the weights that were sent (mean |Δ log π| "
                f"{gap:.2g}, tolerance {tolerance:g}), so nobody asks it: check model.policy, "
                "dtypes and versions there",
            )

    def close(self) -> None:
        """End the sessions with the generators."""
        self.runner.run(self.sessions.aclose())
        self.runner.close()


@asynccontextmanager
async def beating(*heartbeats: Callable[[], None]) -> AsyncIterator[None]:
    """Shows life for as long as the block lasts."""

    async def beat() -> None:
        while True:
            for heartbeat in heartbeats:
                heartbeat()
            await asyncio.sleep(HEARTBEAT_SECONDS)

    task = asyncio.create_task(beat())
    try:
        yield
    finally:
        task.cancel()
