"""Self-certainty by hand, and decoding that is surer than the policy but no other."""

import pytest
import torch

from rlbook.policy import Sampler
from rlbook.training import RunConfig, Trainer
from rlbook.training.sft import padded
from workshop.ch13 import self_confidence
from workshop.ch13.self_confidence import EntropyInference, SelfCertainty, self_certainty, surer


@pytest.fixture
def trainer(little_policy, parity, little):
    return Trainer(RunConfig(**little), little_policy(), task=parity)


def test_self_certainty_is_the_mean_divergence_from_an_even_distribution(trainer):
    rollouts = trainer.collect()
    ids, mask = padded(rollouts)
    logp = trainer.model(ids).logits.log_softmax(-1).double()
    even = torch.full_like(logp, 1 / logp.shape[-1])
    divergence = (even * (even.log() - logp)).sum(-1)
    by_hand = [
        divergence[row, len(r.prompt_ids) - 1 : len(r.prompt_ids) + r.length - 1].mean().item()
        for row, r in enumerate(rollouts)
    ]
    found = SelfCertainty(trainer.model)(rollouts)["self_certainty"]
    assert found == pytest.approx(by_hand, rel=1e-3) and min(found) > 0
    with torch.no_grad():
        trainer.model.lm_head.weight.zero_()
    assert self_certainty(trainer.model, ids, mask).abs().max() < 1e-5


def test_it_follows_the_policy_as_it_is(trainer):
    reward, rollouts = SelfCertainty(trainer.model), trainer.collect()
    (before,) = reward(rollouts).values()
    with torch.no_grad():
        trainer.model.lm_head.weight.mul_(3)
    (after,) = reward(rollouts).values()
    assert all(b > 2 * a for a, b in zip(before, after, strict=True))


def test_surer_logits_have_less_entropy_and_the_same_favourite():
    logits = torch.tensor([[1.0, 0.0, -1.0], [0.3, 0.2, 0.0], [9.0, 0.0, 0.0]])
    before, after = (torch.special.entr(z.softmax(-1)).sum(-1) for z in (logits, surer(logits)))
    assert (after[:2] < before[:2] - 0.1).all()
    assert (surer(logits).argmax(-1) == logits.argmax(-1)).all()
    assert (surer(logits)[2] == logits[2]).all()  # below the floor from the start
    step = surer(logits, steps=1, size=1e-3)
    slope = torch.func.grad(lambda z: torch.special.entr(z.softmax(-1)).sum())(logits)
    assert (logits - step)[:2] == pytest.approx(1e-3 * slope[:2], abs=2e-6)


def test_without_steps_it_is_the_sampler(trainer, monkeypatch):
    prompts = [r.prompt_ids for r in trainer.collect()][::2]
    eos = trainer.tokenizer.eos_token_id
    how = {"n": 3, "max_new_tokens": 9, "seed": 4}
    sharp = EntropyInference(trainer.model, eos).generate(prompts, **how)
    monkeypatch.setattr(self_confidence, "surer", lambda logits: logits)
    plain = EntropyInference(trainer.model, eos).generate(prompts, **how)
    theirs = Sampler(trainer.model, eos).generate(prompts, **how)
    assert [c.token_ids for c in plain] == [c.token_ids for c in theirs]
    assert [c.finish_reason for c in plain] == [c.finish_reason for c in theirs]
    assert [c.token_ids for c in sharp] != [c.token_ids for c in plain]
