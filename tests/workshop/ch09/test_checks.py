"""Chapter 09's checks name each likely mistake; nbval shows that they accept the solutions."""

import pytest
import torch

from workshop.ch09 import checks as ch09


def ppo_weight(ratio, advantages, low=0.2, high=0.2):
    too_high = (advantages > 0) & (ratio > 1 + high)
    too_low = (advantages < 0) & (ratio < 1 - low)
    return torch.where(too_high | too_low, 0.0, ratio)


def cap_bias(old, new, advantages, cap):
    missing = (cap * old.probs - new.probs).clamp(max=0)
    return (missing * advantages) @ new.scores


def masked_bias(old, new, advantages, cap):
    beyond = new.probs > cap * old.probs
    return -(new.probs * beyond * advantages) @ new.scores


ACCURACY = {"a hundredth": 0.4, "a tenth": 0.49, "mine": 0.5, "ten times": 0.52}


def test_the_labs_conclusions(said):
    assert said(ch09.check_window, (0.04, 0.04, 0.004)).startswith("right: ")
    assert said(ch09.check_widths, ACCURACY).startswith("right: ")


@pytest.mark.parametrize(
    ("check", "answer", "hint"),
    [
        (ch09.check_verl_setting, (1, 5), "one too high"),
        (ch09.check_verl_setting, (0.2, 4), "a floor"),
        (ch09.check_verl_setting, (0.2, 5), "a floor is left"),
        (ch09.check_verl_setting, (0, 4), "fall below 1"),
        (ch09.check_verl_setting, (0, 5), "counted from 1"),
        (ch09.check_verl_setting, (2, 2), "which one do you want"),
        (ch09.check_lengths, (5000, 400), "averages logarithms"),
        (ch09.check_lengths, (2747, 220), "round up"),
        (ch09.check_lengths, (2747, 221), "what is log s"),
        (ch09.check_lengths, (10, 10), "what is log s"),
        (ch09.check_ppo_weight, lambda r, a: r, "the sign of Â"),
        (ch09.check_ppo_weight, lambda r, a: ppo_weight(r, -a), "still has a gradient"),
        (
            ch09.check_ppo_weight,
            lambda r, a: torch.where((r - 1).abs() > 0.2, 0.0, r + 0 * a) * (1 + a * 1e-3),
            "on its way back",
        ),
        (ch09.check_ppo_weight, lambda r, a: (ppo_weight(r, a) > 0).float(), "the derivative"),
        (ch09.check_ppo_weight, lambda r, a: 2 * ppo_weight(r, a), "plain ratio"),
        (ch09.check_cap_bias, lambda *given: -cap_bias(*given), "the sign"),
        (ch09.check_cap_bias, masked_bias, "as a mask would"),
        (ch09.check_cap_bias, lambda *given: 2 * cap_bias(*given), "everything cancels"),
        (ch09.check_window, (0.04, 0.04), "three lengths"),
        (ch09.check_window, (0.04, 4e-4, 4e-5), "leave that window by chance"),
        (ch09.check_window, (0.04, 0.2, 0.02), "reaches the edge"),
        (ch09.check_window, (0.04, 0.04, 0.04), "scatters less"),
        (ch09.check_window, (0.04, 0.04, 4e-4), "more slowly"),
        (ch09.check_widths, {"mine": 0.5}, "no accuracy for a hundredth, a tenth, ten times"),
        (ch09.check_widths, ACCURACY | {"a hundredth": 0.6}, "exchanged"),
        (ch09.check_widths, ACCURACY | {"a hundredth": 0.5}, "keeps up"),
        (ch09.check_widths, ACCURACY | {"a tenth": 0.6}, "far ahead"),
        (ch09.check_widths, ACCURACY | {"ten times": 0.6}, "far ahead"),
    ],
)
def test_each_mistake_is_named(said, check, answer, hint):
    text = said(check, answer)
    assert text.startswith("not yet: ") and hint in text


def test_nothing_attempted(said):
    for check in (ch09.check_verl_setting, ch09.check_lengths):
        assert said(check, None) == "not attempted yet"
    for check in (ch09.check_ppo_weight, ch09.check_cap_bias):
        assert said(check, lambda *_: None) == "not attempted yet"
    assert said(ch09.check_window, None) == "not attempted yet"
    assert said(ch09.check_widths, {}) == "not attempted yet"
