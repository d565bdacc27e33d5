"""Batches that are drawn evenly, and the tables of chapter 15's main line, on answers by hand."""

from collections import Counter

import pytest

from rlbook.tasks.habits import HabitsTask
from rlbook.training import Rollout
from workshop.ch15 import claims
from workshop.ch15.worlds import EvenHabits


def test_a_batch_holds_as_many_problems_of_one_family_as_of_another():
    problems = EvenHabits().sample(3, 15, (1, 2, 3, 4, 5))
    assert Counter(p.level for p in problems) == dict.fromkeys((1, 2, 3, 4, 5), 3)
    assert [p.level for p in EvenHabits().sample(3, 4, (2, 5))] == [2, 5, 2, 5]


def answer(group, rule, correct):
    problem = HabitsTask().sample(0, 1, (2,))[0]
    return Rollout(
        problem=problem,
        group=group,
        prompt_ids=[1],
        token_ids=[2, 3],
        logps=[0.0, 0.0],
        versions=[0, 0],
        finish_reason="stop",
        text=f"<think>{problem.meta[rule]}=",
        correct=correct,
    )


def test_who_is_blamed_is_counted_by_the_rule_that_was_followed():
    mixed = [answer(0, "right", True), answer(0, "right", False), answer(0, "wrong", False)]
    hopeless = [answer(1, "right", False), answer(1, "wrong", False)]  # all alike: nobody
    table = claims.by_rule([*mixed, *hopeless])
    assert table.loc["the right rule"].to_dict() == dict(answers=3, right=1, wrong=2, blamed=1)
    assert table.loc["any other"].to_dict() == dict(answers=2, right=0, wrong=2, blamed=1)


class Told:
    """A judge whose verdicts were given."""

    def __init__(self, words):
        self.words = iter(words)

    def verdicts(self, rollout):
        return next(self.words)


def test_prices_are_told_by_step_and_by_standing():
    answers = [answer(0, "right", True), answer(0, "right", False)]
    worths = [[0.5, 0.75], [0.5, 0.1]]
    judge = Told([[True, True], [True, False]])
    table = claims.prices(answers, judge, lambda rollouts, told: worths)
    assert table["on track"].tolist() == [0.5, 0.75]
    assert table["off track"][1] == pytest.approx(0.1)
