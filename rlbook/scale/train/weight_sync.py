"""Between the sharded policy and the generators: gather on all ranks, send from rank 0, verify."""

import asyncio
import time
from contextlib import AsyncExitStack

from rlbook.scale.config import ScaleConfig
from rlbook.scale.generate.client import SERVER_SILENCE, GeneratorClient, clients_of
from rlbook.scale.layout import Layout
from rlbook.scale.process import Heartbeat
from rlbook.scale.train.learner import ShardedLearner
from rlbook.scale.train.nccl import NCCLTransport
from rlbook.scale.train.push import GeneratorPool, beating
from rlbook.scale.train.weight_check import Probe, Prober, gaps_of, tolerance
from rlbook.scale.train.weights import FileTransport

CHECK_SECONDS = 0.5
TRANSPORTS = {"file": FileTransport, "nccl": NCCLTransport}


class WrongWeights(RuntimeError):
    """No generator computes with the weights that it was sent."""


class WeightSync:
    """Brings the learner's weights to whoever lacks them.

    `deliver` is collective; everything that speaks to generators happens on rank 0.
    """

    def __init__(self, config: ScaleConfig, layout: Layout, learner: ShardedLearner):
        self.config, self.learner, self.ranks = config, learner, learner.parallel
        transport = TRANSPORTS[config.generate.transport]
        self.transport, self.layout = transport(config, layout, self.ranks), layout
        self.asked: tuple[int, str | None] | None = None
        self.ask_at = 0.0
        self.due: list[GeneratorClient] = []
        if self.ranks.first:
            self.connect(clients_of(config, layout))

    def connect(self, clients: list[GeneratorClient]) -> None:
        """Rank 0's side: one session per generator. Wakes those that a dead trainer paused."""
        generate = self.config.generate
        prober = Prober(self.config, self.learner.policy.config.vocab_size)
        self.generators = GeneratorPool(
            clients,
            self.transport,
            prober,
            clear_cache=generate.kv == "clear",
            limit=generate.timeout,
            heartbeat_of=self.heartbeat_of,
        )
        self.runner, self.sessions = asyncio.Runner(), AsyncExitStack()
        for client in clients:
            self.runner.run(self.sessions.enter_async_context(client))
        self.runner.run(self.generators.resume_all())

    def heartbeat_of(self, client: GeneratorClient) -> Heartbeat:
        """The signs of life of a generator that is being sent weights."""
        return Heartbeat(self.layout.alive(client.name), SERVER_SILENCE)

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
        version, probes, hopeless = self.learner.step, [], False
        self.transport.gather(self.learner.policy, version)
        if self.ranks.first:
            probes = self.runner.run(self.send(version))
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

    async def send(self, version: int) -> list[Probe]:
        """Rank 0's part; this process shows life meanwhile, however long a push may take."""
        async with beating(self.ranks.alive):
            return await self.generators.push(self.due, version)

    def close(self) -> None:
        """End the sessions with the generators."""
        if self.ranks.first:
            self.runner.run(self.sessions.aclose())
            self.runner.close()
