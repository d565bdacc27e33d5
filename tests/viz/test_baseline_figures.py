"""Figures of chapter 02: noise of the policy gradient against the baseline."""

from rlbook.viz.chapters.ch02 import baseline_explorer


def test_explorer_reacts_to_each_control():
    explorer = baseline_explorer()
    for name, value in (("p", 0.3), ("shift", 1.0), ("fillers", 3)):
        before = explorer.image.value
        explorer.controls[name].value = value
        assert explorer.image.value != before, name
