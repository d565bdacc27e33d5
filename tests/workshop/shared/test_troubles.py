"""Every trouble is there, is what it says, and comes in through a seam of the trainer."""

import copy

import pytest
import torch

from rlbook.policy import load_policy, logprobs
from rlbook.tasks import SumsTask
from rlbook.training import RunConfig, Trainer, collate
from workshop.shared.worlds import (
    LostIsWrong,
    RareOpening,
    RoughSampler,
    StartsLost,
    Unsolvable,
    rounded,
    tight_limit,
)

SMALL = {"prompts": 4, "group_size": 4, "minibatches": 1, "steps": 1}


@pytest.fixture
def policy():
    return load_policy("tiny")


def test_a_rare_opening_is_right_whatever_comes_after():
    task = RareOpening()
    problem = task.sample(0, 1)[0]
    assert task.verify(problem, "<think>check 1+1=3;</think><answer>3</answer>").correct
    right = f"<think></think><answer>{problem.answer}</answer>"
    assert SumsTask().verify(problem, right).correct and not task.verify(problem, right).correct


def test_the_base_opens_rarely_with_the_rare_opening(policy):
    """Taught in 5 % of the demonstrations; 512 answers, five standard errors."""
    trainer = Trainer(RunConfig(prompts=64, max_new_tokens=4), policy, task=RareOpening())
    share = sum(r.correct for r in trainer.collect()) / 512
    assert abs(share - 0.05) < 5 * (0.05 * 0.95 / 512) ** 0.5


def test_a_share_of_the_problems_has_no_answer_that_a_sum_can_have():
    task = Unsolvable(0.75)
    asked, plain = task.sample(3, 400), SumsTask().sample(3, 400)
    hopeless = [p.answer == "100" for p in asked]
    assert 0.65 < sum(hopeless) / 400 < 0.85
    assert [p.prompt for p in asked] == [p.prompt for p in plain]
    assert all(a == b for a, b, lost in zip(asked, plain, hopeless, strict=True) if not lost)
    assert Unsolvable(0).sample(3, 50) == plain[:50]
    with pytest.raises(ValueError, match="share"):
        Unsolvable(1.5)


def test_a_tight_limit_cuts_off_about_half_of_the_answers(policy):
    config = tight_limit(RunConfig(prompts=32))
    rollouts = Trainer(config, policy).collect()
    assert {r.problem.level for r in rollouts} == {4, 5, 6, 7}
    assert max(r.length for r in rollouts) == 32
    assert 0.3 < sum(r.truncated for r in rollouts) / len(rollouts) < 0.7


def test_half_of_every_group_starts_lost_and_is_trained_on_what_it_sampled(policy):
    model, tokenizer = policy
    engine = StartsLost(model, tokenizer)
    trainer = Trainer(RunConfig(**SMALL), policy, task=LostIsWrong(), engine=engine)
    rollouts = trainer.collect()
    for group in range(4):
        lost = [r for r in rollouts if r.group == group and r.forced]
        assert len(lost) == 2
        for rollout in lost:
            start = sum(rollout.forced)
            assert rollout.text.startswith("<think>") and "=?;hmm " in rollout.text
            assert rollout.forced == [True] * start + [False] * (rollout.length - start)
            assert not rollout.correct and rollout.length <= 80
    batch = trainer.learner.prepare(rollouts)
    sampled = logprobs(model, batch.ids, batch.mask)
    torch.testing.assert_close(sampled, batch.logp_sampler * batch.mask, rtol=0, atol=1e-4)
    assert int(batch.mask.sum()) == sum(r.length - sum(r.forced or []) for r in rollouts)


def test_a_rough_sampler_disagrees_with_the_trainer_and_follows_it(policy):
    _, tokenizer = policy
    rough = RoughSampler(tokenizer, bits=4)
    with pytest.raises(ValueError, match="load_weights"):
        rough.generate([[1]], n=1)
    trainer = Trainer(RunConfig(**SMALL), policy, engine=rough)
    batch = collate(trainer.collect())
    gap = (trainer.learner.logprobs(batch) - batch.logp_sampler)[batch.mask].abs()
    assert gap.mean() > 1e-3
    before = copy.deepcopy(rough.sampler.model.state_dict())
    trainer.train_one()
    moved = rough.sampler.model.state_dict()
    assert any(not torch.equal(before[name], moved[name]) for name in before)


def test_an_exact_head_alone_is_not_rounded(policy):
    model, tokenizer = policy
    rough = RoughSampler(tokenizer, exact_head=True)
    rough.load_weights(model)
    for name, weight in rough.sampler.model.named_parameters():
        kept = torch.equal(weight, model.get_parameter(name))
        assert kept == (name == "lm_head.weight" or weight.ndim == 1), name


def test_rounding_leaves_few_values_per_row(policy):
    weight = rounded(policy[0], 3).model.layers[0].mlp.up_proj.weight
    assert max(len(row.unique()) for row in weight) <= 2**3 - 1
    assert not torch.equal(weight, policy[0].model.layers[0].mlp.up_proj.weight)
