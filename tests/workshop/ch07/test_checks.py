"""Chapter 07's checks name each likely mistake; nbval shows that they accept the solutions."""

from math import log

import pytest
import torch

from workshop.ch07 import checks as ch07


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, "not attempted"),
        ((20, 1, 40), "(a) each is divided"),
        ((40, 40, 40), "(b)"),
        ((40, 0.025, 40), "(b)"),
        ((40, 1, 1), "(c)"),
        ((0.025, 1, 40), "upside down"),
        ((3, 3, 3), "1/(G·length of"),
        ((40, 1), "give 3 numbers"),
    ],
)
def test_rambling(answer, words, said):
    assert words in said(ch07.check_rambling, answer)


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        (lambda mask, budget: None, "not attempted"),
        (lambda mask, budget: mask.double() / mask.numel(), "padded width"),
        (lambda mask, budget: mask.double() / mask.sum(), "token mean"),
        (lambda mask, budget: mask.double() / len(mask), "where is the budget"),
        (lambda mask, budget: mask.double() / budget, "a sum over the batch"),
        (lambda mask, budget: mask / (len(mask) * mask.sum(1, keepdim=True)), "own length"),
        (lambda mask, budget: torch.ones(mask.shape) / (len(mask) * budget), "padding"),
        (lambda mask, budget: torch.tensor(1 / (len(mask) * budget)), "one weight per token"),
        (lambda mask, budget: mask.double() / 7, "answers · budget"),
    ],
)
def test_weights(weights, words, said):
    assert words in said(ch07.check_weights, weights)


@pytest.mark.parametrize(
    ("kappa", "words"),
    [
        (lambda s: None, "not attempted"),
        (lambda s: -s * log(s) / (1 - s), "E[1/L]"),
        (lambda s: s * log(s) / (1 - s) + s, "sign"),
        (lambda s: -s * log(s) - s, "one less"),
        (lambda s: s, "which factors"),
    ],
)
def test_kappa(kappa, words, said):
    assert words in said(ch07.check_kappa, kappa)


@pytest.mark.parametrize(
    ("accumulated", "words"),
    [
        (lambda losses, mask, parts: None, "not attempted"),
        (
            lambda losses, mask, parts: sum(losses[p][mask[p]].mean() for p in parts) / len(parts),
            "whose tokens",
        ),
        (lambda losses, mask, parts: sum(losses[p][mask[p]].mean() for p in parts), "whose tokens"),
        (lambda losses, mask, parts: sum(losses[p].mean() for p in parts) / len(parts), "padding"),
        (lambda losses, mask, parts: losses.sum() / mask.sum(), "padding"),
    ],
)
def test_accumulated(accumulated, words, said):
    assert words in said(ch07.check_accumulated, accumulated)


RIGHT = {
    "a": ("token mean", True),
    "b": ("constant", True),
    "c": ("padded width", False),
    "d": ("mean per answer", True),
}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"a": ("mean per answer", True)}, "(a)"),
        ({"b": ("constant", False)}, "(b)"),
        ({"c": ("constant", False)}, "(c)"),
        ({"d": ("token mean", True)}, "(d)"),
        ({"a": ("mean", True)}, "none of"),
        ({"e": ("constant", True)}, "one answer for each"),
    ],
)
def test_configs(change, words, said):
    assert words in said(ch07.check_configs, RIGHT | change)


def test_configs_not_attempted(said):
    assert "not attempted" in said(ch07.check_configs, None)


def test_lines_in_another_order_get_the_numbers(said):
    def upside_down(mask, limit):
        return ch07.token_weights_of(mask, limit).flip(0)

    assert "1/16, 1/8, 1/32, 1/8" in said(ch07.check_token_weights, upside_down)


LENGTHS = {
    "large step": [30, 34, 40, 45, 50, 55, 56],
    "fewer updates": [30, 31, 29, 33, 34, 35, 36],
    "ramp": [30, 28, 26, 25, 26, 25, 24],
}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((LENGTHS, "large step", "ramp"), "right"),
        ((None, None, None), "not attempted"),
        ((LENGTHS, "ramp", "large step"), "'large step' grows more"),
        ((LENGTHS, "large step", "large step"), "is that stopped"),
        ((LENGTHS, "large step", "tea"), "'tea'"),
        (({"a": [1, 2]}, "a", "a"), "six steps"),
        (({name: [30.0] * 6 for name in "abc"}, "a", "b"), "less than 8"),
    ],
)
def test_lab(answer, words, said):
    assert words in said(ch07.check_lab, *answer)
