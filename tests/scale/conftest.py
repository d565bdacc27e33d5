"""A generator, a verifier and a trainer that cost nothing."""

import asyncio
import random
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import pytest

from rlbook.policy.tiny import build_tokenizer
from rlbook.scale.engine import VersionedCompletion
from rlbook.scale.layout import write_json
from rlbook.scale.spool import has_batch, prune, read_batch, spool_end
from rlbook.tasks import SumsTask


@dataclass
class FakeEngine:
    """Answers sums, right with probability `right(prompt text)`; its weights are a number.

    A reply takes `seconds(rng)`; its first half is by the weights at the start, the rest by those
    at the end. `trouble(n)`, awaited before the n-th reply (from 1), may raise, hang, or return
    the reply itself.
    """

    right: Callable[[str], float] = lambda text: 0.5
    seconds: Callable[[random.Random], float] = lambda rng: 0.0
    trouble: Callable[[int], object] | None = None
    weights: int | None = 0
    seed: int = 0
    calls: int = 0
    in_flight: int = 0
    most_in_flight: int = 0
    tokenizer: object = field(default_factory=cache(build_tokenizer))

    def __post_init__(self):
        self.rng = random.Random(self.seed)

    async def version(self):
        return self.weights

    async def complete(self, prompt, n, *, max_new_tokens, temperature):
        self.calls += 1
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            if self.trouble and (reply := await self.trouble(self.calls)) is not None:
                return reply
            first = self.weights or 0
            await asyncio.sleep(self.seconds(self.rng))
            return [self.write(prompt, max_new_tokens, first) for _ in range(n)]
        finally:
            self.in_flight -= 1

    def write(self, prompt, limit, first):
        text = self.tokenizer.decode(prompt, skip_special_tokens=True)
        answer = sum(map(int, re.findall(r"[+-]?\d+", text)))
        answer += self.rng.random() >= self.right(text)
        text = f"<think></think><answer>{answer}</answer>"
        tokens = self.tokenizer(text, add_special_tokens=False).input_ids
        tokens = [*tokens, self.tokenizer.eos_token_id][:limit]
        late = len(tokens) // 2
        versions = [first] * (len(tokens) - late) + [self.weights or 0] * late
        reason = "stop" if tokens[-1] == self.tokenizer.eos_token_id else "length"
        return VersionedCompletion(tokens, [-0.5] * len(tokens), reason, versions)


class FakeVerifiers:
    """The task's own verdict, in this process."""

    def __init__(self):
        self.failures = Counter()

    async def verify(self, problem, completion, finished=True):
        return SumsTask().verify(problem, completion, finished)


@dataclass
class FakeTrainer:
    """Reads batches as the trainer does; an update makes the engine's weights one newer."""

    layout: object
    engine: FakeEngine
    steps: int
    seconds: float = 0.0
    save_every: int = 3
    updates: list[tuple[int, list]] = field(default_factory=list)

    async def run(self):
        """From the newest checkpoint to the end of the run."""
        pointer = self.layout.checkpoints / "latest"
        version = int(pointer.read_text().split("_")[1]) if pointer.exists() else 0
        end = None
        while version < self.steps and not end:
            if has_batch(self.layout, version):
                version = await self.update(version)
            else:
                end = (spool_end(self.layout) or {}).get("version") == version
                await asyncio.sleep(0.002)
        self.report(version, done=True)

    async def update(self, version):
        rollouts, state = read_batch(self.layout, version)
        await asyncio.sleep(self.seconds)
        self.updates.append((version, rollouts))
        version += 1
        self.engine.weights = max(self.engine.weights or 0, version)
        if version % self.save_every == 0:
            self.save(version, state)
        self.report(version, done=False)
        return version

    def save(self, version, state):
        name = f"step_{version:06d}"
        write_json(self.layout.checkpoints / name / "orchestrator.json", state)
        (self.layout.checkpoints / "latest").write_text(name + "\n")
        prune(self.layout, version)

    def report(self, version, done):
        write_json(self.layout.status, {"version": version, "done": done})


@pytest.fixture
def fake_engine():
    return FakeEngine


@pytest.fixture
def fake_verifiers():
    return FakeVerifiers


@pytest.fixture
def fake_trainer():
    return FakeTrainer
