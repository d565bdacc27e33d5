"""Chapter 05: any of k answers right, the vote of k, and what is drawn of them."""

import pandas as pd
import pytest
from matplotlib.figure import Figure

from rlbook.tasks import Problem
from rlbook.tasks.habits import FAMILIES
from rlbook.training import Rollout
from rlbook.viz.chapters.ch05 import between, crowds, draw_crowds, draw_rules


def answers(said: str) -> list[Rollout]:
    """An answer to one problem per letter: `r` is right, other letters are wrong numbers."""
    problem = Problem("p", "1+1=?<think>", "2", 1)
    numbers = {"r": 2, "a": 3, "b": 4}
    return [
        Rollout(
            problem, 0, [1], [2], [0.0], [0], "stop",
            f"</think><answer>{numbers[letter]}</answer>", correct=letter == "r",
        )
        for letter in said
    ]  # fmt: skip


def test_any_is_pass_at_k_and_a_vote_can_be_lost():
    table = crowds(answers("raab") + answers("rrab"), n=4, sizes=(1, 4))
    assert table["any"].to_dict() == pytest.approx({1: (1 / 4 + 2 / 4) / 2, 4: 1.0})
    assert table["vote"].to_dict() == pytest.approx({1: (1 / 4 + 2 / 4) / 2, 4: 0.5})


def test_a_vote_of_two_is_taken_in_every_half():
    table = crowds(answers("rraa"), n=4, sizes=(2,))
    assert table.loc[2].to_dict() == pytest.approx({"any": 1 - 1 / 6, "vote": 0.5})


def test_curves_are_named_where_they_end():
    ax = Figure().subplots()
    table = crowds(answers("raab"), n=4, sizes=(1, 2, 4))
    draw_crowds(ax, table, table)
    assert {text.get_text() for text in ax.texts} == {
        f"{policy}: {name}" for policy in ("base", "trained") for name in ("any of k", "vote")
    }


def test_rules_are_named_where_they_start():
    ax = Figure().subplots()
    draw_rules(ax, pd.DataFrame({family: [0.1, 0.5] for family in FAMILIES}))
    assert [text.get_text().strip() for text in ax.texts] == list(FAMILIES)
    assert ax.get_yscale() == "log"


def test_an_interval_is_written_with_its_signs():
    assert between((-0.013, -0.045, 0.019)) == "−0.013 [−0.045, +0.019]"
