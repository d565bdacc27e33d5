"""Rewards without labels on groups small enough to count by hand."""

from functools import partial
from math import isclose

import pytest

from rlbook.rewards import (
    confidence,
    format_only,
    majority_vote,
    negative_entropy,
    plurality,
    random_reward,
    semantic_agreement,
    vote_metrics,
    wrong_labels,
)
from rlbook.tasks import SumsTask
from rlbook.training import Reward, RunConfig, Trainer
from rlbook.training.judge import judged
from rlbook.training.rewards import get_reward

EIGHT = ("7", "7", "3", "7", "3", "1", "7", "2")
LABEL_FREE = (majority_vote, semantic_agreement, confidence, negative_entropy, random_reward)


def test_the_most_common_answer_of_each_group_earns_one(make_group):
    rollouts = make_group(EIGHT) + make_group(("3", "3", "7"), group=5)
    assert majority_vote(rollouts)["majority"] == [1, 1, 0, 1, 0, 0, 1, 0, 1, 1, 0]
    assert majority_vote(rollouts[::-1])["majority"][:3] == [0, 1, 1]


def test_of_equally_common_answers_the_first_wins(make_group):
    assert majority_vote(make_group(("3", "7", "7", "3")))["majority"] == [1, 0, 0, 1]


def test_agreement_is_the_share_of_the_group_and_its_mean_the_sum_of_squares(make_group):
    given = semantic_agreement(make_group(EIGHT))["agreement"]
    assert given == [0.5, 0.5, 0.25, 0.5, 0.25, 0.125, 0.5, 0.125]
    assert sum(given) / 8 == 0.5**2 + 0.25**2 + 2 * 0.125**2


def test_an_answer_that_cannot_be_read_neither_votes_nor_earns(make_group):
    silent = make_group(("", "", "", "3", "7", "7"))
    assert majority_vote(silent)["majority"] == [0, 0, 0, 0, 1, 1]
    assert semantic_agreement(silent)["agreement"] == [0, 0, 0, 1 / 6, 2 / 6, 2 / 6]
    assert wrong_labels(silent)["wrong_label"] == [0, 0, 0, 1, 0, 0]
    nothing = make_group(("", ""))
    assert plurality(nothing) is None
    assert majority_vote(nothing)["majority"] == [0, 0]


def test_confidence_is_a_mean_and_negative_entropy_a_sum_over_sampled_tokens(make_group):
    (sure,), (unsure,) = make_group(("7",), logps=(-0.2, -0.4)), make_group(("3",), logps=(-1, -3))
    assert confidence([sure, unsure])["confidence"] == pytest.approx([-0.3, -2])
    assert negative_entropy([sure, unsure])["log_prob"] == pytest.approx([-0.6, -4])
    unsure.forced = [False, True]
    assert confidence([unsure])["confidence"] == [-1]
    assert negative_entropy([unsure])["log_prob"] == [-1]


def test_wrong_labels_pay_the_favourite_mistake_and_nothing_where_there_is_none(make_group):
    rollouts = make_group(EIGHT) + make_group(("7", "7"), group=1)
    assert wrong_labels(rollouts)["wrong_label"] == [0, 0, 1, 0, 1, 0, 0, 0, 0, 0]


def test_format_pays_right_and_wrong_alike(make_group):
    assert format_only(make_group(("7", "3", "")))["format"] == [1, 1, 0]


def test_coins_repeat_themselves_and_equal_answers_have_coins_of_their_own(make_group):
    rollouts = make_group(["7"] * 400)
    coins = random_reward(rollouts)["random"]
    assert coins == random_reward(rollouts)["random"] and set(coins) == {0, 1}
    assert 0.4 < sum(coins) / 400 < 0.6
    assert coins != random_reward(make_group(["7"] * 400, group=1))["random"]
    often = partial(random_reward, share=0.9)(rollouts)["random"]
    assert 0.82 < sum(often) / 400 < 0.97
    with pytest.raises(ValueError, match="share is a probability, got 2"):
        random_reward(rollouts, share=2)


@pytest.mark.parametrize("reward", LABEL_FREE)
def test_a_reward_without_labels_does_not_look_at_the_truth(reward, make_group):
    rollouts = make_group(EIGHT)
    before = reward(rollouts)
    for rollout in rollouts:
        rollout.correct = not rollout.correct
    assert reward(rollouts) == before


def test_what_a_vote_is_worth(make_group):
    rollouts = make_group(EIGHT) + make_group(("3", "3", "3", "7"), group=1)
    found = vote_metrics(rollouts)
    assert isclose(found["agreement"], (4 + 3) / 12)
    assert found["label_accuracy"] == 0.5
    assert isclose(found["reward_accuracy"], 8 / 12)


def test_a_wrong_label_may_still_pay_most_answers_what_they_deserve(make_group):
    scattered = make_group(("3", "3", "1", "2", "4", "5", "6", "8"))
    found = vote_metrics(scattered)
    assert found["label_accuracy"] == 0 and found["reward_accuracy"] == 6 / 8


@pytest.mark.parametrize(
    "name", ["majority_vote", "semantic_agreement", "confidence", "random_reward", "wrong_labels"]
)
def test_a_run_may_name_its_reward(name, little_policy, parity, little):
    path = f"rlbook.rewards:{name}"
    assert isinstance(get_reward(path), Reward)
    trainer = Trainer(RunConfig(reward=path, **little), little_policy(), task=parity)
    rollouts = trainer.collect()
    ((part, values),) = get_reward(path)(rollouts).items()
    assert [r.rewards for r in rollouts] == [{part: value} for value in values]


@pytest.mark.parametrize("text", ["<think></think><answer> 5 </answer>", "5"])
def test_answers_are_compared_as_the_task_reads_them(text, make_group):
    (rollout,) = make_group([text])
    judged([rollout], SumsTask())
    assert rollout.answer == ("5" if "answer" in text else None)
