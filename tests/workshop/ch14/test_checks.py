"""Chapter 14's checks name each likely mistake; nbval shows that they accept the solutions."""

import pytest
import torch

from rlbook.objectives import reward_to_go
from workshop.ch14 import checks as ch14

AT_BALANCE = 80.0  # tokens


@pytest.mark.parametrize(
    ("price", "budget", "words"),
    [
        (None, None, "not attempted"),
        (0.8 / 210, AT_BALANCE, "one token *more*"),
        (0.5 / 210, AT_BALANCE, "not free"),
        (0.0025, 110, "halfway"),
        (0.0025, 210, "δ"),
        (0.1, 3, "solve for n"),
    ],
)
def test_price(price, budget, words, said):
    assert words in said(ch14.check_price, price, budget)


def test_the_budget_of_balance_is_one():
    def earned(p, tokens):
        value = 0.002 * (AT_BALANCE - tokens) + 0.5
        assert 0 < value < 1
        return p * value

    assert earned(0.8, 210) == pytest.approx(earned(0.3, 10))


def ranked(lengths, right):
    spread = max(lengths) - min(lengths)
    return [0.5 - (n - min(lengths)) / spread if spread else 0.0 for n in lengths]


def crashing(lengths, right):
    return [0.5 - (n - min(lengths)) / (max(lengths) - min(lengths)) for n in lengths]


@pytest.mark.parametrize(
    ("reward", "words"),
    [
        (lambda lengths, right: None, "not attempted"),
        (crashing, "longest − shortest"),
        (ranked, "never paid"),
        (
            lambda n, ok: ch14.kimi(n, ok) if len(set(n)) > 1 else [0.5 if o else 0.0 for o in ok],
            "nobody earns",
        ),
        (lambda n, ok: [-x for x in ch14.kimi(n, ok)], "the sign"),
        (lambda n, ok: [x + o for x, o in zip(ch14.kimi(n, ok), ok, strict=True)], "leave out"),
        (lambda n, ok: [0.3] * len(n), "λ is ½"),
    ],
)
def test_kimi(reward, words, said):
    assert words in said(ch14.check_kimi, reward)


def clean(rewards, mask, gamma):
    return reward_to_go(torch.where(mask, rewards, 0.0), mask, gamma)


@pytest.mark.parametrize(
    ("advantages", "words"),
    [
        (lambda r, m, g: None, "not attempted"),
        (lambda r, m, g: r.sum(1), "per token"),
        (lambda r, m, g: clean(r, m, g) + 1.0 * ~m, "outside it"),
        (lambda r, m, g: reward_to_go(r, torch.ones_like(m), g) * m, "added up too"),
        (lambda r, m, g: ch14.past(torch.where(m, r, 0.0), g) * m, "up to a token"),
        (lambda r, m, g: clean(r, m, float(g > 0)), "where is the discount"),
        (lambda r, m, g: clean(r, m, g) * 2, "A_t = r_t"),
    ],
)
def test_advantages(advantages, words, said):
    assert words in said(ch14.check_advantages, advantages)


@pytest.mark.parametrize(
    ("factor", "answers", "words"),
    [
        (1.26, 63_158, "right"),
        (None, None, "not attempted"),
        (8.0, 400_000, "compares answers"),
        (8 * 12 / 204, 400_000 * 12 / 204, "only reads"),
        (2.0, 1000, "8 N_S"),
    ],
)
def test_compute(factor, answers, words, said):
    assert words in said(ch14.check_compute, factor, answers)


SHARES = {12: 0.02, 24: 0.0, 48: 0.03}
OBEYED = {12: 14.6, 24: 22.8, 48: 49.5}


@pytest.mark.parametrize(
    ("lengths", "shares", "explanation", "words"),
    [
        (OBEYED, SHARES, "length", "right"),
        (None, None, None, "not attempted"),
        ({12: 14.6}, {12: 0.1}, "length", "each of the three"),
        (OBEYED, {12: 2, 24: 0, 48: 0}, "length", "[0, 1]"),
        ({12: 25.0, 24: 25.0, 48: 26.0}, SHARES, "length", "no budget is obeyed"),
        (OBEYED, SHARES, "both", 'say "length"'),
        (OBEYED, SHARES, "answer", "What else differs"),
    ],
)
def test_lab(lengths, shares, explanation, words, said):
    assert words in said(ch14.check_lab, lengths, shares, explanation)
