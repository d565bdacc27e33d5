"""Which answers and which problems are kept."""

import pytest
import torch

from rlbook.evaluation import pass_rates
from rlbook.tasks import Problem
from rlbook.training import Rollout
from workshop.ch14.experiments import difficulty_window, learning_impact, right_answers


def asked(problem, text, right):
    fields = {"group": 0, "prompt_ids": [1], "token_ids": [11] * len(text), "text": text}
    fields |= {"logps": [-0.5] * len(text), "versions": [0] * len(text), "finish_reason": "stop"}
    return Rollout(
        **fields, problem=Problem(problem, "1+1=?", "2"), rewards={"answer": 0.0}, correct=right
    )


@pytest.fixture
def rollouts():
    said = [
        ("a", "long one", True),
        ("a", "no", False),
        ("a", "short", True),
        ("a", "short", True),
        ("b", "wrong", False),
        ("c", "ok", True),
    ]
    return [asked(*one) for one in said]


def test_right_answers_are_kept_once_each(rollouts):
    assert [r.text for r in right_answers(rollouts)] == ["long one", "short", "ok"]
    assert [r.text for r in right_answers(rollouts, most=1)] == ["long one", "ok"]
    assert [r.text for r in right_answers(rollouts, most=1, shortest=True)] == ["short", "ok"]


def test_window(rollouts):
    rates = pass_rates(rollouts)
    assert rates == {"a": 0.75, "b": 0.0, "c": 1.0}
    problems = [Problem(key, "1+1=?", "2") for key in rates]
    assert [p.id for p in difficulty_window(problems, rates)] == ["a"]
    assert [p.id for p in difficulty_window(problems, rates, 0.75, 1.0)] == ["a", "c"]


def test_learning_impact_of_worked_numbers():
    """Mean curve (.2, .4, .6, .8): the sample (.1, .5, .6, .9) scores 1 − .03/1.2."""
    mean = torch.tensor([0.2, 0.4, 0.6, 0.8], dtype=torch.float64)
    one = torch.tensor([0.1, 0.5, 0.6, 0.9], dtype=torch.float64)
    scores = learning_impact(torch.stack([one, 2 * mean - one]))
    torch.testing.assert_close(scores, torch.tensor([0.975, 0.975], dtype=torch.float64))
    assert learning_impact(torch.stack([mean, mean])).tolist() == [1.0, 1.0]
    with pytest.raises(ValueError, match="always solved"):
        learning_impact(torch.ones(2, 3))
