"""Figures and README of the benchmarks say what the committed tables say."""

import pandas as pd
import pytest

from rlbook.bench import PARTS
from rlbook.bench.figures import FIGURES, learning_gap
from rlbook.book.readme import PAGES, with_performance
from rlbook.paths import data_dir

BENCH = data_dir() / "results" / "bench"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_pages_are_what_the_tables_say(page):
    assert page.read_text() == with_performance(page), "run python -m rlbook.book.readme"


def test_every_part_has_a_figure():
    assert set(FIGURES) == set(PARTS)


@pytest.mark.parametrize("path", sorted(BENCH.glob("*.csv")), ids=lambda path: path.stem)
def test_committed_tables_have_small_figures(path):
    assert path.with_suffix(".png").stat().st_size <= 150 * 1024


def test_gap_is_paired_over_seeds():
    ours, theirs = {0: 0.6, 1: 0.3, 2: 0.5}, {0: 0.5, 1: 0.2, 2: 0.4}
    rows = [
        {"method": "grpo", "program": program, "seed": seed, "step": step, "accuracy": value}
        for program, curves in (("rlbook", ours), ("trl", theirs))
        for seed, end in curves.items()
        for step, value in ((1, 0.0), (2, end))
    ]
    gap = learning_gap(pd.DataFrame(rows), last=1)["grpo"]
    assert (gap.mean, gap.low, gap.high) == pytest.approx((0.1, 0.1, 0.1))
