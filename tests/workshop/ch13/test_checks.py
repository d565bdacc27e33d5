"""Chapter 13's checks name each likely mistake; nbval shows that they accept the solutions."""

import pytest
import torch

from workshop.ch13 import checks as ch13

EMPO_OF_SEVEN = [share * 8 / 7 for share in ch13.EMPO]
ALONE = [*ch13.EMPO[:7], 0.125]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((list(ch13.TTRL), torch.tensor(ch13.EMPO).tolist()), "right"),
        ((None, None), "not attempted"),
        ((ch13.TTRL[:7], ch13.EMPO[:7]), "eight answers"),
        ((ch13.TTRL, ch13.TTRL), "in proportion"),
        (([1] * 8, ch13.EMPO), "TTRL: who gives"),
        ((ch13.TTRL, EMPO_OF_SEVEN), "the whole group"),
        ((ch13.TTRL, ALONE), "agrees with nobody"),
        ((ch13.TTRL, [8 * share for share in ch13.EMPO]), "not a count"),
        ((ch13.TTRL, [0.1] * 8), "how many of the eight"),
    ],
)
def test_eight(answer, words, said):
    assert words in said(ch13.check_eight, *answer)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((None, None), "not attempted"),
        ((ch13.ENDS_RIGHT[:3], 0.275), "four kinds"),
        (((True, False, False, False), 0.275), "not more than a half"),
        (((True, True, True, True), 0.275), "most common mistake"),
        ((ch13.ENDS_RIGHT, 0.75), "where did it begin"),
        ((ch13.ENDS_RIGHT, -0.275), "the sign"),
        ((ch13.ENDS_RIGHT, 0.1), "what was the mean"),
    ],
)
def test_end(answer, words, said):
    assert words in said(ch13.check_end, *answer)


def in_the_limit(probs):
    first, top = probs[0].item(), probs[1:].max().item()
    return 1.0 if first > top else 1 - first - top


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda probs: None, "not attempted"),
        (lambda probs: probs[0].item(), "whom does it reward falsely"),
        (lambda p: float(in_the_limit(p) == 1), "not all wrong"),
        (
            lambda p: 1 - p[1:].max().item() if p[0] < p[1:].max() else 1,
            "the right answers get a 0",
        ),
        (lambda p: 1 - p[0].item() if p[0] < p[1:].max() else 1, "the label names get a 1"),
        (lambda p: 0.5 if p[0] < p[1:].max() else 1, "count who gets"),
    ],
)
def test_reward_accuracy(answer, words, said):
    assert words in said(ch13.check_reward_accuracy, answer)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, "not attempted"),
        (0.25, "about its logit"),
        (1 + 4 / 17, "not 1 + ε_high"),
        (0.2, "below is nearer"),
        (0.22, "nearer below"),
        (0.3, "nearer above"),
    ],
)
def test_even_width(answer, words, said):
    assert words in said(ch13.check_even_width, answer)


def test_the_even_width_is_even():
    below, above = ch13.window(0.8, 0.2, ch13.even_width())
    assert below == pytest.approx(above)
    assert ch13.even_width() == pytest.approx(4 / 17)


PASSING = {
    "plain": 0.9,
    "bracket": 0.3,
    "double minus": 0.6,
    "precedence": 0.8,
    "power": 1.0,
    "square": 1.0,
}
RIGHT = {"plain": 1.0, "bracket": 0.2, "double minus": 0.0, "precedence": 0, "power": 0}
AFTER = {"bracket": 0.1, "double minus": 0.02}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((PASSING, RIGHT, AFTER, False), "right"),
        ((None, None, None, None), "not attempted"),
        (({"plain": 1.0}, RIGHT, AFTER, False), "what about bracket"),
        ((PASSING | {"power": 7}, RIGHT, AFTER, False), "between 0 and 1"),
        ((dict.fromkeys(PASSING, 0.1), RIGHT, AFTER, False), "not about truth"),
        ((PASSING, RIGHT | {"power": 1.0}, AFTER, False), "whose majority is right"),
        ((PASSING, RIGHT, {"bracket": 0.1}, False), "measure both"),
        ((PASSING, RIGHT, AFTER, True), "contradicts"),
        ((PASSING, RIGHT, {"bracket": 0.5, "double minus": 0.4}, True), "earn nothing"),
    ],
)
def test_lab(answer, words, said):
    assert words in said(ch13.check_lab, *answer)
