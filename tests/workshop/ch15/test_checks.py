"""Chapter 15's checks name each likely mistake; nbval shows that they accept the solutions."""

from math import log

import pytest

from workshop.ch15 import checks as ch15


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, "not attempted"),
        ((0, -1, 1 / 4, -1 / 4), "the prompt has a price"),
        ((0, -1, 1 / 12, -1 / 12), "in the middle"),
        ((1, -1, 1 / 12, -1 / 4), "nobody is off track"),
        ((0, 0, 1 / 12, -1 / 4), "stands the reward"),
        ((0, -1, 1 / 12, 0), "had been worth something"),
        ((1 / 12, -1 / 4, 0, -1), "the other way round"),
        ((0, -1, 2 / 3, -2 / 3), "not how many"),
        ((0, -1), "4 numbers"),
        ((0, 0, 0, 0), "two numbers for each"),
    ],
)
def test_price(answer, words, said):
    assert words in said(ch15.check_price, answer)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, "not attempted"),
        ((2 / 3, 2 / 3), "no sibling"),
        ((1 / 2, 1 / 3), "own baseline"),
        ((1 / 2, 2 / 3), "wrong way round"),
        ((1, 1), "are missing"),
        ((0.0, 0.0), "in each step"),
    ],
)
def test_step_groups(answer, words, said):
    assert words in said(ch15.check_step_groups, answer)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, "not attempted"),
        (log(3) / 4, "the mean of r"),
        (log(3), "the better completion"),
        (1.5, "now the logarithm"),
        (log(2), "one in two"),
        (0.1, "sum of exp(r)"),
    ],
)
def test_soft_mean(answer, words, said):
    assert words in said(ch15.check_soft_mean, answer)


def by_turn(turns, chosen):
    return [chosen(i, who) for i, (who, ids) in enumerate(turns) for _ in ids]


@pytest.mark.parametrize(
    ("trained", "words"),
    [
        (lambda turns: None, "not attempted"),
        (lambda turns: by_turn(turns, lambda i, who: True), "did not choose"),
        (lambda turns: by_turn(turns, lambda i, who: who == "tool"), "wrong way round"),
        (ch15.first_turn_only, "goes on after the tool"),
        (ch15.last_turn_only, "the call was"),
        (lambda turns: [True], "booleans"),
        (lambda turns: by_turn(turns, lambda i, who: False), "look at each token"),
    ],
)
def test_mask(trained, words, said):
    assert words in said(ch15.check_mask, trained)


VALUES = {0.0: 1.0, 0.3: 0.43, 0.6: 0.1}


@pytest.mark.parametrize(
    ("predicted", "measured", "leads", "words"),
    [
        (VALUES, {0.0: 0.99, 0.3: 0.4, 0.6: 0.12}, {0.0: 0.0, 0.6: 0.1}, "right"),
        (None, VALUES, {0.0: 0.0, 0.6: 0.1}, "not attempted"),
        (VALUES, {0.0: 1.0}, {0.0: 0.0, 0.6: 0.1}, "for each share"),
        (VALUES, VALUES, {0.3: 0.1}, "never wrong"),
        ({0.0: 1.0, 0.3: 0.7, 0.6: 0.4}, VALUES, {0.0: 0.0, 0.6: 0.1}, "one call"),
        (VALUES, {0.0: 0.4, 0.3: 0.4, 0.6: 0.3}, {0.0: 0.0, 0.6: 0.1}, "near 1"),
        ({0.0: 0.5, 0.3: 0.2, 0.6: 0.1}, VALUES, {0.0: 0.0, 0.6: 0.1}, "lie apart"),
    ],
)
def test_lab(predicted, measured, leads, words, said):
    assert words in said(ch15.check_lab, predicted, measured, leads)
