import os
from dataclasses import dataclass, field
from functools import partial
from random import Random
from types import SimpleNamespace

import pytest

from rlbook.scale.config import EvaluationSet, ScaleConfig
from rlbook.scale.hold import LAPSE_SECONDS, Held, Hold
from rlbook.scale.rollout.counters import Counters
from rlbook.scale.rollout.evaluate import (
    ATTEMPTS,
    Evaluation,
    ProblemSet,
    evaluation_row,
    named_set,
    untrained,
)
from rlbook.scale.rollout.groups import Manner
from rlbook.scale.rollout.staleness import Pacing
from rlbook.scale.train import trainer
from rlbook.scale.train.courier import Courier
from rlbook.scale.train.trainer import ScaleTrainer
from rlbook.tasks import Problem, SumsTask
from rlbook.training import Rollout

PROBLEMS = [Problem(f"p{i}", f"{i}+1=?", str(i + 1)) for i in range(3)]
OWN = ProblemSet(SumsTask(), PROBLEMS, samples=1)


def group(*correct, versions=(20, 20), number=0):
    logps = [-1.0, -1.0]
    return [
        Rollout(PROBLEMS[0], number, [1], [7, 2], logps, list(versions), "stop", "", correct=c)
        for c in correct
    ]


@pytest.fixture
def evaluation(tmp_path):
    def make(every=10, last=None, sets=(OWN,)):
        return Evaluation(sets, every, Hold(tmp_path / "hold"), last)

    return make


@pytest.mark.parametrize(
    ("last", "version", "done", "due"),
    [
        (None, 0, False, True),  # the policy before training
        (0, 9, False, False),
        (0, 10, False, True),
        (0, 37, False, True),  # late is better than never
        (37, 40, False, True),
        (40, 43, False, False),
        (40, 43, True, True),  # the last version counts
        (43, 43, True, False),
    ],
)
def test_when_an_evaluation_is_due(evaluation, last, version, done, due):
    assert evaluation(last=last).due(version, done) == due
    assert not evaluation(every=0, last=last).due(version, done)


def test_one_evaluation_after_the_other_each_with_a_hold(evaluation, tmp_path):
    one, held = evaluation(), Held(tmp_path / "hold")
    assert held() is None
    one.begin(20)
    assert not one.due(30) and held() == 20
    assert [one.take() for _ in range(4)] == [0, 1, 2, None]
    assert one.in_flight == 3
    assert one.again(1) and one.in_flight == 2 and one.take() == 1
    assert one.add(0, group(True, number=0)) == []
    assert one.add(2, group(True, number=2)) == []
    (row,) = one.add(1, group(False, number=1))
    assert row["step"] == 20 and row["pass@1"] == pytest.approx(2 / 3) and "set" not in row
    assert one.in_flight == 0 and not one.due(29) and one.due(30)
    assert held() is None


def test_without_room_one_question_is_asked_all_the_same(evaluation):
    one = evaluation()
    one.begin(20)
    assert one.take(lambda samples: False) == 0
    assert one.take(lambda samples: False) is None
    assert one.take(lambda samples: samples == 1) == 1


def test_a_question_that_is_never_answered_ends_its_evaluation(evaluation):
    one = evaluation()
    one.begin(20)
    for left in reversed(range(ATTEMPTS)):
        while one.take() != 1:
            pass
        assert one.again(1) == (left > 0)
    one.finish()
    assert not one.due(29) and one.due(30)


def test_every_set_has_a_row_of_its_own(evaluation):
    other = ProblemSet(SumsTask(), PROBLEMS[:1], samples=4, name="hard", ks=(1, 4))
    one = evaluation(sets=(OWN, other))
    one.begin(20)
    assert [one.take() for _ in range(5)] == [0, 1, 2, 3, None]
    assert one.add(3, group(True, False, False, False, number=3)) == []
    for number in (0, 1):
        assert one.add(number, group(True, number=number)) == []
    own, hard = one.add(2, group(False, number=2))
    assert (own["problems"], own["samples"], own["pass@1"]) == (3, 1, pytest.approx(2 / 3))
    assert hard["set"] == "hard" and (hard["problems"], hard["samples"]) == (1, 4)
    assert (hard["pass@1"], hard["pass@4"]) == (0.25, 1.0) and "pass@2" not in hard


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
    assert plain.manner == Manner(task="sums")
    own = {"levels": (4,), "samples": 8, "ks": (8,), "temperature": 0.5, "max_new_tokens": 70}
    asked = named_set("own", EvaluationSet(task="sums", prompts=5, **own), config)
    assert {problem.level for problem in asked.problems} == {4}
    assert (asked.samples, asked.ks, asked.name) == (8, [1, 8], "own")
    assert asked.manner == Manner("sums", 0.5, 70)


def test_problems_that_training_asks_are_left_out():
    one = ProblemSet(SumsTask(), PROBLEMS, 1, "mine")
    assert untrained(one, PROBLEMS[1:]).problems == PROBLEMS[:1]
    with pytest.raises(ValueError, match=r"evaluation\.sets\.mine: training asks all 3"):
        untrained(one, PROBLEMS)


def test_a_set_that_asks_too_much_is_named():
    sets = {"aime": {"task": "sums", "prompts": 3, "samples": 32, "ks": [64]}}
    with pytest.raises(ValueError, match=r"evaluation\.sets\.aime: pass@64 needs 64 samples"):
        ScaleConfig(evaluation={"sets": sets})
    with pytest.raises(ValueError, match="promts"):
        ScaleConfig(evaluation={"sets": {"aime": {"task": "sums", "promts": 3}}})


# One version per evaluation, whoever dies


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self):
        return self.now


@dataclass
class World:
    """Two generators, a trainer and an orchestrator, reduced to who has which weights.

    Whatever decides is the package's own: what is due and held, what the trainer does next, who
    lacks weights, which groups may start. A move that cannot be made does nothing. `asked` are
    questions in flight, each with the generator that writes it and the versions that have; a death
    takes its own with it.
    """

    folder: object
    servers: list = field(default_factory=lambda: [0, 0])  # their versions; None without weights
    asked: dict = field(default_factory=dict)
    rows: list = field(default_factory=list)
    bound, updates, every = 2, 9, 3

    def __post_init__(self):
        self.clock, self.trained, self.saved, self.reached, self.done = Clock(), 0, 0, 0, False
        self.published = 0
        self.path = self.folder / "hold"
        self.start_orchestrator()
        self.start_trainer()

    def start_orchestrator(self):
        last = max((row["step"] for row in self.rows), default=None)
        self.evaluation = Evaluation([OWN], self.every, Hold(self.path), last)
        self.pacing = Pacing(1, self.bound, batch=self.published, batches=self.updates)
        self.asked, self.up = {}, True

    def start_trainer(self):
        self.trained, self.held, self.due = self.saved, Held(self.path, self.clock), []

    @property
    def versions(self):
        return {version for version in self.servers if version is not None}

    # What the orchestrator does

    def oversee(self):
        if not self.up:
            return
        if self.evaluation.lost(self.versions):
            self.start_over()
        if self.versions and self.evaluation.due(max(self.versions), self.done):
            self.evaluation.begin(max(self.versions))

    def start_over(self):
        self.evaluation.stop()
        self.asked = {}

    def ask(self):
        having = [i for i, v in enumerate(self.servers) if v == self.evaluation.version]
        if self.up and having and (index := self.evaluation.take()) is not None:
            self.asked[index] = (having[0], {self.servers[having[0]]})

    def answer(self):
        if not self.asked:
            return
        index, (server, versions) = next(iter(self.asked.items()))
        del self.asked[index]
        rollouts = group(True, versions=sorted(versions | {self.servers[server]}), number=index)
        if self.evaluation.by_others(rollouts):
            self.start_over()
        else:
            self.rows += self.evaluation.add(index, rollouts)

    def publish(self):
        """A batch, if the bound lets its group start; as if it took no time."""
        if self.up and self.versions and self.published <= self.trained + 1:
            held = self.evaluation.version is not None
            if self.pacing.may_start(min(self.versions), held):
                self.pacing.start(self.published, min(self.versions))
                self.pacing.finish(self.published, min(self.versions))
                self.pacing.close_batch([self.published])
                self.published += 1

    # What the trainer does

    def train(self):
        """One round of its loop; between deciding to push and pushing, others may move."""
        if self.done:
            return
        if self.due:
            return self.push()
        courier = SimpleNamespace(learner=self, generators=self, runner=self, asked=-1, due=[])
        trainer = SimpleNamespace(
            layout=self,
            version=self.trained,
            reached=self.reached,
            end=self.updates,
            held=self.held,
            pulse=lambda: None,
            courier=SimpleNamespace(is_due=partial(Courier.is_due, courier)),
        )
        order = ScaleTrainer.decide(trainer)
        if order == "push":
            self.due = courier.due
        elif order == "train":
            self.trained += 1
            self.reached = max(self.reached, self.trained)
            self.saved += 2 * (self.trained >= self.saved + 2)
        elif order == "stop":
            self.done = True

    def push(self):
        for server in self.due:
            self.servers[server] = self.trained
            for index, (writer, versions) in self.asked.items():
                if writer == server:
                    self.asked[index] = (writer, versions | {self.trained})
        self.due = []

    version = property(lambda self: self.trained)

    def has_batch(self, version):
        return version < self.published

    def behind(self, version):
        return [i for i, own in enumerate(self.servers) if own is None or own < version]

    def run(self, found):
        return found

    def over(self):
        return self.done and self.up and self.rows and self.rows[-1]["step"] == self.updates

    # What may happen to them

    def kill_first(self):
        self.kill(0)

    def kill_second(self):
        self.kill(1)

    def kill(self, server):
        if self.done:  # nobody is left to give it weights
            return
        self.servers[server] = None
        for index in [i for i, (writer, _) in self.asked.items() if writer == server]:
            del self.asked[index]
            if not self.evaluation.again(index):
                self.evaluation.finish()
                self.asked = {}

    def kill_trainer(self):
        if not self.done:
            self.start_trainer()

    def kill_orchestrator(self):
        self.up, self.asked = False, {}

    def lapse(self):
        """Time without an orchestrator that renews its hold."""
        if not self.up:
            self.clock.now += LAPSE_SECONDS + 1


FAULTS = ("kill_first", "kill_second", "kill_trainer", "kill_orchestrator", "lapse")
WORK = ("oversee", "ask", "answer", "publish", "train", "start_orchestrator_again")
World.start_orchestrator_again = lambda self: self.up or self.start_orchestrator()


@pytest.mark.parametrize("seed", range(60))
def test_every_row_is_by_one_version_and_nobody_waits_for_ever(tmp_path, monkeypatch, seed):
    monkeypatch.setattr("rlbook.scale.layout.sync_to_disk", lambda path: None)
    monkeypatch.setattr(trainer, "has_batch", World.has_batch)
    world, rng = World(tmp_path), Random(seed)
    play(world, rng.choices((*WORK, *WORK, *FAULTS), k=150), rng)
    assert world.done and world.trained == world.updates
    assert world.evaluation.version is None and not world.path.exists()
    assert world.rows[-1]["step"] == world.updates
    for row in world.rows:
        assert row["step"] == row["version_min"] == row["version_max"]
    steps = [row["step"] for row in world.rows]
    assert steps == sorted(set(steps))
    every = {step // world.every for step in steps[:-1]}
    assert len(every) == len(steps) - 1


def play(world, moves, rng):
    for move in moves:
        getattr(world, move)()
    for _ in range(200):  # nothing more happens to anybody: the run has to end by itself
        if world.over():
            return
        for move in rng.sample(WORK, len(WORK)):
            getattr(world, move)()


def test_the_trainer_goes_on_during_a_hold_as_far_as_the_bound_allows(tmp_path, monkeypatch):
    monkeypatch.setattr(trainer, "has_batch", World.has_batch)
    world = World(tmp_path)
    world.oversee()
    for _ in range(30):
        world.publish()
        world.train()
    assert world.servers == [0, 0] and world.trained == world.bound + 1


def test_a_hold_that_nobody_renews_lapses(tmp_path):
    clock = Clock()
    hold, held = Hold(tmp_path / "hold"), Held(tmp_path / "hold", clock)
    hold.take(4)
    assert held() == 4
    clock.now += LAPSE_SECONDS - 1
    os.utime(hold.path, (1.0, 1.0))  # any change counts, whatever the clocks say
    assert held() == 4
    clock.now += LAPSE_SECONDS
    assert held() == 4
    clock.now += 1
    assert held() is None
    hold.renew()
    assert held() == 4
    hold.release()
    assert held() is None
    hold.renew()  # of nothing
    assert held() is None


def test_a_hold_left_behind_ends_with_the_next_orchestrator(tmp_path):
    Hold(tmp_path / "hold").take(7)
    assert Held(tmp_path / "hold")() == 7
    Hold(tmp_path / "hold")
    assert Held(tmp_path / "hold")() is None


def test_time_averages_of_the_generators():
    """Two servers: 3 s without a request, 2 s with one, 5 s with three."""
    now = [100.0]
    counters = Counters(servers=2, clock=lambda: now[0])
    for seconds, requests in ((3, 0), (2, 1), (5, 3)):
        while counters.in_flight < requests:
            counters.asked()
        now[0] += seconds
    counters.count("late", 2)
    counters.batched(seconds=4.0, since=now[0] - 1.5)
    row = counters.row()
    assert row["batch_seconds"] == 10
    assert row["groups_in_flight"] == pytest.approx((2 * 1 + 5 * 3) / 10)
    assert row["generator_idle"] == pytest.approx((3 * 1 + 2 * 0.5) / 10)
    assert (row["group_seconds"], row["queue_seconds"], row["late"]) == (4.0, 1.5, 2)
    now[0] += 4
    counters.answered()
    assert counters.row()["groups_in_flight"] == 3
    assert counters.row()["late"] == 0
