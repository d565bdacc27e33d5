"""A verifier and a trainer that cost nothing, and runs of them with a generator of `fleet`, in a
time of their own: how busy the machine is changes nothing. What brings it weights, by a clock."""

import asyncio
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from unittest.mock import AsyncMock

import pytest
import torch
from fleet import Client, Generator, engine_of, pushed, tokenizer_of_sums

from rlbook.durable import write_json
from rlbook.jsonl import read_jsonl
from rlbook.scale import batch_log
from rlbook.scale.config import ScaleConfig
from rlbook.scale.launch.processes import Command, start_here
from rlbook.scale.layout import Layout
from rlbook.scale.rollout.groups import GroupSampler
from rlbook.scale.rollout.orchestrator import Orchestrator
from rlbook.scale.train import weight_sync
from rlbook.tasks import get_task, held_out_problems


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


class OwnTime(asyncio.SelectorEventLoop):
    """A loop whose time stands still while there is anything to do, then jumps to what is next.

    Only a thread takes time that nobody knows: it is waited for, and none passes.
    """

    def __init__(self, clock):
        super().__init__()
        self.time, self.clock, self.threads = clock, clock, 0
        self.look, self._selector.select = self._selector.select, self.wait

    def wait(self, timeout):
        if timeout is None or (timeout and self.threads):
            return self.look(None)
        self.clock.now += timeout
        return self.look(0)

    def run_in_executor(self, executor, function, *arguments):
        done = super().run_in_executor(executor, function, *arguments)
        self.threads += 1
        done.add_done_callback(self.thread_is_done)
        return done

    def thread_is_done(self, done):
        self.threads -= 1


def run_by(clock, story):
    """What a coroutine function returns in a time of its own; what would hang fails instead."""

    async def in_time():
        async with asyncio.timeout(100):
            return await story()

    with asyncio.Runner(loop_factory=partial(OwnTime, clock)) as runner:
        return runner.run(in_time())


@pytest.fixture(scope="session")
def run_ranks():
    """Runs a program as ranks: `run_ranks(program, folder, *arguments)`, logs in `folder`."""

    def run(program, folder, *arguments, count=2):
        argv = [sys.executable, str(program), *map(str, arguments)]
        logs = [folder / f"rank{rank}.log" for rank in range(count)]
        gang = start_here(Command("ranks", argv, {"OMP_NUM_THREADS": "1"}, ranks=count), logs)
        try:
            for process, log in zip(gang, logs, strict=True):
                assert process.wait(timeout=900) == 0, log.read_text()[-3000:]
        finally:
            for process in gang:
                process.kill()

    return run


class FakeVerifiers:
    """The task's own verdict, in this process."""

    def __init__(self, task="sums"):
        self.task, self.events = get_task(task), Counter()

    async def verify(self, problem, completion, finished=True, task=None):
        judge = get_task(task) if task else self.task
        return judge.verify(problem, completion, finished)


@dataclass
class FakeTrainer:
    """Reads batches as the trainer does; an update makes the generator's weights one newer.

    While the generator is pinned it keeps its weights to itself, as the trainer does.
    """

    layout: object
    generator: Generator
    steps: int
    seconds: float = 0.0
    save_every: int = 3
    updates: list[tuple[int, list]] = field(default_factory=list)

    async def run(self):
        """From the newest checkpoint to the end of the run."""
        pointer = self.layout.checkpoints / "latest"
        version = int(pointer.read_text().split("_")[1]) if pointer.exists() else 0
        end = False
        while not end or self.layout.pinned.exists():
            await self.push(version)
            if batch_log.has_batch(self.layout, version):
                version = await self.update(version)
            else:
                last = batch_log.log_end(self.layout).get("version", self.steps)
                end = version == min(last, self.steps)
                await asyncio.sleep(0.002)
        await self.push(version)
        self.report(version, done=True)

    async def push(self, version):
        held = self.generator.weights
        if (held is None or held < version) and not self.layout.pinned.exists():
            await pushed(Client(self.generator), version, self.layout.weights)

    async def update(self, version):
        rollouts, state = batch_log.read_batch(self.layout, version)
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
        batch_log.prune(self.layout, version)

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

    def __init__(self, config, generator, clock):
        self.config, self.layout, self.clock = config, Layout(config.folder), clock
        self.steps = config.steps
        self.prompts, self.group_size = config.rollout.prompts, config.rollout.group_size
        held_out = get_task(config.data.task), config.evaluation.prompts, config.data.levels
        self.held_out = {problem.prompt for problem in held_out_problems(*held_out)}
        self.generator, self.tokenizer = generator, tokenizer_of_sums()
        self.trainer = FakeTrainer(self.layout, generator, self.steps)

    def orchestrator(self):
        engine, verifiers = engine_of(self.generator), FakeVerifiers(self.config.data.task)
        sampler = GroupSampler(engine, self.tokenizer, verifiers, self.config)
        return Orchestrator(self.layout, sampler)

    def evaluates(self, asked):
        """Whether a request is for an answer to one of the run's own held-out problems."""
        return asked.route == "generate" and asked.prompt in self.held_out

    def play(self):
        async def both():
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.trainer.run())
                tasks.create_task(self.orchestrator().run())

        self.live(both)
        return self

    def live(self, story):
        run_by(self.clock, story)

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
    def staleness_by_step(self):
        """Of every token that was trained, with its step."""
        return [(step, step - v) for step, rollout in self.rollouts for v in rollout.versions]

    @property
    def lags(self):
        return [staleness for _, staleness in self.staleness_by_step]

    @property
    def state(self):
        """The orchestrator's last durable state."""
        return batch_log.newest_state(self.layout)[1]


def by_ticket(rollouts):
    groups = {}
    for rollout in rollouts:
        groups.setdefault(rollout.group, []).append(rollout)
    return groups


@pytest.fixture
def own_time():
    """Runs a coroutine function in a time of its own."""
    return partial(run_by, Clock())


@pytest.fixture
def make_run(tmp_path, monkeypatch):
    """Makes a `Run` from the generator's settings and sections of the run's."""
    clock = Clock()
    own = SimpleNamespace(monotonic=clock, strftime=time.strftime)
    monkeypatch.setattr("rlbook.scale.rollout.orchestrator.time", own)
    monkeypatch.setattr("rlbook.scale.rollout.orchestrator.POLL_SECONDS", 0.004)
    monkeypatch.setattr("rlbook.scale.generate.client.LOOK_SECONDS", 0.004)
    monkeypatch.setattr("rlbook.scale.rollout.evaluate.LOOK_SECONDS", 0.004)
    monkeypatch.setattr("rlbook.durable.sync_to_disk", lambda path: None)

    def make(generator=None, **sections):
        own = {"weights": 0, **(generator or {})}
        return Run(settings(tmp_path, **sections), Generator(**own), clock)

    return make


@pytest.fixture
def fake_verifiers():
    return FakeVerifiers()


class Rank:
    """The only one, in this process."""

    first, device, count = True, torch.device("cpu"), 1

    def alive(self):
        """Nobody asks."""

    def collect(self, value):
        return [value]

    def share(self, value=None):
        return value


@pytest.fixture
def make_sync(tmp_path, monkeypatch):
    """Makes a `WeightSync` of `parameters` weights for generators; `now` is the clock it reads."""
    made = []

    def make(*generators, parameters=1, **generate):
        policy = torch.nn.ParameterDict({"weight": torch.zeros(1).expand(parameters)})
        policy.config = SimpleNamespace(vocab_size=29)
        learner = SimpleNamespace(parallel=Rank(), policy=policy, step=0)
        config = ScaleConfig(run=str(tmp_path), **{"generate": generate} if generate else {})
        clients = [Client(one, timeout=config.generate.timeout) for one in generators]
        monkeypatch.setattr(weight_sync, "clients_of", lambda config, layout: clients)
        monkeypatch.setattr(weight_sync, "monotonic", clock := Clock())
        clock.now = 0.0
        made.append(sync := weight_sync.WeightSync(config, Layout(tmp_path), learner))
        sync.now, sync.transport.send = clock, AsyncMock(wraps=sync.transport.send)
        return sync

    yield make
    for sync in made:
        sync.close()
