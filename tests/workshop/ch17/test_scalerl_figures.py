"""Figures of chapter 17: what is drawn is what was fitted or simulated."""

from itertools import pairwise

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from rlbook.scaling import Cluster, Lengths, Sigmoid, generate_then_update, pipeline_rl, simulate
from rlbook.stats import Interval
from workshop.ch17 import figures as scalerl

COSTS = Cluster(1, 1, slots=4, decode_fixed=0.1, update_fixed=1.0, sync=0.5)


@pytest.fixture
def ax():
    yield plt.figure().subplots()
    plt.close("all")


def test_fit_by_hand_names_the_errors_and_answers_to_its_sliders():
    compute = np.geomspace(1500, 100_000, 30)
    truth = Sigmoid(0.6, 2.0, 7000, 0.38)
    explorer = scalerl.fit_explorer(compute, truth(compute), 0.38, 16_000, truth)
    assert "0.0000, beyond 0.0000" in explorer.figure().axes[0].get_title(loc="left")
    before = explorer.png()
    explorer.values = {**explorer.values, "A": 0.7}
    assert explorer.png() != before


@pytest.mark.parametrize("schedule", [generate_then_update(), pipeline_rl(2)])
def test_timeline_has_a_bar_per_completion_and_per_update_and_none_overlap(ax, schedule):
    run = simulate(schedule, COSTS, Lengths(20, 0.5), batch=4, updates=6)
    scalerl.draw_timeline(ax, run, seconds=60)
    assert len(ax.patches) == len(run.lengths) + 6
    rows = {}
    for bar in ax.patches:
        rows.setdefault(bar.get_y(), []).append((bar.get_x(), bar.get_x() + bar.get_width()))
    assert len(rows) == COSTS.slots + 1
    for spans in map(sorted, rows.values()):
        assert all(a[1] <= b[0] + 1e-6 for a, b in pairwise(spans))


def test_time_shares_fill_the_bars(ax):
    run = simulate(pipeline_rl(2), COSTS, Lengths(20, 0.5), batch=4, updates=12, warmup=4)
    scalerl.draw_time(ax, {"PipelineRL-2": run})
    assert sum(bar.get_width() for bar in ax.patches) == pytest.approx(2)


def test_a_mean_and_thin_seeds_per_arm(ax):
    rows = [("a", s, t, s + t) for s in (0, 1) for t in (5, 10)] + [("b", 0, 5, 1), ("b", 0, 10, 2)]
    log = pd.DataFrame(rows, columns=["arm", "seed", "step", "heldout"])
    scalerl.draw_arms(ax, log, "heldout", ["a", "b"], smooth=1)
    assert len(ax.lines) == 3 + 2
    np.testing.assert_allclose(ax.lines[2].get_ydata(), [5.5, 10.5])


def test_an_area_for_each_part_and_a_dot_for_each_evaluation():
    compute = np.geomspace(1500, 100_000, 20)
    band = Interval(compute * 0 + 0.5, compute * 0 + 0.4, compute * 0 + 0.6)
    ax = scalerl.draw_bands({"early": band, "all": band}, compute, compute[:5], compute[:5])
    assert [area.get_label() for area in ax.collections] == ["early", "all"]
    assert len(ax.lines[0].get_xdata()) == 5
    plt.close(ax.figure)


def test_pipeline_explorer_draws_at_both_ends_of_its_staleness():
    explorer = scalerl.pipeline_explorer(COSTS, 20, 80, batch=4, staleness=0)
    explorer.values = {**explorer.values, "staleness": 8}
    assert explorer.png()[1:4] == b"PNG"
