"""Credit for turns, on three episodes of unequal length that meet at the same places."""

import random
from itertools import product
from statistics import fmean

import pytest

from rlbook.rewards.turns import (
    BATCH,
    GROUP,
    TOKENS,
    BesideCredit,
    GiGPOCredit,
    PricedCredit,
    turn_returns,
)
from rlbook.tasks import Problem
from rlbook.training import Rollout


def episode(places, earned=None, correct=False, group=0, tokens=None):
    """Two tokens a turn, one of the policy and one of the world; `tokens` are the policy's."""
    turns = len(places)
    said = tokens or range(10, 10 + turns)
    ids = [token for one in said for token in (one, 5)]
    return Rollout(
        problem=Problem("p", "", ""),
        group=group,
        prompt_ids=[1],
        token_ids=ids,
        logps=[0.0] * len(ids),
        versions=[0] * len(ids),
        finish_reason="stop",
        text="",
        correct=correct,
        forced=[False, True] * turns,
        turn_of=[turn for turn in range(turns) for _ in range(2)],
        places=[*places, "end"],
        earned=earned,
    )


THREE = [
    episode("abac", [0, 0, 0, 1.0]),
    episode("ac", [0, 0.0]),
    episode("abd", [0, 0.5, 0.5]),
]
# By numpy from GiGPO's equation 8, discount .9, unbiased deviations: (normalize, count) → per turn.
GIGPO = {
    (True, "turns"): (
        [0.760923, -0.203148, 1.167795, 1.211057],
        [-3.241418, -2.470936],
        [1.060724, 1.211051, 0.503951],
    ),
    (True, "episodes"): (
        [0.834321, -0.12975, 1.241193, 1.284455],
        [-2.632287, -1.861804],
        [1.134122, 1.284449, 0.577349],
    ),
    (False, "turns"): (
        [0.330222, 0.152222, 0.501222, 0.722222],
        [-1.398778, -1.277778],
        [0.456222, 0.292222, 0.222222],
    ),
    (False, "episodes"): (
        [0.441333, 0.263333, 0.612333, 0.833333],
        [-1.287667, -1.166667],
        [0.567333, 0.403333, 0.333333],
    ),
}


def per_turn(credit, rollouts):
    """The credit of each turn, which all of its tokens have."""
    rows = credit(rollouts)["credit"]
    for row, rollout in zip(rows, rollouts, strict=True):
        assert all(row[t] == row[t - 1] for t in range(1, len(row), 2))
        assert len(row) == rollout.length
    return [row[::2] for row in rows]


@pytest.mark.parametrize(("normalize", "count"), GIGPO)
def test_gigpo_is_its_equation(normalize, count):
    credit = GiGPOCredit(discount=0.9, normalize=normalize, count=count)
    for ours, theirs in zip(per_turn(credit, THREE), GIGPO[normalize, count], strict=True):
        assert ours == pytest.approx(theirs, abs=2e-6)


def test_gigpo_keeps_groups_apart():
    other = episode("abac", [5.0] * 4, group=1)
    alone = per_turn(GiGPOCredit(), THREE)
    assert per_turn(GiGPOCredit(), [*THREE, other])[:3] == alone


def test_returns_of_a_world_that_pays_at_the_end():
    assert turn_returns(episode("abc", correct=True), 0.5) == [0.25, 0.5, 1.0]
    scored = episode("ab")
    scored.score = 0.8
    assert turn_returns(scored) == [0.8, 0.8]


def test_beside_leaves_out_the_own_episode():
    """The first episode is at `a` twice; neither visit is among those it is compared with."""
    rollouts = [episode("aab", correct=True), episode("ab"), episode("a", correct=True)]
    credit = per_turn(BesideCredit(GROUP), rollouts)
    assert credit[0] == [1 - 0.5, 1 - 0.5, 1 - 0.0]
    assert credit[1] == [0 - fmean([1, 1, 1]), 0 - 1.0]
    assert per_turn(BesideCredit(TOKENS), rollouts)[0][1:] == [0.0 - 0.0 + 1.0, 0.0]


def test_keys_are_nested():
    """Equal tokens stand at one place, and a place of the group is one of the batch."""
    rollouts = [episode("ab", group=g, tokens=t) for g, t in product((0, 1), ([7, 8], [7, 9]))]
    keys = [{key(r, 1) for r in rollouts} for key in (TOKENS, GROUP, BATCH)]
    assert list(map(len, keys)) == [2, 2, 1]


def test_priced_credits_add_up_to_the_return_less_the_first_place():
    rollouts = [*THREE, episode("ab", correct=True, group=1), episode("ba", group=1)]
    for key in (GROUP, BATCH):
        credit = per_turn(PricedCredit(key), rollouts)
        met = [turn_returns(r)[t] for r in rollouts for t in range(r.turn_count)]
        keys = [key(r, t) for r in rollouts for t in range(r.turn_count)]
        for row, rollout in zip(credit, rollouts, strict=True):
            first = [v for v, k in zip(met, keys, strict=True) if k == key(rollout, 0)]
            assert sum(row) == pytest.approx(turn_returns(rollout)[0] - fmean(first))


def test_priced_finds_the_turn_that_decided():
    """A corridor whose second turn alone decides: with many episodes its credit is the truth's."""
    luck = random.Random(1)
    rollouts = []
    for _ in range(4000):
        right = luck.random() < 0.3
        rollouts.append(episode(["start", "fork", "won" if right else "lost"], correct=right))
    credit = per_turn(PricedCredit(BATCH), rollouts)
    for row, rollout in zip(credit, rollouts, strict=True):
        assert row == pytest.approx([0.0, rollout.correct - 0.3, 0.0], abs=0.04)


def test_beside_is_unbiased_in_every_world_of_two_turns():
    """Over all equally likely groups of two, the mean credit of an action is its advantage."""
    # Turn 0: action 0 or 1 leads to place x or y; there action 0 or 1 earns the table's reward.
    reward = {("x", 0): 0.0, ("x", 1): 1.0, ("y", 0): 1.0, ("y", 1): 1.0}
    ways = list(product((0, 1), (0, 1)))
    sums = {(place, action): [] for place, action in reward}
    for one, two in product(ways, ways):
        group = []
        for first, second in (one, two):
            place = "xy"[first]
            right = bool(reward[place, second])
            group.append(episode(["s", place], correct=right, tokens=[first, second]))
        credit = per_turn(BesideCredit(GROUP), group)
        if one[0] == two[0]:  # the sibling stood there too
            sums["xy"[one[0]], one[1]].append(credit[0][1])
    for (place, action), credits in sums.items():
        value = fmean(reward[place, a] for a in (0, 1))
        assert fmean(credits) == pytest.approx(reward[place, action] - value)


def test_a_world_that_does_not_say_where_it_stands_is_named():
    silent = episode("ab")
    silent.places = [None, None, None]
    with pytest.raises(ValueError, match="does not say where turn 0 begins"):
        GiGPOCredit()([silent, silent])
    assert per_turn(BesideCredit(TOKENS), [silent, silent]) == [[0, 0], [0, 0]]
