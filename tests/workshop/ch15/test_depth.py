"""What chapter 15 says of depth is what the recorded runs give."""

from pathlib import Path

import pytest

from rlbook.paths import data_dir
from workshop.ch15.depth import OPERATIONS, batches_until, exponent
from workshop.shared.evidence import load_results

TEXT = (Path(__file__).parents[3] / "chapters" / "15_credit_assignment.ipynb").read_text()


def test_a_power_law_gives_its_exponent():
    assert exponent([2.0 * d**1.5 for d in OPERATIONS]) == pytest.approx(1.5)


def test_the_chapter_quotes_the_recorded_runs():
    assert (data_dir() / "results" / "siblings.csv").is_file()
    runs = load_results("siblings")
    sooner, later = (batches_until(runs, accuracy) for accuracy in (0.4, 0.5))
    assert ", ".join(f"{b:.1f}" for b in sooner[:-1]) + f" and {sooner[-1]:.1f} batches" in TEXT
    assert f"exponent of {exponent(sooner):.1f}, and one of {exponent(later):.1f} at" in TEXT
