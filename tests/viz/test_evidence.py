import pandas as pd
import pytest
from matplotlib.figure import Figure

from rlbook.viz.evidence import (
    difference_table,
    draw_differences,
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
