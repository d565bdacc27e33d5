"""Our plans of published runs beside what those measured."""

import pytest

from rlbook.scale.plan.table import SLOWER
from workshop.appendices.published import BAND, published_runs


@pytest.mark.parametrize("run", published_runs(), ids=lambda run: f"{run.name} {run.quantity}")
def test_published_runs_come_out_within_the_band(run):
    """Those that do not are marked, and the appendix shows them."""
    low, high = BAND
    assert (low <= run.ratio <= high) != run.outside


def test_memory_that_no_constant_was_set_on_comes_out():
    ratios = [run.ratio for run in published_runs() if run.quantity == "trainer_bytes"]
    assert len(ratios) >= 4 and 0.9 < min(ratios) < max(ratios) < 1.35


def test_whole_runs_take_as_much_longer_as_the_dry_run_says():
    whole = [run for run in published_runs() if run.quantity == "step_seconds"]
    within = sorted(1 / run.ratio for run in whole if not run.outside)
    assert (len(whole), len(within)) == (6, 4)  # as the heads of `configs` and chapter 18 say
    assert within[0] == pytest.approx(1.2, abs=0.05) and SLOWER - 0.1 < within[-1] <= SLOWER
