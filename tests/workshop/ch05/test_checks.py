"""Chapter 05's checks name each likely mistake; nbval shows that they accept the solutions."""

import pytest
import torch

from rlbook.objectives import group_normalize
from workshop.ch05 import checks as ch05


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, "not attempted"),
        ((2.65, -0.38), "ddof = 0"),
        ((0.875, -0.125), "divide by σ"),
        ((1.0, -0.143), "leave-one-out"),
        ((-0.35, 2.47), "the right answer first"),
        ((1.5, -0.5), "three steps"),
        ((2.47,), "give 2 numbers"),
    ],
)
def test_one_of_eight(answer, words, said):
    assert words in said(ch05.check_one_of_eight, answer)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, "not attempted"),
        (50, "expected right answers"),
        (100, "*expected*"),
        (68, "just short"),
        (70, "one fewer"),
        (10, "at most ½"),
    ],
)
def test_siblings(answer, words, said):
    assert words in said(ch05.check_siblings, answer)


def suspect(rewards, groups):
    table = rewards.view(-1, 4)
    centred = table - table.mean(1, keepdim=True)
    return (centred / (table.std(1, keepdim=True) + 1e-6)).flatten()


MIXED = [1.0, 0, 0, 0, 1, 1, 1, 0]


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        (None, "not attempted"),
        ((MIXED, [0, 0, 0, 0, 1, 1, 1, 1]), "here it is right"),
        ((MIXED, [0, 0, 0, 0, 0, 0, 1, 1]), "four answers"),
        ((MIXED, [0, 0, 0, 0]), "of one length"),
        (([float("nan"), *MIXED[1:]], [0, 1, 0, 1, 0, 1, 0, 1]), "not finite"),
    ],
)
def test_breaking(batch, words, said):
    assert words in said(ch05.check_breaking, suspect, batch)


def test_a_correct_estimator_cannot_be_broken(said):
    shuffled = (MIXED, [0, 1, 0, 1, 0, 1, 0, 1])
    assert "here it is right" in said(ch05.check_breaking, group_normalize, shuffled)


@pytest.mark.parametrize(
    ("divisor", "objective", "words"),
    [
        (None, torch.log, "not attempted"),
        (lambda p: 1 / p, torch.log, "that is the slope"),
        (lambda p: (p * (1 - p)).sqrt(), torch.log, "w(p) is 1 / divisor(p)"),
    ],
)
def test_divisor(divisor, objective, words, said):
    assert words in said(ch05.check_divisor, divisor, objective)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, "not attempted"),
        ((1.5, 0.0045), "the sign"),
        ((-1.73, -0.0045), "ddof = 0"),
        ((-0.0045, -1.5), "with σ first"),
        ((0.5, 0.0015), "one of the long answers"),
        ((-1.0, -1.0), "0.001 a token"),
    ],
)
def test_thousandth(answer, words, said):
    assert words in said(ch05.check_thousandth, answer)


def test_a_rounded_thousandth_is_sent_back(said):
    assert "four decimals" in said(ch05.check_thousandth, (-1.5, -0.006))


RUNS = {"GRPO": (0.0024, 0.0010), "mean only": (0.0024, 0.0104)}


@pytest.mark.parametrize(
    ("forecast", "words"),
    [
        (("falls", "rises"), ["right: GRPO", "right: mean only"]),
        ((None, "rises"), ["not attempted"]),
        (("rises", "rises"), ["not yet: GRPO", "how loud", "right: mean only"]),
        (("falls", "down"), ['say "rises" or "falls"']),
    ],
)
def test_forecast(forecast, words, said):
    text = said(ch05.check_forecast, dict(zip(RUNS, forecast, strict=True)), RUNS)
    assert all(word in text for word in words)
