"""What RL bought, in tries; every arm beside the cold base."""

import numpy as np
import pandas as pd
import pytest

from workshop.ch13.claims import minus_the_cold, tries_bought
from workshop.ch13.figures import NAMES


def test_two_tries_at_one_half_are_worth_five_at_a_quarter():
    """1 − (1/2)² = 0.75 lies between 1 − (3/4)⁴ = 0.68 and 1 − (3/4)⁵ = 0.76."""
    base = {level: np.full(12, 64) for level in NAMES["habits"]}
    base[6] = np.zeros(12)
    right = {f"right_{level}_{i}": [128, 128] for level in base for i in range(12)}
    right |= {f"right_6_{i}": [0, 128] for i in range(12)}
    table = tries_bought(base, pd.DataFrame({"arm": "verifier", **right}))
    assert table.loc["bracket", ["two are worth", "least", "most"]].tolist() == [5, 5, 5]
    assert table.loc["bracket", ["base, one try", "RL, one try"]].tolist() == [0.25, 0.5]
    assert table["beyond the base"].tolist() == [0, 0, 0, 0, 0, 1]


def test_an_arm_is_paired_with_the_cold_base_by_seed():
    levels = [f"pass@1_level_{level}" for level in NAMES["sums"]]

    def table(arm, right):
        """Runs by seed that are as right on every level."""
        rows = pd.DataFrame({"arm": arm, "seed": list(right)})
        return rows.assign(**{level: list(right.values()) for level in levels})

    own = table("vote", {2: 0.9, 0: 0.5, 1: 0.7})
    null = table("T = 0.3, sums", {0: 0.4, 1: 0.6, 2: 0.8, 3: 0.1})
    gap = minus_the_cold({"sums": own}, null).loc[("sums", "vote")]
    assert gap["mean"] == pytest.approx(0.1) and gap["high"] - gap["low"] < 1e-9
