"""The bound on staleness under random durations, rejections, failures and restarts."""

import heapq
import random
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlbook.scale.rollout.staleness import PATIENCE, Pacing
from rlbook.scaling.simulator import Cluster, pipeline_rl, simulate

# By hand


@pytest.mark.parametrize("bound", [1, 5])
def test_credit_is_one_batch_and_the_targets_ahead_of_the_weights(bound):
    pacing = Pacing(prompts=2, max_staleness=bound, target=1)
    for ticket in range(4):
        assert pacing.may_start(0)
        pacing.start(ticket, 0)
    assert not pacing.may_start(0)
    assert pacing.may_start(1)


def test_a_batch_is_the_oldest_groups_that_have_finished():
    pacing = Pacing(prompts=2, max_staleness=2, target=2)
    for ticket in (7, 3, 5, 9):
        pacing.start(ticket, 0)
    for ticket in (9, 5, 3):
        pacing.finish(ticket, 0)
    assert pacing.next_batch() == [3, 5]
    assert pacing.close_batch([3, 5]) == []
    assert list(pacing.started) == [7, 9]


def test_a_batch_waits_for_a_group_that_would_get_too_old():
    pacing = Pacing(prompts=1, max_staleness=1, target=1)
    pacing.start(0, 0)
    pacing.start(1, 0)
    pacing.finish(1, 0)
    assert pacing.next_batch() == [1]  # 0 can still be trained at version 1
    pacing.close_batch([1])
    pacing.start(2, 1)
    pacing.finish(2, 1)
    assert pacing.next_batch() == []  # trained at version 2, group 0 would be 2 updates old
    pacing.finish(0, 0)
    assert pacing.next_batch() == [0]


def test_with_drop_nobody_waits_and_the_credit_comes_back():
    pacing = Pacing(prompts=1, max_staleness=0, late="drop")
    pacing.start(0, 0)
    assert not pacing.may_start(0)
    pacing.finish(0, 0)
    assert pacing.next_batch() == [0]
    assert pacing.close_batch([0]) == []
    pacing = Pacing(prompts=1, max_staleness=1, late="drop")
    for ticket in (0, 1):
        pacing.start(ticket, 0)
    pacing.finish(1, 0)
    assert pacing.close_batch(pacing.next_batch()) == []
    pacing.start(2, 1)
    pacing.finish(2, 1)
    assert pacing.close_batch(pacing.next_batch()) == [0]
    assert pacing.started == {}


@pytest.mark.parametrize("late", ["wait", "drop"])
def test_a_group_whose_server_went_back_in_time_is_refused(late):
    pacing = Pacing(prompts=1, max_staleness=1, late=late, batch=5)
    pacing.start(0, 5)
    assert not pacing.finish(0, oldest=3)
    assert pacing.started == {}
    pacing.start(1, 5)
    assert pacing.finish(1, oldest=4)


def test_nothing_is_started_that_no_batch_would_use():
    pacing = Pacing(prompts=2, max_staleness=8, batch=2, batches=3)
    pacing.start(0, 0)
    pacing.start(1, 0)
    assert not pacing.may_start(0)


# The target


def test_a_target_is_kept_whatever_happens():
    pacing = Pacing(prompts=1, max_staleness=4, target=2)
    for version in range(1, 20):
        pacing.keep_pace(version)
    assert pacing.target == 2


def test_without_a_target_it_starts_earlier_if_the_trainer_waits():
    pacing = Pacing(prompts=1, max_staleness=3)
    assert pacing.target == 1
    pacing.keep_pace(0)  # the first batch has to be waited for
    assert pacing.target == 1
    for version in (1, 1, 2, 3, 4, 5):
        pacing.keep_pace(version)
    assert pacing.target == 3


def test_without_a_target_it_starts_later_if_a_whole_batch_lies_idle():
    pacing = Pacing(prompts=2, max_staleness=3)
    pacing.target = 3
    for ticket in range(8):
        pacing.start(ticket, 0)
    for ticket in range(8):
        pacing.finish(ticket, 0)
    targets = []
    for version in range(1, 7):
        pacing.batch = version  # batch by batch is taken, and the next ones are ready
        pacing.keep_pace(version)
        targets.append(pacing.target)
    assert targets == [3] * (PATIENCE - 1) + [2] * (6 - PATIENCE + 1)


# A world in which anything happens


@dataclass
class Group:
    versions: set[int]  # of the weights that wrote its tokens so far
    left: int  # ticks until it is finished
    finished: bool = False


@dataclass
class World:
    """Servers, a trainer and an orchestrator that may die; tokens tell their `staleness`."""

    rng: random.Random
    prompts: int
    max_staleness: int
    late: str
    chaos: float
    target: int | None = None
    updates: int = 12
    trained: dict[int, int] = field(default_factory=dict)
    tick: int = 0

    def __post_init__(self):
        self.version = self.checkpoint = 0
        self.log: list[tuple[list[int], list[int]]] = []  # batch: its tickets, the open ones
        self.weights = [0, 0]
        self.restart()

    def restart(self):
        """All that an orchestrator knows after a crash is the newest batch."""
        step, target = len(self.log), self.target
        self.pacing = Pacing(
            self.prompts, self.max_staleness, self.late, step, self.updates, target
        )
        self.again = list(self.log[-1][1]) if self.log else []
        self.next_ticket = 1 + max([t for b in self.log for t in (*b[0], *b[1])], default=-1)
        self.groups: dict[int, Group] = {}

    def happens(self, chance: float = 1.0) -> bool:
        return self.rng.random() < self.chaos * chance

    def run(self):
        while self.version < self.updates:
            self.tick += 1
            calm = self.tick > 400  # chaos ends, and then the run has to
            self.chaos = 0.0 if calm else self.chaos
            assert self.tick < 400 + 60 * self.updates, "deadlock"
            self.disturb()
            self.fill()
            self.write()
            self.form()
            self.train()

    def disturb(self):
        if self.happens(0.05):
            self.restart()
        if self.happens(0.05):
            self.version = self.checkpoint  # the trainer dies and replays the log
        if self.happens(0.1):
            self.weights[self.rng.randrange(2)] = None
        for server, weights in enumerate(self.weights):
            late = self.happens(0.5)
            if weights is None or (weights < self.version and not late):
                self.weights[server] = self.version

    def fill(self):
        known = [weights for weights in self.weights if weights is not None]
        while known and self.pacing.may_start(min(known)):
            fresh = not self.again
            ticket = self.next_ticket if fresh else self.again.pop(0)
            self.next_ticket += fresh
            self.pacing.start(ticket, min(known))
            if self.happens(0.1):  # the request fails at once
                self.pacing.release(ticket)
                self.again.append(ticket)
                return
            # Between question and request the server may have been replaced by an older one.
            wrote = self.rng.choice(known) if not self.happens(0.1) else self.checkpoint
            self.groups[ticket] = Group({wrote}, self.rng.randrange(1, 12))

    def write(self):
        for ticket, group in list(self.groups.items()):
            if group.finished:
                continue
            group.versions.add(max(filter(None, self.weights), default=0))
            group.left -= 1
            if group.left > 0:
                continue
            group.finished = True
            if self.happens(0.2):
                self.leave(ticket)
                self.again.append(ticket)  # failed at the very end
            elif not self.pacing.finish(ticket, min(group.versions)):
                del self.groups[ticket]
            elif self.happens(0.7):
                self.leave(ticket)  # zero variance, in long stretches when chaos is high

    def leave(self, ticket):
        del self.groups[ticket]
        self.pacing.release(ticket)

    def form(self):
        self.pacing.keep_pace(self.version)
        assert 0 <= self.pacing.target <= self.max_staleness
        while len(self.log) <= self.version + 1 and (batch := self.pacing.next_batch()):
            if self.happens(0.3):  # no group of it has spread: all are consumed
                for ticket in batch:
                    self.leave(ticket)
                continue
            step = len(self.log)
            for ticket in batch:
                group = self.groups.pop(ticket)
                assert ticket not in self.trained, "trained twice"
                self.trained[ticket] = step
                assert all(0 <= step - v <= self.max_staleness for v in group.versions)
            for ticket in self.pacing.close_batch(batch):
                del self.groups[ticket]
            self.log.append((batch, [*self.groups, *self.again]))

    def train(self):
        if self.version < len(self.log) and self.rng.random() < 0.5:
            self.version += 1
            if self.version % 3 == 0:
                self.checkpoint = max(self.checkpoint, self.version)


@settings(max_examples=150)
@given(
    seed=st.integers(0, 2**32),
    prompts=st.integers(1, 4),
    max_staleness=st.integers(0, 4),
    late=st.sampled_from(["wait", "drop"]),
    chaos=st.sampled_from([0.0, 0.5, 1.0]),
    below=st.none() | st.integers(0, 4),
)
def test_no_token_is_too_old_and_nothing_deadlocks(
    seed, prompts, max_staleness, late, chaos, below
):
    target = None if below is None else max(0, max_staleness - below)
    world = World(random.Random(seed), prompts, max_staleness, late, chaos, target)
    world.run()
    assert len(world.trained) == world.updates * prompts
    if not chaos and late == "wait":
        assert sorted(world.trained) == list(range(world.updates * prompts))


# Against the simulator of chapter 17


def schedule_of(lengths, prompts, max_staleness, updates, update_time, target):
    """When all is done, versions at the start and at the training of each completion.

    There are slots for all of them. One token a second; the update of a batch takes `update_time`,
    and starts when it is due.
    """
    pacing = Pacing(prompts, max_staleness, target=target)
    now, version, trained_at = 0.0, 0, float("inf")
    events, first, trained = [], {}, {}
    while version < updates:
        pacing.keep_pace(version)
        while pacing.may_start(version):
            ticket = len(first)
            pacing.start(ticket, version)
            first[ticket] = version
            heapq.heappush(events, (now + lengths[ticket % len(lengths)], ticket))
        together = events and events[0][0] < now + 1e-6  # finished in the same decode step
        if trained_at == float("inf") and not together and (batch := pacing.next_batch()):
            assert pacing.close_batch(batch) == []
            trained |= dict.fromkeys(batch, version)
            trained_at = now + update_time
        if events and events[0][0] < trained_at:
            now, ticket = heapq.heappop(events)
            assert pacing.finish(ticket, first[ticket])
        else:
            now, version, trained_at = trained_at, version + 1, float("inf")
    tickets = sorted(trained)
    return now, [first[t] for t in tickets], [trained[t] for t in tickets]


@settings(max_examples=60)
@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=40),
    prompts=st.integers(1, 6),
    size=st.integers(1, 3),
    max_staleness=st.integers(0, 5),
    update_time=st.floats(0.1, 40).map(lambda seconds: seconds + 0.0317),
    below=st.integers(0, 5),
)
def test_without_rejections_it_is_the_simulators_schedule(
    lengths, prompts, size, max_staleness, update_time, below
):
    """Ticket by ticket where the target is the bound; below it a batch may take another neighbour.

    Starts then agree on average: there the simulator's decode steps, which begin for all slots at
    once, can decide which of two groups is done first.
    """
    updates, target = 10, max(0, max_staleness - below)
    cluster = Cluster(1, 1, slots=1000, decode_fixed=1.0, update_fixed=update_time)
    batch, schedule = prompts * size, pipeline_rl(max_staleness, target)
    run = simulate(schedule, cluster, lengths, batch, updates, group_size=size)
    total = np.resize(lengths, batch * (updates + max_staleness + 1))
    slowest = total.reshape(-1, size).max(axis=1)
    _, first, trained = schedule_of(slowest, prompts, max_staleness, updates, update_time, target)
    started, taken = run.first_version[::size], run.trained_version[::size]
    if target == max_staleness:
        assert first == started.tolist() and trained == taken.tolist()
    else:
        assert abs(np.mean(first) - started.mean()) <= 0.5
        assert sorted(trained) == sorted(taken.tolist())


@settings(max_examples=40)
@given(
    lengths=st.lists(st.integers(5, 60), min_size=8, max_size=40),
    prompts=st.integers(1, 6),
    update_time=st.floats(5, 80).map(lambda seconds: seconds + 0.0317),
)
def test_steered_it_is_as_fast_as_the_bound_allows_and_no_staler(lengths, prompts, update_time):
    """A target of 6, or the one it finds: nearly as many updates a second, on younger tokens."""
    updates, bound = 80, 6
    far, first, trained = schedule_of(lengths, prompts, bound, updates, update_time, bound)
    near, later, same = schedule_of(lengths, prompts, bound, updates, update_time, None)
    assert near <= 1.1 * far + bound * max(lengths)
    needed = np.ceil(max(lengths) / update_time)  # updates that go by while the longest is written
    settled = slice(30 * prompts, None)
    age = np.subtract(same, later)[settled].mean()
    assert age <= np.subtract(trained, first)[settled].mean() + 0.01
    assert age <= needed + 1
