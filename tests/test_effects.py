"""The table of effects reads what it says it reads."""

import pandas as pd
import pytest

from rlbook.book import effects
from rlbook.book.effects import (
    EFFECTS,
    Effect,
    effects_table,
    markdown,
    mean_over_steps,
    steps_until,
)
from rlbook.experiments import EXPERIMENTS

RUNS = {("new", 0): (0.1, 0.6, 0.9), ("new", 1): (0.2, 0.4, 0.8), ("new", 2): (0.6, 0.7, 0.9)}
RUNS |= {("old", 0): (0.1, 0.2, 0.6), ("old", 1): (0.1, 0.2, 0.3), ("old", 2): (0.1, 0.6, 0.9)}


@pytest.fixture
def tables(monkeypatch):
    rows = [
        {"arm": arm, "lr": 1e-4, "seed": seed, "step": step, "p": p}
        for (arm, seed), values in RUNS.items()
        for step, p in enumerate(values, 1)
    ]
    rows += [{"arm": "new", "lr": 2e-4, "seed": 0, "step": s, "p": 1.0} for s in (1, 2, 3)]
    monkeypatch.setattr(effects, "load_results", lambda name: pd.DataFrame(rows))
    return effects.load_results


def test_steps_until_is_one_more_than_all_where_the_level_is_not_reached(tables):
    found = steps_until("p", 0.5)(tables, "any")
    found = found[found["lr"] == 1e-4].set_index(["arm", "seed"])["value"]
    assert found.to_dict() == {
        ("new", 0): 2, ("new", 1): 3, ("new", 2): 1, ("old", 0): 3, ("old", 1): 4, ("old", 2): 2,
    }  # fmt: skip


def test_a_mean_over_steps_includes_both_ends(tables):
    found = mean_over_steps("p", 2, 3)(tables, "any")
    assert found.query("arm == 'new' and seed == 1 and lr == 1e-4")[
        "value"
    ].item() == pytest.approx(0.6)


def test_an_effect_is_the_paired_difference_at_its_learning_rate(tables):
    effect = Effect(
        "sooner", "08", "toy", "any", "new", "old", steps_until("p", 0.5), "steps", {"lr": 1e-4}
    )
    (row,) = effects_table((effect,)).to_dict("records")
    assert row["seeds"] == 3 and row["difference"] == pytest.approx(-1)
    assert row["low"] == row["high"] == pytest.approx(-1) and row["clear"]
    assert "| 08 | sooner | toy | 3 | **-1 [-1, -1] steps** | 0 |" in markdown(
        effects_table((effect,))
    )


@pytest.mark.parametrize("effect", EFFECTS, ids=lambda e: f"{e.experiment}: {e.arm}, {e.claim}")
def test_an_effect_names_arms_and_settings_of_its_experiment(effect):
    arms = {arm.label: arm for arm in EXPERIMENTS[effect.experiment].arms}
    for label in (effect.arm, effect.against):
        values = [dict(variant.values) for variant in arms[label].tried]
        assert any(effect.where.items() <= tried.items() for tried in values)


def test_every_effect_can_be_read_from_the_committed_tables():
    table = effects_table(EFFECTS)
    assert len(table) == len(EFFECTS) and (table["seeds"] >= 5).all()
    assert table[["difference", "low", "high", "detectable"]].notna().all(axis=None)
