"""Chapter 08's checks name each likely mistake; nbval shows that they accept the solutions."""

import pytest
import torch

from workshop.ch08 import checks as ch08

ALL = {"cliff": 0.8, "ramp": 0.99, "filter": 0.7}
ONE = {"cliff": 0.1, "ramp": 0.98, "filter": 0.1}
NONE = {"cliff": 0.1, "ramp": 0.3, "filter": 0.1}


def test_three_regimes(said):
    assert said(ch08.check_three_regimes, {20: ALL, 32: ONE, 60: NONE}).startswith("right: ")


@pytest.mark.parametrize(
    ("check", "answer", "hint"),
    [
        (ch08.check_batches, (21, 15), "just below ½"),
        (ch08.check_batches, (245, 175), "by a factor"),
        (ch08.check_batches, (16, 22), "wider window is the faster"),
        (ch08.check_batches, (21.456, 15.847), "whole batches"),
        (ch08.check_batches, (10, 10), "taking logarithms"),
        (ch08.check_balanced, lambda low: low, "symmetric in ratios"),
        (ch08.check_balanced, lambda low: 1 / (1 - low), "the edge itself"),
        (ch08.check_balanced, lambda low: 0.25, "for 0.2 alone"),
        (ch08.check_balanced, lambda low: 2 * low, "what must the product be"),
        (ch08.check_talkative, (-0.875, 0.125, 0), "division by σ"),
        (ch08.check_talkative, (-2.65, 0.38, 0), "divided by N"),
        (ch08.check_talkative, (-2.47, 0.35, -2.47), "Eq. 11"),
        (ch08.check_talkative, (-2.47, 0.35, 0.35), "Eq. 11"),
        (ch08.check_talkative, (1, 1, 0), "find the mean"),
        (ch08.check_idle, {"a", "b", "c", "f"}, "how many updates"),
        (ch08.check_idle, {"b", "c", "d", "f"}, "however many updates"),
        (ch08.check_idle, {"b", "c", "e", "f"}, "however many updates"),
        (ch08.check_idle, {"b", "f"}, "how far from 1"),
        (ch08.check_idle, {"c", "f"}, "one of the clip's names"),
        (ch08.check_idle, {"b", "c"}, "ignores"),
        (ch08.check_idle, {"z"}, "from a to f"),
        (ch08.check_mixed, lambda correct, groups: torch.ones(3), "one value per rollout"),
        (ch08.check_mixed, lambda correct, groups: torch.ones(8).bool(), "without a right"),
        (ch08.check_mixed, lambda correct, groups: groups != 3, "without a wrong"),
        (ch08.check_mixed, lambda correct, groups: (groups == 7) & correct, "every member"),
        (ch08.check_three_regimes, {32: {"ramp": 0.9}}, "limit 32: give a share"),
        (ch08.check_three_regimes, {32: ONE, 60: NONE}, "all three give up"),
        (ch08.check_three_regimes, {20: ALL, 32: ONE}, "none gives up"),
        (ch08.check_three_regimes, {20: ALL, 60: NONE}, "look between"),
        (ch08.check_three_regimes, {20: ALL, 32: NONE, 60: ONE}, "a matter of seeds"),
    ],
)
def test_each_mistake_is_named(said, check, answer, hint):
    text = said(check, answer)
    assert text.startswith("not yet: ") and hint in text


def test_nothing_attempted(said):
    for check in (ch08.check_batches, ch08.check_talkative, ch08.check_idle):
        assert said(check, None) == "not attempted yet"
    assert said(ch08.check_balanced, lambda low: None) == "not attempted yet"
    assert said(ch08.check_mixed, lambda *_: None) == "not attempted yet"
    assert said(ch08.check_three_regimes, {}) == "not attempted yet"
