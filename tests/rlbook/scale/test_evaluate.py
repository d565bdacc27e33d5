"""One version per evaluation, whoever dies; rows, sets and what the orchestrator counts."""

import asyncio
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace

import pytest
from fleet import Generator, Reply, engine_of, tokenizer_of_sums

from rlbook.durable import read_json, write_json
from rlbook.jsonl import read_jsonl
from rlbook.scale.config import EvaluationSet, ScaleConfig
from rlbook.scale.layout import Layout
from rlbook.scale.rollout import batches
from rlbook.scale.rollout.batches import Counters
from rlbook.scale.rollout.evaluate import (
    ATTEMPTS,
    Evaluator,
    ProblemSet,
    evaluation_row,
    named_set,
)
from rlbook.scale.rollout.groups import GroupSampler
from rlbook.scale.train import trainer
from rlbook.scale.train.trainer import ScaleTrainer
from rlbook.scale.train.weight_sync import WeightSync
from rlbook.tasks import Problem, SumsTask
from rlbook.training import Rollout, RunLog

PROBLEMS = [Problem(f"p{i}", f"{i}+1=?", str(i + 1)) for i in range(3)]
OWN = ProblemSet(SumsTask(), PROBLEMS, samples=1)


def group(*correct, versions=(20, 20), number=0):
    logps = [-1.0, -1.0]
    return [
        Rollout(PROBLEMS[0], number, [1], [7, 2], logps, list(versions), "stop", "", correct=c)
        for c in correct
    ]


# Two generators, a trainer reduced to its versions, and an evaluator


@dataclass
class World:
    """What decides is the package's own: what the evaluator asks, what the trainer does next and
    who lacks weights. An answer takes its time, and is lost with the generator that writes it."""

    layout: Layout
    verifiers: object
    rng: Random = field(default_factory=Random)
    updates: int = 9
    every: int = 3
    sets: tuple = (OWN,)
    trained: int = 0
    saved: int = 0
    reached: int = 0
    pushes: list = field(default_factory=list)

    def __post_init__(self):
        how = {"right": lambda text: 1.0, "seconds": lambda rng: self.rng.choice([0.01, 0.3])}
        self.generators = {name: Generator(name, 0, **how) for name in ("one", "two")}

    @property
    def rows(self):
        return read_jsonl(self.layout.log("eval"))

    def evaluator(self):
        engine = engine_of(*self.generators.values())
        sampler = GroupSampler(engine, tokenizer_of_sums(), self.verifiers, ScaleConfig())
        return Evaluator(self.layout, self.sets, self.every, sampler, places=2)

    async def evaluate(self):
        """As an orchestrator does, which looks for versions all the time."""
        evaluator = self.evaluator()
        looking = asyncio.create_task(evaluator.engine.watch())
        try:
            await evaluator.run()
        finally:
            looking.cancel()

    async def train(self):
        """The trainer's loop, from its newest checkpoint; a push takes a moment."""
        self.trained = self.saved
        sync = SimpleNamespace(learner=self, behind=self.behind, runner=self, looked_for=None)
        one = SimpleNamespace(
            layout=self.layout,
            heartbeat=lambda: None,
            config=SimpleNamespace(
                steps=self.updates,
                checkpoint=SimpleNamespace(every=2),
                generate=SimpleNamespace(sleep=False),
            ),
            checkpoints=SimpleNamespace(failed=False, step=self.saved),
            weight_sync=SimpleNamespace(is_due=lambda pinned: WeightSync.is_due(sync, pinned)),
        )
        while True:
            one.version, one.reached, sync.ask_at = self.trained, self.reached, 0.0
            order = ScaleTrainer.decide(one)
            await asyncio.sleep(self.rng.choice([0.01, 0.1]))
            if order == "push":
                self.push(sync.due)
            elif order == "train":
                self.trained += 1
                self.reached = max(self.reached, self.trained)
                write_json(self.layout.status, {"version": self.reached})
            elif order == "save":
                self.saved = one.checkpoints.step = self.trained
            elif order == "finish":
                return write_json(self.layout.status, {"version": self.updates, "done": True})

    step = property(lambda self: self.trained)

    def behind(self):
        held = [(one, one.weights) for one in self.generators.values()]
        return [one for one, own in held if own is None or own < self.trained]

    def run(self, found):
        return found

    def push(self, due):
        for generator in due:
            generator.weights = self.trained
            self.pushes.append((generator.name, self.trained))


@pytest.fixture
def world(tmp_path, monkeypatch, fake_verifiers):
    monkeypatch.setattr("rlbook.durable.sync_to_disk", lambda path: None)
    monkeypatch.setattr(trainer, "has_batch", lambda layout, version: True)
    return World(Layout(tmp_path), fake_verifiers)


@pytest.mark.parametrize("seed", range(30))
def test_every_row_is_by_one_version_and_nobody_waits_for_ever(world, own_time, seed):
    world.rng = rng = Random(seed)

    async def faults():
        starts = {"trainer": world.train, "evaluator": world.evaluate}
        tasks = {name: asyncio.create_task(start()) for name, start in starts.items()}
        for _ in range(15):
            await asyncio.sleep(rng.choice([0.02, 0.2, 0.5]))
            victim = rng.choice(["one", "two", "trainer", "evaluator"])
            if victim in world.generators:
                if not tasks["trainer"].done():  # afterwards nobody is left to give it weights
                    world.generators[victim].restart()
            elif not tasks[victim].done():
                tasks[victim].cancel()
                await asyncio.wait([tasks[victim]])
                tasks[victim] = asyncio.create_task(starts[victim]())
        await asyncio.gather(*tasks.values())

    own_time(faults)
    assert world.trained == world.updates and not world.layout.pinned.exists()
    steps = [row["step"] for row in world.rows]
    assert steps[-1] == world.updates and steps == sorted(set(steps))
    for row in world.rows:
        assert row["step"] == row["version_min"] == row["version_max"]
    every = {step // world.every for step in steps[:-1]}
    assert len(every) == len(steps) - 1


def test_the_other_generators_go_on_with_newer_weights(world, own_time):
    """While one is asked by an evaluation that takes long, the other gets every version."""
    pinned = set()

    async def story():
        evaluating = asyncio.create_task(world.evaluate())
        while not world.layout.pinned.exists():
            await asyncio.sleep(0.01)
        pinned.add(read_json(world.layout.pinned))
        training = asyncio.create_task(world.train())
        while len(world.pushes) < 2:
            assert world.layout.pinned.exists()
            await asyncio.sleep(0.01)
        assert not pinned & {name for name, _ in world.pushes}
        assert pinned == {one.name for one in world.generators.values() if one.bodies("generate")}
        await asyncio.gather(evaluating, training)

    world.sets = (ProblemSet(SumsTask(), PROBLEMS * 20, samples=1),)
    own_time(story)
    assert {name for name, _ in world.pushes} == {"one", "two"}  # once it is free, it gets them too
    assert {one.weights for one in world.generators.values()} == {world.updates}


def test_a_question_that_is_never_answered_ends_its_evaluation(world, own_time, capsys):
    times = set()

    async def fails(asked):
        if asked.route == "generate":
            times.add(asyncio.get_running_loop().time())
            return Reply(500, b"no")

    for generator in world.generators.values():
        generator.trouble = fails
    world.sets = (ProblemSet(SumsTask(), PROBLEMS[:1], samples=1),)
    write_json(world.layout.status, {"version": 0, "done": True})
    own_time(world.evaluate)
    assert world.rows == [] and not world.layout.pinned.exists()
    assert "the evaluation of version 0 is given up: http://one" in capsys.readouterr().out
    assert len(times) == ATTEMPTS  # a moment lies between


def test_a_question_that_is_refused_ends_its_evaluation_not_the_process(world, own_time, capsys):
    async def refuses(asked):
        if asked.route == "generate" and asked.prompt == PROBLEMS[0].prompt:
            return Reply(400, b"too long for this model")

    for generator in world.generators.values():
        generator.trouble = refuses
    write_json(world.layout.status, {"version": 0, "done": True})
    own_time(world.evaluate)
    assert world.rows == [] and not world.layout.pinned.exists()
    assert "the evaluation of version 0 is given up" in capsys.readouterr().out


def test_the_rows_of_an_evaluation_are_written_at_once(world, own_time, monkeypatch):
    """A death between two of them would leave the second out for ever."""
    world.sets = (OWN, ProblemSet(SumsTask(), PROBLEMS, samples=1, name="again"))
    write_json(world.layout.status, {"version": 0, "done": True})
    written = []
    monkeypatch.setattr(RunLog, "__call__", lambda log, *rows: written.append(len(rows)))
    own_time(world.evaluate)
    assert written == [2]


def test_a_question_that_fails_a_few_times_costs_no_row(world, own_time):
    failures = iter(range(2 * ATTEMPTS - 1))  # a request is made twice

    async def fails(asked):
        if asked.route == "generate" and asked.prompt == PROBLEMS[0].prompt:
            return next((Reply(500, b"no") for _ in failures), None)

    for generator in world.generators.values():
        generator.trouble = fails
    write_json(world.layout.status, {"version": 0, "done": True})
    own_time(world.evaluate)
    assert [row["step"] for row in world.rows] == [0]
    assert next(failures, None) is None


def test_an_evaluation_whose_generator_dies_is_made_elsewhere(world, own_time, capsys):
    one = world.generators["one"]

    async def dies(asked):
        if asked.route == "generate":
            one.restart()

    one.trouble = dies
    write_json(world.layout.status, {"version": 0, "done": True})
    own_time(world.evaluate)
    assert [row["step"] for row in world.rows] == [0]
    assert "the evaluation of version 0 starts again" in capsys.readouterr().out


def test_what_a_dead_evaluator_pinned_is_free_again(world):
    write_json(world.layout.pinned, "one")
    world.evaluator()
    assert not world.layout.pinned.exists()


@pytest.mark.parametrize(
    ("last", "version", "done", "due"),
    [
        (-1, 0, False, True),  # the policy before training
        (0, 9, False, False),
        (0, 10, False, True),
        (0, 37, False, True),  # late is better than never
        (37, 40, False, True),
        (40, 43, False, False),
        (40, 43, True, True),  # the last version counts
        (43, 43, True, False),
    ],
)
def test_when_an_evaluation_is_due(world, last, version, done, due):
    world.every = 10
    one = world.evaluator()
    one.last = last
    assert one.due(version, done) == due
    world.every = 0
    assert not world.evaluator().due(version, done)


def test_every_set_has_a_row_of_its_own(world, own_time):
    world.sets = (OWN, ProblemSet(SumsTask(), PROBLEMS[:1], samples=4, name="hard", ks=(1, 4)))
    write_json(world.layout.status, {"version": 0, "done": True})
    own_time(world.evaluate)
    own, hard = world.rows
    assert (own["problems"], own["samples"], "set" in own) == (3, 1, False)
    assert (hard["set"], hard["problems"], hard["samples"]) == ("hard", 1, 4)
    assert hard["pass@4"] == 1.0 and "pass@2" not in hard
    asked = [one for generator in world.generators.values() for one in generator.asked]
    prompts = Counter(one.prompt for one in asked if one.route == "generate")
    assert prompts == {"0+1=?": 1 + 4, "1+1=?": 1, "2+1=?": 1}


# Rows


def test_the_row_of_an_evaluation():
    """Two of four right: pass@2 = 1 - C(2,2)/C(4,2) = 5/6; four of four and none: 1 and 0."""
    rollouts = [
        *group(True, False, True, False, number=0),
        *group(True, True, True, True, versions=(3, 9), number=1),
        *group(False, False, False, False, number=2),
    ]
    row = evaluation_row(20, rollouts, OWN)
    assert row["problems"] == 3 and row["samples"] == 4
    assert (row["step"], row["version_min"], row["version_max"]) == (20, 3, 20)
    assert row["pass@1"] == pytest.approx(1 / 2)
    assert row["pass@2"] == pytest.approx((5 / 6 + 1 + 0) / 3)
    assert row["pass@4"] == pytest.approx(2 / 3)
    assert "pass@3" not in row
    assert (row["pass@1_low"], row["pass@1_high"]) == (0, 1)  # of three problems, any may be drawn


def test_one_problem_carries_no_interval():
    row = evaluation_row(0, group(True, False, False), OWN)
    assert row["pass@1"] == pytest.approx(1 / 3)
    assert "pass@1_low" not in row


# Sets of further problems


def test_a_set_says_what_is_not_as_for_the_runs_own_problems():
    config = ScaleConfig(evaluation={"samples": 6})
    plain = named_set("plain", EvaluationSet(task="sums", prompts=5), config)
    assert (len(plain.problems), plain.samples, plain.ks) == (5, 6, None)
    assert plain.how == {"task": "sums", "temperature": None, "max_new_tokens": None}
    own = {"levels": (4,), "samples": 8, "ks": (8,), "temperature": 0.5, "max_new_tokens": 70}
    asked = named_set("own", EvaluationSet(task="sums", prompts=5, **own), config)
    assert {problem.level for problem in asked.problems} == {4}
    assert (asked.samples, asked.ks, asked.name) == (8, [1, 8], "own")
    assert asked.how == {"task": "sums", "temperature": 0.5, "max_new_tokens": 70}


def test_problems_that_training_asks_are_left_out():
    config, mine = ScaleConfig(), EvaluationSet(task="sums", prompts=3)
    problems = named_set("mine", mine, config).problems
    assert named_set("mine", mine, config, problems[1:]).problems == problems[:1]
    with pytest.raises(ValueError, match=r"evaluation\.sets\.mine: training asks all 3"):
        named_set("mine", mine, config, problems)


def test_a_set_that_asks_too_much_is_named():
    sets = {"aime": {"task": "sums", "prompts": 3, "samples": 32, "ks": [64]}}
    with pytest.raises(ValueError, match=r"evaluation\.sets\.aime: pass@64 needs 64 samples"):
        ScaleConfig(evaluation={"sets": sets})
    with pytest.raises(ValueError, match="promts"):
        ScaleConfig(evaluation={"sets": {"aime": {"task": "sums", "promts": 3}}})


# Time averages


def test_time_averages_of_the_generators(monkeypatch):
    """Two servers: 3 s without a request, 2 s with one, 5 s with three."""
    now, requests = [100.0], ExitStack()
    monkeypatch.setattr(batches, "time", SimpleNamespace(monotonic=lambda: now[0]))
    counters = Counters(Counter(), servers=2)
    for seconds, more in ((3, 0), (2, 1), (5, 2)):
        for _ in range(more):
            requests.enter_context(counters.asking())
        now[0] += seconds
    counters.events["late"] += 2
    row = counters.row()
    assert row["batch_seconds"] == 10
    assert row["groups_in_flight"] == pytest.approx((2 * 1 + 5 * 3) / 10)
    assert row["generator_idle"] == pytest.approx((3 * 1 + 2 * 0.5) / 10)
    assert row["late"] == 2
    now[0] += 4
    requests.close()
    assert counters.row()["groups_in_flight"] == 3
    now[0] += 1
    row = counters.row()
    assert row["late"] == row["groups_in_flight"] == 0
