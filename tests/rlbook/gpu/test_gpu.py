"""What must hold on a GPU. Those that start no stage and want one GPU have passed on an H200,
the others have not run there; on CPUs, tests/workshop/bench runs the same."""

import asyncio
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rlbook.policy import load_policy, logprobs
from rlbook.scale.process import free_port
from workshop.bench import gpu

SMALL = replace(gpu.TINY, device="cuda", dtype="bfloat16", micro_batch_tokens=4096)


def test_float32_sums_of_rounded_operands():
    """As exact as float32 copies, faster, and without their memory."""
    setting = replace(SMALL, heads=((4096, 32_000, 1024),), repeats=5)
    rows = {row["form"]: row for row in gpu.head(setting)}
    copies, sums = rows["float32 copies"], rows["float32 sums"]
    assert sums["logp_error"] < 1e-4 < rows["rounded logits"]["logp_error"]
    assert sums["gradient_error"] < 2**-6
    assert sums["seconds"] < copies["seconds"]


def test_the_cpu_computes_the_same_head():
    torch.manual_seed(0)
    model, _ = load_policy("tiny", torch.bfloat16)
    ids = torch.randint(4, 29, (4, 32))
    mask = torch.arange(32).expand(4, -1) >= 3
    on_cpu = logprobs(model, ids, mask, 0.7)
    on_gpu = logprobs(model.cuda(), ids.cuda(), mask.cuda(), 0.7).cpu()
    assert (on_cpu - on_gpu).abs().mean() < 0.02  # the bodies round in another order


def test_memory_of_an_update_stays_within_the_budget():
    (row,) = gpu.update(replace(SMALL, rollouts=64, new_tokens=200))
    assert row["peak_gb"] < row["budget_gb"]


def test_a_resumed_trainer_goes_on_where_it_was():
    (row,) = gpu.resume(SMALL)
    assert row["durable"] and row["largest_weight_gap"] < 1e-6
    assert row["loss"] == pytest.approx(row["loss_resumed"], rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("stage", ["generate", "push", "pipeline", "restart", "nccl"])
def test_a_stage_runs_in_its_own_interpreter(stage, tmp_path):
    """Decoding and mismatch at staleness 0, a push by files, a colocated run, one whose generator
    is killed beside the trainer, and one that sends to two generators by NCCL."""
    became = gpu.run_stage(stage, SMALL, tmp_path, 600)
    if became.startswith("skipped"):
        pytest.skip(became)
    assert became == f"wrote {tmp_path / stage}.csv"


def test_many_updates_after_a_resume(tmp_path):
    """An optimizer whose step counts are in the wrong place dies in the first of them."""
    from rlbook.scale.layout import Layout
    from rlbook.scale.train.learner import ShardedLearner
    from rlbook.scale.train.parallel import Ranks

    config, ranks = SMALL.config(str(tmp_path)), Ranks("cuda")
    first = ShardedLearner(config, Layout(tmp_path), ranks)
    rollouts = gpu.made_up(SMALL, first.policy.config.vocab_size)
    first.learn(rollouts)
    first.begin_save({})
    assert first.checkpoints.settle()
    second = ShardedLearner(config, Layout(tmp_path), ranks)
    second.load()
    states = second.optimizers["model"].state.items()
    assert all(value.device == p.device for p, state in states for value in state.values())
    losses = [second.learn(rollouts)["loss"] for _ in range(3)]
    torch.cuda.synchronize()
    assert all(torch.isfinite(torch.tensor(losses)))


def test_the_heads_gradient_is_summed_in_place():
    """total += left @ right in float32 of bfloat16 operands, as exact as float32 copies."""
    from rlbook.policy.logprobs import add_product

    torch.manual_seed(0)
    left, right = (torch.randn(512, 512, device="cuda").bfloat16() for _ in range(2))
    total = torch.randn(512, 512, device="cuda")
    expected = total.double() + left.double() @ right.double()
    add_product(total, left.T.contiguous().T, right)
    assert (total.double() - expected).abs().max() < 1e-3


PEER = """
import sys, time
import torch
from vllm.distributed.weight_transfer.nccl_common import trainer_init

torch.cuda.set_device(1)
address = {"master_address": "127.0.0.1", "master_port": int(sys.argv[1]), "world_size": 2}
trainer_init(address, rank=1)
print("joined", flush=True)
time.sleep(600)  # it never receives
"""


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="NCCL wants a GPU for every process")
def test_a_generator_killed_inside_a_push_ends_the_rank_in_time(tmp_path):
    pytest.importorskip("vllm")
    port = free_port("127.0.0.1")
    with subprocess.Popen([sys.executable, "-c", PEER, str(port)], stdout=subprocess.PIPE) as peer:
        program = [sys.executable, __file__, str(port)]
        with subprocess.Popen(program, stderr=subprocess.PIPE, text=True) as trainer:
            while peer.stdout.readline() not in (b"joined\n", b""):
                pass  # what libraries print
            peer.kill()
            _, errors = trainer.communicate(timeout=600)
    assert trainer.returncode == 1 and "failed (time limit)" in errors


def hanging_push(port):
    """A trainer in the middle of a broadcast that nobody receives."""
    from types import SimpleNamespace

    from vllm.distributed.weight_transfer.nccl_common import trainer_init

    from rlbook.scale.config import ScaleConfig
    from rlbook.scale.layout import Layout
    from rlbook.scale.train.weights import NCCLTransport

    ranks = SimpleNamespace(device=torch.device("cuda", 0), first=True)
    client = SimpleNamespace(url="http://127.0.0.1:1", name="generator0")
    address = {"master_address": "127.0.0.1", "master_port": port, "world_size": 2}

    class Hanging(NCCLTransport):
        def meet(self, routes, generators):
            return self

        def send_weights(self):
            group = trainer_init(address)
            group.broadcast(torch.ones(2**28, device="cuda"), src=0)
            torch.cuda.synchronize()

    async def push():
        transport = Hanging(ScaleConfig(), Layout(Path(os.curdir)), ranks, policy=None)
        transport.expect([client])
        async with asyncio.timeout(90):
            await transport.send(client, fresh=True)

    asyncio.run(push())


if __name__ == "__main__":
    hanging_push(int(sys.argv[1]))
