"""A walker of eleven numbers: one for the rule, one for each cell. Chapter 16.

    P(+ | here, goal) = σ(s · (rule + own[here])),   s = 1 if the goal lies above, else −1

It walks in `workshop.ch16.worlds.Walk`, so its worth at every place is exact, and a run costs half
a second. `rule` serves all cells at once; a cell with its signs the other way round needs `own`.

    python -m workshop.ch16.walker          # data/results/turns_walker.csv and its manifest
"""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise, product
from math import exp
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from rlbook.manifest import SUFFIX, manifest, write_manifest
from rlbook.paths import data_dir
from rlbook.rewards.turns import GROUP, BesideCredit, GiGPOCredit, PricedCredit
from rlbook.tasks import Problem
from rlbook.training import Rollout, write_csv
from rlbook.training.config import derive_seed
from workshop.ch16.experiments import batch_places, by_turn, outcome_credit
from workshop.ch16.worlds import CELLS, Walking, one_rule, one_rule_paid, two_doors, two_doors_paid

WORLDS = {"one rule": (one_rule, one_rule_paid), "two rules": (two_doors, two_doors_paid)}
RATES, SEEDS, STEPS, EVERY = (0.1, 0.2), tuple(range(10)), 40, 5
BATCHES = {16: (4, 4), 64: (8, 8)}  # episodes of a batch: prompts and episodes for each

KEY = ("arm", "world", "episodes", "lr", "seed")

Credits = list[list[float]]


@dataclass
class Walker:
    """The policy: θ = (rule, own[0], …, own[9]), and Adam."""

    theta: Float[np.ndarray, " P"] = field(default_factory=lambda: np.array([0.2] + [0.0] * CELLS))
    moments: tuple[Any, Any] = (0.0, 0.0)
    updates: int = 0

    def up(self, here: int, goal: int) -> float:
        """P(+)."""
        towards = 1 if goal > here else -1
        return 1 / (1 + exp(-towards * (self.theta[0] + self.theta[1 + here])))

    def score(self, here: int, goal: int, said: str) -> float:
        """∂ log π(said) / ∂ rule, which is also that for own[here]."""
        towards = 1 if goal > here else -1
        return towards * ((said == "+") - self.up(here, goal))

    def step(self, gradient: Float[np.ndarray, " P"], lr: float) -> None:
        """One ascent by Adam, as the book's trainer sets it."""
        first, second = self.moments
        self.updates += 1
        first, second = 0.9 * first + 0.1 * gradient, 0.95 * second + 0.05 * gradient**2
        self.moments = first, second
        mean, square = first / (1 - 0.9**self.updates), second / (1 - 0.95**self.updates)
        self.theta = self.theta + lr * mean / (np.sqrt(square) + 1e-8)


def walk(
    walker: Walker, world: Walking, problems: Sequence[Problem], n: int, seed: int
) -> list[Rollout]:
    """Episodes as rollouts whose turns have one token each, 1 for + and 0 for -."""
    rollouts = []
    for number, (group, _) in enumerate(product(range(len(problems)), range(n))):
        problem, luck = problems[group], random.Random(derive_seed(seed, "policy", number))
        session = world.begin(problem, derive_seed(seed, "world", number))
        reply, said, places, earned = session.open(), [], [], []
        while not reply.done:
            places.append(reply.place)
            said.append(luck.random() < walker.up(session.here, session.goal))
            reply = session.turn("+" if said[-1] else "-")
            earned.append(reply.reward)
        rollouts.append(
            Rollout(
                problem, group, [], [int(plus) for plus in said], [0.0] * len(said),
                [0] * len(said), "stop", "", session.verdict().correct,
                turn_of=list(range(len(said))), places=[*places, reply.place],
                earned=earned if world.paid else None,
            )
        )  # fmt: skip
    return rollouts


def where(rollout: Rollout) -> Iterator[tuple[int, int, int]]:
    """Cell, goal and steps left before each turn, and at the end."""
    for place in rollout.places:
        here, rest = place.split(" to ")
        goal, left = rest.split(",")
        yield int(here), int(goal), int(left.split()[0])


@dataclass
class Worth:
    """V of every place for one walker in one world: the chance to arrive, by backward induction."""

    walker: Walker
    world: Walking

    def __call__(self, here: int, goal: int, left: int) -> float:
        return float(here == goal) if here == goal or not left else self.tables[left][here, goal]

    @cached_property
    def tables(self) -> list[Float[np.ndarray, "H G"]]:
        """By the steps left; a place at its goal is worth 1."""
        tables = [np.eye(CELLS)]
        for _ in range(self.world.turns):
            table = np.eye(CELLS)
            for here, goal in product(range(CELLS), repeat=2):
                if here != goal:
                    plus = self.walker.up(here, goal)
                    up = 1 - plus if here in self.world.doors else plus
                    up = up * (1 - self.world.slip) + (1 - up) * self.world.slip
                    above, below = min(CELLS - 1, here + 1), max(0, here - 1)
                    table[here, goal] = (
                        up * tables[-1][above, goal] + (1 - up) * tables[-1][below, goal]
                    )
            tables.append(table)
        return tables

    def arrived(self, problems: Sequence[Problem]) -> float:
        """Exact accuracy on problems."""
        return float(
            np.mean([self(p.meta["here"], p.meta["goal"], self.world.turns) for p in problems])
        )


def exact(worth: Worth, rollouts: Sequence[Rollout]) -> Credits:
    """What each turn changed in the true worth."""
    values = [[worth(*place) for place in where(r)] for r in rollouts]
    return [[after - before for before, after in pairwise(row)] for row in values]


def ways(worth: Worth) -> dict[str, Callable[[Sequence[Rollout]], Credits]]:
    """All credits by name, a number for each turn."""

    def of(reward: Any) -> Callable[[Sequence[Rollout]], Credits]:
        return lambda rollouts: reward(rollouts)["credit"]

    return {
        "outcome": of(outcome_credit),
        "paid by turn": of(by_turn()),
        "GiGPO": of(GiGPOCredit()),
        "place in the group": of(BesideCredit(GROUP)),
        "place in the batch": of(batch_places()),
        "priced": of(PricedCredit()),
        "exact": lambda rollouts: exact(worth, rollouts),
    }


def gradient(
    walker: Walker, rollouts: Sequence[Rollout], credit: Credits
) -> Float[np.ndarray, " P"]:
    """Σ credit · ∇ log π over the turns, divided by the episodes: RLOO's loss."""
    slope = np.zeros_like(walker.theta)
    for r, row in zip(rollouts, credit, strict=True):
        for (here, goal, _), said, gain in zip(where(r), r.token_ids, row, strict=False):
            push = gain * walker.score(here, goal, "+" if said else "-")
            slope[0] += push
            slope[1 + here] += push
    return slope / len(rollouts)


def run(arm: str, world: str, lr: float, seed: int, size: int = 64) -> Iterator[dict[str, Any]]:
    """A row each fifth batch of `size` episodes: the exact chance to arrive from 96 starts."""
    honest, paid = (make() for make in WORLDS[world])
    problems, walker, (prompts, n) = honest.sample(999, 96), Walker(), BATCHES[size]
    played = paid if arm == "paid by turn" else honest
    for step in range(STEPS + 1):
        if step % EVERY == 0:
            row = {"arm": arm, "world": world, "episodes": size, "lr": lr, "seed": seed}
            yield row | {"step": step, "arrived": round(Worth(walker, honest).arrived(problems), 4)}
        if step < STEPS:
            asked = played.sample(derive_seed(seed, step), prompts)
            episodes = walk(walker, played, asked, n, derive_seed(seed, step, "walk"))
            credit = ways(Worth(walker, played))[arm](episodes)
            walker.step(gradient(walker, episodes, credit), lr)


def correlations(world: str, prompts: int = 64, n: int = 8) -> dict[str, float]:
    """Of each credit with the exact one, over all turns of one batch of the untrained walker."""
    played, walker = WORLDS[world][0](), Walker()
    worth = Worth(walker, played)
    rollouts = walk(walker, played, played.sample(5, prompts), n, 5)
    paid = WORLDS[world][1]()
    told = {name: way(rollouts) for name, way in ways(worth).items() if name != "paid by turn"}
    of_paid = walk(walker, paid, paid.sample(5, prompts), n, 5)
    told["paid by turn"] = ways(worth)["paid by turn"](of_paid)
    true = np.concatenate(told["exact"])
    return {
        name: float(np.corrcoef(np.concatenate(rows), true)[0, 1]) for name, rows in told.items()
    }


ARMS = ("outcome", "priced", "exact", "GiGPO", "place in the batch", "paid by turn")


def main() -> None:
    """All runs of the record that the table does not have yet; it grows by a seed at a time."""
    facts, start = manifest(), time.perf_counter()
    table = data_dir() / "results" / "turns_walker.csv"
    rows = pd.read_csv(table).to_dict("records") if table.is_file() else []
    done = {tuple(row[name] for name in KEY) for row in rows}
    for seed in SEEDS:
        plan = product(ARMS, WORLDS, BATCHES, RATES)
        missing = [(a, w, size, lr, seed) for a, w, size, lr in plan]
        missing = [one for one in missing if one not in done]
        for arm, world, size, lr, _ in missing:
            rows += run(arm, world, lr, seed, size)
        if missing:
            write_csv(table, rows)
            facts |= {
                "command": "python -m workshop.ch16.walker",
                "seeds": sorted({r["seed"] for r in rows}),
            }
            facts |= {"batches": {str(k): v for k, v in BATCHES.items()}, "rates": list(RATES)}
            facts["seconds"] = round(time.perf_counter() - start, 1)
            write_manifest(table.with_name(f"turns_walker{SUFFIX}"), facts, [table])
            print(f"seed {seed}: wrote {table}", flush=True)


if __name__ == "__main__":
    main()
