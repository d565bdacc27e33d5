"""Chapter 12: the law's forecast, claims from tables, entropy bought and sold to first order."""

from itertools import product

import numpy as np
import pandas as pd
import pytest
import torch

from rlbook.objectives import METHODS
from workshop.ch12.figures import (
    CONDITIONS,
    CONTRASTS,
    claim,
    crossed,
    first_order,
    fit_law,
    grid_effects,
    last_steps,
    law_test,
    one_exchanged,
    paper_claims,
    summary,
)


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


@pytest.fixture
def grid():
    """A mean over tokens is worth four points with the base, group σ costs two on easy sums."""
    rng, levels = np.random.default_rng(0), {}
    for column, one, other in CONTRASTS.values():
        levels.setdefault(column, {}).update({one: None, other: None})
    tables = {}
    for policy in ("base", "trained"):
        rows = []
        for data, lr, seed in product(("easy", "hard"), (1e-4, 2e-4), (0, 1)):
            for values in product(*levels.values()):
                cell = dict(zip(levels, values, strict=True))
                worth = 0.5 + 0.001 * rng.standard_normal()
                worth += 0.04 * (cell["average"] == "over tokens") * (policy == "base")
                worth -= 0.02 * (cell["normalisation"] == "group σ") * (data == "easy")
                rows.append({"arm": data, "lr": lr, "seed": seed, "p": worth} | cell)
        tables[policy] = pd.DataFrame(rows)
    return crossed(tables["base"], tables["trained"])


def test_the_grid_finds_what_was_put_into_it_where_it_was_put(grid):
    effects = grid_effects(grid, "p").set_index(["contrast", "policy", "data"])
    assert len(effects) == len(CONTRASTS) * (1 + len(CONDITIONS))
    tokens, group = effects.loc["mean over tokens"], effects.loc["group σ, not none"]
    assert tokens["mean"]["base", "hard"] == pytest.approx(0.04, abs=2e-3)
    assert tokens["mean"]["trained", "hard"] == pytest.approx(0, abs=2e-3)
    assert group["mean"]["all", "all"] == pytest.approx(-0.01, abs=2e-3)
    assert tokens["blocks"].tolist() == [16, 4, 4, 4, 4]
    assert tokens["real"]["base", "easy"] and not tokens["real"]["trained", "easy"]


def test_a_claim_of_more_than_elsewhere_is_an_interaction(grid):
    table = paper_claims(grid, "p")
    where, more = (table[table["measured"] == "mean over tokens"].iloc[i] for i in (0, 1))
    assert where["mean"] == pytest.approx(0.04, abs=2e-3) and where["blocks"] == 8
    assert more["mean"] == pytest.approx(0.04, abs=2e-3) and more["blocks"] == 8
    hurts, more = (table[table["measured"] == "group σ, not none"].iloc[i] for i in (0, 1))
    assert hurts["mean"] == pytest.approx(-0.02, abs=2e-3)
    assert more["mean"] == pytest.approx(-0.02, abs=2e-3)
    put_in = {"group σ, not none", "batch σ, not group σ", "mean over tokens"}
    assert set(table[table["real"]]["measured"]) == put_in


def test_one_choice_exchanged_is_compared_at_its_own_rate_in_the_order_asked():
    gains = {"LitePPO": 0.0, "worse": -0.1, "better": 0.2}
    rows = [
        {"arm": arm, "lr": lr, "seed": s, "pass@1": 0.5 + gain * 1e4 * lr + 0.01 * s}
        for arm, gain in gains.items()
        for lr in (1e-4, 2e-4)
        for s in range(3)
    ]
    table = one_exchanged(pd.DataFrame(rows), ["worse", "better"])
    assert table["mean"]["worse", 1e-4] == pytest.approx(-0.1)
    assert table["mean"]["better", 2e-4] == pytest.approx(0.4)
    assert list(table.xs(1e-4, level="lr").index) == ["worse", "better"]


def test_the_end_of_a_run_is_the_mean_of_its_last_steps():
    rows = [
        {"arm": "a", "lr": lr, "seed": 0, "step": step, "entropy": lr * step}
        for lr in (1.0, 2.0)
        for step in range(1, 6)
    ]
    ends = last_steps(pd.DataFrame(rows), ["entropy"]).set_index("lr")["entropy"]
    assert ends.to_dict() == {1.0: 4.0, 2.0: 8.0}


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
