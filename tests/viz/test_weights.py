"""Figures of chapter 09: five trust regions over the same tokens."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from matplotlib.figure import Figure

from rlbook.exact import FOUR
from rlbook.objectives import METHODS, DivergenceMask, RatioClip, WeightClip
from rlbook.viz.chapters.ch03 import ReuseTrace
from rlbook.viz.chapters.ch09 import beyond, draw_answers, token_frame, trust_region_explorer


@pytest.fixture
def methods():
    grpo = METHODS["grpo"]
    return {
        "PPO": replace(grpo, trust_region=RatioClip(0.2, 0.2)),
        "CISPO": replace(grpo, trust_region=WeightClip(max=5.0)),
        "GSPO": replace(grpo, trust_region=RatioClip(3e-4, 4e-4), ratio="sequence"),
        "DPPO": replace(grpo, trust_region=DivergenceMask("tv", 0.15, 0.15)),
    }


@pytest.fixture
def trace():
    """The four completions as a reused batch: before any update, and after."""
    batch = SimpleNamespace(
        mask=FOUR.mask, logp_old=FOUR.logp_old, advantages=FOUR.rewards - FOUR.rewards.mean()
    )
    rollouts = [SimpleNamespace(correct=bool(reward)) for reward in FOUR.rewards]
    tokens = [list(tokens) for tokens in FOUR.tokens]
    return ReuseTrace(rollouts, tokens, batch, [FOUR.logp_old, FOUR.logp])


def test_weights_of_the_four_completions(trace, methods):
    frame = token_frame(trace, 1, methods)
    names = frame.answer.map(dict(enumerate("ABCD"))) + frame.groupby("answer").cumcount().add(
        1
    ).astype(str)
    masked = {name: set(names[frame[name] == 0]) for name in methods}
    assert masked["PPO"] == {"A1", "A2", "B2", "C2", "D2"}
    assert masked["CISPO"] == set()
    assert masked["GSPO"] == {"A1", "A2", "A3", "A4", "B1", "B2", "D1", "D2"}
    assert masked["DPPO"] == {"A2", "C6", "D2"}
    assert frame.token[names == "B2"].item() == FOUR.tokens[1][1]


def test_beyond_ignores_the_sign_of_the_advantage_and_sees_capped_weights(trace, methods):
    outside = (FOUR.logp - FOUR.logp_old).exp().sub(1).abs() > 0.2 + 1e-9
    assert torch.equal(beyond(trace, 1, methods["PPO"]), outside)
    capped = replace(methods["CISPO"], trust_region=WeightClip(max=1.5))
    assert beyond(trace, 1, capped).sum() == 2  # B2 and C3
    assert not beyond(trace, 0, capped).any()


def test_explorer_reacts_to_each_control(trace, methods, monkeypatch):
    monkeypatch.setattr("rlbook.viz.chapters.ch09.typical_rows", lambda trace: [1, 3])
    explorer = trust_region_explorer(trace, methods, passes=1)
    for name, value in (("cap", 1.0), ("window", (0.2, 0.28)), ("passes", 0)):
        before = explorer.image.value
        explorer.controls[name].value = value
        assert explorer.image.value != before, name


def test_answers_are_drawn_by_sign_with_the_window():
    ax = Figure().subplots()
    length, log_ratio = torch.tensor([5, 9, 20]), torch.tensor([0.1, -0.1, 0.0])
    draw_answers(ax, length, log_ratio, torch.tensor([True, False, False]), (3e-4, 4e-4))
    assert [len(dots.get_offsets()) for dots in ax.collections] == [1, 2]
    assert len(ax.patches) == 1
