"""Figures of chapter 01: the temperature explorer and the tree of prefixes."""

import math

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from rlbook.exact import FOUR
from rlbook.viz.chapters.ch01 import Place, draw_prefix_tree, temperature_explorer


@pytest.fixture
def place():
    return Place("2+2=", ("3", "4", "5"), torch.tensor([0.0, math.log(6.0), math.log(3.0)]))


def test_temperature_sharpens_and_flattens(place):
    assert place.top(2) == [("4", pytest.approx(0.6)), ("5", pytest.approx(0.3))]
    assert place.probs(0.5).tolist() == pytest.approx([1 / 46, 36 / 46, 9 / 46])
    assert place.probs(1e6).tolist() == pytest.approx([1 / 3] * 3, abs=1e-5)


def test_explorer_reacts_to_each_control(place):
    rng = np.random.default_rng(0)
    correct = {t: rng.random((6, 8)) < 1 - t / 2 for t in (0.5, 1.0, 1.5)}
    other = Place("2+3=", place.tokens, place.logits.flip(0))
    explorer = temperature_explorer({"2+2=": place, "2+3=": other}, correct, k=4)
    for name, value in (("place", "2+3="), ("temperature", 0.5), ("k", 8)):
        before = explorer.image.value
        explorer.controls[name].value = value
        assert explorer.image.value != before, name


def test_tree_shows_every_completion_with_its_probability():
    ax = Figure().subplots()
    draw_prefix_tree(ax, FOUR)
    texts = [text.get_text() for text in ax.texts]
    for leaf in ("A: right\nπ = 0.173", "B: right\nπ = 0.005", "C: wrong\nπ = 0.015"):
        assert leaf in texts
    assert "D: wrong\nπ = 0.450" in texts
    assert sum(text == "<think>37+8=45;" for text in texts) == 1  # A and C share it
