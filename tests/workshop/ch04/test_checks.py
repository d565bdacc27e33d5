"""Chapter 04's checks name each likely mistake; nbval shows that they accept the solutions."""

import pytest
import torch

from workshop.ch04 import checks as ch04


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (1.386, "right"),
        (None, "not attempted"),
        (4, "the odds"),
        (0.8, "share of labels"),
        (0.223, "the loss of one"),
        (-1.386, "the sign"),
        (0.69, "the other way round"),
        (2.0, "its slope"),
    ],
)
def test_margin(answer, words, said):
    assert words in said(ch04.check_margin, answer)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((0.072, 0.268, 0.660), "right"),
        (None, "not attempted"),
        ((0.439, 0.362, 0.199), "divided by β"),
        ((0.016, 0.117, 0.867), "where is π_ref"),
        ((0.278, 0.379, 0.343), "β = 1"),
        ((0.6, 2.217, 5.460), "by their sum"),
        ((0.2, 0.3, 0.5), "weigh every answer"),
        ((0.5, 0.5), "give 3 numbers"),
    ],
)
def test_leash(answer, words, said):
    assert words in said(ch04.check_leash, answer)


@pytest.mark.parametrize(
    ("answer", "words"),
    [(None, "not attempted"), (20, "second term"), (55, "not the smallest"),
     (30, "below 3")],
)  # fmt: skip
def test_samples(answer, words, said):
    assert words in said(ch04.check_samples, answer)


def margin(w, l, rw, rl, beta):  # noqa: E741
    return beta * (w - rw - l + rl)


@pytest.mark.parametrize(
    ("weight", "words"),
    [
        (lambda *x: None, "not attempted"),
        (lambda *x: x[-1] * torch.sigmoid(margin(*x)), "right already"),
        (lambda *x: torch.sigmoid(-margin(*x)), "β is missing"),
        (lambda *x: x[-1] * torch.sigmoid(-x[-1] * (x[0] - x[1])), "the reference is missing"),
        (lambda *x: -x[-1] * torch.sigmoid(-margin(*x)), "sign in front"),
        (lambda *x: margin(*x), "differentiate"),
        (lambda *x: margin(*x).mean(), "one weight a pair"),
    ],
)
def test_dpo_weight(weight, words, said):
    assert words in said(ch04.check_dpo_weight, weight)


def committee(vote, centre=True):
    def of(models, base):
        def reward(rollouts):
            scores = [m.scores(rollouts) - centre * m.scores(base).mean() for m in models]
            return {"proxy": vote(torch.stack(scores), 0)}

        return reward

    return of


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda models, base: None, "not attempted"),
        (committee(torch.amin, centre=False), "whose zero"),
        (committee(torch.mean), "the mean"),
        (committee(torch.amax), "most enthusiastic"),
        (committee(torch.sum), "then take the smallest"),
        (lambda models, base: lambda rollouts: torch.zeros(4), "by name"),
    ],
)
def test_committee(made, words, said):
    assert words in said(ch04.check_committee, made)


def hump(peak, steps=30, fall=0.03):
    return [0.5 - fall * abs(step - peak) for step in range(steps)]


@pytest.mark.parametrize(
    ("measured", "ending", "words"),
    [
        ({"one model": hump(5), "committee": hump(15)}, "turns later", "right"),
        ({"one model": hump(5), "committee": hump(5)}, "turns as early", "right"),
        ({"one model": hump(5), "committee": hump(29)}, "does not turn", "right"),
        (None, None, "not attempted"),
        ({"one model": hump(5), "committee": hump(15)}, "does not turn", "it turns later"),
        ({"one model": hump(5), "committee": hump(29)}, "turns later", "it does not turn"),
        ({"one model": hump(5), "committee": hump(15)}, "helps", "say one of"),
        ({"one model": hump(5)}, "turns later", "20 steps or more"),
        ({"one model": hump(5), "committee": hump(8)}, "turns later", "too close"),
        ({"one model": hump(5), "committee": hump(8)}, "turns as early", "too close"),
        ({"one model": hump(5), "committee": hump(5, fall=0.005)}, "does not turn", "too close"),
        ({"one model": hump(8), "committee": hump(5)}, "turns as early", "right"),
    ],
)
def test_lab(measured, ending, words, said):
    assert words in said(ch04.check_lab, measured, ending)
