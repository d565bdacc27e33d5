"""Chapter 10's checks name each likely mistake; nbval shows that they accept the solutions."""

from functools import partial
from math import comb

import pytest

from workshop.ch10 import checks as ch10


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, "not attempted"),
        ([(8, 0), (2, 0), (1, 0)], "the −1 is missing"),
        ([(7 / 8, -1 / 8), (0.5, -0.5), (0, 0)], "before it is divided"),
        ([(7, -1), (1, -1), (1, -1)], "all eight right"),
        ([(7, 0), (1, 0), (0, 0)], "a reward of 0"),
        ([(3, -1), (1, -1), (0, 0)], "an eighth"),
        ([(7, -1), (1, -1)], "three pairs"),
    ],
)
def test_votes(answer, words, said):
    assert words in said(ch10.check_votes, answer)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, "not attempted"),
        (26, "that is T"),
        (10, "is not 1"),
        (64, "not the smallest"),
        (20, "growing T"),
    ],
)
def test_smallest_group(answer, words, said):
    assert words in said(ch10.check_smallest_group, answer)


def of_order(rewards, groups, order, first=0, last=0, siblings=1):
    n, failing = len(rewards), int((rewards == 0).sum())
    terms = range(first, order + last)
    return rewards * sum(comb(failing, k) / comb(n - siblings, k) for k in terms)


def pkpo(rewards, groups, order):
    n, failing = len(rewards), int((rewards == 0).sum())
    return rewards * order * comb(failing, order - 1) / comb(n - 1, order - 1)


@pytest.mark.parametrize(
    ("estimator", "words"),
    [
        (lambda rewards, groups, order: None, "not attempted"),
        (partial(of_order, last=1), "one term too many"),
        (partial(of_order, last=-1), "one term is missing"),
        (pkpo, "PKPO"),
        (partial(of_order, siblings=0), "count sample i itself"),
        (lambda rewards, groups, order: rewards, "T = 3"),
    ],
)
def test_order(estimator, words, said):
    assert words in said(ch10.check_order, estimator)


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (lambda h: None, "not attempted"),
        (lambda h: h / 16 * 0.95 / 0.35, "a share not exceed"),
        (lambda h: h / 16, "lost all of p"),
        (lambda h: 0.95 / 0.35 * h / (16 + h), "beside h hard"),
        (lambda h: 0.5, "derivative"),
    ],
)
def test_share(share, words, said):
    assert words in said(ch10.check_share, share)


PREDICTED = {1 / 2: 0.0, 2 / 3: 0.01, 3 / 4: 0.36, 5 / 6: 0.74}
SIXTEEN = {1 / 2: 0.02, 2 / 3: 0.51, 3 / 4: 0.71, 5 / 6: 0.91}
MEASURED = {2 / 3: 0.05, 5 / 6: 0.6}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((PREDICTED, MEASURED, 3 / 4), "right"),
        ((None, None, None), "not attempted"),
        ((SIXTEEN, MEASURED, 2 / 3), "groups of sixteen"),
        (({1 / 2: 0.0, 2 / 3: 0.01}, MEASURED, 3 / 4), "all four"),
        ((PREDICTED | {3 / 4: 0.9}, MEASURED, 3 / 4), "at 0.75"),
        ((PREDICTED, {2 / 3: 0.05}, 3 / 4), "two of the shares"),
        ((PREDICTED, MEASURED | {1 / 2: 7}, 3 / 4), "lies in [0, 1]"),
        ((PREDICTED, MEASURED, 1 / 2), "by your own prediction"),
    ],
)
def test_lab(answer, words, said):
    assert words in said(ch10.check_lab, *answer)


def test_a_group_of_two_is_plain_rl_and_gives_up():
    assert ch10.elected(2 / 3, n=2) < 0.01 < ch10.elected(2 / 3, n=16)
