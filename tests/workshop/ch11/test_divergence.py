"""The divergence figure counts what two trust regions stop; the family's weights are theirs."""

import pandas as pd
import pytest
import torch
from matplotlib.figure import Figure

from rlbook.exact import FOUR
from rlbook.objectives import DivergenceMask, RatioClip
from rlbook.viz import METHOD_COLOURS
from rlbook.viz.style import readable
from workshop.ch11.figures import (
    ATLAS,
    FAMILY,
    SHOWN_MU,
    best_of_each,
    divergence_explorer,
    divergence_figure,
    draw_weight,
    stopped,
)
from workshop.shared.masks import mask_atlas

ADVANTAGES = (FOUR.rewards - 0.5)[:, None].expand(4, 8)
TOKENS = tuple(x[FOUR.mask] for x in (FOUR.logp, FOUR.logp_old, ADVANTAGES))


def test_four_completions_by_hand():
    """A2, B2, C2, D2 by the ratio; A2, C6, D2 by total variation."""
    clip = stopped(RatioClip(0.2, 0.28), FOUR.logp, FOUR.logp_old, ADVANTAGES)
    tv = stopped(DivergenceMask("tv", 0.15, 0.15), FOUR.logp, FOUR.logp_old, ADVANTAGES)
    assert clip.nonzero().tolist() == [[0, 1], [1, 1], [2, 1], [3, 1]]
    assert tv.nonzero().tolist() == [[0, 1], [2, 5], [3, 1]]


def test_a_token_without_advantage_is_never_stopped():
    far = torch.tensor([0.9]).log(), torch.tensor([0.1]).log()
    assert not stopped(RatioClip(0.2, 0.2), *far, torch.zeros(1)).any()


def test_headline_counts():
    fig = Figure(figsize=(7.6, 4.4))
    divergence_figure(fig, TOKENS, "tv", 0.15)
    assert [t.get_text() for t in fig.texts[1:]] == ["clip only: 2", "both: 2", "DPPO only: 1"]


def test_explorer_reacts_to_each_control():
    explorer = divergence_explorer({"four": TOKENS, "unmoved": (TOKENS[1], *TOKENS[1:])})
    for name, value in (("tokens", "unmoved"), ("kind", "kl"), ("delta", 0.5)):
        before = explorer.image.value
        explorer.controls[name].value = value
        assert explorer.image.value != before


def test_colours_are_those_of_the_methods():
    fig = Figure(figsize=(7.6, 4.4))
    divergence_figure(fig, TOKENS, "tv", 0.15)
    clip, _, dppo = fig.texts[1:]
    assert clip.get_color() == readable(METHOD_COLOURS["dapo"])
    assert dppo.get_color() == readable(METHOD_COLOURS["dppo"])


def title_of(ax):
    """Its title, wherever the style has put it."""
    return ax.get_title() or ax.get_title(loc="left")


def weights(name):
    """{(sign, μ): (ratios, weights)} of a member's panel."""
    region = {member: region for member, region, _ in FAMILY}[name]
    ax = Figure().subplots()
    draw_weight(ax, region, SHOWN_MU)
    lines = [line for line in ax.lines if len(line.get_xdata()) > 2]
    keys = [(sign, mu) for sign in (1, -1) for mu, _ in SHOWN_MU]
    return {key: line.get_xydata().T for key, line in zip(keys, lines, strict=True)}


def wall(curve):
    """The first ratio above 1 from which a token learns nothing."""
    ratios, values = curve
    return float(ratios[(ratios > 1) & (values == 0)].min())


def test_the_walls_of_the_family():
    """PPO's wall stands at one ratio, DPPO's at a difference: it moves with μ."""
    ppo, dppo = weights("PPO"), weights("DPPO-TV")
    assert wall(ppo[1, 0.5]) == pytest.approx(1.2, abs=0.02)
    assert wall(ppo[1, 0.02]) == pytest.approx(1.2, abs=0.02)
    assert wall(dppo[1, 0.5]) == pytest.approx(1.3, abs=0.02)
    assert (dppo[1, 0.02][1] > 0).all()  # 0.02 + 0.15 is a ratio of 8.5: beyond the panel


def test_only_drpo_pulls_back():
    below = {
        name
        for name, _, of in FAMILY
        if "token" in of and any((values < 0).any() for _, values in weights(name).values())
    }
    assert below == {"DRPO"}


def test_the_atlas_shows_where_a_token_is_pulled_back():
    """Two layers of colour in DRPO's planes, one in DPPO's."""
    fig = mask_atlas("dppo", "drpo", masks=ATLAS)
    planes = {title_of(ax): len(ax.images) for ax in fig.axes if ax.images and title_of(ax)}
    planes.pop("weight", None)
    assert planes == {"DPPO-TV": 1, "DRPO": 2}


def test_each_place_is_judged_at_its_own_best_rate():
    runs = pd.DataFrame(
        {"region": "tv", "lasting": False, "place": "here", "lr": [0.5, 0.5, 1.0, 1.0],
         "seed": [0, 1, 0, 1], "best": [0.2, 0.4, 0.9, 0.5]}
    )  # fmt: skip
    assert best_of_each(runs).to_numpy().tolist() == [["0.70 (1)"]]
