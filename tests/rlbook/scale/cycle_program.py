"""The trainer's whole cycle on a pretended GPU: load, update, save, load, update, gather, push.

`… <folder> <settings as JSON>` is one rank of it; `cycle` is what a test calls in its own process.
Whatever goes wrong is a finding, so that later stages still tell what they have to tell.
"""

import asyncio
import gc
import importlib.util
import json
import random
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest.mock import patch

import torch
import torch.distributed as dist
from fleet import Client, Generator

from rlbook.policy import set_threads
from rlbook.scale.config import ScaleConfig
from rlbook.scale.layout import Layout
from rlbook.scale.plan.budget import Budget, Prompts
from rlbook.scale.train.learner import ShardedLearner
from rlbook.scale.train.parallel import Ranks
from rlbook.scale.train.weights import FileTransport, NCCLTransport
from rlbook.scaling.shape import model_shape
from rlbook.tasks import Problem
from rlbook.training import Rollout
from rlbook.training.step import full_tensor

spec = importlib.util.spec_from_file_location(
    "pretended_gpu", Path(__file__).parents[1] / "pretended_gpu.py"
)
pretended = importlib.util.module_from_spec(spec)
spec.loader.exec_module(pretended)

DTYPE = torch.bfloat16  # of generators; another than the trainer's
BATCHES = 2  # before the checkpoint, and after it


def rollouts_of(step):
    """Three groups of four, of very different lengths, half of them right."""
    rng, found = random.Random(step), []
    for index in range(12):
        tokens = [rng.randrange(4, 29) for _ in range(rng.randrange(2, 14))]
        right = index % 4 < 2
        found.append(
            Rollout(
                Problem(f"p{index // 4}", "1+2=?", "3"), 3 * step + index // 4, [1, 9, 10], tokens,
                [-3.0 - rng.random() / 2 for _ in tokens],
                [max(0, step - index % 3)] * len(tokens), "stop", "",
                correct=right, rewards={"answer": 1.0 if right else -1.0},
            )
        )  # fmt: skip
    return found


def learner_on(ranks, root, device, changes):
    """A learner of the tiny policy; its settings speak of the device that it believes in."""
    defaults = {
        "run": str(root), "method": "scalerl", "steps": 8, "policy": "tiny", "device": device,
        "lr": 1e-3, "minibatches": 2, "micro_batch_tokens": 60,
    }  # fmt: skip
    # Weights travel in another dtype: even on one rank they have to be copied.
    transport = "nccl" if device == "cuda" else "file"
    generate = {"engine": "vllm", "dtype": "bfloat16", "transport": transport}
    config = ScaleConfig(**defaults | {"generate": generate} | changes)
    return ShardedLearner(config, Layout(root), ranks)


def weights_of(learner):
    named = learner.policy.named_parameters()
    return {name: full_tensor(p.detach()).cpu().clone() for name, p in named}


def largest_unit(learner):
    """Bytes of the largest layer, or of what is outside of the layers, in the generators' dtype."""
    itemsize = getattr(torch, learner.settings.generate.dtype).itemsize
    layers = learner.policy.base_model.layers
    sizes = [sum(p.numel() for p in layer.parameters()) for layer in layers]
    rest = sum(p.numel() for p in learner.policy.parameters()) - sum(sizes)
    return itemsize * max(*sizes, rest)


@dataclass
class Engine:
    """vLLM's sender, as far as a source sees it: every tensor once, on the device, as announced."""

    client: object
    source: object
    marks: object
    received: dict = field(default_factory=dict)
    elsewhere: list = field(default_factory=list)  # tensors that NCCL could not read

    def send_weights(self):
        with pretended.pretended_gpu(self.marks):  # this is a thread of its own
            self.client.start_weight_update()
            announced = self.source.metadata()
            self.client.update_weights({"names": [meta.name for meta in announced]})
            for meta, (name, tensor) in zip(announced, self.source, strict=True):
                assert (name, tensor.dtype, tuple(tensor.shape)) == tuple(vars(meta).values())
                assert len(pretended.tensors_in(tensor)) == 1 and tensor.is_contiguous(), name
                if not self.marks.has(tensor):
                    self.elsewhere.append(name)
                self.received[name] = tensor.cpu().clone()
            self.client.finish_weight_update()


def pretended_vllm(marks, engines):
    """Modules of the names that a transport imports."""

    def trainer_init(where, *, client, source):
        client.init_weight_transfer_engine({"world_size": where.world_size})
        engines.append(Engine(client, source, marks))
        return engines[-1]

    package = ModuleType("vllm.distributed.weight_transfer")
    package.ParamMeta = lambda name, dtype, shape: SimpleNamespace(
        name=name, dtype=dtype, shape=shape
    )
    package.WeightTransferTrainerFactory = SimpleNamespace(trainer_init=trainer_init)
    engine = ModuleType(f"{package.__name__}.nccl_engine")
    engine.NCCLTrainerInitInfo = lambda host, port, size, rank: SimpleNamespace(world_size=size)
    above = {name: ModuleType(name) for name in ("vllm", "vllm.distributed")}
    return patch.dict(sys.modules, above | {m.__name__: m for m in (package, engine)})


async def send(transport, learner, client):
    async with client.new_weights(learner.step, clear_cache=True):
        await transport.send(client, fresh=True)


def push(transport, learner, client):
    """What `WeightSync.deliver` does for one generator, which is not probed."""
    if not transport.ranks.first:
        return transport.follow()
    transport.prepare(learner.step)
    transport.expect([client])
    asyncio.run(send(transport, learner, client))
    transport.ranks.share(False)


def push_files(learner, root, ranks, found):
    """By files: what a generator reads, beside the weights."""
    generator = Generator()
    transport = FileTransport(learner.settings, Layout(root), ranks, learner.policy)
    push(transport, learner, Client(generator))
    ours = weights_of(learner)
    if ranks.first:
        read = generator.read
        found["files wrong"] = [n for n, w in ours.items() if not torch.equal(read[n], w.to(DTYPE))]


def budget_of(learner, transport):
    ranks = {"processes": learner.parallel.count}
    config = learner.settings.replace(generate={"transport": transport}, train=ranks)
    return Budget(config, model_shape("tiny"), Prompts(3, 3))


def attempt(findings: dict, name: str, stage: Callable) -> None:
    try:
        stage()
    except Exception as error:
        traceback.print_exc()
        findings[name] = f"{type(error).__name__}: {error}"[:300]


def learn(learner, steps):
    for step in steps:
        learner.learn(rollouts_of(step))


def on_the_gpu(ranks, root, changes, before_loading=lambda folder: None):
    """The cycle's findings by stage, and the weights at its end."""
    found, engines = {}, []
    ranks.device, ranks.optimizer_options = pretended.DEVICE, {"fused": True}
    with pretended.pretended_gpu() as marks, pretended_vllm(marks, engines):
        learner = learner_on(ranks, root, "cuda", changes)
        states = learner.policy.state_dict() | dict(learner.policy.named_buffers())
        found["loaded elsewhere"] = [name for name, t in states.items() if not marks.has(t)]
        del states
        attempt(found, "update", lambda: learn(learner, range(BATCHES)))
        with marks.meter():
            held = marks.bytes()
            attempt(found, "save", lambda: learner.begin_save({"tickets": 7}))
            found["save peak"] = marks.peak - held
            found["durable"] = learner.checkpoints.settle()
        before_loading(root)
        learner = learner_on(ranks, root, "cuda", changes)
        attempt(found, "load", learner.load)
        found["moments elsewhere"] = sorted(
            {
                f"{kind} of {name}"
                for name, parameter in learner.policy.named_parameters()
                for kind, value in learner.optimizers["model"].state[parameter].items()
                if marks.has(value) != marks.has(parameter)
            }
        )
        gc.collect()  # the learner before
        with marks.meter():
            attempt(found, "resumed update", lambda: learn(learner, range(BATCHES, 2 * BATCHES)))
            found["update peak"] = marks.peak
        found["planned"] = budget_of(learner, "nccl").trainer_memory
        with marks.meter():
            held = marks.bytes()
            attempt(found, "file push", lambda: push_files(learner, root, ranks, found))
            found["file push peak"] = marks.peak - held
            found["file push planned"] = budget_of(learner, "file").push_memory
        found["push planned"] = budget_of(learner, "nccl").push_memory
        transport = NCCLTransport(learner.settings, Layout(root), ranks, learner.policy)
        generator = Generator()
        with marks.meter():
            held = marks.bytes()
            attempt(found, "push", lambda: push(transport, learner, Client(generator)))
            found |= {"push peak": marks.peak - held, "left by push": marks.bytes() - held}
        ours = weights_of(learner)
        found |= {"unit": largest_unit(learner), "step": learner.step, "asked": generator.routes}
    if ranks.first:
        got = engines[-1]
        pairs = ((n, got.received.get(n, torch.empty(0)), w) for n, w in ours.items())
        found["sent wrong"] = [n for n, r, w in pairs if not torch.equal(r, w.to(r.dtype))]
        found["sent elsewhere"] = got.elsewhere
    return found, ours


def cycle(ranks, root, changes=None, **how):
    """Findings of the cycle, its `gap` being the largest to weights of an undisturbed CPU run."""
    changes, device, options = changes or {}, ranks.device, ranks.optimizer_options
    found, ours = on_the_gpu(ranks, root / "gpu", changes, **how)
    ranks.device, ranks.optimizer_options = device, options
    learner = learner_on(ranks, root / "cpu", "cpu", changes)
    learn(learner, range(2 * BATCHES))
    theirs = weights_of(learner)
    return found | {"gap": max(float((ours[n] - theirs[n]).abs().max()) for n in ours)}


def main(root, changes):
    set_threads()
    found = cycle(ranks := Ranks(), root, json.loads(changes))
    (root / f"rank{ranks.rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
