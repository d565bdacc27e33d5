"""What test_lora runs on several ranks: `… <folder> main|copies`."""

import json
import random
import sys
from pathlib import Path
from unittest.mock import patch

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch.distributed.tensor import distribute_tensor

from rlbook.durable import replace_text
from rlbook.policy import set_threads
from rlbook.policy.adapters import adapter_weights, base_weights
from rlbook.scale.batch_log import write_batch
from rlbook.scale.config import ScaleConfig, load_config
from rlbook.scale.layout import Layout
from rlbook.scale.process import die_with_parent
from rlbook.scale.train import weights as transports
from rlbook.scale.train.learner import ShardedLearner
from rlbook.scale.train.parallel import Ranks
from rlbook.scale.train.trainer import ScaleTrainer
from rlbook.scale.train.weights import FileTransport
from rlbook.tasks import Problem
from rlbook.training import Rollout

STEPS = 3
KL = {"name": "grpo", "kl": {"beta": 0.1}, "old_logprobs": "sampler"}
SLOW = {"lr": 1.5e-4, "minibatches": 2, "micro_batch_tokens": 30}
UPDATES = 2  # before a checkpoint, and as many after


def settings(root, **changes):
    defaults = {
        "run": str(root),
        "method": KL,
        "steps": STEPS,
        "model": {"lora": {"rank": 4, "alpha": 8}},
        "generate": {"engine": "builtin", "dtype": "float32"},
        "optimizer": {"lr": 1e-2, "minibatches": 2, "micro_batch_tokens": 60},
        "checkpoint": {"every": 2},
    }
    return ScaleConfig(**defaults | changes)


def rollouts_of(step):
    rng = random.Random(step)
    return [
        Rollout(
            problem=Problem(f"p{i // 4}", "", ""),
            group=2 * step + i // 4,
            prompt_ids=[1, 9, 10],
            token_ids=(tokens := [rng.randrange(4, 29) for _ in range(rng.randrange(2, 12))]),
            logps=[-3.0 - rng.random() for _ in tokens],
            versions=[step] * len(tokens),
            finish_reason="stop",
            text="",
            correct=i % 4 < 2,
            rewards={"answer": float(i % 4 < 2)},
        )
        for i in range(8)
    ]


def run_folder(root, batches=STEPS):
    layout = Layout(root)
    root.mkdir(parents=True, exist_ok=True)
    replace_text(layout.run_id, "cafe")
    for step in range(batches):
        write_batch(layout, step, rollouts_of(step), {"step": step})
    return layout


def whole(tensors):
    return {n: getattr(t, "full_tensor", lambda t=t: t)() for n, t in tensors.items()}


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)


@torch.no_grad()
def stir(model):
    """B is nothing at first, and so would be the gradient of A."""
    generator = torch.Generator().manual_seed(0)
    for name, weight in adapter_weights(model).items():
        if "lora_B" in name:
            drawn = 0.02 * torch.randn(weight.shape, generator=generator)
            if hasattr(weight, "placements"):
                drawn = distribute_tensor(drawn, weight.device_mesh, weight.placements)
            weight.copy_(drawn)


def learner_of(ranks, root, **train):
    """A learner of small steps, whose adapter is something already."""
    config = settings(root, optimizer=SLOW, train={"processes": ranks.count, **train})
    learner = ShardedLearner(config, Layout(root), ranks)
    stir(learner.policy)
    return learner


def learned(learner, first=0):
    """The rows of some updates."""
    return [learner.learn(rollouts_of(step)) for step in range(first, first + UPDATES)]


def adapter_of(learner):
    return {n: t.clone() for n, t in whole(adapter_weights(learner.policy)).items()}


def base_of(learner):
    return {n: t.clone() for n, t in whole(base_weights(learner.policy)).items()}


def equality(ranks, out, **train):
    """What some updates make of the adapter, and of its base."""
    learner = learner_of(ranks, out / "none", **train)
    before, rows = base_of(learner), learned(learner)
    frozen = [p for name, p in learner.policy.named_parameters() if ".lora_" not in name]
    own = learner.optimizers["model"].state
    found = {
        "rows": rows,
        "base_untouched": equal(base_of(learner), before),
        "base_gradients": sum(p.grad is not None for p in frozen),
        "base_moments": sum(p in own for p in frozen),
        "numbers_here": sum(p.to_local().numel() for p in learner.policy.parameters()),
    }
    return found, adapter_of(learner)


def resuming(ranks, out):
    """Save, go on; load into another learner, go on: the same bits?"""
    root = out / f"run{ranks.count}"
    first = learner_of(ranks, root)
    learned(first)
    first.begin_save({})
    first.checkpoints.settle()
    learned(first, UPDATES)
    straight = adapter_of(first)
    save(out / f"straight{ranks.count}.safetensors", straight, ranks)
    return equal(continuing(ranks, out, ranks.count), straight)


def continuing(ranks, out, wrote):
    """The adapter of a learner that goes on from the checkpoint of `wrote` ranks."""
    learner = learner_of(ranks, out / f"run{wrote}")
    learner.load()
    learned(learner, UPDATES)
    return adapter_of(learner)


def pushing(ranks, out):
    """An adapter as vLLM gets it, and the merged weights that the book's own sampler gets."""
    learner = learner_of(ranks, out / "pushed")
    learned(learner)
    save(out / "as_pushed.safetensors", adapter_of(learner), ranks)
    for version, alone in enumerate((False, True)):
        with patch.object(transports, "takes_adapters", lambda config, alone=alone: alone):
            link = FileTransport(learner.settings, Layout(out / "pushed"), ranks, learner.policy)
        if ranks.first:
            link.prepare(version)
            ranks.share(False)
        else:
            link.follow()


def save(path, tensors, ranks):
    if ranks.first:
        save_file({name: t.contiguous() for name, t in tensors.items()}, path)


def copies(out):
    """What ranks do of which every two hold a copy of base and adapter."""
    ranks = Ranks(shard=2)
    results = {}
    for name, train in (("plain", {}), ("bfloat16", {"dtype": "bfloat16"})):
        results[name], adapter = equality(ranks, out, **train)
        save(out / f"{name}.safetensors", adapter, ranks)
    ranks.accumulate = True
    results["accumulated"], adapter = equality(ranks, out)
    save(out / "accumulated.safetensors", adapter, ranks)
    ranks.accumulate = False
    results["same_bits"] = resuming(ranks, out)
    save(out / "from_one.safetensors", continuing(ranks, out, 1), ranks)
    pushing(ranks, out)
    (out / f"rank{ranks.rank}.json").write_text(json.dumps(results))


def main(root):
    """A run, trained from its log to the end."""
    layout = Layout(root)
    ScaleTrainer(layout, load_config(layout.config)).run()


if __name__ == "__main__":
    die_with_parent()
    set_threads()
    {"main": main, "copies": copies}[sys.argv[2]](Path(sys.argv[1]))
    dist.destroy_process_group()
