"""Chapter 05: any of k answers right, the vote of k, and what is drawn of them."""

import pytest

from rlbook.tasks import Problem
from rlbook.training import Rollout
from workshop.ch05.figures import crowds


def answers(said: str) -> list[Rollout]:
    """An answer to one problem per letter: `r` is right, other letters are wrong numbers."""
    problem = Problem("p", "1+1=?<think>", "2", 1)
    numbers = {"r": 2, "a": 3, "b": 4}
    return [
        Rollout(
            problem, 0, [1], [2], [0.0], [0], "stop",
            f"</think><answer>{numbers[letter]}</answer>", correct=letter == "r",
            answer=str(numbers[letter]),
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
