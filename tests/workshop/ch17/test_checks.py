"""Chapter 17's checks name each likely mistake; nbval shows that they accept the solutions."""

import numpy as np
import pytest
import torch

from rlbook.scaling import Cluster
from workshop.ch17 import checks as ch17


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda a, b, rng: tuple(x[p].mean(0) for p in [rng.integers(10, size=10)] for x in (a, b)),
         "right"),
        (lambda a, b, rng: None, "not attempted"),
        (lambda a, b, rng: (a[rng.choice(10, 10)], b), "two mean curves"),
        (lambda a, b, rng: (a.mean(0), b.mean(0)), "every draw gives the same"),
        (lambda a, b, rng: (a.mean(0), b[rng.choice(10, 10)].mean(0)), "draw as many row numbers"),
    ],
)  # fmt: skip
def test_redraw(answer, words, said):
    assert words in said(ch17.check_redraw, answer)


def share(s, B):
    return (s / (1 - s)) ** (1 / B)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda s, B: torch.tensor(share(s, B)), "right"),
        (lambda s, B: (np.float32(share(s, B)),), "right"),
        (lambda s, B: None, "not attempted"),
        (lambda s, B: s, "whatever B is"),
        (lambda s, B: 1 / share(s, B), "upside down"),
        (lambda s, B: share(s, 1 / B), "a root, not a power"),
        (lambda s, B: s / (1 - s), "and B?"),
        (lambda s, B: (2 * s) ** (1 / B), "solve 1 /"),
        (lambda s, B: (share(s, B), 0.0), "whatever B is"),
    ],
)
def test_share(answer, words, said):
    assert words in said(ch17.check_share, answer)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ([3019], "right"),
        (torch.tensor(3020.0), "right"),
        (None, "not attempted"),
        (2542, "ahead everywhere"),
        (2542 * 32 / 23, "take the B-th root"),
        (2542 * (32 / 23) ** 1.92, "not a power"),
        (2542 * (23 / 32) ** (1 / 1.92), "upside down"),
        (2542 * (70 / 61) ** (1 / 1.92), "begins at R_0"),
        ((32 / 23) ** (1 / 1.92), "in GPU-hours"),
        (9999, "equal for the two"),
        ((3019, 0.7), "give 1 number"),
    ],
)
def test_twin(answer, words, said):
    assert words in said(ch17.check_twin, answer)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (torch.tensor([1.25]), "right"),
        (None, "not attempted"),
        (0.798, "that is σ"),
        (11 / 7, "the variance's"),
        (1.2247, "minus one"),
        (0.25, "not the change"),
        (1.0, "are counted"),
        (2.0, "stays 7"),
    ],
)
def test_dead_prompt(answer, words, said):
    assert words in said(ch17.check_dead_prompt, answer)


COSTS = Cluster(
    generators=1,
    trainers=1,
    slots=32,
    decode_fixed=0.01,
    decode_per_sequence=1e-4,
    update_fixed=1.0,
    update_per_token=2e-4,
    sync=1.0,
)


@pytest.mark.parametrize(
    ("with_tails", "without", "words"),
    [
        (torch.tensor(8), 2.0, "right"),
        (None, None, "not attempted"),
        (7, 2, "with k = 7 staleness is still the lowest"),
        (9, 2, "k = 8 is enough"),
        (8, 8, "σ = 0.0: k = 7 is enough"),
        (8, None, "σ = 0.0: k is a number"),
        (7.5, 2, "whole"),
        (-1, 2, "not negative"),
        ((8, 2), 2, "k is a number"),
    ],
)
def test_least_k(with_tails, without, words, said):
    def answer(sigma):
        return with_tails if sigma else without

    assert words in said(ch17.check_least_k, answer, COSTS)


PREDICTED = {"leader": 32_000, "fit": 8000}
FAR = {8000: (0.0, 0.5), 16_000: (0.0, 0.9), 32_000: (0.6, 1.0), 64_000: (1.0, 1.0)}
MEASURED = {("far apart", part): shares for part, shares in FAR.items()}
MEASURED |= {("alike", part): (0.6, 0.65) for part in FAR}


def far(part, leader, fit):
    return MEASURED | {("far apart", part): (leader, fit)}


@pytest.mark.parametrize(
    ("predicted", "measured", "told_apart", "words"),
    [
        (PREDICTED, MEASURED, False, "from 16,000 GPU-hours on, the leader from 64,000; you"),
        (PREDICTED, MEASURED, torch.tensor(False), "you said 8,000 and 32,000"),
        (PREDICTED, MEASURED | {("alike", 64_000): (0.85, 0.6)}, True, "right"),
        (PREDICTED, far(16_000, 0.0, torch.tensor(0.7)), False, "from 32,000 GPU-hours on"),
        (None, MEASURED, False, "not attempted"),
        (PREDICTED, MEASURED, None, "not attempted"),
        (PREDICTED, FAR, False, "two shares are asked"),
        ({"leader": 30_000, "fit": 8000}, MEASURED, False, "predict a part"),
        ({"leader": 32_000}, MEASURED, False, "predict a part"),
        (PREDICTED, far(8000, 0, 10), False, "from 0 to 1"),
        (PREDICTED, MEASURED | {("alike", 8000): 0.5}, False, "two numbers"),
        (PREDICTED, MEASURED | {("alike", 8000): (0.5, None)}, False, "two numbers"),
        (PREDICTED, far(8000, 1.0, 0.5), False, "which of the two"),
        (PREDICTED, far(64_000, 0.3, 1.0), False, "have crossed"),
        (PREDICTED, far(8000, 0.0, 1.0), False, "no others"),
        (PREDICTED, far(32_000, 0.6, 0.1), False, "of 100,000"),
        (PREDICTED, MEASURED | {("alike", 64_000): (0.8, 1.0)}, True, "of both recipes"),
        (PREDICTED, MEASURED, True, "contradicts"),
    ],
)
def test_lab(predicted, measured, told_apart, words, said):
    assert words in said(ch17.check_lab, predicted, measured, told_apart)


def test_no_check_shows_its_answer(said):
    texts = [
        said(ch17.check_share, lambda s, B: 2.0),
        said(ch17.check_twin, 9999),
        said(ch17.check_dead_prompt, 2.0),
        said(ch17.check_least_k, lambda sigma: 3, COSTS),
        said(ch17.check_lab, PREDICTED, MEASURED, True),
    ]
    assert all(text.startswith("not yet: ") for text in texts)
    secrets = ("s / (1 - s)", "3019", "3,019", "1.25", "k = 8", "16,000")
    assert not any(secret in text for secret in secrets for text in texts)
