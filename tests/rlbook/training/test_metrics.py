"""What a step reports, against values computed by hand or by other means."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from rlbook.objectives import METHODS, policy_loss
from rlbook.policy import TokenStats, logprobs
from rlbook.tasks import Verdict
from rlbook.training import RunConfig, Trainer, collate
from rlbook.training.judge import take_verdict
from rlbook.training.metrics import (
    batch_metrics,
    correlated,
    rollout_metrics,
    step_metrics,
    step_sums,
    update_metrics,
)
from rlbook.training.step import train_step


@pytest.fixture
def rollouts(make_rollout):
    """Two right ones, three wrong ones that ended, two that were cut off, one of them by luck."""
    cut = {"finish_reason": "length", "tokens": [11] * 6}
    return [
        make_rollout(reward=1.0, correct=True, answer="2"),
        make_rollout(reward=0.5, correct=True, answer="2", **cut),
        make_rollout(reward=0.0, tokens=(11, 2), answer="3"),
        make_rollout(reward=0.25, tokens=(11, 11, 11, 2), group=1),
        make_rollout(reward=0.5, tokens=(11,) * 5 + (2,), group=1),
        make_rollout(reward=0.75, group=1, **cut),
    ]


def test_rewards_truncation_and_lengths_are_told_apart_by_verdict(rollouts):
    metrics = rollout_metrics(rollouts, 0)
    assert metrics["truncated_right"] == 1 / 2
    assert metrics["truncated_wrong"] == 1 / 4
    assert metrics["reward_wrong"] == pytest.approx(0.25)  # 0, ¼, ½: those that ended
    assert metrics["reward_cut"] == 0.75
    assert metrics["reward_by_length"] == pytest.approx(1.0)  # at lengths 2, 4, 6
    assert metrics["answered"] == pytest.approx(3 / 6)
    assert metrics["groups"] == 2


def test_completions_without_a_fair_verdict_are_counted(make_rollout):
    rollouts = [make_rollout() for _ in range(5)]
    reasons = ("timeout", "error", "bad_reference", "wrong", "no_answer")
    for rollout, reason in zip(rollouts, reasons, strict=True):
        take_verdict(rollout, Verdict(False, False, None, reason))
    metrics = rollout_metrics(rollouts, 0)
    assert (metrics["verify_timeouts"], metrics["verify_errors"]) == (1, 2)


def test_each_part_of_the_reward_has_its_mean_and_spread(make_rollout):
    rollouts = [make_rollout(reward=r) for r in (0.0, 1.0, 1.0, 2.0)]
    rollouts[0].token_rewards = {"steps": [0.5, 0.25, 0.25]}
    metrics = rollout_metrics(rollouts, 0)
    assert (metrics["rewards/answer/mean"], metrics["rewards/steps/mean"]) == (1.0, 0.25)
    assert metrics["rewards/answer/std"] == pytest.approx(math.sqrt(1 / 2))
    assert metrics["rewards/steps/std"] == pytest.approx(math.sqrt(3) / 4)  # 1, 0, 0, 0


def test_entropy_by_level_counts_what_was_sampled(make_rollout):
    one = make_rollout(logps=[-1.0, -2.0, 0.0], forced=[False, False, True])
    other = replace(make_rollout(logps=[-4.0] * 3), problem=replace(one.problem, level=5))
    metrics = rollout_metrics([one, one, other], 0)
    assert (metrics["entropy_level_2"], metrics["entropy_level_5"]) == (1.5, 4.0)


def test_advantages_and_untrained_tokens_are_those_of_the_batch(rollouts):
    earned = [1.0, 0.5, 0.0, 0.25, 0.5, 0.75]
    rollouts[3].forced = [True, True, False, False]  # not sampled, so not missing either
    batch = collate(rollouts).prepared(advantages=-2 * torch.tensor(earned))
    assert batch_metrics(rollouts, batch) == pytest.approx(
        {"advantage_by_reward": -1.0, "untrained": 0.0}
    )
    last = batch.mask.cumsum(1) == batch.mask.sum(1, keepdim=True)
    without_ends = replace(batch, mask=batch.mask & ~last)
    assert batch_metrics(rollouts, without_ends)["untrained"] == 1.0


def test_a_correlation_without_variation_is_none():
    assert correlated([1.0, 1.0], [0.0, 3.0]) == correlated([], []) == 0


@pytest.mark.parametrize("tokens", [9, 8192])  # in micro-batches, and in one
def test_mismatch_is_what_another_library_says_of_the_same_tokens(policy, rollouts, tokens):
    batch = collate(rollouts)
    now = logprobs(policy[0], batch.ids, batch.mask).detach()
    torch.manual_seed(1)
    said = (now - 0.3 * torch.rand_like(now)) * batch.mask
    batch = replace(batch, logp_sampler=said).prepared(logp_old=now, advantages=batch.rewards)
    optimizer = torch.optim.SGD(policy[0].parameters(), lr=0.0)
    row = train_step(policy[0], optimizer, batch, METHODS["dapo"], micro_batch_tokens=tokens)
    ours, theirs = (x[batch.mask].double().numpy() for x in (now, said))
    assert row["mismatch"] == pytest.approx(np.abs(ours - theirs).mean(), rel=1e-4)
    assert row["mismatch_max"] == pytest.approx(np.abs(ours - theirs).max(), rel=1e-4)
    odds = np.exp(ours - theirs)
    assert row["mismatch_kl"] == pytest.approx((odds - 1 - np.log(odds)).mean(), rel=1e-3)
    agreement = np.corrcoef(np.exp(ours), np.exp(theirs))[0, 1]
    assert row["mismatch_correlation"] == pytest.approx(agreement, abs=1e-4)
    assert agreement < 0.999


def test_surprise_is_measured_in_standard_errors(policy, rollouts):
    batch = collate(rollouts[:3]).prepared(advantages=torch.zeros(3))
    entropy = torch.full(batch.mask.shape, 0.5)
    values = torch.tensor([0.5, 0.7] * 5 + [0.6])[: int(batch.mask.sum())]
    logp = torch.zeros(batch.mask.shape).masked_scatter(batch.mask, -values)
    loss = policy_loss(METHODS["dapo"], logp, logp, batch.advantages, batch.mask)
    row = step_metrics([step_sums(loss, TokenStats(logp, entropy), batch)])
    excess = values.double().numpy() - 0.5
    assert row["surprise"] == pytest.approx(excess.mean(), rel=1e-5)
    error = excess.std() / math.sqrt(len(excess))
    assert row["surprise_z"] == pytest.approx(excess.mean() / error, rel=1e-4)


def test_only_the_first_update_knows_the_sampler_without_what_training_did():
    rows = [{"mismatch": 0.0, "kl_ref": 0.0, "kl": 0.0}, {"mismatch": 0.3, "kl_ref": 0.2, "kl": 1}]
    assert update_metrics(rows) == {"mismatch": 0.0, "kl_ref": 0.0, "kl": 0.5}


def test_a_healthy_step_has_no_mismatch_no_drift_and_trains_all_it_sampled():
    row = Trainer(RunConfig(method="grpo", prompts=4, group_size=4, minibatches=2)).train_one()
    assert row["mismatch_max"] < 1e-4
    assert row["mismatch_correlation"] == pytest.approx(1.0)
    assert abs(row["surprise_z"]) < 4
    assert (row["untrained"], row["updates"]) == (0, 2)
    assert row["kl_ref"] == pytest.approx(0.0, abs=1e-8)
    assert row["advantage_by_reward"] > 0.3
