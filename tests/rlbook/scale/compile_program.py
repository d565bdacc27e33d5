"""What test_parallel runs on four ranks, of which every two hold a copy: `… <folder>`."""

import json
import sys
from pathlib import Path

import ranks_program as program
import torch.distributed as dist
from torch._dynamo.utils import counters

from rlbook.policy import load_policy, set_threads
from rlbook.scale.config import TrainConfig
from rlbook.scale.process import die_with_parent
from rlbook.scale.train.parallel import Ranks, shard
from rlbook.scale.train.weights import whole_tensors

COMPILED = {"compile_layers": True, "compile_head": True}


def slope(ranks, **train):
    """Weights after a step of plain gradient descent, its norm, and how many graphs it took."""
    counters.clear()
    policy, _ = load_policy()
    shard(policy, ranks.mesh, TrainConfig(activation_checkpointing=True, **train))
    norm = program.slope(policy, parallel=ranks)
    tensors = {n: t.clone() for n, t in whole_tensors(policy, policy.dtype)}
    return tensors, {"grad_norm": norm, "graphs": counters["stats"]["unique_graphs"]}


if __name__ == "__main__":
    die_with_parent()
    set_threads()
    out, ranks, found = Path(sys.argv[1]), Ranks(shard=2), {}
    for name, train in (("plain", {}), ("compiled", COMPILED)):
        tensors, found[name] = slope(ranks, **train)
        program.save(out / f"{name}.safetensors", tensors, ranks)
    (out / f"rank{ranks.rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()
