"""A full factorial whose effects are known because the table was built from them."""

from itertools import product

import numpy as np
import pandas as pd
import pytest
from scipy.stats import ttest_1samp

from workshop.ch12.factorial import Factorial

NORM = {"none": 0.0, "group": 0.02, "batch": -0.01}
CLIP = {"symmetric": 0.0, "higher": 0.05}


def built(noise: float = 1e-4, blocks: float = 0.0) -> pd.DataFrame:
    """Effects of NORM and CLIP; the clip's is there with the trained policy only."""
    rng, rows = np.random.default_rng(0), []
    for policy, seed in product(("base", "trained"), range(4)):
        wide = (policy == "trained") * (1 + blocks * rng.standard_normal())
        for norm, clip in product(NORM, CLIP):
            value = 0.5 + 0.1 * seed + NORM[norm] + wide * CLIP[clip]
            value += noise * rng.standard_normal()
            rows.append({"policy": policy, "seed": seed, "norm": norm, "clip": clip, "p": value})
    return pd.DataFrame(rows).sample(frac=1, random_state=0)


def factorial(runs: pd.DataFrame) -> Factorial:
    return Factorial(runs, ("norm", "clip"), ("policy", "seed"))


def test_each_effect_is_the_one_the_table_was_built_with():
    design = factorial(built())
    assert design.effect("p", "norm", "group", "none")["mean"] == pytest.approx(0.02, abs=1e-3)
    assert design.effect("p", "norm", "batch", "group")["mean"] == pytest.approx(-0.03, abs=1e-3)
    assert design.effect("p", "clip", "higher", "symmetric")["mean"] == pytest.approx(
        0.025, abs=1e-3
    )
    trained = design.effect("p", "clip", "higher", "symmetric", policy="trained")
    assert trained["mean"] == pytest.approx(0.05, abs=1e-3) and trained["seeds"] == 4
    assert design.effect("p", "clip", "higher", "symmetric")["seeds"] == 8


def test_an_interaction_is_the_difference_of_two_effects():
    design, clip = factorial(built()), ("clip", "higher", "symmetric")
    by_policy = design.interaction("p", *clip, ("policy", "trained", "base"))
    assert by_policy["mean"] == pytest.approx(0.05, abs=1e-3) and by_policy["seeds"] == 4
    by_norm = design.interaction("p", *clip, ("norm", "group", "none"))
    assert by_norm["mean"] == pytest.approx(0, abs=1e-3) and by_norm["seeds"] == 8


def test_the_interval_is_over_blocks_however_many_cells_a_block_has():
    """With scatter between blocks only, the cells of a block say the same thing three times."""
    design = factorial(built(noise=0.0, blocks=0.5))
    clip = ("clip", "higher", "symmetric")
    found = design.effect("p", *clip, policy="trained")
    runs = design.runs.query("policy == 'trained' and norm == 'none'")
    wide = runs.pivot_table(index="seed", columns="clip", values="p")
    by_hand = ttest_1samp(wide["higher"] - wide["symmetric"], 0).confidence_interval(0.95)
    assert (found["low"], found["high"]) == pytest.approx((by_hand.low, by_hand.high))


def test_averaging_over_the_other_choices_narrows_what_noise_leaves_open():
    design, norm = factorial(built(noise=0.05)), ("norm", "group", "none")
    pooled = design.effect("p", *norm)
    single = design.effect("p", *norm, clip="higher")
    assert pooled["high"] - pooled["low"] < single["high"] - single["low"]


def test_a_table_with_a_hole_or_a_run_too_many_is_refused():
    runs = built()
    with pytest.raises(ValueError, match="not a full factorial: 6 cells"):
        factorial(runs.iloc[1:])
    with pytest.raises(ValueError, match="two runs of one block and cell"):
        factorial(pd.concat([runs, runs.iloc[:1]]))
    with pytest.raises(ValueError, match=r"no norm 'batches'; there are \{.*'group'.*\}"):
        factorial(runs).effect("p", "norm", "batches", "none")
