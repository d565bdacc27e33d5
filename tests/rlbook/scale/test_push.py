"""Who gets new weights: generators that are fresh, behind, ahead, dead, silent or failing."""

import asyncio
import warnings
from collections import Counter
from functools import partial

import pytest
from fleet import Generator, Reply

from rlbook.durable import write_json
from rlbook.scale.layout import Layout
from rlbook.scale.process import TOKEN_VARIABLE
from rlbook.scale.train import weight_sync
from rlbook.scale.train.weight_sync import WrongWeights


def behind(sync, version):
    sync.learner.step, sync.looked_for = version, None
    return [client.name for client in sync.due] if sync.is_due() else []


def round_(sync, version):
    """One look and one push, as the trainer does it; returns who was probed."""
    if not behind(sync, version):
        return []
    return [url.removeprefix("http://") for url in sync.runner.run(sync.push())]


def judge(sync, probed, **gaps):
    """What the probes show, which are right unless it is said."""
    found = dict.fromkeys(probed, 0.0) | gaps
    sync.runner.run(sync.judge({f"http://{name}": gap for name, gap in found.items()}))


def judged(sync, version, **gaps):
    """A look, a push, and what the probes of it show."""
    judge(sync, probed := round_(sync, version), **gaps)
    return probed


def sent(sync):
    """To whom weights were sent, and whether it was to a fresh one."""
    return [(client.name, fresh) for (client, fresh), _ in sync.transport.send.await_args_list]


def test_only_those_who_lack_the_weights_get_them(make_sync):
    old, level, ahead, new = map(Generator, "olan", (3, 5, 7, None))
    dead = Generator("dead", dead=True)
    sync = make_sync(old, level, ahead, new, dead)
    assert behind(sync, 5) == ["o", "n"]
    round_(sync, 5)
    assert [one.weights for one in (old, level, ahead, new)] == [5, 5, 7, 5]
    assert "pause" not in level.routes + ahead.routes + dead.routes
    assert behind(sync, 5) == []


def test_a_process_is_probed_once(make_sync):
    sync = make_sync(generator := Generator("a"))
    assert judged(sync, 0) == ["a"]
    assert judged(sync, 1) == []
    generator.restart()  # the same address, the weights it came with
    assert judged(sync, 1) == ["a"]
    assert sent(sync) == [("a", True), ("a", False), ("a", True)]


def test_a_trainer_that_starts_again_probes_and_reconnects(make_sync):
    """Generators keep their weights over its death; its connections are gone."""
    sync = make_sync(Generator("a", 4))
    assert round_(sync, 4) == []
    assert round_(sync, 5) == ["a"]
    assert sent(sync) == [("a", True)]


@pytest.mark.parametrize("call", ["pause", "collective_rpc", "generate"])
def test_a_failing_generator_is_named_and_holds_up_nobody(call, make_sync):
    bad, good = Generator("bad", 0, fails={call: 500}), Generator("good", 0)
    sync = make_sync(bad, good)
    with pytest.warns(RuntimeWarning, match=f"generator http://bad: version 1 .*{call} failed"):
        assert judged(sync, 1) == ["good"]
    assert good.weights == 1
    bad.fails = {}
    assert behind(sync, 2) == ["good"]  # not at once
    sync.now.now = 1.5
    assert judged(sync, 2) == ["bad"]
    assert bad.weights == good.weights == 2


def test_tries_get_rarer_and_start_over_after_a_success(make_sync):
    generator = Generator("bad", fails={"collective_rpc": 500})
    sync, tries = make_sync(generator), []
    with pytest.warns(RuntimeWarning):
        for second in range(200):
            sync.now.now = float(second)
            if behind(sync, 1):
                tries.append(second)
                sync.runner.run(sync.push())
    assert tries == [0, 1, 3, 7, 15, 31, 63, 123, 183]  # doubled up to a minute
    fails, generator.fails = generator.fails, {}
    sync.now.now = 300.0
    judged(sync, 1)
    generator.fails = fails
    with pytest.warns(RuntimeWarning):
        round_(sync, 2)
    sync.now.now = 301.0
    assert behind(sync, 2) == ["bad"]


def test_a_silent_generator_costs_its_time_limit_once(make_sync, monkeypatch):
    monkeypatch.setattr(weight_sync, "SILENCE", 1.0)
    silent, good = Generator("silent", 0, hangs={"weight_info"}), Generator("good", 0)
    sync = make_sync(silent, good)
    with pytest.warns(RuntimeWarning, match="silent: no answer within 1 s"):
        assert behind(sync, 1) == ["good"]
    assert behind(sync, 1) == ["good"]
    assert [one.route for one in silent.asked] == ["weight_info"] * 2  # the greeting, and one look


def test_a_push_that_hangs_is_given_up(make_sync):
    stuck, good = Generator("stuck", 0, hangs={"collective_rpc"}), Generator("good", 0)
    sync = make_sync(stuck, good, timeout=2.0)
    with pytest.warns(RuntimeWarning, match="stuck: version 1 is not delivered: time limit"):
        round_(sync, 1)
    assert good.weights == 1
    assert stuck.weights is None  # counts as fresh: it gets everything again


@pytest.mark.parametrize(
    ("slowest", "billions", "limit"),
    [(0, 0, 60), (2, 0, 60), (20, 0, 200), (500, 0, 600), (0, 8.2, 246), (30, 8.2, 300)],
)
def test_the_limit_follows_what_pushes_take(slowest, billions, limit, make_sync, tmp_path):
    """Also the first after a restart; before any, it is five times what is planned.

    A push of 8.2 billion weights in float32 at 2 GB/s, gathered, written, read: 49 s.
    """
    write_json(Layout(tmp_path).status, {"version": 0, "slowest_push": slowest})
    sync = make_sync(parameters=int(billions * 1e9), timeout=600.0)
    assert sync.limit == pytest.approx(limit)


def test_what_cannot_be_prepared_is_a_failed_push_of_everybody_who_goes_on(make_sync, monkeypatch):
    generators = [Generator("a", 0), Generator("b", 0)]
    sync = make_sync(*generators)

    def full(tensors, folder):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sync.transport, "write", full)
    with pytest.warns(RuntimeWarning, match="version 1 is not delivered: .*No space") as warned:
        assert round_(sync, 1) == []
    assert len(warned) == 2 and [one.weights for one in generators] == [0, 0]
    assert not any(one.paused for one in generators)
    assert behind(sync, 1) == []  # not at once


def test_a_refused_question_is_named_not_raised(make_sync, monkeypatch):
    monkeypatch.setenv(TOKEN_VARIABLE, "which the trainer does not know")
    with pytest.warns(RuntimeWarning, match="generator http://a: .*HTTP 401"):
        assert behind(make_sync(Generator("a")), 0) == []


def test_generators_left_paused_go_on_when_the_trainer_is_back(make_sync):
    paused, fresh, dead = Generator("p", 3), Generator("f"), Generator("d", dead=True)
    paused.server.paused = True
    make_sync(paused, fresh, dead)
    assert not paused.paused
    assert "resume" not in fresh.routes + dead.routes


def test_a_generator_that_was_not_resumed_after_its_new_weights_is_sent_them_again(make_sync):
    sync = make_sync(generator := Generator("a", 0))
    judged(sync, 1)
    refusals = iter([Reply(503, b"busy")])

    async def once(asked):
        return next(refusals, None) if asked.route == "resume" else None

    generator.trouble = once
    with pytest.warns(RuntimeWarning, match="version 2 is not delivered"):
        round_(sync, 2)
    assert generator.weights == 2 and generator.paused
    sync.now.now += 100.0
    assert behind(sync, 2) == ["a"]
    round_(sync, 2)
    assert not generator.paused and behind(sync, 2) == []


def test_a_push_slower_than_its_limit_has_twice_the_time_next(make_sync, monkeypatch):
    """Sending takes longer than the least limit, and nothing says how long it will take."""
    monkeypatch.setattr(weight_sync, "LEAST_LIMIT", 0.05)
    sync = make_sync(generator := Generator("a"))

    async def slowly(asked):
        if asked.route == "collective_rpc":
            await asyncio.sleep(0.3)

    generator.trouble = slowly
    limits = []
    while generator.weights != 0:
        limits.append(sync.limit)
        sync.now.now += 100.0
        assert behind(sync, 0) == ["a"]
        if len(limits) > 1:
            assert limits[-1] == 2 * limits[-2]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            round_(sync, 0)
    assert len(limits) > 2


@pytest.mark.parametrize(("kv", "cleared"), [("clear", "true"), ("keep", "false")])
def test_the_cache_is_cleared_as_configured(kv, cleared, make_sync):
    generator = Generator("a", 0)
    round_(make_sync(generator, kv=kv), 1)
    assert f"/pause?mode=keep&clear_cache={cleared}" in [one.path for one in generator.asked]


def test_a_generator_that_computes_with_other_weights_is_asked_by_nobody(make_sync):
    """The others write on; it is tried again with growing pauses, and is back once it is right."""
    bad, good = Generator("bad"), Generator("good")
    sync = make_sync(bad, good)
    with pytest.warns(RuntimeWarning, match=r"http://bad: .* not those of the weights .*0\.5"):
        judged(sync, 1, bad=0.5, good=5e-4)
    assert (bad.weights, good.weights) == (None, 1)
    assert behind(sync, 1) == []  # not at once
    sync.now.now = 2.0
    with pytest.warns(RuntimeWarning, match="generator http://bad"):
        judged(sync, 1, bad=float("nan"))
    sync.now.now = 3.5
    assert behind(sync, 1) == []  # the pause has grown
    sync.now.now = 10.0
    judged(sync, 2)
    assert (bad.weights, good.weights) == (2, 2)
    sync.now.now = 11.0
    assert behind(sync, 2) == [] and sync.verified == {bad.url, good.url}


def test_one_that_cannot_be_told_is_not_taken_for_right(make_sync):
    sync = make_sync(deaf := Generator("deaf"))
    probed = round_(sync, 1)
    deaf.fails = {"update_weight_version": 500}
    with pytest.warns(RuntimeWarning):
        judge(sync, probed, deaf=0.5)
    sync.now.now = 2.0
    assert deaf.weights == 1 and behind(sync, 1) == ["deaf"]


def test_a_run_ends_once_every_generator_was_wrong_again_and_again(make_sync):
    """As long as one of them is right, or was wrong only now and then, it goes on."""
    one, other = Generator("a"), Generator("b")
    sync = make_sync(one, other)

    def deliver(**gaps):
        sync.now.now += 100.0
        sync.gaps = lambda probes: {f"http://{name}": gap for name, gap in gaps.items()}
        assert behind(sync, 1)
        sync.deliver()

    with pytest.warns(RuntimeWarning):
        for _ in range(weight_sync.MOST_WRONG - 1):
            deliver(a=0.5, b=0.5)
        deliver(a=0.5, b=0.0)
        deliver(a=0.5)
        other.restart()  # and is wrong since
        for _ in range(weight_sync.MOST_WRONG - 1):
            deliver(a=0.5, b=0.5)
        with pytest.raises(WrongWeights, match=r"a, http://b: no generator .* check model\.policy"):
            deliver(a=0.5, b=0.5)


def test_life_is_shown_for_a_generator_while_it_is_sent_weights(make_sync, monkeypatch):
    """Its engine answers nobody meanwhile, however long that takes."""
    monkeypatch.setattr(weight_sync, "HEARTBEAT_SECONDS", 0.01)
    slow, beats = Generator("slow", 0), Counter()
    sync = make_sync(slow, Generator("other", 5), timeout=10.0)
    sync.ranks.alive = lambda: beats.update(["own"])
    for client in sync.clients:
        client.heartbeat = partial(beats.update, [client.name])

    async def long(asked):
        while asked.route == "collective_rpc" and beats["slow"] < 10:
            await asyncio.sleep(0.001)

    slow.trouble = long
    assert behind(sync, 5) == ["slow"]
    looked = beats["other"]
    sync.runner.run(sync.push())
    assert slow.weights == 5 and beats["other"] == looked and beats["own"] >= 5
    seen = beats["slow"]
    sync.runner.run(asyncio.sleep(0.05))
    assert beats["slow"] == seen
