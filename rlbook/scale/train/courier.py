"""Between the sharded policy and the generators: gather on all ranks, push from rank 0, verify."""

import asyncio
import time
from contextlib import AsyncExitStack

from rlbook.scale.config import ScaleConfig
from rlbook.scale.generate.client import GeneratorClient, clients_of
from rlbook.scale.layout import Layout
from rlbook.scale.train.learner import Learner
from rlbook.scale.train.nccl import NCCLTransport
from rlbook.scale.train.probes import Prober, verify
from rlbook.scale.train.push import Generators
from rlbook.scale.train.weights import FileTransport

CHECK_SECONDS = 0.5
TRANSPORTS = {"file": FileTransport, "nccl": NCCLTransport}


class Courier:
    """Brings the learner's weights to whoever lacks them.

    `deliver` is collective; everything that speaks to generators happens on rank 0.
    """

    def __init__(self, config: ScaleConfig, layout: Layout, learner: Learner):
        self.config, self.learner, self.ranks = config, learner, learner.ranks
        transport = TRANSPORTS[config.generate.transport]
        self.transport = transport(config, layout, self.ranks)
        self.asked, self.ask_at = -1, 0.0
        self.due: list[GeneratorClient] = []
        if self.ranks.first:
            self.connect(clients_of(config, layout))

    def connect(self, clients: list[GeneratorClient]) -> None:
        """Rank 0's side: one session per generator. Wakes those that a dead trainer paused."""
        generate = self.config.generate
        prober = Prober(self.config, self.learner.policy.config.vocab_size)
        clear = generate.kv == "clear"
        self.generators = Generators(clients, self.transport, prober, clear, generate.timeout)
        self.runner, self.sessions = asyncio.Runner(), AsyncExitStack()
        for client in clients:
            self.runner.run(self.sessions.enter_async_context(client))
        self.runner.run(self.generators.resume_all())

    def is_due(self, held: int | None = None) -> bool:
        """Whether a generator that answers lacks the learner's weights (rank 0).

        Asked at every new version, otherwise now and then: for those that have been started again.
        While a version is `held`, those that have it, or a newer one, lack nothing.
        """
        version, now = self.learner.version, time.monotonic()
        if held is not None:
            version = min(version, held)
        if version == self.asked and now < self.ask_at:
            return False
        self.asked, self.ask_at = version, now + CHECK_SECONDS
        self.due = self.runner.run(self.generators.behind(version))
        return bool(self.due)

    def deliver(self) -> None:
        """Give the learner's weights to the generators that are due.

        Raises `WrongWeights` on all ranks if a new one does not compute with what it was sent.
        """
        version, probes = self.learner.version, []
        self.transport.gather(self.learner.policy, version)
        if self.ranks.first:
            probes = self.runner.run(self.generators.push(self.due, version))
        self.transport.release()
        verify(probes, self.ranks, self.learner.scored, self.config)

    def close(self) -> None:
        if self.ranks.first:
            self.runner.run(self.sessions.aclose())
            self.runner.close()
