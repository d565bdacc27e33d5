"""The worlds of chapter 16: what a place is worth is exact, and so is the walker of a table."""

import random
from itertools import product
from statistics import fmean

import numpy as np
import pytest

from rlbook.rewards.turns import PricedCredit
from workshop.ch16.experiments import outcome_credit
from workshop.ch16.walker import Walker, Worth, exact, gradient, walk
from workshop.ch16.worlds import CELLS, DOORS, Guess, Guessing, Walking, best


def found_by(player, high, turns):
    """The share of hidden numbers that a player finds."""
    wins = 0
    for hidden in range(1, high + 1):
        session = Guess(high, hidden, turns)
        reply = session.open()
        while not reply.done:
            reply = session.turn(f"{player(session):02d}")
        wins += session.verdict().correct
    return wins / high


@pytest.mark.parametrize(("high", "turns"), [(7, 3), (13, 3), (4, 3), (15, 4), (5, 1)])
def test_halving_is_worth_what_the_formula_says(high, turns):
    def halve(session):
        """The middle of as many numbers as the guesses can tell apart."""
        top = min(session.high, session.low + 2**session.turns - 2)
        return (session.low + top) // 2

    worth = Guessing().worth(f"{high} possible, {turns} left", None)
    assert found_by(halve, high, turns) == pytest.approx(worth)
    anybody = random.Random(1)
    assert found_by(lambda s: anybody.randint(s.low, s.high), high, turns) <= worth + 1e-9


def test_a_guess_that_teaches_nothing_leaves_the_place_and_costs_a_turn():
    session = Guess(13, 10, 3)
    places = [session.turn(text).place for text in ("08", "08", "x")]
    assert places == ["5 possible, 2 left", "5 possible, 1 left", "5 possible, 0 left"]
    assert not session.verdict().correct


def test_what_a_paying_world_pays_adds_up_to_one_for_a_find():
    session = Guess(13, 10, 4, paid=True)
    paid = [session.turn(text).reward for text in ("07", "11", "10")]
    assert sum(paid) == pytest.approx(1) and session.verdict().correct
    walker = Walking(slip=0.0, paid=True).begin(Walking().sample(1, 1)[0], 0)
    walker.open()
    while not (reply := walker.turn("+" if walker.goal > walker.here else "-")).done:
        assert 0 < reply.reward < 1
    assert walker.verdict().correct


@pytest.mark.parametrize("doors", [frozenset(), DOORS])
def test_the_worth_of_a_place_is_the_share_of_walks_that_arrive(doors):
    walker = Walker(np.random.default_rng(3).normal(0.5, 0.5, 1 + CELLS))
    world = Walking(doors=doors)
    problems = world.sample(2, 6)
    rollouts = walk(walker, world, problems, 800, seed=4)
    for group, problem in enumerate(problems):
        share = fmean(r.correct for r in rollouts if r.group == group)
        worth = Worth(walker, world)(problem.meta["here"], problem.meta["goal"], world.turns)
        assert share == pytest.approx(worth, abs=5 * (0.25 / 800) ** 0.5)


def test_the_best_walker_is_the_sure_one():
    sure, world = Walker(np.array([50.0] + CELLS * [0.0])), Walking()
    worth = Worth(sure, world)
    for here, goal in product(range(CELLS), repeat=2):
        assert worth(here, goal, 12) == pytest.approx(best(here, goal, 12, world.slip))


def test_all_credits_have_the_gradient_of_the_worth_on_average():
    """Finite differences of the exact worth against the mean of sampled gradients."""
    walker, world = Walker(np.array([0.4] + CELLS * [0.1])), Walking(6)
    problems = world.sample(3, 4)

    def mean_worth(theta):
        worth = Worth(Walker(theta), world)
        return fmean(worth(p.meta["here"], p.meta["goal"], world.turns) for p in problems)

    basis = np.eye(1 + CELLS) * 1e-4
    true = np.array(
        [(mean_worth(walker.theta + e) - mean_worth(walker.theta - e)) / 2e-4 for e in basis]
    )
    rollouts = walk(walker, world, problems, 1500, seed=7)
    for credit in (exact(Worth(walker, world), rollouts), outcome_credit(rollouts)["credit"],
                   PricedCredit()(rollouts)["credit"]):  # fmt: skip
        assert gradient(walker, rollouts, credit) == pytest.approx(true, abs=0.03)
    assert true[0] > 0.2
