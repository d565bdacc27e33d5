"""What the figures of chapter 18 and of the appendix on operations draw from."""

from types import SimpleNamespace

import matplotlib.pyplot as plt
import pandas as pd
import pytest
from matplotlib.figure import Figure

from workshop.appendices.operations import FAR, draw_published
from workshop.appendices.published import Published
from workshop.ch18.figures import (
    draw_ages,
    draw_held_out,
    draw_roles,
    listing,
    source_of,
    summed_up,
)


def test_ages_are_shares_of_each_runs_own_groups():
    figure = Figure()
    draw_ages(figure, {"early": (3, [2, 2, 2, 1]), "late": (2, [0, 1])}, bound=2)
    bars, histogram = figure.axes
    assert [bar.get_width() for bar in bars.patches] == [3, 2]
    heights = [bar.get_height() for bar in histogram.patches]
    assert heights == [0, 0.25, 0.75, 0.5, 0.5, 0]


def test_a_run_without_updates_can_be_drawn():
    figure = Figure()
    draw_ages(figure, {"stuck": (0, [])}, bound=1)
    assert [bar.get_height() for bar in figure.axes[1].patches] == [0, 0]


def test_held_out_points_have_their_intervals_and_deaths_their_place():
    ax = plt.figure().add_subplot()
    rows = {"step": [0, 10], "pass@1": [0.2, 0.8], "pass@1_low": [0.1, 0.7]}
    draw_held_out(ax, pd.DataFrame(rows | {"pass@1_high": [0.4, 0.9]}), {"killed": 5})
    ((low, high), *_) = (segment[:, 1] for segment in ax.collections[0].get_segments())
    assert (low, high) == pytest.approx((0.1, 0.4))
    assert ax.lines[-1].get_xdata()[0] == 5


def test_a_drawing_of_roles_is_cut_between_processes():
    ax = draw_roles("Title", {"loss": "0121"}).axes[0]
    cuts = sorted(line.get_xdata()[0] for line in ax.lines if line.get_linestyle() == "--")
    names = {text.get_text(): text.get_position()[0] for text in ax.texts}
    boxes = ("prompt", "answers", "verdicts", "rewards", "advantages")
    prompt, answers, verdicts, rewards, advantages = (names[box] for box in boxes)
    assert prompt < cuts[0] < answers < cuts[1] < verdicts
    assert rewards < cuts[2] < advantages


def test_runs_of_nano_are_summed_up_by_rows_and_by_answers():
    phases = {"wait_seconds": [3.0] * 5, "train_seconds": [1.0] * 5, "push_seconds": [0.0] * 5}
    staleness = {"staleness_mean": [0, 0, 0, 1, 1], "staleness_max": [0, 0, 1, 2, 1]}
    rows = pd.DataFrame({"accuracy": [0, 0, 0, 0, 1], "target_staleness": [1, 1, 2, 2, 3]})
    batch = [SimpleNamespace(versions=each) for each in ([0, 1], [1], [1, 1], [2])]
    column = summed_up({"run": (rows.assign(**phases, **staleness), [batch])})["run"]
    assert column.tolist() == pytest.approx([0, 0.25, 0.75, 3, 0.4, 2, 0.25])


def test_a_listing_is_the_source_without_its_docstring():
    def shown(x):
        """What the text says."""
        return x + 1  # why

    def bare(x):
        return x

    assert source_of(shown) == "def shown(x):\n    return x + 1  # why"
    assert listing(shown, bare).data.count("return") == 2
    assert listing(bare).data == "```python\ndef bare(x):\n    return x\n```"


def test_published_runs_far_from_the_plan_are_named(monkeypatch):
    ratios = {"near, a": 1.1, "far, b, c": FAR / 2}
    monkeypatch.setattr(Published, "ratio", property(lambda self: ratios[self.name]))
    ax = plt.figure().add_subplot()
    draw_published(ax, [Published(name, "", "", "step_seconds", 1.0, ()) for name in ratios])
    assert [text.get_text() for text in ax.texts] == ["far, b"]
    assert list(ax.lines[0].get_xdata()) == sorted(ratios.values())
