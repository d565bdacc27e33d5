"""Chapter 09's pictures claim only what their runs show, and its shares are counted by hand."""

import pandas as pd
import pytest
import torch

from rlbook.objectives import RatioClip, WeightClip
from workshop.ch09 import figures
from workshop.ch09.worlds import Moved, high_share, masked_share

FAST, SLOW = [0.1, 0.7, 0.9, 0.9], [0.1, 0.3, 0.7, 0.9]


def test_a_title_says_what_the_runs_show_or_is_refused():
    race = {"CISPO": FAST, "clip": SLOW}
    assert figures.sooner("CISPO", "clip")(race) == "CISPO passes one half 0.8 batches before clip"
    assert figures.last("clip")(race) == "The clip ends last"
    with pytest.raises(ValueError, match=r"clip is not sooner than CISPO: -0\.83"):
        figures.sooner("clip", "CISPO")(race)
    with pytest.raises(ValueError, match="the CISPO does not end last"):
        figures.last("CISPO")(race)


def test_masked_shares_are_those_of_right_answers_alone():
    tokens = pd.DataFrame(
        {
            "token": ["check ", "check ", "3", "3", "check "],
            "advantage": [0.5, 0.5, 0.5, 0.5, -0.5],
            "ratio": [1.5, 1.1, 1.0, 1.25, 0.5],
            "PPO": [0.0, 1.1, 1.0, 0.0, 0.0],
        }
    )
    regions = {"narrow": RatioClip(0.2, 0.2), "wide": RatioClip(0.2, 0.28), "cap": WeightClip(5)}
    found = masked_share(tokens, regions)
    assert found.loc["check"].tolist() == [0.5, 0.5, 0]
    assert found.loc["any other"].tolist() == [0.5, 0, 0]
    tokens.attrs["all"] = 8
    assert high_share(tokens) == 2 / 8


def test_answers_outside_a_window_have_moved_the_way_they_are_pushed():
    log_s = torch.tensor([0.03, -0.03, 0.03, -0.03])
    good = torch.tensor([True, True, False, False])
    moved = Moved(4 * log_s, log_s, good, torch.full((4,), 4), 0.1)
    assert (moved.outside(0.02), moved.outside(0.04), moved.tokens) == (0.5, 0, 4)
