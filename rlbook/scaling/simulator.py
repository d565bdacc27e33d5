"""Who waits for whom: generators and trainers of an RL run as a discrete-event simulation.

Only time is simulated: completions are lengths, weights are version numbers. A generator decodes
all its completions in step, one token each per decode step; a batch is trained by all trainers
together. Left out: prompts (prefill costs nothing), verification, failures, and how speed depends
on context length. Chapter 17 compares it with real runs.
"""

from dataclasses import dataclass, replace
from heapq import heappop, heappush
from math import ceil, exp, inf, log

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike
from scipy.special import ndtr, ndtri

__all__ = ["Cluster", "Lengths", "PipelineRun", "Schedule", "ceilings", "generate_then_update"]
__all__ += ["pipeline_rl", "ppo_off_policy", "simulate", "split"]


@dataclass(frozen=True)
class Lengths:
    """Completion lengths in tokens: lognormal, rounded, interrupted at `max_tokens`.

    log X ~ Normal(log mean - sigma²/2, sigma²),  length = min(max(1, round X), max_tokens)

    `mean` is that of X, before the interruption; sigma = 0 makes all completions equally long.
    Raises `ValueError` for a mean that is not positive or a negative sigma. Chapter 17.
    """

    mean: float
    sigma: float = 0.0
    max_tokens: float = inf

    def __post_init__(self) -> None:
        if not (self.mean > 0 and self.sigma >= 0 and self.max_tokens >= 1):
            raise ValueError(f"need mean > 0, sigma >= 0 and max_tokens >= 1, got {self}")

    def sample(self, n: int, seed: int = 0) -> Int[np.ndarray, " n"]:
        """The same seed gives the same lengths, and the first of more."""
        noise = np.random.default_rng(seed).standard_normal(n)
        tokens = self.mean * np.exp(self.sigma * noise - self.sigma**2 / 2)
        return np.minimum(np.maximum(1, np.round(tokens)), self.max_tokens).astype(int)

    @property
    def expected(self) -> float:
        """Mean length after the interruption, rounding aside."""
        cut = self.max_tokens * self._above(1) if self.max_tokens < inf else 0.0
        return self.mean * (1 - self._above(-1)) + cut

    def longest(self, n: int) -> float:
        """About the longest of n: the length that one in n exceeds."""
        quantile = self.sigma * ndtri(1 - 1 / n) - self.sigma**2 / 2 if self.sigma else 0.0
        return min(self.mean * exp(quantile), self.max_tokens)

    @property
    def interrupted(self) -> float:
        """Share of the completions that reach `max_tokens`."""
        return self._above(1)

    def _above(self, side: int) -> float:
        """P(X > max_tokens); for side -1 under the law tilted by X, which gives partial means."""
        if self.sigma == 0:
            return float(self.mean > self.max_tokens)
        relative = (log(self.mean) - log(self.max_tokens)) / self.sigma
        return float(ndtr(relative - side * self.sigma / 2))


@dataclass(frozen=True)
class Cluster:
    """Accelerators and what they need, in seconds.

    decode step of b completions on one generator: decode_fixed + decode_per_sequence b
    update on n tokens: update_fixed + update_per_token n / trainers

    `slots` is the most completions on one generator. During `sync`, the transfer of new weights,
    nobody works. Raises `ValueError` unless counts are at least 1, times are not negative and a
    decode step takes time. Chapter 17.
    """

    generators: int
    trainers: int
    slots: int
    decode_fixed: float
    decode_per_sequence: float = 0.0
    update_fixed: float = 0.0
    update_per_token: float = 0.0
    sync: float = 0.0

    def __post_init__(self) -> None:
        if min(self.generators, self.trainers, self.slots) < 1:
            raise ValueError(f"need at least one generator, trainer and slot, got {self}")
        costs = (self.decode_fixed, self.decode_per_sequence, self.update_fixed)
        if min(*costs, self.update_per_token, self.sync) < 0 or self.decode_time(1) == 0:
            raise ValueError(f"times must not be negative, a decode step not free, got {self}")

    def decode_time(self, load: int) -> float:
        """Seconds for one token of each of `load` completions."""
        return self.decode_fixed + self.decode_per_sequence * load

    def update_time(self, tokens: float) -> float:
        """Seconds for one update on a batch of `tokens` tokens."""
        return self.update_fixed + self.update_per_token * tokens / self.trainers

    @property
    def peak(self) -> float:
        """Tokens per second of all generators with every slot filled."""
        return self.generators * self.slots / self.decode_time(self.slots)


@dataclass(frozen=True)
class Schedule:
    """When completions may start, when an update may, and when generators get new weights.

    New weights come every `period` updates, also to completions that are being written. With
    weights of version s, period · (⌊s / period⌋ + 1) + ahead batches may have been started in all.
    An update takes the oldest completions that have finished. With `overlap` it starts as soon as
    it has a batch and nothing that is left out would get too old; without, when all that was
    started has finished. Nothing is thrown away, and no token is ever staler than

    max_staleness = period - 1 + ahead + slack

    updates: with `slack`, what is slow may be overtaken by so many updates more. Chapter 17.
    """

    name: str
    period: int = 1
    ahead: int = 0
    overlap: bool = False
    slack: int = 0

    def __post_init__(self) -> None:
        late = self.ahead or self.slack
        if self.period < 1 or min(self.ahead, self.slack) < 0 or (late and not self.overlap):
            raise ValueError(
                f"need period >= 1, ahead and slack >= 0, and overlap if ahead or slack: got {self}"
            )

    @property
    def max_staleness(self) -> int:
        """Updates between the oldest weights that may have sampled a token and those trained."""
        return self.period - 1 + self.ahead + self.slack

    def batches(self, weights: int) -> int:
        """Batches that may have been started in all, by generators with this version."""
        return self.period * (weights // self.period + 1) + self.ahead


def generate_then_update() -> Schedule:
    """One batch, one update, new weights: all tokens on-policy, nobody works side by side."""
    return Schedule("generate, then update")


def ppo_off_policy(k: int) -> Schedule:
    """Generate k batches, then make k updates: staleness 0 to k - 1.

    Source: Khatri et al. 2025, arXiv:2510.13786, section 3.1. Chapter 17.
    """
    return Schedule(f"PPO-off-policy-{k}", period=k)


def pipeline_rl(k: int, target: int | None = None) -> Schedule:
    """Generate all the time, new weights after every update, also in the middle of a completion.

    Trainers wait rather than get more than k updates ahead of a completion; k = 0 is generate,
    then update. Generators work `target` batches ahead of the one being trained, k if absent: as
    far as the bound allows. Source: Piché et al. 2025, arXiv:2509.19128; the bound k is that of
    Khatri et al. 2025, arXiv:2510.13786, section 3.1. Chapter 17.
    """
    ahead = k if target is None else target
    name = f"PipelineRL-{k}" + (f", target {ahead}" if ahead < k else "")
    return Schedule(name, ahead=ahead, overlap=True, slack=k - ahead)


@dataclass(frozen=True, eq=False)
class PipelineRun:
    """What happened. Everything but `clock` and `untrained_tokens` is counted after the warm-up.

    `clock` (U + 1,): seconds at the start and after each update with its sync. Completions that
    were trained, oldest first (N,): `lengths` in tokens; versions of the weights at the first
    token, at the last and in the update that trained them; seconds of start and finish.
    `tokens_by_staleness[d]`: trained tokens that were d updates old. `busy`, `filled`: seconds of
    generators that wrote anything, and of filled slots; `training`, `syncing`: seconds.
    `untrained_tokens`: written by the end but not trained.
    """

    schedule: Schedule
    cluster: Cluster
    clock: Float[np.ndarray, " U1"]
    seconds: float
    lengths: Int[np.ndarray, " N"]
    first_version: Int[np.ndarray, " N"]
    last_version: Int[np.ndarray, " N"]
    trained_version: Int[np.ndarray, " N"]
    started: Float[np.ndarray, " N"]
    finished: Float[np.ndarray, " N"]
    tokens_by_staleness: Float[np.ndarray, " D"]
    busy: float
    filled: float
    training: float
    syncing: float
    untrained_tokens: float

    @property
    def tokens_per_second(self) -> float:
        """Of trained tokens."""
        return float(self.lengths.sum() / self.seconds)

    @property
    def completions_per_second(self) -> float:
        """Of trained completions."""
        return len(self.lengths) / self.seconds

    @property
    def sync_share(self) -> float:
        """Share of the time in which weights are being sent."""
        return self.syncing / self.seconds

    @property
    def generator_idle(self) -> float:
        """Share of the generators' time with nothing to write, weight transfers not included."""
        idle = 1 - self.busy / (self.cluster.generators * self.seconds) - self.sync_share
        return max(0.0, idle)  # rounding

    @property
    def trainer_idle(self) -> float:
        """Share of the trainers' time spent waiting for a batch."""
        return max(0.0, 1 - self.training / self.seconds - self.sync_share)

    @property
    def occupancy(self) -> float:
        """Share of all slots that is filled, over time: long tails empty it before they idle."""
        return self.filled / (self.cluster.generators * self.cluster.slots * self.seconds)

    @property
    def staleness_shares(self) -> Float[np.ndarray, " D"]:
        """Share of the trained tokens with staleness 0, 1, 2, …"""
        return np.asarray(self.tokens_by_staleness / self.tokens_by_staleness.sum())

    @property
    def mean_staleness(self) -> float:
        """Mean staleness of a trained token, in updates."""
        return float(self.staleness_shares @ np.arange(len(self.tokens_by_staleness)))

    @property
    def start_staleness(self) -> Int[np.ndarray, " N"]:
        """Staleness of the first token of each completion: the largest in it."""
        return np.asarray(self.trained_version - self.first_version)

    @property
    def end_staleness(self) -> Int[np.ndarray, " N"]:
        """Staleness of the last token of each completion: the smallest in it."""
        return np.asarray(self.trained_version - self.last_version)

    def summary(self) -> dict[str, float | str]:
        """The figures of a table row: rates per second, shares, staleness in updates."""
        return {
            "schedule": self.schedule.name,
            "tokens_per_second": self.tokens_per_second,
            "completions_per_second": self.completions_per_second,
            "generator_idle": self.generator_idle,
            "trainer_idle": self.trainer_idle,
            "sync_share": self.sync_share,
            "occupancy": self.occupancy,
            "mean_staleness": self.mean_staleness,
            "max_staleness": int(self.start_staleness.max()),
        }


def simulate(
    schedule: Schedule,
    cluster: Cluster,
    lengths: Lengths | ArrayLike,
    batch: int,
    updates: int,
    warmup: int = 0,
    seed: int = 0,
    group_size: int = 1,
) -> PipelineRun:
    """Run `updates` updates on batches of `batch` completions; count after the first `warmup`.

    `lengths` may also be the lengths themselves in order of start, repeated as needed. A full
    generator never takes more than `slots`; a new completion goes to the emptiest one. Each
    `group_size` completions in order are a group, which is trained when its last has finished.
    Tokens are a fluid: weights that arrive in the middle of a decode step split its token.
    Raises `ValueError` unless batch ≥ 1 is made of whole groups, 0 ≤ warmup < updates, and the
    updates counted make whole periods of the schedule. Chapter 17.
    """
    if batch < 1 or not 0 <= warmup < updates:
        raise ValueError(
            f"need batch >= 1 and 0 <= warmup < updates, got {batch=}, {warmup=}, {updates=}"
        )
    if group_size < 1 or batch % group_size:
        raise ValueError(f"a batch is made of whole groups, got {group_size=}, {batch=}")
    if (updates - warmup) % schedule.period:
        raise ValueError(
            f"updates - warmup must be a multiple of the period {schedule.period}, "
            f"got {updates - warmup}: part of a period has too much or too little generation"
        )
    total = batch * (updates + schedule.period + schedule.ahead)
    if isinstance(lengths, Lengths):
        lengths = lengths.sample(total, seed)
    tokens = np.resize(np.asarray(lengths, dtype=int), total)
    if tokens.min() < 1:
        raise ValueError("a completion has at least one token")
    return _Simulation(schedule, cluster, tokens, batch, group_size).run(updates, warmup)


def ceilings(
    schedule: Schedule, cluster: Cluster, lengths: Lengths, batch: int
) -> dict[str, float]:
    """Tokens per second that generators, trainers and staleness each would allow by itself.

    generators: peak
    trainers: n / (update time + sync / period),  n = batch · mean length
    staleness: (max_staleness + 1) n / (longest · decode time of one + sync + updates)

    The last: a completion, however long, sees at most `max_staleness` updates go by before its own.
    `updates` is the time of one, or of a whole period if nothing overlaps. No number of
    accelerators raises this ceiling, only a larger batch, more staleness or shorter tails do.
    Chapter 17.
    """
    tokens, started = batch * lengths.expected, batch * (schedule.max_staleness + 1)
    update = cluster.update_time(tokens)
    waiting = lengths.longest(started) * cluster.decode_time(1) + cluster.sync
    waiting += update * (1 if schedule.overlap else schedule.period)
    seconds = update + cluster.sync / schedule.period
    return {
        "generators": cluster.peak,
        "trainers": tokens / seconds if seconds else inf,
        "staleness": started * lengths.expected / waiting,
    }


def split(
    schedule: Schedule, cluster: Cluster, lengths: Lengths, batch: int, accelerators: int
) -> Cluster:
    """The same costs on `accelerators`, divided so that the slower side is as fast as possible.

    max over generators of the lower of the `ceilings` of generators and trainers

    Raises `ValueError` for fewer than two accelerators. Chapter 17.
    """
    if accelerators < 2:
        raise ValueError("a generator and a trainer side by side need two accelerators")
    shapes = (
        replace(cluster, generators=accelerators - trainers, trainers=trainers)
        for trainers in range(1, accelerators)
    )

    def slower_side(shape: Cluster) -> float:
        speeds = ceilings(schedule, shape, lengths, batch)
        return min(speeds["generators"], speeds["trainers"])

    return max(shapes, key=slower_side)


class _Simulation:
    """The event loop. Generators live on their own clock, which stands still during a sync."""

    def __init__(
        self, schedule: Schedule, cluster: Cluster, tokens: np.ndarray, batch: int, group_size: int
    ):
        self.schedule, self.cluster, self.tokens = schedule, cluster, tokens
        self.batch, self.group_size = batch, group_size
        self.now = self.paused = self.busy = self.filled = self.training = 0.0
        self.version = self.weights = 0  # of the trainers, of the generators
        self.trained_at = inf  # when the update being made ends
        self.begun = self.oldest = 0  # completions started; the first that may be untrained
        self.active = self.in_flight = 0  # generators with something to write; completions
        self.ready = 0  # completions of groups that have finished
        self.needed = batch  # how many of these an update takes at least

        n, count = len(tokens), cluster.generators
        self.place, self.first_step = np.zeros(n, dtype=int), np.zeros(n)
        self.first, self.last, self.trained = np.full((3, n), -1)
        self.started, self.finished = np.full((2, n), np.nan)

        self.missing = np.full(n // group_size, group_size)  # completions that keep a group waiting
        self.load = np.zeros(count, dtype=int)
        self.steps, self.since = np.zeros((2, count))  # decode steps made, until when on the clock
        self.running: list[list[tuple[float, int]]] = [[] for _ in range(count)]
        self.stamp = [0] * count  # tells a generator's valid event from outdated ones
        self.events: list[tuple[float, int, int]] = []
        self.marks: list[np.ndarray] = []  # decode steps of each generator as new weights came

    @property
    def clock(self) -> float:
        return self.now - self.paused

    def run(self, updates: int, warmup: int) -> PipelineRun:
        history: list[tuple[float, ...]] = []
        self.install_weights()
        while True:
            if len(history) == self.version:
                history.append((self.now, self.busy, self.filled, self.training, self.paused))
            if self.version == updates:
                return self.report(np.array(history), warmup)
            while self.events and self.events[0][2] != self.stamp[self.events[0][1]]:
                heappop(self.events)
            next_finish = self.events[0][0] + self.paused if self.events else inf
            if self.trained_at == inf and next_finish > self.now:
                self.begin_update()
            if self.trained_at < next_finish:
                self.move_to(self.trained_at)
                self.end_update()
            else:
                self.move_to(next_finish)
                self.finish(heappop(self.events)[1])

    def move_to(self, time: float) -> None:
        seconds = max(0.0, time - self.now)
        self.busy += self.active * seconds
        self.filled += self.in_flight * seconds
        self.training += seconds * (self.trained_at < inf)
        self.now += seconds

    def begin_update(self) -> None:
        if len(batch := self.next_batch()):
            self.trained[batch] = self.version
            self.trained_at = self.now + self.cluster.update_time(self.tokens[batch].sum())

    def next_batch(self) -> np.ndarray:
        """The oldest finished completions, or none if it is not yet time for an update.

        What is left out, oldest first, fills the updates to come. If the n-th of it would come too
        late by x places, at least x completions have to finish before it is worth asking again.
        """
        none = np.array([], dtype=int)
        if self.ready < self.needed:
            return none
        if self.in_flight and not self.schedule.overlap:
            return none
        left = self.oldest + np.flatnonzero(self.trained[self.oldest : self.begun] < 0)
        self.oldest, done = left[0], self.missing[left // self.group_size] == 0
        taken = done & (done.cumsum() <= self.batch)
        due = self.first[left[~taken]] + self.schedule.max_staleness - self.version
        late = np.arange(1, len(due) + 1) - due * self.batch
        if (late > 0).any():
            self.needed = self.ready + late.max()
            return none
        return np.asarray(left[taken])

    def end_update(self) -> None:
        self.version, self.trained_at = self.version + 1, inf
        self.needed = self.batch * (self.version + 1)
        if self.version % self.schedule.period == 0:
            self.now += self.cluster.sync
            self.paused += self.cluster.sync
            self.install_weights()

    def install_weights(self) -> None:
        self.weights = self.version
        writing = self.load > 0
        step_time = [self.cluster.decode_time(load) for load in self.load[writing].tolist()]
        self.steps[writing] += (self.clock - self.since[writing]) / step_time
        self.since[writing] = self.clock
        self.marks.append(self.steps.copy())
        self.admit()

    def admit(self) -> None:
        """Start what may be started, each completion on the emptiest generator."""
        allowed = self.schedule.batches(self.weights) * self.batch
        changed = set()
        while self.begun < allowed and self.load[g := int(self.load.argmin())] < self.cluster.slots:
            self.advance(g)
            i, self.begun = self.begun, self.begun + 1
            self.place[i], self.first_step[i] = g, self.steps[g]
            self.first[i], self.started[i] = self.weights, self.now
            heappush(self.running[g], (self.steps[g] + self.tokens[i], i))
            self.active += self.load[g] == 0
            self.load[g] += 1
            self.in_flight += 1
            changed.add(g)
        for g in changed:
            self.plan(g)

    def finish(self, g: int) -> None:
        """End the completions of a generator that are due, and fill their slots."""
        due = self.running[g][0][0]
        self.steps[g], self.since[g] = due, self.clock
        while self.running[g] and self.running[g][0][0] <= due:
            _, i = heappop(self.running[g])
            self.last[i], self.finished[i] = self.weights, self.now
            self.load[g] -= 1
            self.in_flight -= 1
            group = i // self.group_size
            self.missing[group] -= 1
            if not self.missing[group]:
                self.ready += self.group_size
        self.active -= self.load[g] == 0
        self.plan(g)
        self.admit()

    def advance(self, g: int) -> None:
        if self.load[g]:
            elapsed = self.clock - self.since[g]
            self.steps[g] += elapsed / self.cluster.decode_time(self.load[g])
        self.since[g] = self.clock

    def plan(self, g: int) -> None:
        """The generator's next event; the one planned before no longer counts."""
        self.stamp[g] += 1
        if self.running[g]:
            wait = (self.running[g][0][0] - self.steps[g]) * self.cluster.decode_time(self.load[g])
            heappush(self.events, (self.clock + wait, g, self.stamp[g]))

    def report(self, history: np.ndarray, warmup: int) -> PipelineRun:
        seconds, busy, filled, training, syncing = (history[-1] - history[warmup]).tolist()
        counted = np.flatnonzero(self.trained >= warmup)
        return PipelineRun(
            self.schedule,
            self.cluster,
            clock=history[:, 0],
            seconds=seconds,
            lengths=self.tokens[counted],
            first_version=self.first[counted],
            last_version=self.last[counted],
            trained_version=self.trained[counted],
            started=self.started[counted],
            finished=self.finished[counted],
            tokens_by_staleness=self.tokens_by_staleness(counted),
            busy=busy,
            filled=filled,
            training=training,
            syncing=syncing,
            untrained_tokens=self.untrained_tokens(),
        )

    def tokens_by_staleness(self, counted: np.ndarray) -> Float[np.ndarray, " D"]:
        """Every set of weights wrote the tokens between its mark and the next one."""
        marks = np.array([*self.marks, np.full(len(self.load), np.inf)])
        place, start = self.place[counted], self.first_step[counted]
        stop = start + self.tokens[counted]
        tokens = np.zeros(self.schedule.max_staleness + 1)
        period = self.schedule.period
        for later in range(ceil(len(tokens) / period)):
            version = self.first[counted] + later * period
            wrote = version <= self.last[counted]
            mark, where = version[wrote] // period, place[wrote]
            low = np.maximum(marks[mark, where], start[wrote])
            high = np.minimum(marks[mark + 1, where], stop[wrote])
            staleness = self.trained[counted][wrote] - version[wrote]
            tokens += np.bincount(staleness, np.maximum(high - low, 0), len(tokens))
        return tokens

    def untrained_tokens(self) -> float:
        for g in range(len(self.load)):
            self.advance(g)
        waiting = (self.trained < 0) & (self.first >= 0)
        written = np.where(self.last < 0, self.steps[self.place] - self.first_step, self.tokens)
        return float(written[waiting].sum())
