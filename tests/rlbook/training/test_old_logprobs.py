"""π_old is the policy as it stands when a batch is prepared, whoever wrote the batch and when."""

from dataclasses import replace

import pytest
import torch

from rlbook.objectives import METHODS
from rlbook.training import RunConfig, Trainer

ROUNDING = 2e-5  # sampler and trainer sum in other orders; the cases below differ by 0.02 and more


@pytest.fixture
def trainer():
    method = replace(METHODS["grpo"], kl=None)
    return Trainer(RunConfig(method=method, steps=9, prompts=4, max_new_tokens=40, lr=1e-3))


def read_after_another_prompt(trainer):
    return [replace(r, prompt_ids=r.prompt_ids[:1] + r.prompt_ids) for r in trainer.collect()]


def hotter(trainer):
    return trainer.sample(trainer.source.problems(0, 3), temperature=1.3, seed=1)


def with_other_logps(trainer):
    return [replace(r, logps=[logp - 0.15 for logp in r.logps]) for r in trainer.collect()]


def edited_in_place(trainer):
    rollouts = trainer.collect()
    for rollout in rollouts:
        rollout.logps[:] = [logp - 0.15 for logp in rollout.logps]
    return rollouts


def after_an_update(trainer):
    rollouts = trainer.collect()
    trainer.learn(rollouts)
    return rollouts


def weights_changed_by_hand(trainer):
    rollouts = trainer.collect()
    with torch.no_grad():
        for weight in trainer.model.parameters():
            weight.add_(0.01 * torch.randn_like(weight))
    return rollouts


def after_a_fused_step_by_hand(trainer):
    """A fused step raises no version counter of the weights."""
    rollouts = trainer.collect()
    optimizer = torch.optim.AdamW(trainer.model.parameters(), 1e-2, fused=True)
    for weight in trainer.model.parameters():
        weight.grad = torch.randn_like(weight)
    optimizer.step()
    return rollouts


FOREIGN = [
    *(read_after_another_prompt, hotter, with_other_logps, edited_in_place, after_an_update),
    *(weights_changed_by_hand, after_a_fused_step_by_hand),
]


def distances(trainer, rollouts):
    """Mean |log π_old - log π| now, and the same of what the sampler reported."""
    torch.manual_seed(0)
    batch = trainer.learner.prepare(rollouts, trainer.source.wrote(rollouts))
    now = trainer.learner.logprobs(batch)[batch.mask]
    return [
        float((logp[batch.mask] - now).abs().mean())
        for logp in (batch.logp_old, batch.logp_sampler)
    ]


@pytest.mark.parametrize("part", [slice(None), slice(16)])
def test_first_ratios_of_fresh_rollouts_are_1_but_for_rounding(trainer, part):
    old, sampler = distances(trainer, trainer.collect()[part])
    assert old < ROUNDING and sampler < ROUNDING


@pytest.mark.parametrize("make", FOREIGN)
def test_rollouts_that_the_policy_would_not_write_now_get_its_own_log_probs(trainer, make):
    old, sampler = distances(trainer, make(trainer))
    assert old < ROUNDING < 0.01 < sampler
