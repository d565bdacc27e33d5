"""Chapter 12's checks name each likely mistake; nbval shows that they accept the solutions."""

import math

import pytest
import torch

from workshop.ch12 import checks as ch12


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, "not attempted"),
        ((-0.875, -2.6458, -2.6458), "n − 1"),
        ((0.125, 0.3536, 0.3772), "the right answers'"),
        ((-0.875, -2.4749, -0.875), "spread of 256 rewards"),
        ((-1, -2.8284, -3.0178), "part of its group's mean"),
        ((1, 2, 3), "seven of eight"),
        ((1, 2), "give 3 numbers"),
    ],
)
def test_lone_wrong(answer, words, said):
    assert words in said(ch12.check_lone_wrong, answer)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (["H", "c", "f "], "right"),
        (None, "not attempted"),
        ({"c", "f", "h", "a"}, "one factor"),
        ({"b", "c", "f"}, "one number for all prompts"),
        ({"c", "d", "f"}, "α is one number"),
        ({"c", "e", "f"}, "every token alike"),
        ({"c", "f", "g"}, "all ratios are 1"),
        ({"f", "h"}, "a factor of its own"),
        ({"c", "h"}, "short answers"),
        ({"c", "f"}, "does not know the prompt"),
        ({"z"}, "no switch"),
    ],
)
def test_turning(answer, words, said):
    assert words in said(ch12.check_turning, answer)


def covariance(logp, move, sign=-1.0, centred=True, weights=None):
    pi = logp.exp() if weights is None else weights(logp)
    mean = (pi * logp).sum() * (pi * move).sum() if centred else 0.0
    return sign * ((pi * logp * move).sum() - mean)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda logp, move: None, "not attempted"),
        (lambda logp, move: covariance(logp, move, sign=1.0), "the sign"),
        (lambda logp, move: covariance(logp, move, centred=False), "is not subtracted"),
        (
            lambda logp, move: covariance(
                logp, move, weights=lambda x: torch.full_like(x, 1 / len(x))
            ),
            "under π",
        ),
        (lambda logp, move: torch.tensor(9.0), "after a small step"),
    ],
)
def test_entropy_change(change, words, said):
    assert words in said(ch12.check_entropy_change, change)


def rate(p):
    return -p * (1 - p) * math.log(p / (1 - p))


@pytest.mark.parametrize(
    ("function", "turn", "words"),
    [
        (lambda p: None, None, "not attempted"),
        (lambda p: -rate(p), 0.5, "spread the policy"),
        (lambda p: -math.log(p / (1 - p)), 0.5, "weigh with π"),
        (lambda p: p, 0.5, "A of the right token"),
        (rate, 0.3, "change its sign"),
        (rate, None, "change its sign"),
    ],
)
def test_entropy_rate(function, turn, words, said):
    assert words in said(ch12.check_entropy_rate, function, turn)


@pytest.mark.parametrize(
    ("measured", "words"),
    [
        ({0.0: (0.19, 0.12, 0.6), 0.1: (0.19, 0.15, 0.6), 0.2: (0.19, 0.19, 0.5)}, "right"),
        ({}, "not attempted"),
        ({0.0: (0.19, 0.12, 0.6), 0.1: (0.19, 0.19, 0.6)}, "three runs"),
        ({0.0: (0.19, 0.12), 0.1: (0.19, 0.15), 0.2: (0.19, 0.19)}, "three numbers"),
        ({0.0: (0.19, 0.18, 0.5), 0.1: (0.19, 0.18, 0.5), 0.2: (0.19, 0.2, 0.4)}, "long enough"),
        ({0.0: (0.19, 0.12, 0.6), 0.1: (0.19, 0.13, 0.6), 0.2: (0.19, 0.14, 0.5)}, "more than 0.2"),
        ({0.0: (0.19, 0.12, 0.6), 0.1: (0.19, 0.4, 0.6), 0.2: (0.19, 0.5, 0.5)}, "less than 0.2"),
        ({0.0: (0.19, 0.12, 0.6), 0.1: (0.19, 0.11, 0.6), 0.2: (0.19, 0.2, 0.5)}, "were batches"),
    ],
)
def test_dial(measured, words, said):
    assert words in said(ch12.check_dial, measured)
