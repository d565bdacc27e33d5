"""Two worlds of several turns: a number to guess, and a line to walk along. Chapter 16.

What is asked for stands in the prompt, what happens does not: a hidden number, a step that slips.
Both know what a place is worth under the best play, so a credit can be compared with the truth.
"""

import random
import re
import time
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from math import log2
from typing import Any

from rlbook.tasks import Environment, Problem, Reply, Session, Verdict

CELLS = 10
DOORS = frozenset({2, 5, 7})  # cells whose signs mean the opposite


@dataclass
class Guess(Session):
    """Guess a number from 1 to `high`: the world says larger (+), smaller (-) or found (=)."""

    high: int
    hidden: int
    turns: int
    paid: bool = False  # for halving what is left, instead of at the end
    low: int = 1
    found: bool = False

    @property
    def place(self) -> str:
        """How many numbers are still possible, and how many guesses are left."""
        return f"{self.high - self.low + 1} possible, {self.turns} left"

    def open(self) -> Reply:
        return Reply(place=self.place)

    def turn(self, text: str, finished: bool = True) -> Reply:
        before, guess = self.open_questions, int(text) if text.isdigit() else 0
        self.turns -= 1
        self.found = guess == self.hidden
        said = "=" if self.found else "+" if guess < self.hidden else "-"
        if guess < self.hidden:
            self.low = max(self.low, guess + 1)
        elif guess > self.hidden:
            self.high = min(self.high, guess - 1)
        reward = before - self.open_questions if self.paid else None
        return Reply(said, self.found or not self.turns, reward, self.place)

    @property
    def open_questions(self) -> float:
        """Halvings that are still needed, as a share of those at the start."""
        if not hasattr(self, "whole"):
            self.whole = log2(self.high) + 1
        return 0.0 if self.found else (log2(self.high - self.low + 1) + 1) / self.whole

    def verdict(self) -> Verdict:
        return Verdict(self.found, True, str(self.hidden) if self.found else None, "ok")


@dataclass(frozen=True)
class Guessing:
    """As many guesses as halving needs at the least: who does not halve does not find it always."""

    levels: tuple[int, ...] = (3, 4)  # guesses
    paid: bool = False
    name: str = "guess"
    ends: tuple[str, ...] = (";",)

    def sample(self, seed: int, n: int, levels: Sequence[int] | None = None) -> list[Problem]:
        luck, problems = random.Random(f"guess {seed}"), []
        for i in range(n):
            turns = luck.choice(levels or self.levels)
            high = luck.randint(2 ** (turns - 1), 2**turns - 1)
            meta = {"high": high, "hidden": luck.randint(1, high), "turns": turns}
            problems.append(Problem(f"guess-{seed}-{i}", f"{high:02d}?", "", turns, meta))
        return problems

    def begin(self, problem: Problem, seed: int) -> Guess:
        return Guess(**problem.meta, paid=self.paid)

    def worth(self, place: str, problem: Problem) -> float:
        """V of a place under the best play: min(1, (2^turns − 1) / possible)."""
        possible, turns = map(int, re.findall(r"\d+", place))
        return min(1.0, (2**turns - 1) / max(possible, 1))


@dataclass
class Walk(Session):
    """Walk on a line of ten cells: + goes up, - goes down, and sometimes the step slips back."""

    here: int
    goal: int
    turns: int
    slip: float
    luck: random.Random
    doors: frozenset[int] = frozenset()  # where + goes down and - goes up
    paid: bool = False  # for each cell nearer, instead of at the end
    start: int = -1

    @property
    def place(self) -> str:
        """Where, to where, and how many steps are left."""
        return f"{self.here} to {self.goal}, {self.turns} left"

    def open(self) -> Reply:
        self.start = abs(self.goal - self.here)
        return Reply(place=self.place)

    def turn(self, text: str, finished: bool = True) -> Reply:
        before = abs(self.goal - self.here)
        self.turns -= 1
        step = {"+": 1, "-": -1}.get(text, 0)
        step *= -1 if self.here in self.doors else 1
        step *= -1 if self.luck.random() < self.slip else 1
        self.here = min(CELLS - 1, max(0, self.here + step))
        near = (before - abs(self.goal - self.here)) / self.start if self.paid else None
        return Reply(str(self.here), self.here == self.goal or not self.turns, near, self.place)

    def verdict(self) -> Verdict:
        return Verdict(self.here == self.goal, True, str(self.here), "ok")


@dataclass(frozen=True)
class Walking:
    """Walks that the best walker ends at the goal in 60 to 97 % of cases."""

    turns: int = 12
    slip: float = 0.2
    doors: frozenset[int] = frozenset()
    paid: bool = False
    name: str = "walk"
    ends: tuple[str, ...] = (";",)

    @property
    def levels(self) -> tuple[int, ...]:
        return (self.turns,)

    def sample(self, seed: int, n: int, levels: Sequence[int] | None = None) -> list[Problem]:
        luck, problems = random.Random(f"walk {seed} {self.turns}"), list[Problem]()
        while len(problems) < n:
            here, goal = luck.sample(range(CELLS), 2)
            if 0.6 <= best(here, goal, self.turns, self.slip) <= 0.97:
                meta = {"here": here, "goal": goal}
                name = f"walk-{seed}-{len(problems)}"
                problems.append(Problem(name, f"{here}?{goal}", "", self.turns, meta))
        return problems

    def begin(self, problem: Problem, seed: int) -> Walk:
        luck = random.Random(seed)
        how = {"turns": self.turns, "slip": self.slip, "doors": self.doors, "paid": self.paid}
        return Walk(**problem.meta, luck=luck, **how)

    def worth(self, place: str, problem: Problem) -> float:
        """V of a place under the best walker, by dynamic programming."""
        here, goal, turns = map(int, re.findall(r"\d+", place))
        return best(here, goal, turns, self.slip)


@lru_cache(None)
def best(here: int, goal: int, turns: int, slip: float) -> float:
    """The chance to arrive within `turns` for whoever always steps towards the goal."""
    if here == goal or not turns:
        return float(here == goal)
    up, down = (
        best(min(CELLS - 1, max(0, here + step)), goal, turns - 1, slip) for step in (1, -1)
    )
    return max((1 - slip) * up + slip * down, (1 - slip) * down + slip * up)


# ── The worlds by name, as a file names them ──────────────────────────────────────────────────────


def guess() -> Guessing:
    """The guessing game."""
    return Guessing()


def guess_paid() -> Guessing:
    """The guessing game that pays for halving."""
    return Guessing(paid=True)


def one_rule() -> Walking:
    """The walk where + always goes up."""
    return Walking()


def one_rule_paid() -> Walking:
    """The same, paying for every cell nearer."""
    return Walking(paid=True)


def two_doors() -> Walking:
    """The walk where two cells have their signs the other way round."""
    return Walking(doors=DOORS)


def two_doors_paid() -> Walking:
    """The same, paying for every cell nearer."""
    return Walking(doors=DOORS, paid=True)


# ── Worlds that keep others waiting, in processes of their own ────────────────────────────────────


class Sleeping(Guess):
    """The game, but the world falls asleep over its second reply."""

    def turn(self, text: str, finished: bool = True) -> Reply:
        if self.low > 1 or self.high < 9:
            time.sleep(60)
        return super().turn(text, finished)


@dataclass(frozen=True)
class SleepingGame(Guessing):
    """The environment of `Sleeping`."""

    def begin(self, problem: Problem, seed: int) -> Guess:
        return Sleeping(**problem.meta)


class Slow(Guess):
    """A fifth of a second for every reply."""

    def turn(self, text: str, finished: bool = True) -> Reply:
        time.sleep(0.2)
        return super().turn(text, finished)


@dataclass(frozen=True)
class SlowGame(Guessing):
    """The environment of `Slow`."""

    def begin(self, problem: Problem, seed: int) -> Guess:
        return Slow(**problem.meta)


def answering(world: Environment, reply: Any) -> Environment:
    """The world, whose sessions answer every turn with this, whatever it is."""

    def begin(problem: Problem, seed: int) -> Session:
        session: Any = world.begin(problem, seed)
        session.turn = lambda text, finished=True: reply
        return session

    broken: Any = copy(world)
    broken.begin = begin
    return broken
