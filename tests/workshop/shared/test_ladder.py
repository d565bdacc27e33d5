"""The ladder has every row that was run, and says what stands beside a rung."""

import pytest

from workshop.shared.evidence import (
    RUNGS,
    WORLDS,
    batches_made,
    ladder,
    load_results,
    prompts_asked,
)
from workshop.shared.ladder_arms import LADDER, rungs


def test_every_row_that_was_run_is_a_rung_but_that_of_a_later_chapter():
    assert sorted([*RUNGS, "ScaleRL"]) == sorted(rungs(0.5))
    for world in WORLDS:
        runs = load_results(f"ladder_{world}_eval").groupby("arm").seed.nunique()
        assert (runs.reindex(RUNGS) == 10).all()


@pytest.mark.parametrize("world", WORLDS)
def test_prompts_and_batches_beside_a_rung_are_those_of_its_runs(world):
    prompts, batches = prompts_asked(world), batches_made(world)
    for arm in LADDER[f"ladder_{world}"].arms:
        assert prompts[arm.label] == arm.config.rollout.prompts
    redrawn = {"DAPO", "CISPO"}  # they draw again for prompts that teach nothing
    assert (batches.drop(list(redrawn)) == 20).all() and (batches[list(redrawn)] < 13).all()


def test_what_stands_beside_a_rung_is_drawn():
    fig = ladder("title", own=("GPG",))
    assert [text.get_text() for text in fig.axes[0].get_yticklabels()] == [*RUNGS]
    columns = [[text.get_text() for text in ax.texts] for ax in fig.axes]
    assert columns[0][0] == "batches" and len(columns[0]) == len(RUNGS) + 1
    assert columns[1][len(columns[0])] == "prompts" and columns[1][-1].isdigit()
