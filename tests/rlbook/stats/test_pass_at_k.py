import json
from itertools import combinations
from math import comb
from pathlib import Path

import numpy as np
import pytest

from rlbook.stats import biased_pass_at_k, exact_pass_at_k, pass_at_k, pass_at_k_curve

GOLDEN = Path(__file__).parents[1] / "golden" / "pass_at_k.json"
CASES = json.loads(GOLDEN.read_text())["cases"]


@pytest.mark.parametrize(
    "case",
    [case for case in CASES if case["function"] == "estimate_pass_at_k"],
    ids=lambda case: case["id"],
)
def test_agrees_with_human_eval(case):
    ours = pass_at_k(*case["inputs"].values(), case["kwargs"]["k"])
    np.testing.assert_allclose(ours, case["outputs"]["pass_at_k"], case["rtol"], case["atol"])


def test_curve_agrees_with_open_instruct():
    (case,) = (case for case in CASES if case["function"] == "compute_pass_at_k_metrics")
    correct = np.sum(case["inputs"]["correct_per_prompt"], axis=1)
    metrics = case["outputs"]["metrics"]
    ks = (1, 2, 4, 8)
    expected = [metrics[f"eval/pass_at_{k}_unbiased"] for k in ks]
    np.testing.assert_allclose(pass_at_k_curve(8, correct, ks), expected, rtol=1e-12)


def test_is_the_share_of_subsets_that_hold_a_right_completion():
    completions = [1, 0, 0, 1, 0, 0, 0]
    for k in range(1, 8):
        share = np.mean([any(subset) for subset in combinations(completions, k)])
        assert pass_at_k(7, 2, k) == pytest.approx(share, abs=1e-15)


@pytest.mark.parametrize("p", [0.02, 0.3, 0.9])
def test_unbiased_where_the_plug_in_is_not(p):
    n, k = 12, 5
    c = np.arange(n + 1)
    chance = np.array([comb(n, i) * p**i * (1 - p) ** (n - i) for i in c])
    truth = exact_pass_at_k(p, k)
    assert chance @ pass_at_k(n, c, k) == pytest.approx(truth, abs=1e-14)
    assert chance @ biased_pass_at_k(n, c, k) < truth - 1e-6


def test_large_counts_stay_finite():
    assert pass_at_k(100_000, 1, 50_000) == pytest.approx(0.5, abs=1e-9)


@pytest.mark.parametrize(
    ("samples", "correct", "k", "words"),
    [
        (4, 1, 5, "at least 5 completions"),
        (4, 5, 1, "0 ≤ correct ≤ samples"),
        (4, 1, 0, "k must be at least 1"),
        (4, 0.5, 1, "whole numbers"),
    ],
)
def test_impossible_counts_are_named(samples, correct, k, words):
    with pytest.raises(ValueError, match=words):
        pass_at_k(samples, correct, k)
