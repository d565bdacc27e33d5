"""Entropy minimisation against finite differences and a hand-written sum."""

import pytest
import torch

from rlbook.training import RunConfig
from workshop.ch13.entropy_tuning import EntropyFineTuning, token_entropy


@pytest.fixture
def trainer(little_policy, parity, little):
    return EntropyFineTuning(RunConfig(**little), little_policy(), task=parity)


@pytest.fixture
def batch(trainer):
    return trainer.learner.prepare(trainer.collect())


def test_token_entropy_is_the_mean_over_sampled_tokens(trainer, batch):
    table = trainer.model(batch.ids).logits.log_softmax(-1)[:, :-1]
    entropy = -(table.exp() * table).sum(-1)
    by_hand = entropy[batch.mask[:, 1:]].mean()
    torch.testing.assert_close(token_entropy(trainer.model, batch), by_hand)
    torch.testing.assert_close(
        token_entropy(trainer.model, batch, temperature=2.0) > by_hand, torch.tensor(True)
    )


def test_its_gradient_against_finite_differences(trainer, batch):
    model = trainer.model
    token_entropy(model, batch).backward()
    for name in ("lm_head.weight", "model.layers.0.self_attn.v_proj.weight"):
        weight = model.get_parameter(name)
        direction = torch.randn_like(weight, generator=torch.Generator().manual_seed(1))
        h, ends = 1e-3, []
        for sign in (1, -1):
            with torch.no_grad():
                weight += sign * h * direction
                ends.append(token_entropy(model, batch).item())
                weight -= sign * h * direction
        slope = (ends[0] - ends[1]) / (2 * h)
        assert (weight.grad * direction).sum().item() == pytest.approx(slope, rel=0.02)


def test_updates_lower_the_entropy_of_the_same_samples_whatever_they_earned(trainer, batch):
    before = token_entropy(trainer.model, batch).item()
    logged = [trainer.learner.update(batch) for _ in range(3)]
    assert logged[0]["entropy"] == pytest.approx(before)
    assert before > logged[1]["entropy"] > logged[2]["entropy"]
    assert trainer.version == 3 and all(row["skipped_updates"] == 0 for row in logged)
