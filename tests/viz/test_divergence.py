"""The divergence figure counts the tokens that the two trust regions stop."""

import torch
from matplotlib.figure import Figure

from rlbook.exact import FOUR
from rlbook.objectives import DivergenceMask, RatioClip
from rlbook.viz.chapters.ch11 import divergence_explorer, divergence_figure, stopped

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
