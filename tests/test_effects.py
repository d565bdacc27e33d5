"""The table of effects reads what it says it reads."""

import pandas as pd
import pytest

from rlbook.book import effects
from rlbook.book.effects import (
    EFFECTS,
    Effect,
    effects_table,
    in_blocks,
    markdown,
    mean_over_steps,
    steps_until,
)
from rlbook.experiments import EXPERIMENTS, pipeline

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


def test_a_level_of_a_grid_is_averaged_over_the_other_choices_block_by_block(monkeypatch):
    """Easy and hard, one seed, both policies: four blocks; the clip is worth 0.1 in each."""
    rows = [
        {"arm": arm, "lr": 1e-4, "seed": 0, "clip": clip, "other": other, "p": base + shift + gain}
        for arm, base in (("easy", 0.7), ("hard", 0.3))
        for clip, gain in (("higher", 0.1), ("symmetric", 0.0))
        for other, shift in (("a", 0.0), ("b", 0.05))
    ]
    monkeypatch.setattr(effects, "load_results", lambda name: pd.DataFrame(rows))
    effect = Effect(
        "wider", "12", "toy", "grid", "higher", "symmetric",
        in_blocks("p", "clip"), "pass@1", factor="clip",
    )  # fmt: skip
    (row,) = effects_table((effect,)).to_dict("records")
    assert row["seeds"] == 4 and row["difference"] == pytest.approx(0.1)


@pytest.mark.parametrize("effect", EFFECTS, ids=lambda e: f"{e.experiment}: {e.arm}, {e.claim}")
def test_an_effect_names_arms_and_settings_of_its_experiment(effect):
    for label in (effect.arm, effect.against):
        wanted = {effect.factor: label, **effect.where}
        assert any(wanted.items() <= one.items() for one in tried_in(effect.experiment))


def tried_in(experiment: str) -> list[dict]:
    if experiment == pipeline.NAME:
        return [{"arm": arm.label} for arm in pipeline.arms()]
    arms = EXPERIMENTS[experiment].arms
    return [{"arm": arm.label, **variant.values} for arm in arms for variant in arm.tried]


def test_every_effect_can_be_read_from_the_committed_tables():
    table = effects_table(EFFECTS)
    assert len(table) == len(EFFECTS) and (table["seeds"] >= 5).all()
    assert table[["difference", "low", "high", "detectable"]].notna().all(axis=None)
