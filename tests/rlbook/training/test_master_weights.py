"""Training in bfloat16: float32 copies add up what bfloat16 would round away."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from rlbook.objectives import METHODS
from rlbook.training import MasterAdamW, RunConfig, Trainer, adamw
from rlbook.training.config import OptimizerConfig
from rlbook.training.sft import Answer, sft

TINY = OptimizerConfig(lr=1e-5)


def descend(optimizer, parameters, gradients):
    for gradient in gradients:
        for p in parameters:
            p.grad = gradient.to(p.dtype)
        optimizer.step()
        optimizer.zero_grad()


def test_a_thousand_updates_too_small_for_bfloat16_add_up():
    """At 1.0 bfloat16 steps by 1/256 down: AdamW itself would stand still for ever."""
    low, still = nn.Linear(1, 1, bias=False).bfloat16(), nn.Linear(1, 1, bias=False).bfloat16()
    for module in (low, still):
        nn.init.ones_(module.weight)
    optimizer, plain = adamw(low, TINY), torch.optim.AdamW(still.parameters(), 1e-5)
    assert isinstance(optimizer, MasterAdamW)
    gradients = [torch.ones(1, 1)] * 1000
    descend(optimizer, list(low.parameters()), gradients)
    descend(plain, list(still.parameters()), gradients)
    assert still.weight.item() == 1
    assert optimizer.masters[0].item() == pytest.approx(0.99, abs=1e-4)
    assert low.weight.item() == pytest.approx(0.99, abs=2**-8)


def test_the_copies_move_as_adamw_moves_float32():
    low, exact = nn.Linear(5, 3).bfloat16(), nn.Linear(5, 3)
    exact.load_state_dict({k: v.float() for k, v in low.state_dict().items()})
    settings = OptimizerConfig(lr=1e-2, weight_decay=0.1)
    optimizers = [adamw(m, settings) for m in (low, exact)]
    assert not isinstance(optimizers[1], MasterAdamW)
    gradients = [torch.randn(3, 1).bfloat16().expand(3, 1) for _ in range(20)]
    for optimizer, module in zip(optimizers, (low, exact), strict=True):
        for gradient in gradients:
            module.weight.grad = gradient.expand(3, 5).to(module.weight.dtype).clone()
            module.bias.grad = gradient[:, 0].to(module.bias.dtype).clone()
            optimizer.step()
            optimizer.zero_grad()
            assert module.weight.grad is None
    for master, p in zip(optimizers[0].masters, exact.parameters(), strict=True):
        torch.testing.assert_close(master, p)
    assert torch.equal(low.weight, optimizers[0].masters[0].bfloat16())


def test_what_does_not_learn_has_no_copy():
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)).bfloat16()
    module[0].requires_grad_(False)
    assert [tuple(p.shape) for p in adamw(module, TINY).masters] == [(2, 2), (2,)]


def test_weights_that_somebody_else_has_changed_are_kept():
    """Such as those of supervised updates between the making of a trainer and its first step."""
    module = nn.Linear(2, 1, bias=False).bfloat16()
    optimizer = adamw(module, TINY)
    with torch.no_grad():
        module.weight[0, 0] = 7.0
    descend(optimizer, [module.weight], [torch.tensor([[1.0, 1.0]])])
    assert optimizer.masters[0][0, 0].item() == pytest.approx(7 - 1e-5, abs=1e-6)


@pytest.fixture
def trainer(little_policy, parity, little):
    """A run in bfloat16 whose method compares log-probs that are computed again."""

    def make(folder=None, **changes):
        model, tokenizer = little_policy()
        model.bfloat16()
        policy = {"policy": (model, tokenizer), "task": parity}
        if folder:
            return Trainer.resume(folder, **policy)
        return Trainer(RunConfig(**{"method": "grpo", "steps": 4} | little | changes), **policy)

    return make


def test_a_resumed_run_goes_on_from_its_copies(trainer, tmp_path):
    unbroken, first = trainer(lr=1e-3), trainer(lr=1e-3)
    for _ in range(2):
        unbroken.train_one()
        first.train_one()
    first.save(tmp_path)
    again = trainer(tmp_path)
    masters = [t.learner.optimizers["model"].masters for t in (first, again)]
    assert all(torch.equal(a, b) for a, b in zip(*masters, strict=True))
    assert any(not torch.equal(m, m.bfloat16()) for m in masters[1])
    for _ in range(2):
        one, other = unbroken.train_one(), again.train_one()
        assert one["loss"] == other["loss"] and one["accuracy"] == other["accuracy"]
    for a, b in zip(unbroken.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_run_saved_before_its_first_update_can_be_resumed(trainer, tmp_path):
    trainer().save(tmp_path)
    assert trainer(tmp_path).train_one()["updates"] == 2


def test_the_trainer_computes_log_probs_of_its_own_in_bfloat16(trainer):
    """In float32 the sampler's are the policy's own but for the seventh digit."""
    run = trainer(method=replace(METHODS["grpo"], old_logprobs="recomputed"))
    rollouts = run.collect()
    batch = run.learner.prepare(rollouts)
    assert not torch.equal(batch.logp_old, batch.logp_sampler)
    assert 0 < run.learn(rollouts)["mismatch"] < 0.1


def test_supervised_updates_add_up_too(little_policy):
    model, tokenizer = little_policy()
    model.bfloat16()
    answers = [Answer(tokenizer("1+2=?").input_ids, [5, 6, 7, tokenizer.eos_token_id])] * 4
    losses = list(sft(model, answers, epochs=150, batch=4, lr=2e-5))
    assert losses[-1] < losses[0] - 0.02
