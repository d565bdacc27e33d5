"""Figures of chapter 02: policies as points, gradients as clouds, pulls and what they cost."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.collections import PathCollection

from rlbook.exact import FillerPolicy, SoftmaxPolicy, TokenTree
from workshop.ch02 import figures as ch02
from workshop.ch02.worlds import answers_needed
from workshop.shared.worlds.baseline_cost import relative_noise

POLICY = SoftmaxPolicy.from_probs([0.2, 0.5, 0.3])
REWARDS = torch.tensor([1.0, 0.0, 0.5], dtype=torch.float64)


@pytest.fixture
def ax():
    fig, ax = plt.subplots()
    yield ax
    plt.close(fig)


def test_explorer_reacts_to_each_control():
    explorer = ch02.baseline_explorer()
    for name, value in {"p": 0.3, "shift": 1.0, "fillers": 3}.items():
        before = explorer.image.value
        explorer.controls[name].value = value
        assert explorer.image.value != before, name


def test_the_cloud_reacts_to_each_value():
    cloud = ch02.cloud_explorer()
    for name, value in {"b": 0.35, "n": 2, "p": 0.6}.items():
        before = cloud.png()
        cloud.values = {**cloud.values, name: value}
        assert cloud.png() != before, name


def test_the_arrow_starts_at_the_policy_and_climbs(ax):
    ch02.draw_triangle(ax, POLICY, REWARDS)
    (arrow,) = (text for text in ax.texts if getattr(text, "arrow_patch", None))
    start, end = np.array(arrow.xyann), np.array(arrow.xy)
    assert start == pytest.approx(POLICY.probs.numpy() @ ch02.CORNERS)
    barycentric = np.linalg.solve(np.vstack([ch02.CORNERS.T, np.ones(3)]), np.append(end, 1))
    assert barycentric @ REWARDS.numpy() > POLICY.expected_reward(REWARDS)


def test_a_dot_counts_the_batches_that_lead_there(ax):
    gradients = torch.tensor([[1.0, -1, 0], [1.0, -1, 0], [0, 0, 0.0]]).double()
    ch02.draw_triangle(ax, POLICY, REWARDS, gradients)
    (cloud,) = (c for c in ax.collections if isinstance(c, PathCollection))
    assert sorted(cloud.get_sizes()) == pytest.approx([500, 1000])


def test_downhill_by_hand():
    """Towards B is downhill, towards A uphill, and no step is neither."""
    gradients = torch.tensor([[0, 1.0, 0], [1.0, 0, 0], [0, 0, 0]]).double()
    assert ch02.downhill(POLICY, REWARDS, gradients) == pytest.approx(1 / 3)


def test_the_tree_shows_every_answer_and_value(ax):
    tree = TokenTree.random(symbols=2, max_tokens=2, seed=0)
    ch02.draw_token_tree(ax, tree, lambda prefix: float(len(prefix) == 1), "ab■")
    texts = [text.get_text().strip() for text in ax.texts]
    answers = {"".join("ab■"[i] for i in tokens) for tokens in tree.sequences}
    drawn = {text.removesuffix("✓").strip() for text in texts}
    assert answers <= drawn
    assert texts.count("V .00") == 1 and texts.count("V 1.00") == 2


def test_the_filler_world_is_drawn_with_its_probabilities(ax):
    ch02.draw_fillers(ax, FillerPolicy.of(0.7, fillers=2))
    heights = [patch.get_height() for patch in ax.patches]
    assert heights == pytest.approx([0.7, 0.3, 0.5, 0.5, 0.5, 0.5])


def test_the_curve_of_measured_pulls_is_the_noise_of_all_answers(ax):
    draw = np.random.default_rng(0)
    rewards = draw.integers(0, 2, (5, 4)).astype(float)
    measured = np.stack([rewards, draw.exponential(size=(5, 4))], -1)
    ch02.draw_parabola(ax, measured, "black", "base")
    curve = ax.lines[0]
    flat = torch.from_numpy(measured.reshape(-1, 2))
    expected = relative_noise(flat[:, 0], flat[:, 1], torch.from_numpy(curve.get_xdata()))
    assert curve.get_ydata() == pytest.approx(expected.numpy())
    marks = [line.get_xdata()[0] for line in ax.lines[1:]]
    assert marks[1] == pytest.approx(rewards.mean())


def test_the_tail_of_pulls_is_put_into_words(ax):
    pulls = torch.cat([torch.ones(99), torch.tensor([99.0])]).double()
    ch02.draw_pulls(ax, torch.arange(100) % 2, pulls)
    assert any("1 % of the answers,\n50% of all pull" in text.get_text() for text in ax.texts)


def test_the_first_batch_above_a_goal_counts_from_one():
    curves = pd.DataFrame({"soon": [0.2, 0.6, 0.4], "never": [0.1, 0.5, 0.2]})
    found = ch02.first_above(curves, 0.5)
    assert found["soon"] == 2 and found.isna()["never"]


def test_two_answers_need_what_their_odds_say_without_a_baseline():
    """Scores 1 − p and −p: the second moment over the squared mean, less one, is (1 − p) / p."""
    needed = answers_needed((0.3, 0.9))
    assert needed["none"].tolist() == pytest.approx([0.7 / 0.3, 0.1 / 0.9])
