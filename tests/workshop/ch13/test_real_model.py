"""What the pretrained model is asked: sums in steps and word problems, with and without help."""

import math
import random
import re

import pandas as pd
import pytest

from rlbook.tasks import Environment
from rlbook.tasks.environment import Reply
from rlbook.training import Rollout
from workshop.ch13.real_model import (
    WithCalculator,
    seed_gap,
    slips,
    sum_of,
    sums_in_steps,
    word_problem,
    word_problems,
)


@pytest.mark.parametrize("level", [1, 2, 3])
def test_a_word_problem_is_worked_out_from_what_is_told(level):
    """Every number comes from the question or the first step, and both steps are true."""
    luck = random.Random(level)
    for _ in range(200):
        question, worked, answer = word_problem(luck, level)
        told = re.findall(r"\d+", question)
        first, second = re.findall(r"(\d+) ([-+*]) (\d+) = (\d+)\.", worked)
        for a, sign, b, said in (first, second):
            by_hand = {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b)}
            assert by_hand[sign] == int(said) > 0
        known = [*told, first[3]]
        for number in (first[0], first[2], second[0], second[2]):
            known.remove(number)
        assert not known and second[3] == answer
        assert question.endswith("have now?")


def test_the_sums_are_right():
    luck = random.Random(0)
    for level in (1, 2):
        question, worked, answer = sum_of(luck, level)
        assert sum(map(int, question.split(" + "))) == int(answer)
        assert worked.split(" = ")[-1] == answer and worked.count("=") == level - 1
    shown = sums_in_steps().sample(0, 1)[0].prompt.splitlines()
    assert [line.count("=") for line in shown] == [1, 2, 1, 2, 1]


@pytest.fixture
def session():
    """An episode, its problem, and the factors of its first step."""
    problem = word_problems().sample(0, 1, (1,))[0]
    left, right = re.findall(r"(\d+) \* (\d+)", problem.meta["worked"])[0]
    return WithCalculator().begin(problem, 0), problem, left, right


def test_a_calculator_writes_what_follows_the_sign(session):
    one, problem, a, b = session
    assert one.open() == Reply()
    assert one.turn(f" {a} * {b}") == Reply(f" {int(a) * int(b)}.")
    had = problem.meta["worked"].split(". ")[1].split(" + ")[0]
    assert one.turn(f" {had} + {int(a) * int(b)}") == Reply(f" {problem.answer}.")
    assert one.turn("") == Reply(done=True)
    assert one.verdict().correct and one.verdict().answer == problem.answer


def test_a_wrong_plan_stays_wrong_and_what_was_cut_off_is_not_computed(session):
    one, _, a, b = session
    assert one.turn(f" {a} + {b}") == Reply(f" {int(a) + int(b)}.")
    assert one.turn(f" {a} * {b}", finished=False) == Reply(done=True)
    assert not one.verdict().correct


def test_an_answer_without_a_computation_is_judged_as_it_stands(session):
    one, problem, *_ = session
    assert one.turn(f" {problem.answer}") == Reply(done=True)
    assert one.verdict().correct


def test_the_world_asks_the_same_problems():
    world, task = WithCalculator(), word_problems()
    assert isinstance(world, Environment)
    assert world.sample(3, 5) == task.sample(3, 5) and world.held_out(9) == task.held_out(9)


def test_slips_are_computations_that_are_wrong():
    def saying(text):
        return Rollout(
            problem=word_problems().sample(0, 1)[0],
            group=0,
            prompt_ids=[1],
            token_ids=[2],
            logps=[0.0],
            finish_reason="stop",
            text=text,
            versions=[0],
        )

    assert slips([saying(" 5 * 6 = 30. 14 + 30 = 45.")]) == 0.5
    assert (
        slips([saying(" 5 * 6 = 30. 14 - 30 = -16."), saying("no sum"), saying("2-3=1")]) == 1 / 3
    )
    mixed = [saying(" 5 * 6 = 30. 30 - 4 = 25. 1 - 2 = -1. 2 + 2 = 5.")]
    assert slips(mixed, "*") == 0.0 and slips(mixed, "-") == 0.5 and slips(mixed, "+") == 1.0
    assert math.isnan(slips([saying("no sum")], "+"))


def test_a_gap_over_seeds_pairs_those_that_both_arms_have():
    rows = [
        {"arm": arm, "seed": seed, "pass@1_1": share, "pass@1_2": share + 0.2}
        for arm, shares in {"a": (0.4, 0.5, 0.9), "b": (0.3, 0.2)}.items()
        for seed, share in enumerate(shares)
    ]
    gap = seed_gap(pd.DataFrame(rows), "a", "b")
    assert gap.mean == pytest.approx(0.2) and gap.low < 0.1 < 0.3 < gap.high
