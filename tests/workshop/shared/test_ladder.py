"""The ladder grows by a chapter's own rungs, and has every row that was run."""

import pytest

from workshop.shared.evidence import RUNGS, WORLDS, ladder, load_results, rungs
from workshop.shared.ladder_arms import rungs as rows_run


def test_every_row_that_was_run_is_a_rung_of_one_chapter():
    told = [row for rows in RUNGS.values() for row in rows]
    assert sorted(told) == sorted(rows_run(0.5))
    for world in WORLDS:
        runs = load_results(f"ladder_{world}_eval").groupby("arm").seed.nunique()
        assert (runs.reindex(told) == 10).all()


def test_a_chapter_shows_what_came_before_it_and_its_own():
    assert rungs("05") == [*RUNGS["02"], *RUNGS["03"], *RUNGS["05"]]
    first = [text.get_text() for text in ladder("05", "title").axes[0].get_yticklabels()]
    assert first == rungs("05")
    with pytest.raises(ValueError, match="chapter 04 adds no rung"):
        rungs("04")
