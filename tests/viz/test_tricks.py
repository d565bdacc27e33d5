"""Chapter 12: the law's forecast, a claim from a table, entropy bought and sold to first order."""

import numpy as np
import pandas as pd
import pytest
import torch

from rlbook.objectives import METHODS
from rlbook.viz.chapters.ch12 import angles, claim, first_order, fit_law, law_test, summary


def steps_of(accuracy, entropy, seeds=2):
    frames = [
        pd.DataFrame({"step": range(1, len(entropy) + 1), "entropy": entropy, "seed": s})
        for s in range(seeds)
    ]
    return pd.concat(frames).assign(accuracy=lambda d: accuracy(d["entropy"]))


def test_the_law_is_recovered_and_forecasts_what_it_made():
    entropy = np.linspace(0.5, 0.05, 20)
    found = law_test(steps_of(lambda h: 1.5 - 0.7 * np.exp(h), entropy), first=6, after=15)
    assert found["a"] == pytest.approx(0.7) and found["b"] == pytest.approx(1.5)
    assert found["the law says"] == pytest.approx(found["late accuracy"])
    assert found["a line says"] != pytest.approx(found["late accuracy"], abs=1e-3)
    assert fit_law(entropy, 2 - np.exp(entropy)) == pytest.approx((1.0, 2.0))


def test_a_claim_is_a_paired_difference_of_two_arms_at_one_rate():
    rows = [
        {"arm": arm, "seed": s, "lr": lr, "pass@1": 0.5 + 0.01 * s + gain * (lr == 1e-4)}
        for arm, gain in (("one", 0.1 + 0.0), ("other", 0.0), ("third", 0.9))
        for s in range(4)
        for lr in (1e-4, 2e-4)
    ]
    tables = {"made_eval": pd.DataFrame(rows)}
    found = claim(tables, "words", "made_eval", "one", "other", lr=1e-4)
    assert found["table"] == "made" and found["seeds"] == 4
    assert found["mean"] == pytest.approx(0.1)
    assert claim(tables, "words", "made_eval", "one", "other", lr=2e-4)["mean"] == 0


class Fixed:
    """A world whose batches are their seeds."""

    def collect(self, seed):
        return seed


def test_gain_and_entropy_are_slopes_of_another_batch_along_a_unit_step():
    pushes = {"a": torch.tensor([3.0, 0.0]), "b": torch.tensor([3.0, 3.0])}
    methods = {"a": METHODS["rloo"], "b": METHODS["grpo"]}

    def push(world, method, batch):
        if method.name == "reward":
            assert batch % 2 == 1
            return torch.tensor([2.0, 4.0])
        return pushes[{"rloo": "a", "grpo": "b"}[method.name]]

    rows = first_order(push, lambda world, batch: torch.tensor([-1.0, 0.0]), Fixed(), methods)
    table = summary(rows)
    assert len(rows) == 4
    assert table.loc["a"].tolist() == pytest.approx([1, 1, 2, -1])
    assert table.loc["b"].tolist() == pytest.approx([0.5**0.5, 2**0.5, 6 / 2**0.5, -(0.5**0.5)])
    turned = angles(push, Fixed(), methods, seed=0)
    assert turned["angle"].tolist() == pytest.approx([0, 45], abs=1e-4)
