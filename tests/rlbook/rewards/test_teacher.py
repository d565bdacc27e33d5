"""The dense reward of a teacher: what it is, where it is nothing, and what it trains."""

import copy

import pytest
import torch

from rlbook.objectives import METHODS
from rlbook.policy import Sampler, logprobs
from rlbook.rewards import TeacherReward
from rlbook.training import RunConfig, Trainer, VerifierReward, collate, give_rewards
from rlbook.training.sft import sft

LITTLE = {"prompts": 4, "group_size": 4, "minibatches": 1, "max_new_tokens": 12, "seed": 3}


def other(policy, seed=5):
    """A second policy of the same shape: every weight shaken."""
    teacher = copy.deepcopy(policy[0])
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in teacher.parameters():
            weight += 0.05 * torch.randn(weight.shape, generator=generator)
    return teacher


def test_a_token_earns_the_difference_of_its_log_probs(little_policy, parity):
    policy = little_policy()
    teacher = other(policy)
    trainer = Trainer(RunConfig(method="opd", **LITTLE), policy, task=parity)
    rollouts = trainer.collect()
    rollouts[0].forced = [True, *[False] * (rollouts[0].length - 1)]
    give_rewards(rollouts, [TeacherReward(teacher, micro_batch_tokens=64)])
    for r in rollouts:
        ids = torch.tensor([r.prompt_ids + r.token_ids])
        mask = torch.arange(ids.shape[1])[None] >= len(r.prompt_ids)
        with torch.no_grad():
            expected = logprobs(teacher, ids, mask)[mask] - torch.tensor(r.logps)
        if r.forced:
            expected[0] = 0.0
        given = torch.tensor(r.token_rewards["teacher"])
        torch.testing.assert_close(given, expected, rtol=1e-4, atol=1e-5)


def test_the_row_keeps_each_tokens_reward_to_itself(little_policy, parity):
    policy = little_policy()
    reward = TeacherReward(other(policy))
    trainer = Trainer(RunConfig(method="opd", **LITTLE), policy, task=parity, reward=reward)
    rollouts = trainer.collect()
    batch = trainer.learner.prepare(rollouts)
    torch.testing.assert_close(batch.advantages, collate(rollouts).token_rewards)
    assert batch.advantages.abs().max() > 0


def test_a_teacher_who_is_told_more_reads_the_answer_after_that(little_policy, parity):
    """The policy itself, with two more tokens in front of each prompt; the student reads none."""
    policy = little_policy()
    trainer = Trainer(RunConfig(method="sdpo", **LITTLE), policy, task=parity)
    rollouts = trainer.collect()
    hint = [7, 8]
    reward = TeacherReward(policy[0], told=lambda rs: [hint + r.prompt_ids for r in rs])
    given = reward(rollouts)["teacher"]
    for r, row in zip(rollouts, given, strict=True):
        read = torch.tensor([hint + r.prompt_ids + r.token_ids])
        mask = torch.arange(read.shape[1])[None] >= read.shape[1] - r.length
        with torch.no_grad():
            expected = logprobs(policy[0], read, mask)[mask] - torch.tensor(r.logps)
        torch.testing.assert_close(torch.tensor(row), expected, rtol=1e-4, atol=1e-5)
    plain = TeacherReward(policy[0])(rollouts)["teacher"]
    assert max(abs(x) for row in plain for x in row) < 1e-4 < max(abs(x) for x in given[0])


def test_one_who_is_his_own_teacher_learns_nothing(little_policy, parity):
    policy = little_policy()
    reward = TeacherReward(copy.deepcopy(policy[0]))
    before = copy.deepcopy(policy[0].state_dict())
    trainer = Trainer(
        RunConfig(method="opd", **LITTLE | {"lr": 1e-6}), policy, task=parity, reward=reward
    )
    metrics = trainer.train_one()
    assert metrics["grad_norm"] < 1e-4
    for name, weight in policy[0].state_dict().items():
        torch.testing.assert_close(weight, before[name], rtol=0, atol=1e-5)


def test_a_student_comes_closer_to_its_teacher(little_policy, parity):
    policy = little_policy()
    reward = TeacherReward(other(policy))
    config = RunConfig(method="opd", lr=3e-3, steps=12, **LITTLE | {"prompts": 16})
    gaps = []
    for _ in (trainer := Trainer(config, policy, task=parity, reward=reward)):
        rollouts = trainer.collect(seed=77)
        gaps.append(-sum(r.reward for r in rollouts) / sum(r.length for r in rollouts))
    assert gaps[-1] < gaps[0] * 0.8


def test_imitation_is_the_policy_gradient_of_another_ones_answers(little_policy, parity):
    """Every answer worth 1, none compared: a step of `sft` on the same answers."""
    from dataclasses import replace

    policy, twin = little_policy(), little_policy()
    engine = Sampler(other(policy), policy[1].eos_token_id)
    method = replace(METHODS["reinforce"], aggregation="token_mean")
    config = RunConfig(method=method, lr=1e-3, **LITTLE)
    trainer = Trainer(config, policy, task=parity, reward=VerifierReward(1.0, 1.0), engine=engine)
    rollouts = trainer.collect()
    trainer.learn(rollouts)
    list(sft(twin[0], rollouts, lr=1e-3))
    for ours, theirs in zip(policy[0].parameters(), twin[0].parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=2e-5)


def test_row():
    assert METHODS["opd"].takes_token_rewards
    assert METHODS["opd"].advantage.keywords == {"gamma": 0.0}
    with pytest.raises(ValueError, match="lacks what opd needs"):
        from rlbook.training.loop import check_plain

        check_plain(METHODS["opd"])
