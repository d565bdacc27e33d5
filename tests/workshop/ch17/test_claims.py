"""Chapter 17's tables, on runs by hand."""

import numpy as np
import pandas as pd
import pytest

from rlbook.scaling import Sigmoid
from workshop.ch17 import claims

ENDS = {"recipe": (0.4, 0.5, 0.6), "other, half the rate": (0.5, 0.7, 0.6)}


def runs():
    rows = [
        {"arm": arm, "seed": seed, "step": step, "pass@1": end * step / 80}
        for arm, ends in ENDS.items()
        for seed, end in enumerate(ends)
        for step in (0, 40, 80)
    ]
    return pd.DataFrame(rows)


def test_the_base_is_no_point_of_a_curve():
    assert claims.curves_of(runs(), "recipe").tolist() == [[0.2, 0.4], [0.25, 0.5], [0.3, 0.6]]
    assert claims.points_of(runs(), "recipe")[1].compute.tolist() == [40, 80]


def test_seeds_that_are_not_redrawn_leave_the_difference_itself():
    def same(a, b, rng):
        return a.mean(0), b.mean(0)

    table = claims.at_the_end(runs(), same, list(ENDS))
    assert table.index.tolist() == ["other"]
    assert table["mean"].tolist() == [pytest.approx(0.1)]
    assert table["redrawn"].tolist() == ["+0.10 to +0.10"]


def test_redrawn_seeds_scatter_as_the_seeds_do():
    def redraw(a, b, rng):
        drawn = rng.choice(len(a), len(a))
        return a[drawn].mean(0), b[drawn].mean(0)

    low, high = claims.redrawn(runs(), redraw, "other, half the rate", "recipe").split(" to ")
    assert float(low) == 0.0 and float(high) == pytest.approx(0.2)  # all draws the worst, the best


def test_a_run_that_promises_more_may_miss_as_little():
    true, other = Sigmoid(0.6, 2.0, 10_000, 0.4), Sigmoid(0.7, 1.6, 14_000, 0.4)
    hours = np.array([500, 2000, 4000, 50_000])
    table = claims.promises((true, other), hours, true(hours), until=4000)
    assert table["error so far"][0] == 0
    seen = (other(hours) - true(hours))[1:3]
    assert table["error so far"][1] == pytest.approx(np.sqrt((seen**2).mean()))
