"""Figures of chapter 01: a tree, ways of asking, cooling, and the troubles' table."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from rlbook.exact import FOUR
from rlbook.policy import load_policy
from rlbook.viz.style import BAD, GOOD
from workshop.ch01.figures import (
    Place,
    draw_cooling,
    draw_prefix_tree,
    draw_shares,
    draw_strategies,
    measured_troubles,
)
from workshop.ch01.questions import QUESTIONS, live


@pytest.fixture
def place():
    return Place("2+2=", ("3", "4", "5"), torch.tensor([0.0, math.log(6.0), math.log(3.0)]))


def test_temperature_sharpens_and_flattens(place):
    assert place.top(2) == [("4", pytest.approx(0.6)), ("5", pytest.approx(0.3))]
    assert place.probs(0.5).tolist() == pytest.approx([1 / 46, 36 / 46, 9 / 46])
    assert place.probs(1e6).tolist() == pytest.approx([1 / 3] * 3, abs=1e-5)


@pytest.fixture
def ax():
    return Figure().subplots()


def texts(ax):
    return [text.get_text() for text in ax.texts]


def test_runs_and_their_mean_stand_beside_the_base(ax):
    learned = {"mine": {0.5: [0.5, 0.7], 1.0: [0.7, 0.8]}, "blind": {1.0: [0.4]}}
    draw_cooling(ax, pd.Series({0.0: 0.9, 1.0: 0.4}), learned, {"mine": "b", "blind": "g"})
    base, mean, *_ = ax.lines
    assert base.get_ydata().tolist() == [0.9, 0.4]
    assert mean.get_xdata().tolist() == [0.5, 1] and mean.get_ydata() == pytest.approx([0.6, 0.75])
    assert texts(ax) == ["the base", "mine", "blind"]
    heights = [text.get_position()[1] for text in ax.texts]
    assert abs(heights[0] - heights[2]) >= 0.08  # both end at 0.4, and both can be read


def test_the_scorecard_holds_what_the_runs_reached():
    arms = [(arm, world) for arm in ("only the right ones", "chosen blindly")
            for world in ("sums", "habits")]  # fmt: skip
    results = pd.DataFrame(
        [(world, arm, value, value / 2) for arm, world in arms for value in (0.4, 0.6)],
        columns=["world", "arm", "one sample", "greedy"],
    )
    cooling = pd.DataFrame({w: {0.0: 0.9, 0.25: 0.3, 1.0: 0.2} for w in ("sums", "habits")})
    lines = QUESTIONS.scorecard(**live(results, cooling)).data.splitlines()
    _, _, keep, _, cooled, mode = (line.strip("| ").split(" | ") for line in lines)
    assert keep[2] == "0.20 → 0.50 [0.40, 0.60]"
    assert cooled[2] == "0.20 → 0.30 at T = 0.25, 0.90 greedily"
    assert mode[2] == "0.90 → 0.25 [0.20, 0.30]"


def test_shares_fill_their_bars_in_the_colours_of_their_kinds(ax):
    shares = pd.DataFrame({"misconception": [0.95, 0.3], "right": [0.05, 0.7]}, ["before", "after"])
    draw_shares(ax, shares)
    assert texts(ax) == ["0.95", "0.30", "0.70"]
    assert sum(bar.get_width() for bar in ax.patches) == pytest.approx(2)
    assert [to_hex(c[0].get_facecolor()) for c in ax.containers] == [BAD.lower(), GOOD.lower()]


def test_intervals_of_a_strategy_hold_its_accuracy(ax):
    part = {"share": 0.1, "accuracy_by_level": {"2": 1.0, "3": 0.25}}
    draw_strategies(
        ax,
        {"settings": {"per_level": 4, "samples": 100}, "strategies": {"terse": part}},
        ["terse"],
    )
    low, high = np.array([s[:, 1] for s in ax.collections[0].get_segments()]).T
    assert 0 < low[0] < 1 == pytest.approx(high[0])
    assert 0 < low[1] < 0.25 < high[1] < 0.5


def test_troubles_press_in_their_worlds():
    table = measured_troubles(load_policy("tiny"), prompts=8, n=4)
    plain, there = table["plain sums"], table["in its world"]
    assert float(there["starts lost"]) >= 0.5 > float(plain["starts lost"])
    assert float(there["tight limit"]) > float(plain["tight limit"])
    assert float(there["unsolvable prompts"]) > float(plain["unsolvable prompts"])
    assert float(there["rare opening"]) < float(plain["rare opening"])
    assert (plain["one shared choice"], there["one shared choice"]) == ("499,840", "128")
    assert float(plain["rough sampler"]) < 1e-3 < float(there["rough sampler"])


def test_tree_shows_every_completion_with_its_probability(ax):
    draw_prefix_tree(ax, FOUR)
    for leaf in ("A: right\nπ = 0.173", "B: right\nπ = 0.005", "C: wrong\nπ = 0.015"):
        assert leaf in texts(ax)
    assert "D: wrong\nπ = 0.450" in texts(ax)
    assert texts(ax).count("<think>37+8=45;") == 1  # A and C share it
