"""The stall: credit from true values is the gradient of the reward; a word of 1 is not."""

import numpy as np
import pytest

from workshop.ch15.checks import gains
from workshop.ch15.step_credit import answers, climb, true_values


def expected_reward(logits, chance):
    return sum(p * r for p, _, r in answers(1 / (1 + np.exp(-logits)), chance))


def test_answers_are_all_there_is():
    told = answers(np.array([0.3, 0.8, 0.5]), 0.4)
    assert sum(p for p, *_ in told) == pytest.approx(1)
    assert len(told) == 7
    assert told[-1] == pytest.approx((0.3 * 0.8 * 0.5, 3, 0.0))


def test_the_last_place_is_worth_what_finishing_there_earns():
    values = true_values(np.array([0.5, 0.25]), 0.6)
    assert values == pytest.approx([0.5 * 0.6 + 0.5 * 0.75 * 0.6, 0.75 * 0.6])


def steps_at(logits, chance):
    told = answers(1 / (1 + np.exp(-logits)), chance)
    return sum(p * min(passed + 1, len(logits)) for p, passed, _ in told)


def test_true_values_climb_the_reward():
    """One update against finite differences of the expected reward."""
    places, chance, eps = 4, 0.5, 1e-6
    zero = np.zeros(places)
    slope = [
        (expected_reward(eps * e, chance) - expected_reward(-eps * e, chance)) / (2 * eps)
        for e in np.eye(places)
    ]
    path = climb(gains, lambda values: values, places, chance, updates=1, lr=0.7)
    assert path == pytest.approx([steps_at(zero, chance), steps_at(0.7 * np.array(slope), chance)])


def test_the_outcome_for_all_is_the_same_gradient():
    def outcome(u, reward):
        return [reward] * len(u)

    exact = climb(gains, lambda values: values, updates=5)
    assert climb(outcome, np.ones_like, updates=5) == pytest.approx(exact)


def test_a_judges_word_pays_for_saying_it_again():
    raw, priced = (climb(gains, worth, lr=4.0) for worth in (np.ones_like, lambda values: values))
    assert raw[0] == priced[0] < 2
    assert raw[-1] > 7.5
    assert priced[-1] < 1.9
