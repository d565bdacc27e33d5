"""The map of learning rates."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from workshop.shared.evidence import draw_map, rates_table, short, usable


@pytest.fixture
def ax():
    return Figure().subplots()


@pytest.fixture
def sweep():
    """Arm A is best at 2e-4, B at the lowest rate it was tried with."""
    found = {"A": {1e-4: 0.5, 2e-4: 0.8, 4e-4: 0.2}, "B": {1e-4: 0.6, 2e-4: 0.5}}
    return pd.DataFrame(
        {"arm": arm, "lr": lr, "seed": seed, "pass@1": value + 0.01 * (seed - 100.5)}
        for arm, values in found.items()
        for lr, value in values.items()
        for seed in (100, 101)
    )


def test_the_map_frames_each_arm_at_its_best(ax, sweep):
    draw_map(ax, sweep, base=0.35)
    frames = {(round(p.get_y() + 0.44), round(p.get_x() + 0.46)) for p in ax.patches}
    assert frames == {(0, 1), (1, 0)}
    assert {t.get_text() for t in ax.texts} == {"0.50", "0.80", "0.20", "0.60"}
    assert [t.get_text() for t in ax.get_xticklabels()] == ["1e-4", "2e-4", "4e-4"]


def test_what_is_left_at_twice_the_best_rate(sweep):
    table = usable(sweep)
    assert table.loc["A"].tolist()[1:] == pytest.approx([0.5, 0.8, 0.2])
    assert np.isnan(table.loc["B", "half"]) and table.loc["B", "twice"] == pytest.approx(0.5)
    assert rates_table(sweep).isna().sum().sum() == 1


@pytest.mark.parametrize(("rate", "text"), [(2.5e-5, "2.5e-5"), (1e-4, "1e-4"), (8e-4, "8e-4")])
def test_a_rate_is_short(rate, text):
    assert short(rate) == text


def test_every_width_has_a_row_of_its_own():
    rows = [
        {"arm": arm, "width": width, "lr": lr, "seed": seed, "pass@1": seed + 100 * (width == 0.03)}
        for arm, width in (("clip", float("nan")), ("GSPO", 3e-4), ("GSPO", 0.03))
        for lr in (1e-4, 5e-5)
        for seed in (0, 1)
    ]
    table = rates_table(pd.DataFrame(rows))
    assert table.index.tolist() == ["clip", "GSPO 0.0003", "GSPO 0.03"]
    assert table.columns.tolist() == [5e-5, 1e-4]
    assert table.loc["GSPO 0.03"].tolist() == [100.5, 100.5]
