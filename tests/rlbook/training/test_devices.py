"""Every row trains on another device: no operation there may take a tensor from the CPU.

There need not be a GPU: see `pretended_gpu`.
"""

import importlib
import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rlbook.evaluation import evaluate_run
from rlbook.objectives import METHODS, DivergenceMask, KLPenalty, SamplerCorrection
from rlbook.training import Critic, RunConfig, Trainer, explained_variance

scoring = importlib.import_module("rlbook.policy.logprobs")  # the package has a function so named
spec = importlib.util.spec_from_file_location(
    "pretended_gpu", Path(__file__).parents[1] / "pretended_gpu.py"
)
pretended = importlib.util.module_from_spec(spec)
spec.loader.exec_module(pretended)
DEVICE, pretended_gpu, tensors_in = (
    getattr(pretended, name) for name in ("DEVICE", "pretended_gpu", "tensors_in")
)


def there(*shape):
    return torch.ones(*shape, device=DEVICE)


def fused_adamw(steps):
    """An update by a kernel that reads its scalars on the device."""
    weight, zeros = there(3), there(3)
    torch._fused_adamw_(
        [weight], [zeros], [zeros * 0], [zeros * 0], [], [steps], lr=1e-3, beta1=0.9, beta2=0.95,
        weight_decay=0.0, eps=1e-8, amsgrad=False, maximize=False,
    )  # fmt: skip
    return weight


@pytest.mark.parametrize(
    "mix",
    [
        lambda: there(3) + torch.ones(3),
        lambda: torch.ones(3) * there(1)[0],
        lambda: torch.stack([there(2), torch.ones(2)]),
        lambda: torch.isin(there(3), torch.ones(2)),
        lambda: torch.ones(3)[there(2).long()],
        lambda: torch.where(there(3) > 0, torch.ones(3), there(3)),
        lambda: there(3).to(torch.float64) + torch.ones(3).to(there(1).cpu()),
        lambda: torch.nn.Linear(2, 2, device=DEVICE)(torch.ones(1, 2)),
        lambda: there(3).numpy(),
        lambda: fused_adamw(torch.tensor(1.0)),
    ],
)
def test_the_pretended_device_refuses_what_a_gpu_refuses(mix):
    with pretended_gpu(), pytest.raises((RuntimeError, TypeError), match="cuda:0"):
        mix()


@pytest.mark.parametrize(
    "allowed",
    [
        lambda: there(3) + torch.ones(3).to(DEVICE),
        lambda: there(3) + torch.ones(()),
        lambda: there(3)[torch.tensor([0, 2])],
        lambda: there(3).copy_(torch.ones(3)),
        lambda: torch.ones(3).to(there(1)) + there(3),
        lambda: torch.zeros_like(there(3)) + there(3).new_zeros(3),
        lambda: torch.nn.Linear(2, 2).to(DEVICE)(there(1, 2)),
        lambda: fused_adamw(there(1)[0]),
    ],
)
def test_the_pretended_device_allows_what_a_gpu_allows(allowed):
    with pretended_gpu():
        result = allowed()
        assert result.device == DEVICE
        assert result.cpu().device.type == "cpu"
        assert (result.cpu() + torch.ones(1)).device.type == "cpu"


TOP_K = replace(METHODS["dppo"], trust_region=DivergenceMask("tv", top_k=4))
CORRECTED = replace(METHODS["grpo"], sampler_correction=SamplerCorrection(2.0))
IN_REWARD = replace(METHODS["ppo"], kl=KLPenalty("k1", 0.1, "reward"))
FILTERED = replace(METHODS["rloo"], reward_shaping="overlong_filter")


def test_products_of_lower_precision_are_added_in_place_where_a_gpu_can(monkeypatch):
    """Where it cannot, piece by piece: to the same float32 sums."""
    torch.manual_seed(0)
    left, right, start = torch.randn(70, 3), torch.randn(3, 20), torch.randn(70, 20)
    sums = []
    with pretended_gpu():
        scoring._adds_to_float32.cache_clear()
        assert scoring._adds_to_float32()
        for able in (True, False):
            monkeypatch.setattr(scoring, "_adds_to_float32", lambda able=able: able)
            total = start.to(DEVICE)
            scoring.add_product(
                total, left.to(DEVICE, torch.bfloat16), right.to(DEVICE, torch.bfloat16)
            )
            sums.append(total.cpu())
    expected = start + left.bfloat16().float() @ right.bfloat16().float()
    torch.testing.assert_close(sums[0], expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(sums[1], expected, rtol=0, atol=1e-5)


def test_memory_of_the_pretended_device_is_that_of_what_is_alive_on_it():
    with pretended_gpu() as marks, marks.meter():
        kept = there(1000)
        freed = there(500) + 1.0
        assert marks.bytes() == 6000
        del freed
        torch.ones(9999)
        assert marks.bytes() == kept.nbytes
        kept.untyped_storage().resize_(0)  # as FSDP frees what it has gathered
        assert marks.bytes() == 0
        assert marks.peak == 8000  # the sum, and the ones that it was made of


def dense(rollouts):
    return {"dense": [[0.1] * (r.length - 1) + [float(r.correct)] for r in rollouts]}


def weights(model):
    return torch.cat([p.detach().cpu().flatten() for p in model.parameters()])


def moments(trainer):
    """What Adam keeps of the gradients: linear in them, where its steps blow up their rounding."""
    states = trainer.learner.optimizers["model"].state.values()
    return torch.cat([state["exp_avg"].cpu().flatten() for state in states])


def one_step(config, policy, task, reward):
    trainer = Trainer(config, policy, task=task, reward=reward, evaluate=evaluate_run)
    rollouts = trainer.collect()
    return trainer, trainer.learner.prepare(rollouts), trainer.learn(rollouts)


@pytest.mark.parametrize("method", [*METHODS, TOP_K, CORRECTED, IN_REWARD, FILTERED])
def test_every_row_trains_on_another_device_as_on_the_cpu(method, little_policy, parity, little):
    """Small micro-batches, a stale sampler and an evaluation, so that all that moves is moved."""
    config = RunConfig(
        method=method,
        **little | {"max_new_tokens": 8},
        micro_batch_tokens=64,
        sync_every=2,
        evaluation={"every": 1, "prompts": 2, "samples": 1},
    )
    reward = dense if method in ("reinforce_plus_plus", IN_REWARD) else None
    here, _, expected = one_step(config, little_policy(), parity, reward)
    with pretended_gpu() as marks:
        model, tokenizer = little_policy()
        config = config.replace(device="cuda:0")
        trainer, batch, got = one_step(config, (model.to(DEVICE), tokenizer), parity, reward)
        assert all(marks.has(tensor) for tensor in tensors_in(vars(batch)))
        assert all(marks.has(p) for p in trainer.model.parameters())
        ours = moments(trainer)
    assert got == pytest.approx(expected, rel=1e-3, abs=1e-4, nan_ok=True)
    assert (ours - moments(here)).norm() <= 1e-3 * moments(here).norm()


def test_a_run_is_saved_from_another_device_and_resumed_on_the_cpu(
    little_policy, parity, little, tmp_path
):
    config = RunConfig(method="ppo", steps=3, sync_every=2, **little)
    with pretended_gpu():
        model, tokenizer = little_policy()
        model.to(DEVICE)
        trainer = Trainer(config.replace(device="cuda:0"), (model, tokenizer), task=parity)
        trainer.train_one()
        trainer.save(tmp_path)
        expected = weights(trainer.model), weights(trainer.learner.critic)
    again = Trainer.resume(tmp_path, config, policy=little_policy(), task=parity)
    assert again.config.model.device == "cpu"
    assert torch.equal(weights(again.model), expected[0])
    assert torch.equal(weights(again.learner.critic), expected[1])
    assert again.train_one()["step"] == 2


def test_a_critic_stands_where_its_policy_does(little_policy):
    with pretended_gpu() as marks:
        model = little_policy()[0].to(DEVICE)
        critic = Critic(model)
        assert all(marks.has(p) for p in critic.parameters())
        values = critic(torch.ones(2, 3, dtype=torch.long).to(DEVICE), there(2, 3).bool())
        assert values.device == DEVICE
        assert explained_variance(values, there(2, 3), there(2, 3).bool()) == 0.0
