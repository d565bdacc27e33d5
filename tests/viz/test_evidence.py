import pandas as pd
import pytest
from matplotlib.figure import Figure

from rlbook.viz.evidence import (
    difference_table,
    draw_differences,
    draw_grid,
    rates_table,
    scorecard,
)


@pytest.fixture
def evaluations():
    rows = [
        {"arm": arm, "seed": seed, "pass@1": base + 0.01 * seed + wobble * (-1) ** seed}
        for arm, base, wobble in (("grpo", 0.5, 0.001), ("ppo", 0.7, 0.002), ("rloo", 0.5, 0.05))
        for seed in range(5)
    ]
    return pd.DataFrame(rows)


def test_table_tells_a_real_difference_from_noise(evaluations):
    table = difference_table(evaluations, "pass@1", "grpo")
    assert table.index.tolist() == ["ppo", "rloo"]
    assert table.loc["ppo", "mean"] == pytest.approx(0.2, abs=0.005)
    assert table["real"].tolist() == [True, False]


def test_drawing_colours_only_what_is_real(evaluations):
    ax = Figure().subplots()
    draw_differences(ax, difference_table(evaluations, "pass@1", "grpo"), "grpo")
    ppo, rloo = (label.get_color() for label in ax.get_yticklabels())
    assert ppo != rloo
    assert [t.get_text() for t in ax.get_yticklabels()] == ["ppo", "rloo"]


def test_what_was_tried_has_a_row_per_arm_and_width_and_a_column_per_use_and_rate():
    rows = [
        {"arm": arm, "width": width, "lr": lr, "seed": seed, "pass@1": seed + lr}
        for arm, width in (("clip", float("nan")), ("GSPO", 3e-4), ("GSPO", 0.03))
        for lr in (1e-4, 5e-5)
        for seed in (0, 1)
    ]
    table = rates_table({"one pass": pd.DataFrame(rows), "stale": pd.DataFrame(rows)})
    assert table.index.tolist() == ["clip", "GSPO 0.0003", "GSPO 0.03"]
    assert table.columns.tolist() == [(u, lr) for u in ("one pass", "stale") for lr in (5e-5, 1e-4)]
    assert table.loc["GSPO 0.03", ("stale", 1e-4)] == pytest.approx(0.5 + 1e-4)
    ax = Figure().subplots()
    draw_grid(ax, table, base=0.35)
    assert [t.get_text() for t in ax.texts] == ["0.50"] * 12
    assert ax.get_xticklabels()[0].get_text() == "one pass\n5e-5"


def test_a_scorecard_has_a_line_per_claim_and_a_dash_where_nothing_was_looked_at():
    row = {"claim": "a clip holds rare tokens back", "exact": "15 | 13 batches", "paper": "DAPO"}
    head, rule, line = scorecard([row]).data.splitlines()
    assert head.startswith("| claim | exact | trained where it presses |") and set(rule) <= set(
        "| -"
    )
    assert line == "| a clip holds rare tokens back | 15 \\| 13 batches | – | – | DAPO |"
    with pytest.raises(ValueError, match=r"no column \['proof'\]"):
        scorecard([{**row, "proof": "yes"}])
    with pytest.raises(ValueError, match="needs a claim"):
        scorecard([{"exact": "yes"}])
