"""Colours that people can tell apart, labels that do not collide."""

from itertools import combinations

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import to_rgb

from rlbook.objectives import METHODS
from rlbook.viz import METHOD_COLOURS, label_line, label_lines, use_style
from rlbook.viz.style import CYCLE, luminance, readable, spread
from workshop.experiments import EXPERIMENTS
from workshop.shared.evidence import colour_of

PRESSING = (
    "rare_opening",
    "lost_answers",
    "tight_limit",
    "tight_limit_control",
    "unsolvable",
    "habits",
    "habits_rates",
    "shared_choice",
    "rare_habits",
    "reuse",
    "label_free",
    "spurious",
    "entropy_dial",
)
# Methods that the chapters draw together.
TOGETHER = (
    "reinforce reinforce_ema reinforce_batch_mean",
    "reinforce_batch_mean ppo grpo",
    "reinforce grpo rloo remax reinforce_plus_plus opo",
    "grpo rloo dr_grpo dapo",
    "ppo grpo dapo cispo gspo dppo",
    "reinforce rloo grpo maxrl",
    "grpo dapo dr_grpo lite_ppo gpg",
    "grpo dapo cispo gspo scalerl",
)
# How full dichromats see linear RGB: Machado, Oliveira and Fernandes 2009, severity 1.0.
VISION = {
    "normal": np.eye(3),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
}


def cielab(colour: str, vision: np.ndarray) -> np.ndarray:
    rgb = np.array(to_rgb(colour))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    linear = np.clip(vision @ linear, 0, 1)
    to_xyz = np.array(
        [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    )
    xyz = to_xyz @ linear / [0.9505, 1, 1.089]
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def assert_apart(colours, vision: str) -> None:
    """CIE76 distance of at least 15, several times a just noticeable difference of about 2.3."""
    for (a, one), (b, other) in combinations(colours.items(), 2):
        seen = [cielab(colour, VISION[vision]) for colour in (one, other)]
        assert np.linalg.norm(seen[0] - seen[1]) >= 15, (a, b)


@pytest.mark.parametrize("vision", VISION)
def test_methods_drawn_together_can_be_told_apart(vision):
    for group in TOGETHER:
        assert_apart({name: METHOD_COLOURS[name] for name in group.split()}, vision)


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("name", PRESSING)
def test_arms_of_an_experiment_can_be_told_apart(name, vision):
    assert_apart({arm.label: colour_of(arm.label) for arm in EXPERIMENTS[name].arms}, vision)


def test_an_arm_that_is_a_methods_choice_has_its_colour():
    for arm, method in (
        ("clip 0.2", "ppo"),
        ("CISPO", "cispo"),
        ("DPPO", "dppo"),
        ("RLOO", "rloo"),
    ):
        assert colour_of(arm) == colour_of(method)


def test_every_method_has_a_colour(monkeypatch):
    assert set(METHOD_COLOURS) <= set(METHODS)
    monkeypatch.setitem(METHODS, "mine", METHODS["grpo"])
    assert colour_of("mine") in CYCLE
    assert len(set(METHOD_COLOURS.values())) == len(METHOD_COLOURS)


def test_unknown_method_is_named():
    with pytest.raises(ValueError, match="no colour for 'gpro'"):
        colour_of("gpro")
    assert colour_of("gpro", "black") == "black"


@pytest.mark.parametrize("colour", [*METHOD_COLOURS.values(), *CYCLE])
def test_label_text_is_readable_on_white(colour):
    assert 1.05 / (luminance(np.array(to_rgb(readable(colour)))) + 0.05) >= 4.5


def test_contrast_follows_the_standard():
    """WCAG examples: black on white 21:1, #777777 on white 4.48:1."""
    assert 1.05 / (luminance(np.zeros(3)) + 0.05) == pytest.approx(21)
    assert 1.05 / (luminance(np.array(to_rgb("#777777"))) + 0.05) == pytest.approx(4.48, abs=0.005)


def test_spread_keeps_order_distance_and_centre():
    wanted = np.array([10.0, 0.0, 11.0, 50.0, 10.5])
    placed = spread(wanted, 12)
    assert (np.argsort(placed) == np.argsort(wanted)).all()
    assert (np.diff(np.sort(placed)) >= 12 - 1e-9).all()
    assert placed[3] == 50 and placed.mean() == pytest.approx(wanted.mean())


def test_spread_leaves_labels_with_room_alone():
    assert spread(np.array([0.0, 30.0, 15.0]), 12) == pytest.approx([0, 30, 15])


def test_spread_is_the_least_squares_answer():
    """Against a general optimiser on random positions."""
    from scipy.optimize import minimize

    wanted = np.sort(np.random.default_rng(0).uniform(0, 60, 6))
    apart = {"type": "ineq", "fun": lambda y: np.diff(y) - 12}
    start = np.arange(6) * 13.0
    best = minimize(lambda y: ((y - wanted) ** 2).sum(), start, constraints=apart, tol=1e-12)
    assert spread(wanted, 12) == pytest.approx(best.x, abs=1e-3)


def test_labels_sit_at_the_last_finite_point():
    use_style()
    fig, ax = plt.subplots()
    (line,) = ax.plot([0, 1, 2], [5, 6, np.nan], label="ppo", color="#D55E00")
    assert label_line(line).xy == (1, 6) and label_line(line).get_text() == "ppo"
    ax.plot([0, 1], [6, 6.01], label="grpo")
    texts = label_lines(ax)
    fig.canvas.draw()
    boxes = [t.get_window_extent() for t in texts]
    assert not boxes[0].overlaps(boxes[1])
    plt.close(fig)


def test_a_line_without_points_cannot_be_labelled():
    fig, ax = plt.subplots()
    (line,) = ax.plot([np.nan], [1], label="empty")
    with pytest.raises(ValueError, match="'empty' has no finite point"):
        label_line(line)
    plt.close(fig)
