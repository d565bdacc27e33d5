"""Chapter 08's titles are findings: they are refused where the runs say something else."""

import pytest

from workshop.ch08 import figures


def rewards(**by_window):
    return {name: [{"mean reward": value}] for name, value in by_window.items()}


def test_the_order_of_the_windows_is_that_of_the_runs():
    ends = {"no clip": 0.9, "0.28": 0.6, "0.2": 0.5}
    assert figures.in_order(rewards(**ends)).startswith("The wider the window, the sooner")
    with pytest.raises(ValueError, match="not in the order of their windows"):
        figures.in_order(rewards(**ends | {"0.2": 0.7}))


def test_only_the_ramp_answers_at_once():
    ends = {"ramp": 0.9, "cliff": 0.1, "filter": 0.1}
    history = {rule: [{"share_direct": share}] for rule, share in ends.items()}
    assert figures.only_the_ramp(history).startswith("Under the ramp")
    with pytest.raises(ValueError, match="not the ramp alone"):
        figures.only_the_ramp(history | {"cliff": [{"share_direct": 0.8}]})
