"""The clip figure shows PPO's objective and its true gradient."""

from math import exp

import pytest
import torch
from matplotlib.figure import Figure

from workshop.ch03.clip import clip_curves, clip_explorer, clip_figure

RATIO = torch.tensor([0.5, 0.9, 1.1, 1.5], dtype=torch.float64)


@pytest.mark.parametrize(
    ("advantage", "objective", "keep"),
    [  # by hand, ε = 0.2: min(ρA, clip(ρ, 0.8, 1.2) A)
        (1.0, [0.5, 0.9, 1.1, 1.2], [True, True, True, False]),
        (-2.0, [-1.6, -1.8, -2.2, -3.0], [False, True, True, True]),
    ],
)
def test_four_cases_of_the_clip(advantage, objective, keep):
    curves = clip_curves(RATIO, advantage, 0.2, 0.2)
    assert curves["objective"].tolist() == pytest.approx(objective)
    assert curves["keep"].tolist() == keep


@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_gradient_is_the_slope_of_the_drawn_objective(advantage):
    """Central differences in log ρ, away from the kinks."""
    h = 1e-6
    up, down = (clip_curves(RATIO * exp(s * h), advantage, 0.2, 0.28)["objective"] for s in (1, -1))
    curves = clip_curves(RATIO, advantage, 0.2, 0.28)
    assert torch.allclose(curves["gradient"], (up - down) / (2 * h), atol=1e-6)
    assert ((curves["gradient"] == 0) == ~curves["keep"]).all()


def test_titles_tell_the_verdict():
    fig = clip_explorer(ratio=1.35, eps_low=0.2, eps_high=0.2).figure()
    titles = [ax.get_title(loc="left") for ax in fig.axes[:2]]
    assert titles == ["A = +1: masked, gradient 0", "A = −1: gradient −1.35"]


def test_figure_at_the_extremes_of_its_controls():
    for ratio in (0.4, 1.6):
        for eps in (0.0, 0.5):
            fig = Figure()
            clip_figure(fig, ratio, eps, eps)
            assert len(fig.axes) == 4


def test_clip_explorer_reacts_to_each_control():
    explorer = clip_explorer()
    for name, value in (("eps_high", 0.28), ("eps_low", 0.3), ("ratio", 0.6)):
        before = explorer.png()
        explorer.values = {**explorer.values, name: value}
        assert explorer.png() != before, name
