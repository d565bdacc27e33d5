"""The world of misconceptions: right by Python's arithmetic, wrong by rewriting the problem."""

import random
import re
from collections import Counter
from itertools import islice

import pytest

from rlbook.tasks.habits import FAMILIES, LARGEST_VALUE, LEVELS, HabitsTask, draw
from workshop.bases.habits import SHARES, habit_demonstrations

TASK = HabitsTask()
WRITTEN_WRONG = {  # the misconception as a rewriting of the problem, to be evaluated by Python
    "plain": (r"^(\d+[+-])(\d+[+-]\d+)", r"\1(\2)"),
    "bracket": (r"[()]", ""),
    "double minus": (r"--", "-"),
    "precedence": (r"^(\d+\+\d+)", r"(\1)"),
    "power": (r"\*\*2", "*2"),
    "square": (r"\((\d)\+(\d)\)\*\*2", r"\1**2+\2**2"),
}


@pytest.mark.parametrize("level", LEVELS)
def test_both_ways_lead_where_arithmetic_says(level):
    name, rng = list(FAMILIES)[level - 1], random.Random(level)
    for _ in range(300):
        worked = draw(rng, level)
        python = worked.text.replace("^", "**")
        assert worked.right[-1][1] == eval(python)
        assert worked.wrong[-1][1] == eval(re.sub(*WRITTEN_WRONG[name], python))
        for steps in (worked.right, worked.wrong):
            assert all(eval(computed) == result for computed, result in steps)
            assert all(0 <= result <= LARGEST_VALUE for _, result in steps)
        assert worked.right[-1][1] != worked.wrong[-1][1]


def test_problems_are_a_function_of_seed_and_place():
    assert TASK.sample(3, 40)[:10] == TASK.sample(3, 10) != TASK.sample(4, 10)
    assert {p.level for p in TASK.sample(0, 200)} == set(LEVELS)
    assert {p.level for p in TASK.sample(0, 20, [2, 5])} == {2, 5}
    with pytest.raises(ValueError, match="levels"):
        TASK.sample(0, 1, [7])


def test_the_label_tells_the_rule_and_the_verdict_the_answer():
    problem = next(p for p in TASK.sample(0, 50, [4]) if p.prompt.count("+") == 1)
    a, b, c = map(int, re.match(r"(\d)\+(\d)\*(\d)", problem.prompt).groups())
    right = f"<think>{b}*{c}={b * c};</think><answer>{problem.answer}</answer>"
    assert TASK.verify(problem, right).correct and TASK.label(problem, right) == "right"
    slip = f"<think>{b}*{c}={b * c + 1};</think><answer>0</answer>"
    assert not TASK.verify(problem, slip).correct and TASK.label(problem, slip) == "right"
    wrong = f"<think>{a}+{b}={a + b};</think><answer>{problem.answer}</answer>"
    assert TASK.verify(problem, wrong).correct and TASK.label(problem, wrong) == "misconception"
    assert TASK.label(problem, "<think></think><answer>1</answer>") == "other"


def test_demonstrations_follow_the_right_rule_as_often_as_they_should():
    """Binomial: four standard errors, and the slips apart."""
    shown = Counter()
    for demo in islice(habit_demonstrations(5), 12_000):
        label = TASK.label(demo.problem, demo.completion)
        assert label == demo.strategy
        shown[demo.problem.level, label] += 1
    for level, share in zip(LEVELS, SHARES.values(), strict=True):
        n = shown[level, "right"] + shown[level, "misconception"]
        error = (share * (1 - share) / n) ** 0.5
        assert abs(shown[level, "right"] / n - share) < 4 * error


def test_a_right_demonstration_is_correct_unless_its_last_result_slips():
    right = [d for d in islice(habit_demonstrations(6), 4000) if d.strategy == "right"]
    correct = sum(TASK.verify(d.problem, d.completion).correct for d in right) / len(right)
    assert 0.90 < correct < 0.97  # 6 % slips; about a thousand demonstrations, σ = .008
    wrong = [d for d in islice(habit_demonstrations(6), 4000) if d.strategy == "misconception"]
    assert sum(TASK.verify(d.problem, d.completion).correct for d in wrong) / len(wrong) < 0.02
