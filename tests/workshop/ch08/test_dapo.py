"""Chapter 08's evidence: each part where its trouble presses and where it does not."""

from dataclasses import replace

import pytest
from matplotlib.figure import Figure

from workshop.ch08.figures import named
from workshop.ch08.questions import QUESTIONS
from workshop.shared.evidence import compare_bars


@pytest.fixture(scope="module")
def panels():
    return [panel for question in QUESTIONS for panel in question.panels()]


def test_the_control_has_the_arms_of_the_panel_above_it(panels):
    arms = [list(panel.runs["arm"].unique()) for panel in panels]
    assert arms[::2] == arms[1::2]
    assert arms[0] == ["no clip", "0.28", "0.2"]


def test_every_run_lies_within_its_panel(panels):
    for panel in panels:
        low, high = panel.limits
        assert panel.runs[panel.column].between(low, high).all(), panel.title


def test_a_panel_has_a_row_for_every_arm(panels):
    for panel in panels:
        ax = Figure().subplots()
        compare_bars(panel.runs, panel.column, ax, colours=panel.colours)
        drawn = [label.get_text() for label in ax.get_yticklabels()]
        assert drawn == list(panel.runs["arm"].unique())


def test_a_title_that_the_means_do_not_show_is_refused(panels):
    for panel in panels:
        flat = panel.runs.assign(**{panel.column: 0.5})
        alike = panel.title in ("Nothing rare: no gain", "Few cut off: it does not")
        if alike:
            flat.loc[flat["arm"].isin(["0.2", "cliff"]), panel.column] = 2.0
        with pytest.raises(ValueError, match="does not hold"):
            replace(panel, runs=flat)


def test_arms_that_are_not_named_are_left_out(panels):
    runs = named(panels[0].runs, {"0.2": "clip"})
    assert set(runs["arm"]) == {"clip"} and len(runs) == 10
