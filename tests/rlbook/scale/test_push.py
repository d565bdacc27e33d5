"""Who gets new weights: generators that are fresh, behind, ahead, dead, silent or failing."""

import asyncio
from collections import Counter
from contextlib import asynccontextmanager, nullcontext

import pytest

from rlbook.scale.generate.protocol import GenerationFailed, RequestRefused
from rlbook.scale.train import weight_sync
from rlbook.scale.train.weight_sync import GeneratorPool


class FakeClient:
    """A generator: `weights` None is a fresh process. `broken` names the calls that fail."""

    def __init__(self, url, weights=None, alive=True, broken=(), hangs=()):
        self.url, self.weights, self.alive = url, weights, alive
        self.broken, self.hangs, self.calls = set(broken), set(hangs), []
        self.paused = False

    def look_up(self):
        """It is where it was."""

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

    @asynccontextmanager
    async def new_weights(self, version, clear_cache):
        self.paused, self.cleared = True, clear_cache
        await self.called("start")
        self.weights = None
        yield
        self.weights, self.paused = version, False


class FakeTransport:
    turn = nullcontext()

    def __init__(self):
        self.connected, self.forgotten = [], []

    async def connect(self, client, fresh):
        self.connected.append((client.url, fresh))

    async def send(self, client):
        await client.called("send")

    def forget(self, client):
        self.forgotten.append(client.url)


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def fleet():
    def make(*clients, **how):
        async def sample(client, version):
            await client.called("probe")
            return client.url, version

        clock = Clock()
        generators = GeneratorPool(clients, FakeTransport(), sample, clock=clock, **how)
        generators.now = clock
        return generators

    return make


def behind(generators, version):
    return [client.url for client in asyncio.run(generators.behind(version))]


def round_(generators, version):
    """One look and one push, as the trainer does it; returns the probes."""

    async def both():
        return await generators.push(await generators.behind(version), version)

    return asyncio.run(both())


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
    assert round_(generators, 0) == [("a", 0)]
    assert round_(generators, 1) == []
    client.weights = None  # started again: the same address, the weights it came with
    assert round_(generators, 1) == [("a", 1)]
    assert generators.transport.connected == [("a", True), ("a", False), ("a", True)]


def test_a_trainer_that_starts_again_probes_and_reconnects(fleet):
    """Generators keep their weights over its death; its connections are gone."""
    generators = fleet(FakeClient("a", 4))
    assert round_(generators, 4) == []
    assert round_(generators, 5) == [("a", 5)]
    assert generators.transport.connected == [("a", True)]


@pytest.mark.parametrize("call", ["start", "send", "probe"])
def test_a_failing_generator_is_named_and_holds_up_nobody(call, fleet):
    bad, good = FakeClient("bad", 0, broken=[call]), FakeClient("good", 0)
    generators = fleet(bad, good)
    with pytest.warns(RuntimeWarning, match=f"generator bad: version 1 .*{call} failed"):
        assert round_(generators, 1) == [("good", 1)]
    assert good.weights == 1
    assert generators.transport.forgotten == ["bad"]
    bad.broken.clear()
    assert behind(generators, 2) == ["good"]  # not at once
    generators.now.now = 1.5
    assert round_(generators, 2) == [("bad", 2)]
    assert bad.weights == good.weights == 2


def test_tries_get_rarer_and_start_over_after_a_success(fleet):
    client = FakeClient("bad", broken=["send"])
    generators, tries = fleet(client), []
    with pytest.warns(RuntimeWarning):
        for second in range(200):
            generators.now.now = float(second)
            if asyncio.run(generators.behind(1)):
                tries.append(second)
                round_(generators, 1)
    assert tries == [0, 1, 3, 7, 15, 31, 63, 123, 183]  # doubled up to a minute
    client.broken.clear()
    generators.now.now = 300.0
    round_(generators, 1)
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
    assert silent.calls == ["version"]


def test_a_push_that_hangs_is_given_up(fleet):
    stuck, good = FakeClient("stuck", 0, hangs=["send"]), FakeClient("good", 0)
    generators = fleet(stuck, good, limit=0.1)
    with pytest.warns(RuntimeWarning, match="stuck: version 1 is not delivered: time limit"):
        round_(generators, 1)
    assert good.weights == 1
    assert stuck.weights is None  # counts as fresh: it gets everything again


def test_the_limit_follows_what_pushes_take(fleet):
    generators = fleet(FakeClient("a", 0), limit=600.0)
    assert generators.push_limit == 600.0
    generators.slowest = 2.0
    assert generators.push_limit == 30.0
    generators.slowest = 20.0
    assert generators.push_limit == 200.0
    generators.slowest = 500.0
    assert generators.push_limit == 600.0


def test_a_refused_question_is_named_not_raised(fleet):
    class Closed(FakeClient):
        async def version(self):
            raise RequestRefused("HTTP 401: Unauthorized")

    with pytest.warns(RuntimeWarning, match="generator a: HTTP 401"):
        assert behind(fleet(Closed("a")), 0) == []


def test_generators_left_paused_go_on_when_the_trainer_is_back(fleet):
    paused, fresh, dead = FakeClient("p", 3), FakeClient("f"), FakeClient("d", alive=False)
    paused.paused = True
    generators = fleet(paused, fresh, dead)
    asyncio.run(generators.resume_all())
    assert not paused.paused
    assert "resume" not in fresh.calls + dead.calls


@pytest.mark.parametrize("clear", [True, False])
def test_the_cache_is_cleared_as_configured(clear, fleet):
    client = FakeClient("a", 0)
    round_(fleet(client, clear_cache=clear), 1)
    assert client.cleared is clear


def judged(generators, version, **gaps):
    """A look, a push, and what the probes of it show."""
    round_(generators, version)
    asyncio.run(generators.judge(gaps, tolerance=0.1))


def test_a_generator_that_computes_with_other_weights_is_asked_by_nobody(fleet):
    """The others write on; it is tried again with growing pauses, and is back once it is right."""
    bad, good = FakeClient("bad"), FakeClient("good")
    generators = fleet(bad, good)
    with pytest.warns(RuntimeWarning, match=r"generator bad: .* not those of the weights .*0\.5"):
        judged(generators, 1, bad=0.5, good=0.01)
    assert (bad.weights, good.weights) == (None, 1)
    assert behind(generators, 1) == []  # not at once
    generators.now.now = 2.0
    with pytest.warns(RuntimeWarning, match="generator bad"):
        judged(generators, 1, bad=float("nan"))
    generators.now.now = 3.5
    assert behind(generators, 1) == []  # the pause has grown
    generators.now.now = 10.0
    judged(generators, 2, bad=0.01)
    assert (bad.weights, good.weights) == (2, 2)
    generators.now.now = 11.0
    assert behind(generators, 2) == [] and not generators.hopeless


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


def test_without_one_that_is_right_there_is_no_hope(fleet):
    clients = [FakeClient("a"), FakeClient("b")]
    generators = fleet(*clients)
    with pytest.warns(RuntimeWarning):
        for attempt in range(weight_sync.MOST_WRONG):
            assert not generators.hopeless
            generators.now.now = 100.0 * attempt
            judged(generators, 1, a=0.5, b=0.5)
    assert generators.hopeless
    generators.now.now = 1000.0
    judged(generators, 1, a=0.01)
    assert not generators.hopeless


def test_life_is_shown_for_a_generator_while_it_is_sent_weights(fleet, monkeypatch):
    """Its engine answers nobody meanwhile, however long that takes."""
    monkeypatch.setattr(weight_sync, "HEARTBEAT_SECONDS", 0.01)
    beats = Counter()
    slow, other = FakeClient("slow", 0), FakeClient("other", 5)
    generators = fleet(slow, other, heartbeat_of=lambda client: lambda: beats.update([client.url]))

    async def send(client):
        while beats[client.url] < 5:
            await asyncio.sleep(0.001)

    generators.transport.send = send
    round_(generators, 5)
    assert slow.weights == 5 and not beats["other"]
    seen = beats["slow"]
    asyncio.run(asyncio.sleep(0.05))
    assert beats["slow"] == seen
