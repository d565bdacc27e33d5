"""Chapter 10's readings: how an answer opens, when a family is learned, what an order elects."""

import pytest
from matplotlib.figure import Figure

from rlbook.tasks import Problem
from rlbook.training import Rollout
from workshop.ch10.figures import (
    draw_election,
    draw_openings,
    one_of_each,
    opening_of,
    opening_shares,
)
from workshop.shared.worlds.strategy_mixture import easy_and_hard


def answer(text: str, level: int = 3) -> Rollout:
    problem = Problem(f"p{level}", "1+1=?<think>", "2", level)
    return Rollout(problem, 0, [1], [2], [0.0], [0], "stop", text)


@pytest.mark.parametrize(
    ("text", "opening"),
    [
        ("</think><answer>2</answer>", "at once"),
        ("so 1+1=2;</think>", "so"),
        ("check 1+1=2;</think>", "check"),
        ("1+1=2;</think>", "works it out"),
        ("", "works it out"),
    ],
)
def test_an_opening_is_read_off_the_first_token(text, opening):
    assert opening_of(answer(text)) == opening


def test_shares_add_up_and_one_answer_of_each_kind_is_shown():
    texts = ["so 1", "so 2", "</think>", "1+1"]
    rollouts = [answer(text, level) for level in (3, 6) for text in texts]
    shares = opening_shares(rollouts)
    assert shares == {"at once": 0.25, "so": 0.5, "check": 0.0, "works it out": 0.25}
    shown = [(r.problem.level, r.text) for r in one_of_each(rollouts, levels=(3, 6))]
    assert shown == [(level, text) for level in (3, 6) for text in ("</think>", "so 1", "1+1")]


def test_wide_parts_of_a_bar_carry_their_name():
    axes = Figure().subplots()
    draw_openings(axes, {"base": [answer("so 1")] * 9 + [answer("1")]})
    assert [text.get_text() for text in axes.texts] == ["so"]


def test_a_larger_order_elects_more_of_the_careful_way():
    axes = Figure().subplots()
    draw_election(axes, easy_and_hard(8), orders=(1, 7, 63))
    dots = [line.get_xdata()[0] for line in axes.lines if line.get_marker() == "o"]
    assert dots == sorted(dots) and dots[0] < 0.01 and dots[-1] > 0.9
    assert [text.get_text() for text in axes.texts] == ["T = 1: RLOO", "T = 7", "T = 63"]
