"""Every row trains on another device: no operation there may take a tensor from the CPU.

There need not be a GPU. `PretendedDevice` marks tensors as being on `cuda:0` while their numbers
stay where they are, answers `.device` accordingly, and refuses what a GPU would refuse.
"""

from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from rlbook.objectives import METHODS, DivergenceMask, KLPenalty, SamplerCorrection
from rlbook.training import Critic, RunConfig, Trainer, explained_variance

DEVICE = torch.device("cuda:0")
aten = torch.ops.aten
MOVES = {aten._to_copy.default, aten.copy_.default}
# An index into a tensor of a GPU may lie on the CPU.
INDEXED = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default}
INDEXED |= {aten._index_put_impl_.default}


class Marks:
    """Which storages are on the pretended device; all of them stay alive, so no address returns."""

    def __init__(self):
        self.storages = {}

    def has(self, tensor):
        return tensor.untyped_storage()._cdata in self.storages

    def put(self, result):
        for tensor in tensors_in(result):
            storage = tensor.untyped_storage()
            self.storages[storage._cdata] = storage
        return result


def tensors_in(tree):
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, dict):
        tree = tree.values()
    elif not isinstance(tree, tuple | list):
        return []
    return [tensor for branch in tree for tensor in tensors_in(branch)]


def is_there(device):
    return device is not None and torch.device(device).type == DEVICE.type


class Calls(TorchFunctionMode):
    """What Python asks: on which device a tensor is, and to make or to move one there."""

    def __init__(self, marks):
        super().__init__()
        self.marks = marks

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if function == Tensor.device.__get__:
            return DEVICE if self.marks.has(args[0]) else torch.device("cpu")
        if function == Tensor.is_cuda.__get__:
            return self.marks.has(args[0])
        if function in (Tensor.to, Tensor.cpu, Tensor.cuda):
            return self.moved(function, args, kwargs)
        if function is Tensor.numpy and self.marks.has(args[0]):
            raise TypeError("can't convert a cuda:0 tensor to numpy")
        if function is Tensor.__deepcopy__:
            copied = function(*args, **kwargs)
            return self.marks.put(copied) if self.marks.has(args[0]) else copied
        if is_there(kwargs.get("device")):
            kwargs["device"] = "cpu"
            return self.marks.put(function(*args, **kwargs))
        return function(*args, **kwargs)

    def moved(self, function, args, kwargs):
        tensor, *how = args
        target = DEVICE if self.marks.has(tensor) else torch.device("cpu")
        if function is Tensor.cpu:
            target, how = torch.device("cpu"), []
        if function is Tensor.cuda:
            target, how = DEVICE, []
        rest = {k: v for k, v in kwargs.items() if k not in ("device", "other", "non_blocking")}
        for asked in (*how, kwargs.get("device"), kwargs.get("other")):
            if isinstance(asked, Tensor):
                target = DEVICE if self.marks.has(asked) else torch.device("cpu")
                rest["dtype"] = asked.dtype
            elif isinstance(asked, torch.dtype):
                rest["dtype"] = asked
            elif isinstance(asked, str | torch.device):
                target = torch.device(asked)
        result = tensor.to(**rest) if rest else tensor
        if is_there(target) == self.marks.has(tensor):
            return self.marks.put(result) if is_there(target) else result
        result = result.clone() if result is tensor else result
        if not is_there(target):
            with torch._C._DisableTorchDispatch():
                return result.clone()
        return self.marks.put(result)


class Operations(TorchDispatchMode):
    """What is computed: the result is where the arguments are, and they are in one place."""

    def __init__(self, marks):
        super().__init__()
        self.marks = marks

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        given = tensors_in((args, kwargs))
        there = [tensor for tensor in given if self.marks.has(tensor)]
        here = [tensor for tensor in given if not self.marks.has(tensor) and tensor.ndim > 0]
        if function in INDEXED and self.marks.has(args[0]):
            here = tensors_in(args[2:])
            here = [tensor for tensor in here if not self.marks.has(tensor) and tensor.ndim > 0]
        if there and here and function not in MOVES:
            raise RuntimeError(
                f"{function}: tensors on cuda:0 and cpu, {[tuple(t.shape) for t in here]} of these"
            )
        result = function(*args, **kwargs)
        if function is aten.copy_.default:
            return result
        return self.marks.put(result) if there else result


@contextmanager
def pretended_device():
    marks = Marks()
    with Operations(marks), Calls(marks):
        yield marks


def there(*shape):
    return torch.ones(*shape, device=DEVICE)


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
    ],
)
def test_the_pretended_device_refuses_what_a_gpu_refuses(mix):
    with pretended_device(), pytest.raises((RuntimeError, TypeError), match="cuda:0"):
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
    ],
)
def test_the_pretended_device_allows_what_a_gpu_allows(allowed):
    with pretended_device():
        result = allowed()
        assert result.device == DEVICE
        assert result.cpu().device.type == "cpu"
        assert (result.cpu() + torch.ones(1)).device.type == "cpu"


TOP_K = replace(METHODS["dppo"], trust_region=DivergenceMask("tv", top_k=4))
CORRECTED = replace(METHODS["grpo"], sampler_correction=SamplerCorrection(2.0))
IN_REWARD = replace(METHODS["ppo"], kl=KLPenalty("k1", 0.1, "reward"))
FILTERED = replace(METHODS["rloo"], reward_shaping="overlong_filter")


def dense(rollouts):
    return {"dense": [[0.1] * (r.length - 1) + [float(r.correct)] for r in rollouts]}


def weights(model):
    return torch.cat([p.detach().cpu().flatten() for p in model.parameters()])


def one_step(config, policy, task, reward):
    trainer = Trainer(config, policy, task=task, reward=reward)
    rollouts = trainer.collect()
    return trainer, trainer.prepare(rollouts), trainer.learn(rollouts)


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
    with pretended_device() as marks:
        model, tokenizer = little_policy()
        config = config.replace(device="cuda:0")
        trainer, batch, got = one_step(config, (model.to(DEVICE), tokenizer), parity, reward)
        assert all(marks.has(tensor) for tensor in tensors_in(vars(batch)))
        assert all(marks.has(p) for p in trainer.model.parameters())
        ours = weights(trainer.model)
    assert got == pytest.approx(expected, rel=1e-3, abs=1e-4, nan_ok=True)
    torch.testing.assert_close(ours, weights(here.model), rtol=0, atol=1e-4)


def test_a_run_is_saved_from_another_device_and_resumed_on_the_cpu(
    little_policy, parity, little, tmp_path
):
    config = RunConfig(method="ppo", steps=3, sync_every=2, **little)
    with pretended_device():
        model, tokenizer = little_policy()
        model.to(DEVICE)
        trainer = Trainer(config.replace(device="cuda:0"), (model, tokenizer), task=parity)
        trainer.train_one()
        trainer.save(tmp_path)
        expected = weights(trainer.model), weights(trainer.critic)
    again = Trainer.resume(tmp_path, config, little_policy(), task=parity)
    assert again.config.model.device == "cpu"
    assert torch.equal(weights(again.model), expected[0])
    assert torch.equal(weights(again.critic), expected[1])
    assert again.train_one()["step"] == 2


def test_a_critic_stands_where_its_policy_does(little_policy):
    with pretended_device() as marks:
        model = little_policy()[0].to(DEVICE)
        critic = Critic(model)
        assert all(marks.has(p) for p in critic.parameters())
        values = critic(torch.ones(2, 3, dtype=torch.long).to(DEVICE), there(2, 3).bool())
        assert values.device == DEVICE
        assert explained_variance(values, there(2, 3), there(2, 3).bool()) == 0.0
