"""The ladder grows by a chapter's own rungs, and has every row that was run."""

import pytest

from workshop.shared.evidence import (
    RUNGS,
    WORLDS,
    batches_made,
    ladder,
    load_results,
    prompts_asked,
    rungs,
)
from workshop.shared.ladder_arms import LADDER
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


@pytest.mark.parametrize("world", WORLDS)
def test_prompts_and_batches_beside_a_rung_are_those_of_its_runs(world):
    prompts, batches = prompts_asked(world), batches_made(world)
    for arm in LADDER[f"ladder_{world}"].arms:
        assert prompts[arm.label] == arm.config.rollout.prompts
    redrawn = {"DAPO", "CISPO"}  # they draw again for prompts that teach nothing
    assert (batches.drop(list(redrawn)) == 20).all() and (batches[list(redrawn)] < 13).all()


def test_what_stands_beside_a_rung_is_drawn():
    fig = ladder("12", "title")
    columns = [[text.get_text() for text in ax.texts] for ax in fig.axes]
    assert columns[0][0] == "batches" and len(columns[0]) == len(rungs("12")) + 1
    assert columns[1][len(columns[0])] == "prompts" and columns[1][-1].isdigit()
