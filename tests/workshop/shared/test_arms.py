"""Evidence figures: the interval is Student's, the mean is over seeds, errors name the cause."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from rlbook.viz import METHOD_COLOURS
from workshop.shared.evidence import arm_colours, compare_bars, learning_curves


@pytest.fixture
def ax():
    fig, ax = plt.subplots()
    yield ax
    plt.close(fig)


@pytest.fixture
def runs() -> pd.DataFrame:
    """Two arms, three seeds, two steps; at step 2 the seeds of ppo give 1, 2 and 3."""
    rows = [
        {"arm": arm, "seed": seed, "step": step, "accuracy": (seed + 1.0) * (step == 2) * scale}
        for arm, scale in (("ppo", 1), ("mine", 2))
        for seed in range(3)
        for step in (1, 2)
    ]
    return pd.DataFrame(rows)


def test_mean_and_interval_of_three_seeds(ax, runs):
    """1, 2, 3: mean 2, s = 1, t(0.975, 2) = 4.302653 (tables), half width 4.302653/√3."""
    learning_curves(runs, ax=ax, arms=["ppo"])
    (line,) = ax.lines
    assert line.get_ydata().tolist() == [0, 2]
    corners = ax.collections[0].get_paths()[0].vertices[:, 1]
    assert corners.max() == pytest.approx(2 + 4.302653 / 3**0.5, abs=1e-5)
    assert corners.min() == pytest.approx(2 - 4.302653 / 3**0.5, abs=1e-5)


def test_the_interval_of_a_rate_ends_where_rates_end(ax):
    """.9, 1, 1 have the mean .967 and a half width of .143: the upper end would be 1.11."""
    rates = pd.DataFrame({"arm": "ppo", "pass@1": [0.9, 1.0, 1.0]})
    compare_bars(rates, "pass@1", ax, within=(0, 1))
    _, bar, _ = ax.lines
    half = 4.302653 * np.std([0.9, 1, 1], ddof=1) / 3**0.5
    assert bar.get_xdata() == pytest.approx([2.9 / 3 - half, 1.0], abs=1e-5)


def test_direct_labels_and_book_colours(ax, runs):
    learning_curves(runs, ax=ax, labels={"mine": "my method"})
    assert {t.get_text() for t in ax.texts} == {"ppo", "my method"}
    assert ax.lines[0].get_color() == METHOD_COLOURS["ppo"]
    assert ax.lines[1].get_color() != METHOD_COLOURS["ppo"]
    assert ax.get_legend() is None


def test_smoothing_is_per_seed_and_centred(ax):
    frame = pd.DataFrame({"arm": "a", "seed": 0, "step": range(4), "accuracy": [0.0, 3, 0, 3]})
    learning_curves(frame, ax=ax, smooth=3)
    assert ax.lines[0].get_ydata() == pytest.approx([1.5, 1, 2, 1.5])


def test_one_seed_has_no_interval(ax, runs):
    learning_curves(runs[runs.seed == 0], ax=ax)
    assert not ax.collections


@pytest.mark.parametrize("draw", [learning_curves, compare_bars])
def test_missing_column_or_arm_is_named(ax, runs, draw):
    with pytest.raises(ValueError, match=r"no column.*'loss'"):
        draw(runs, "loss", ax)
    with pytest.raises(ValueError, match=r"no arm.*'grpo'"):
        draw(runs, "accuracy", ax, arms=["grpo"])


def test_bars_show_every_seed_and_the_mean(ax, runs):
    compare_bars(runs[runs.step == 2], "accuracy", ax)
    seeds, interval, mean = ax.lines[:3]
    assert seeds.get_xdata().tolist() == [1, 2, 3]
    half = 4.302653 / 3**0.5
    assert np.allclose(interval.get_xdata(), [2 - half, 2 + half], atol=1e-5)
    assert mean.get_xdata() == [2]
    assert [t.get_text() for t in ax.get_yticklabels()] == ["ppo", "mine"]


def test_arms_without_a_method_name_get_distinct_colours(runs):
    frame = pd.DataFrame({"arm": ["grpo", "a", "b", "c"]})
    colours = arm_colours(frame, "arm", None, {"b": "#123456"})
    assert len(set(colours.values())) == 4 and colours["b"] == "#123456"
