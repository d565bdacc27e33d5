"""A generator, a verifier and a trainer that cost nothing, and runs made of them."""

import asyncio
import random
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import pytest

from rlbook.scale import spool
from rlbook.scale.config import ScaleConfig
from rlbook.scale.generate.engine import GenerationFailed, VersionedCompletion
from rlbook.scale.hold import Held
from rlbook.scale.layout import Layout, write_json
from rlbook.scale.rollout.orchestrator import Orchestrator
from rlbook.tasks import get_task
from rlbook.tiny.model import build_tokenizer
from rlbook.training import read_jsonl


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

    async def versions(self):
        return set() if self.weights is None else {self.weights}

    async def complete(self, prompt, n, *, max_new_tokens, temperature, version=None):
        if version not in (None, self.weights):
            raise GenerationFailed(f"no generator has version {version}")
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

    def __init__(self, task="sums"):
        self.task, self.failures = get_task(task), Counter()

    async def verify(self, problem, completion, finished=True, task=None):
        judge = get_task(task) if task else self.task
        return judge.verify(problem, completion, finished)


@dataclass
class FakeTrainer:
    """Reads batches as the trainer does; an update makes the engine's weights one newer.

    While a version is held it keeps its weights to itself, as the trainer does.
    """

    layout: object
    engine: FakeEngine
    steps: int
    seconds: float = 0.0
    save_every: int = 3
    updates: list[tuple[int, list]] = field(default_factory=list)

    def __post_init__(self):
        self.held = Held(self.layout.hold)

    async def run(self):
        """From the newest checkpoint to the end of the run."""
        pointer = self.layout.checkpoints / "latest"
        version = int(pointer.read_text().split("_")[1]) if pointer.exists() else 0
        end = False
        while not end or self.held() is not None:
            self.push(version)
            if spool.has_batch(self.layout, version):
                version = await self.update(version)
            else:
                last = (spool.spool_end(self.layout) or {}).get("version", self.steps)
                end = version == min(last, self.steps)
                await asyncio.sleep(0.002)
        self.push(version)
        self.report(version, done=True)

    def push(self, version):
        if self.engine.weights is not None and self.held() is None:
            self.engine.weights = max(self.engine.weights, version)

    async def update(self, version):
        rollouts, state = spool.read_batch(self.layout, version)
        await asyncio.sleep(self.seconds)
        self.updates.append((version, rollouts))
        version += 1
        if version % self.save_every == 0:
            self.save(version, state)
        self.report(version, done=False)
        return version

    def save(self, version, state):
        name = f"step_{version:06d}"
        write_json(self.layout.checkpoints / name / "orchestrator.json", state)
        (self.layout.checkpoints / "latest").write_text(name + "\n")
        spool.prune(self.layout, version)

    def report(self, version, done):
        write_json(self.layout.status, {"version": version, "done": done})


def settings(root, **sections):
    """A small run of one update a step; `generate={"max_staleness": 1}` changes a section."""
    defaults = {
        "data": {"pool": 200},
        "rollout": {"prompts": 3, "group_size": 2},
        "optimizer": {"minibatches": 1},
        "evaluation": {"every": 4, "prompts": 5, "samples": 4},
        "generate": {"max_staleness": 2, "timeout": 30.0},
    }
    merged = {name: {**values, **sections.pop(name, {})} for name, values in defaults.items()}
    return ScaleConfig(**{"run": str(root), "steps": 7, **merged, **sections})


class Run:
    """A run folder with its fakes, an orchestrator that can be killed, and its history."""

    def __init__(self, config, engine):
        self.config, self.layout = config, Layout(config.folder)
        self.steps = config.updates
        self.prompts, self.group_size = config.prompts_per_update, config.rollout.group_size
        self.engine = engine
        self.trainer = FakeTrainer(self.layout, engine, self.steps)

    def orchestrator(self):
        tokenizer, verifiers = self.engine.tokenizer, FakeVerifiers(self.config.data.task)
        return Orchestrator(self.layout, self.config, self.engine, tokenizer, verifiers)

    def play(self, seconds=40):
        async def both():
            async with asyncio.timeout(seconds), asyncio.TaskGroup() as tasks:
                tasks.create_task(self.trainer.run())
                tasks.create_task(self.orchestrator().run())

        asyncio.run(both())
        return self

    @property
    def rows(self):
        return read_jsonl(self.layout.log("rollouts"))

    @property
    def groups(self):
        """Batch by batch, the rollouts of each ticket that were trained."""
        batches = dict(self.trainer.updates)
        assert sorted(batches) == list(range(len(batches)))
        return [by_ticket(batches[step]) for step in sorted(batches)]

    @property
    def tickets(self):
        return [ticket for batch in self.groups for ticket in batch]

    @property
    def rollouts(self):
        """All that was trained, each rollout with its step."""
        return [
            (step, rollout)
            for step, batch in enumerate(self.groups)
            for group in batch.values()
            for rollout in group
        ]

    @property
    def lags_by_step(self):
        """Of every token that was trained, with its step."""
        return [(step, step - v) for step, rollout in self.rollouts for v in rollout.versions]

    @property
    def lags(self):
        return [lag for _, lag in self.lags_by_step]

    @property
    def state(self):
        """The orchestrator's last durable state."""
        return spool.newest_state(self.layout)[1]


def by_ticket(rollouts):
    groups = {}
    for rollout in rollouts:
        groups.setdefault(rollout.group, []).append(rollout)
    return groups


@pytest.fixture
def make_run(tmp_path, monkeypatch):
    """Makes a `Run` from the engine's fields and sections of the settings."""
    monkeypatch.setattr("rlbook.scale.rollout.orchestrator.POLL_SECONDS", 0.004)
    monkeypatch.setattr("rlbook.scale.layout.sync_to_disk", lambda path: None)

    def make(engine=None, **sections):
        return Run(settings(tmp_path, **sections), FakeEngine(**engine or {}))

    return make


@pytest.fixture
def fake_verifiers():
    return FakeVerifiers()
