"""Sessions of an environment in processes of their own: what a world does wrong costs its group."""

import asyncio
import sys
import time
from collections import Counter

import pytest

from rlbook.policy import Completion
from rlbook.scale.generate.protocol import GenerationFailed, RequestRefused
from rlbook.scale.rollout.worlds import PATIENCE, Worlds
from rlbook.tasks import Problem
from rlbook.training.chat import Dialect
from rlbook.training.episodes import Limits, asked, dialogue

MODULE = """
import os, time
from rlbook.tasks import Problem, Reply, Session, Verdict


class Counting(Session):
    def __init__(self, kind, seed):
        self.kind, self.seed, self.turns = kind, seed, 0

    def turn(self, text, finished=True):
        self.turns += 1
        if self.kind == "raises":
            raise KeyError("a fault of the world")
        if self.kind == "sleeps":
            time.sleep(60)
        if self.kind == "computes":
            while True:
                pass
        if self.kind == "dies":
            os._exit(7)
        if self.kind == "floods":
            return Reply("1" * 10_000_000)
        if self.kind == "slow":
            time.sleep(0.3)
        if self.kind == "lies":
            return "3;"
        return Reply("3;", self.turns == 2, place=f"{self.turns} of {self.seed}")

    def verdict(self):
        if self.kind == "nods":
            return True
        return Verdict(self.turns == 2, True, str(self.turns), "ok")


class World:
    name, levels, ends = "counting", (1,), (";",)

    def sample(self, seed, n, levels=None):
        return [Problem(f"{i}", "1+1=", "", meta={"kind": "well"}) for i in range(n)]

    def begin(self, problem, seed):
        if problem.meta["kind"] == "shared":
            return SHARED
        if problem.meta["kind"] == "empty":
            return None
        return Counting(problem.meta["kind"], seed)


SHARED = Counting("shared", 0)
"""


@pytest.fixture
def name(tmp_path, monkeypatch):
    """The import path of the world, in a module that only this test finds."""
    (tmp_path / "counted.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield "counted:World"
    sys.modules.pop("counted", None)


@pytest.fixture(scope="module")
def tokenizer():
    from rlbook.policy import load_tokenizer

    return load_tokenizer("tiny")


async def play(worlds, name, tokenizer, kind, n=2):
    """A group of episodes of a policy that says `1;`."""
    ids = tokenizer("1;", add_special_tokens=False).input_ids

    async def complete(ask):
        return Completion(ids, [-1.0] * len(ids), "stop", versions=[3] * len(ids))

    problem = Problem(kind, "1+1=", "", meta={"kind": kind})
    dialect = Dialect(tokenizer, (";",))
    async with worlds.seats(name, problem, range(n)) as seats:
        episodes = [dialogue(problem, seat, dialect, Limits(40, 8)) for seat in seats]
        turns = await asyncio.gather(*(asked(complete, one, worlds.tell) for one in episodes))
        return turns, [await worlds.verdict(seat) for seat in seats]


def run(work, seconds=20.0, count=2):
    """What `work(worlds)` returns, and the events; no process is left behind."""
    events: Counter[str] = Counter()
    worlds = Worlds(count, seconds, events)
    try:
        return asyncio.run(work(worlds)), events
    finally:
        worlds.close()


def test_sessions_keep_their_state_and_their_luck(name, tokenizer):
    (turns, verdicts), events = run(lambda worlds: play(worlds, name, tokenizer, "well"))
    assert [one.places for one in turns] == [[None, f"1 of {i}", f"2 of {i}"] for i in range(2)]
    assert all(verdict.correct and verdict.answer == "2" for verdict in verdicts)
    assert tokenizer.decode(turns[0].token_ids) == "1;3;1;"
    assert not events


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("raises", "a fault of the world"),
        ("dies", "process died"),
        ("floods", "10,000,000 characters"),
        ("lies", r"answered '3;': return Reply"),
        ("nods", r"Counting: Session.verdict returned True: return Verdict\(correct=True\)"),
        ("shared", "begin returned the same Counting for two episodes: make a new session"),
        ("empty", "environment 'counting': begin returned None, which has no open, turn"),
    ],
)
def test_what_a_world_does_wrong_costs_its_groups_place(name, tokenizer, kind, words):
    async def work(worlds):
        with pytest.raises(GenerationFailed, match=words):
            await play(worlds, name, tokenizer, kind)
        return await play(worlds, name, tokenizer, "well")  # the place is good again

    (_, verdicts), events = run(work, count=1)
    assert events == {"world_failures": 1}
    assert all(verdict.correct for verdict in verdicts)


@pytest.mark.parametrize("kind", ["sleeps", "computes"])
def test_a_world_that_hangs_is_ended(name, tokenizer, kind):
    async def work(worlds):
        await play(worlds, name, tokenizer, "well", n=1)  # loading takes the time it takes
        with pytest.raises(GenerationFailed, match=f"the world of {kind}"):
            await play(worlds, name, tokenizer, kind, n=1)

    _, events = run(work, seconds=1.5, count=1)
    assert events["world_failures"] == 1


def test_a_group_that_is_cancelled_while_its_sessions_close_gives_its_place_back(name, tokenizer):
    async def work(worlds):
        closing, call = asyncio.Event(), worlds._call

        async def slowly(seat, verb, **more):
            if verb == "close" and not closing.is_set():
                closing.set()
                await asyncio.sleep(600)
            return await call(seat, verb, **more)

        worlds._call = slowly
        first = asyncio.create_task(play(worlds, name, tokenizer, "well"))
        await closing.wait()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        return await asyncio.wait_for(play(worlds, name, tokenizer, "well"), 300)

    (_, verdicts), _ = run(work, count=1)
    assert all(verdict.correct for verdict in verdicts)


def test_a_world_that_always_fails_is_left_out(name, tokenizer):
    async def work(worlds):
        for _ in range(PATIENCE - 1):
            with pytest.raises(GenerationFailed):
                await play(worlds, name, tokenizer, "raises")
        with pytest.raises(RequestRefused, match="a fault of the world"):
            await play(worlds, name, tokenizer, "raises")

    run(work, count=1)


def test_failures_of_one_problem_are_not_those_of_another(name, tokenizer):
    """A held-out question and a training prompt may both be the first of their kind."""

    async def work(worlds):
        for kind in ("raises", "raises", "dies"):
            with pytest.raises(GenerationFailed):
                await play(worlds, name, tokenizer, kind)

    run(work, count=1)


def test_a_slow_world_holds_up_no_other_group(name, tokenizer):
    """Another group is over while the slow one still plays its first turns."""
    order = []

    async def work(worlds):
        async def one(kind):
            await play(worlds, name, tokenizer, kind)
            order.append(kind)

        await asyncio.gather(one("well"), one("well"))  # both processes are up
        order.clear()
        slow = asyncio.create_task(one("slow"))
        await asyncio.sleep(0.05)
        for _ in range(3):
            await one("well")
        await slow

    began = time.monotonic()
    run(work)
    if time.monotonic() - began < 60:  # a machine that stands still tells nothing
        assert order.index("slow") > 0
