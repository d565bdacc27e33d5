"""Figures and README of the benchmarks say what the committed tables say."""

import pandas as pd
import pytest

from rlbook.paths import data_dir
from workshop.bench import PARTS
from workshop.bench.plots import FIGURES, learning_gap
from workshop.tools.readme import PAGES, with_performance

BENCH = data_dir() / "results" / "bench"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_pages_are_what_the_tables_say(page):
    assert page.read_text() == with_performance(page), "run python -m workshop.tools.readme"


def test_every_part_has_a_figure():
    assert set(FIGURES) == set(PARTS)


def test_committed_tables_have_small_figures():
    sizes = {path.stem: path.with_suffix(".png").stat().st_size for path in BENCH.glob("*.csv")}
    assert sizes and {name: size for name, size in sizes.items() if size > 150 * 1024} == {}


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
