"""Who gets new weights: generators that are fresh, behind, ahead, dead, silent or failing."""

import asyncio
from collections import Counter
from contextlib import asynccontextmanager, nullcontext
from types import SimpleNamespace

import pytest
import torch

from rlbook.durable import write_json
from rlbook.policy import Completion
from rlbook.scale.config import ScaleConfig
from rlbook.scale.generate.protocol import GenerationFailed, RequestRefused
from rlbook.scale.layout import Layout
from rlbook.scale.train import weight_sync
from rlbook.scale.train.weight_sync import WeightSync, WrongWeights


class FakeClient:
    """A generator: `weights` None is a fresh process. `broken` names the calls that fail."""

    def __init__(self, url, weights=None, alive=True, broken=(), hangs=()):
        self.url = self.name = url
        self.weights, self.alive = weights, alive
        self.broken, self.hangs, self.calls = set(broken), set(hangs), []
        self.paused, self.beats = False, 0

    async def __aenter__(self):
        return self

    async def __aexit__(self, *error):
        pass

    def look_up(self):
        """It is where it was."""

    def heartbeat(self):
        self.beats += 1

    async def called(self, name):
        self.calls.append(name)
        if name in self.hangs:
            await asyncio.sleep(3600)
        if name in self.broken:
            raise GenerationFailed(f"{self.url}: {name} failed")

    async def version(self):
        await self.called("version")
        return self.weights if self.alive else None

    async def healthy(self):
        return self.alive

    async def name_weights(self, version):
        self.weights = version

    async def resume(self):
        await self.called("resume")
        self.paused = False

    async def complete_at(self, version, prompt, n, **how):
        await self.called("probe")
        return [Completion([5], [-3.0], "length", versions=[version])]

    @asynccontextmanager
    async def new_weights(self, version, clear_cache):
        self.paused, self.cleared = True, clear_cache
        await self.called("start")
        self.weights = None
        yield
        self.weights, self.paused = version, False


class FakeTransport:
    adapter = False

    def __init__(self, *arguments):
        self.sent = []

    def prepare(self, version):
        """Nothing has to be done."""

    def expect(self, clients):
        """Whoever is there is sent to."""

    def leave(self, client):
        """Nobody waits for it."""

    async def send(self, client, fresh):
        self.sent.append((client.url, fresh))
        await client.called("send")


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def fleet(tmp_path, monkeypatch):
    made = []

    def make(*clients, parameters=0, **generate):
        ranks = SimpleNamespace(first=True, alive=lambda: None)
        weights = [torch.empty(parameters, device="meta")]
        policy = SimpleNamespace(config=SimpleNamespace(vocab_size=29), parameters=lambda: weights)
        learner = SimpleNamespace(parallel=ranks, policy=policy, step=0)
        monkeypatch.setattr(weight_sync, "clients_of", lambda config, layout: list(clients))
        monkeypatch.setattr(weight_sync, "monotonic", clock := Clock())
        config = ScaleConfig(run=str(tmp_path), **{"generate": generate} if generate else {})
        sync = WeightSync(config, Layout(tmp_path), learner)
        sync.now = clock
        made.append(sync)
        return sync

    monkeypatch.setattr(weight_sync, "TRANSPORTS", {"file": FakeTransport})
    yield make
    for sync in made:
        sync.close()


def behind(sync, version):
    sync.learner.step, sync.asked = version, None
    return [client.url for client in sync.due] if sync.is_due() else []


def round_(sync, version):
    """One look and one push, as the trainer does it; returns who was probed."""
    return list(sync.runner.run(sync.push())) if behind(sync, version) else []


def judged(sync, version, **gaps):
    """A look, a push, and what the probes of it show; they are right unless it is said."""
    probed = round_(sync, version)
    sync.runner.run(sync.judge(dict.fromkeys(probed, 0.0) | gaps))
    return probed


def test_only_those_who_lack_the_weights_get_them(fleet):
    old, level, ahead, new = map(FakeClient, "olan", (3, 5, 7, None))
    dead = FakeClient("dead", alive=False)
    generators = fleet(old, level, ahead, new, dead)
    assert behind(generators, 5) == ["o", "n"]
    round_(generators, 5)
    assert [c.weights for c in (old, level, ahead, new)] == [5, 5, 7, 5]
    assert "start" not in level.calls + ahead.calls + dead.calls
    assert behind(generators, 5) == []


def test_a_process_is_probed_once(fleet):
    client = FakeClient("a")
    generators = fleet(client)
    assert judged(generators, 0) == ["a"]
    assert judged(generators, 1) == []
    client.weights = None  # started again: the same address, the weights it came with
    assert judged(generators, 1) == ["a"]
    assert generators.transport.sent == [("a", True), ("a", False), ("a", True)]


def test_a_trainer_that_starts_again_probes_and_reconnects(fleet):
    """Generators keep their weights over its death; its connections are gone."""
    generators = fleet(FakeClient("a", 4))
    assert round_(generators, 4) == []
    assert round_(generators, 5) == ["a"]
    assert generators.transport.sent == [("a", True)]


@pytest.mark.parametrize("call", ["start", "send", "probe"])
def test_a_failing_generator_is_named_and_holds_up_nobody(call, fleet):
    bad, good = FakeClient("bad", 0, broken=[call]), FakeClient("good", 0)
    generators = fleet(bad, good)
    with pytest.warns(RuntimeWarning, match=f"generator bad: version 1 .*{call} failed"):
        assert judged(generators, 1) == ["good"]
    assert good.weights == 1
    bad.broken.clear()
    assert behind(generators, 2) == ["good"]  # not at once
    generators.now.now = 1.5
    assert judged(generators, 2) == ["bad"]
    assert bad.weights == good.weights == 2


def test_tries_get_rarer_and_start_over_after_a_success(fleet):
    client = FakeClient("bad", broken=["send"])
    generators, tries = fleet(client), []
    with pytest.warns(RuntimeWarning):
        for second in range(200):
            generators.now.now = float(second)
            if behind(generators, 1):
                tries.append(second)
                generators.runner.run(generators.push())
    assert tries == [0, 1, 3, 7, 15, 31, 63, 123, 183]  # doubled up to a minute
    client.broken.clear()
    generators.now.now = 300.0
    judged(generators, 1)
    client.broken.add("send")
    with pytest.warns(RuntimeWarning):
        round_(generators, 2)
    generators.now.now = 301.0
    assert behind(generators, 2) == ["bad"]


def test_a_silent_generator_costs_its_time_limit_once(fleet, monkeypatch):
    monkeypatch.setattr(weight_sync, "SILENCE", 0.05)
    silent, good = FakeClient("silent", 0, hangs=["version"]), FakeClient("good", 0)
    generators = fleet(silent, good)
    with pytest.warns(RuntimeWarning, match=r"silent: no answer within 0\.05 s"):
        assert behind(generators, 1) == ["good"]
    assert behind(generators, 1) == ["good"]
    assert silent.calls == ["version"] * 2  # by the greeting, and by one look


def test_a_push_that_hangs_is_given_up(fleet):
    stuck, good = FakeClient("stuck", 0, hangs=["send"]), FakeClient("good", 0)
    generators = fleet(stuck, good, timeout=0.1)
    with pytest.warns(RuntimeWarning, match="stuck: version 1 is not delivered: time limit"):
        round_(generators, 1)
    assert good.weights == 1
    assert stuck.weights is None  # counts as fresh: it gets everything again


@pytest.mark.parametrize(
    ("slowest", "billions", "limit"),
    [(0, 0, 60), (2, 0, 60), (20, 0, 200), (500, 0, 600), (0, 8.2, 246), (30, 8.2, 300)],
)
def test_the_limit_follows_what_pushes_take(slowest, billions, limit, fleet, monkeypatch, tmp_path):
    """Also the first after a restart; before any, it is five times what is planned.

    A push of 8.2 billion weights in float32 at 2 GB/s, gathered, written, read: 49 s.
    """
    limits = []
    monkeypatch.setattr(
        weight_sync.asyncio, "timeout", lambda seconds: (limits.append(seconds), nullcontext())[1]
    )
    write_json(Layout(tmp_path).status, {"version": 0, "slowest_push": slowest})
    generators = fleet(FakeClient("a", 0), parameters=int(billions * 1e9), timeout=600.0)
    round_(generators, 1)
    assert limits[-1] == pytest.approx(limit)


def test_what_cannot_be_prepared_is_a_failed_push_of_everybody_who_goes_on(fleet):
    clients = [FakeClient("a", 0), FakeClient("b", 0)]
    generators = fleet(*clients)

    def full(version):
        raise OSError(28, "No space left on device")

    generators.transport.prepare = full
    with pytest.warns(RuntimeWarning, match="version 1 is not delivered: .*No space") as warned:
        assert round_(generators, 1) == []
    assert len(warned) == 2 and [c.weights for c in clients] == [0, 0]
    assert not any(client.paused for client in clients)
    assert behind(generators, 1) == []  # not at once


def test_a_refused_question_is_named_not_raised(fleet):
    class Closed(FakeClient):
        async def version(self):
            raise RequestRefused("HTTP 401: Unauthorized")

    with pytest.warns(RuntimeWarning, match="generator a: HTTP 401"):
        assert behind(fleet(Closed("a")), 0) == []


def test_generators_left_paused_go_on_when_the_trainer_is_back(fleet):
    paused, fresh, dead = FakeClient("p", 3), FakeClient("f"), FakeClient("d", alive=False)
    paused.paused = True
    fleet(paused, fresh, dead)
    assert not paused.paused
    assert "resume" not in fresh.calls + dead.calls


@pytest.mark.parametrize("kv", ["clear", "keep"])
def test_the_cache_is_cleared_as_configured(kv, fleet):
    client = FakeClient("a", 0)
    round_(fleet(client, kv=kv), 1)
    assert client.cleared is (kv == "clear")


def test_a_generator_that_computes_with_other_weights_is_asked_by_nobody(fleet):
    """The others write on; it is tried again with growing pauses, and is back once it is right."""
    bad, good = FakeClient("bad"), FakeClient("good")
    generators = fleet(bad, good)
    with pytest.warns(RuntimeWarning, match=r"generator bad: .* not those of the weights .*0\.5"):
        judged(generators, 1, bad=0.5, good=5e-4)
    assert (bad.weights, good.weights) == (None, 1)
    assert behind(generators, 1) == []  # not at once
    generators.now.now = 2.0
    with pytest.warns(RuntimeWarning, match="generator bad"):
        judged(generators, 1, bad=float("nan"))
    generators.now.now = 3.5
    assert behind(generators, 1) == []  # the pause has grown
    generators.now.now = 10.0
    judged(generators, 2)
    assert (bad.weights, good.weights) == (2, 2)
    generators.now.now = 11.0
    assert behind(generators, 2) == [] and generators.verified == {"bad", "good"}


def test_one_that_cannot_be_told_is_not_taken_for_right(fleet):
    class Deaf(FakeClient):
        async def name_weights(self, version):
            raise GenerationFailed("gone")

    deaf = Deaf("deaf")
    generators = fleet(deaf)
    with pytest.warns(RuntimeWarning):
        judged(generators, 1, deaf=0.5)
    generators.now.now = 2.0
    assert deaf.weights == 1 and behind(generators, 1) == ["deaf"]


def test_a_run_ends_once_every_generator_was_wrong_again_and_again(fleet):
    """As long as one of them is right, or was wrong only now and then, it goes on."""
    generators = fleet(FakeClient("a"), FakeClient("b"))
    generators.ranks.share = lambda value: value

    def deliver(**gaps):
        generators.now.now += 100.0
        generators.gaps = lambda probes: gaps
        assert behind(generators, 1)
        generators.deliver()

    with pytest.warns(RuntimeWarning):
        for _ in range(weight_sync.MOST_WRONG - 1):
            deliver(a=0.5, b=0.5)
        deliver(a=0.5, b=0.0)
        deliver(a=0.5)
        generators.clients[1].weights = None  # started again, and wrong since
        for _ in range(weight_sync.MOST_WRONG - 1):
            deliver(a=0.5, b=0.5)
        with pytest.raises(WrongWeights, match=r"a, b: no generator .* check model\.policy"):
            deliver(a=0.5, b=0.5)


def test_life_is_shown_for_a_generator_while_it_is_sent_weights(fleet, monkeypatch):
    """Its engine answers nobody meanwhile, however long that takes."""
    monkeypatch.setattr(weight_sync, "HEARTBEAT_SECONDS", 0.01)
    slow, other = FakeClient("slow", 0), FakeClient("other", 5)
    generators, own = fleet(slow, other), Counter()
    generators.ranks.alive = lambda: own.update(["beats"])

    async def send(client, fresh):
        while client.beats < 5:
            await asyncio.sleep(0.001)

    generators.transport.send = send
    round_(generators, 5)
    assert slow.weights == 5 and not other.beats and own["beats"] >= 5
    seen = slow.beats
    generators.runner.run(asyncio.sleep(0.05))
    assert slow.beats == seen
