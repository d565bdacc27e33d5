"""What test_ranks runs on two ranks, and once more on a single one: `… <folder>`."""

import json
import random
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch.distributed.fsdp._fully_shard import _fsdp_param_group as fsdp

from rlbook.durable import replace_text
from rlbook.objectives import METHODS
from rlbook.policy import load_policy, load_tokenizer, set_threads
from rlbook.scale.batch_log import write_batch
from rlbook.scale.config import ScaleConfig, TrainConfig
from rlbook.scale.layout import Layout
from rlbook.scale.process import die_with_parent
from rlbook.scale.train import checkpoint, weights
from rlbook.scale.train.checkpoint import Checkpoints, own_tensors
from rlbook.scale.train.parallel import Ranks, shard
from rlbook.scale.train.trainer import ScaleTrainer
from rlbook.scale.train.weights import FileTransport, whole_tensors
from rlbook.tasks import Problem
from rlbook.training import Rollout, TrainBatch, train_step

AGGREGATIONS = ("sequence_mean", "token_mean", "prompt_mean", "constant")
UPDATES, BATCHES = 3, 4
ROWS = 7  # 7 rows of very different lengths: uneven slices, and a rank with nothing to do


def batch_of(seed):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(5, 40, (ROWS,), generator=generator)
    columns = torch.arange(int(lengths.max()))
    mask = (columns >= 3) & (columns < lengths[:, None])
    logps = torch.where(mask, -3.0 - torch.rand(mask.shape, generator=generator), 0.0)
    return TrainBatch(
        ids=torch.randint(4, 29, mask.shape, generator=generator),
        mask=mask,
        logp_sampler=logps,
        rewards=torch.zeros(ROWS),
        groups=torch.tensor([4, 4, 4, 9, 9, 2, 2]),
        finished=torch.ones(ROWS, dtype=torch.bool),
        versions=torch.zeros_like(mask, dtype=torch.long),
        logp_old=logps,
        advantages=torch.randn(ROWS, generator=generator),
        staleness=torch.arange(ROWS)[:, None].expand_as(mask) // 3,
    )


def method_of(aggregation):
    return replace(METHODS["cispo"], aggregation=aggregation, constant=40.0)


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=1.5e-4, foreach=True)


def update(model, optimizer, seed, aggregation="prompt_mean", **how):
    """Slices of at most 48 tokens: the longest rows alone, short ones together."""
    method = method_of(aggregation)
    return train_step(model, optimizer, batch_of(seed), method, micro_batch_tokens=48, **how)


class Sharded:
    def __init__(self, ranks):
        self.ranks, (self.policy, _) = ranks, load_policy()
        shard(self.policy, ranks.mesh, TrainConfig())
        self.optimizer = adamw(self.policy)

    def update(self, seed, **how):
        return update(self.policy, self.optimizer, seed, parallel=self.ranks, **how)

    def weights(self):
        return {n: t.clone() for n, t in whole_tensors(self.policy, torch.float32)}


def rollouts_of(step):
    rng = random.Random(step)
    lengths = [rng.randrange(2, 30) for _ in range(8)]
    return [
        Rollout(
            problem=Problem(f"p{i // 4}", "", ""),
            group=2 * step + i // 4,
            prompt_ids=[1, 9, 10],
            token_ids=[rng.randrange(4, 29) for _ in range(length)],
            logps=[-3.0] * length,
            versions=[max(0, step - i % 3)] * length,
            finish_reason="stop",
            text="",
            correct=i % 4 < 2,
            rewards={"answer": 1.0 if i % 4 < 2 else -1.0},
        )
        for i, length in enumerate(lengths)
    ]


def run_folder(root):
    layout = Layout(root)
    root.mkdir(parents=True, exist_ok=True)
    replace_text(layout.run_id, "cafe")
    for step in range(BATCHES):
        write_batch(layout, step, rollouts_of(step), {"step": step})
    return layout


def run_config(root):
    """Everything that a learner may have to compute besides log-probs, and several updates."""
    optimizer = {"minibatches": 2, "epochs": 2, "micro_batch_tokens": 48}
    region = {"type": "DivergenceMask", "kind": "tv", "low": 0.1, "high": 0.1, "top_k": 5}
    selection = {"type": "TopEntropy", "share": 0.5}
    method = {"name": "grpo", "trust_region": region, "entropy_bonus": 0.01, "selection": selection}
    return ScaleConfig(
        run=str(root),
        steps=BATCHES,
        method=method,
        optimizer=optimizer,
        checkpoint={"every": 2},
    )


def equality(ranks, out, aggregations=AGGREGATIONS):
    """Weights and metrics after a few updates, for every aggregation."""
    rows = {}
    for aggregation in aggregations:
        sharded = Sharded(ranks)
        rows[aggregation] = [sharded.update(s, aggregation=aggregation) for s in range(UPDATES)]
        save(out / f"{aggregation}.safetensors", sharded.weights(), ranks)
    return rows


def accumulating(ranks, out):
    """Gradients that are summed over ranks once an update: the same ones, and how many sums?"""
    sums = {}
    for ranks.accumulate in (False, True):
        sharded = Sharded(ranks)
        with (
            patch.object(fsdp, "foreach_reduce", wraps=fsdp.foreach_reduce) as summed,
            patch.object(dist, "all_reduce", wraps=dist.all_reduce) as between,
        ):
            sharded.update(0)
        copies = [call for call in between.mock_calls if call.kwargs.get("group")]
        sums[ranks.accumulate] = len(copies) if ranks.shards < ranks.count else summed.call_count
        sharded.update(1)
    ranks.accumulate = False
    save(out / "accumulated.safetensors", sharded.weights(), ranks)
    rounds = len(list(ranks.micro_batches(batch_of(0), 48)))
    return {"rounds": rounds, "each": sums[False], "once": sums[True]}


def non_finite(ranks):
    """A row of one rank has a NaN advantage: which ranks see it, who skips, what changes."""
    sharded = Sharded(ranks)
    before, batch = sharded.weights(), batch_of(0)
    batch.advantages[0] = float("nan")
    mine = torch.cat([rows for rows, _ in ranks.micro_batches(batch, 48)]).tolist()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        metrics = train_step(
            sharded.policy, sharded.optimizer, batch, method_of("token_mean"),
            micro_batch_tokens=48, parallel=ranks,
        )  # fmt: skip
    after = sharded.weights()
    return {
        "has_row": 0 in mine,
        "skipped": metrics["skipped_updates"],
        "named": [str(w.message) for w in caught if "non-finite" in str(w.message)],
        "unchanged": all(torch.equal(before[name], after[name]) for name in before),
        "moments": len(sharded.optimizer.state),
    }


def save_step(checkpoints, sharded, step):
    policy = (sharded.policy, load_tokenizer())
    checkpoints.begin(policy, sharded.optimizer, {"step": step}, {})
    return checkpoints.settle()


def resuming(ranks, out):
    """Save, go on; load into a fresh model, go on: the same bits?"""
    folder = out / f"checkpoints{ranks.count}"
    checkpoints, first = Checkpoints(Layout(folder), ranks), Sharded(ranks)
    losses = [first.update(seed)["loss"] for seed in (0, 1)]
    save_step(checkpoints, first, 2)
    losses += [first.update(seed)["loss"] for seed in (2, 3)]
    save(out / f"straight{ranks.count}.safetensors", first.weights(), ranks)
    second = Sharded(ranks)
    state = checkpoints.load(second.policy, second.optimizer)
    again = [second.update(seed)["loss"] for seed in (2, 3)]
    ours, theirs = first.weights(), second.weights()
    return {
        "state": state,
        "same_losses": again == losses[2:],
        "same_bits": all(torch.equal(ours[name], theirs[name]) for name in ours),
    }


def continuing(ranks, out, wrote):
    """Go on from a checkpoint that `wrote` ranks have written."""
    sharded = Sharded(ranks)
    Checkpoints(Layout(out / f"checkpoints{wrote}"), ranks).load(sharded.policy, sharded.optimizer)
    for seed in (2, 3):
        sharded.update(seed)
    return sharded.weights()


def full_disk(ranks, out):
    """The disk of the last rank is full: does everybody know?"""
    sharded, original = Sharded(ranks), checkpoint.save_file
    checkpoints = Checkpoints(Layout(out / "full"), ranks)
    saved = [save_step(checkpoints, sharded, 1)]

    def fail(*arguments):
        raise OSError(28, "No space left on device")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        checkpoint.save_file = fail if ranks.rank == ranks.count - 1 else original
        saved.append(save_step(checkpoints, sharded, 2))
        checkpoint.save_file = original
    state = checkpoints.load(sharded.policy, sharded.optimizer)
    saved.append(save_step(checkpoints, sharded, 3))
    return {"saved": saved, "step": state["step"]}


def damaged_share(ranks, out):
    """A byte of the second rank's rows is wrong: what is said, and where does everybody go on?"""
    sharded, folder = Sharded(ranks), out / "damaged"
    checkpoints, moments = Checkpoints(Layout(folder), ranks), []
    for step in (1, 2):
        sharded.update(step)
        save_step(checkpoints, sharded, step)
        moments.append(own_tensors(sharded.policy, sharded.optimizer, ranks)[0])
    if ranks.first:
        file = folder / "step_000002/rank_00001.safetensors"
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)
    ranks.collect(None)
    later = Sharded(ranks)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        state = checkpoints.load(later.policy, later.optimizer)
    (got, _), (expected, _) = own_tensors(later.policy, later.optimizer, ranks), moments
    return {
        "said": [str(w.message) for w in caught if "damaged" in str(w.message)],
        "step": state["step"],
        "same": all(torch.equal(got[name], expected[name]) for name in expected),
        "left": sorted(path.name for path in folder.iterdir()) if ranks.first else [],
    }


def full_disk_of_a_push(ranks, out):
    """Rank 0 cannot write the weights: the others do not wait, and another try succeeds."""
    sharded, layout, original = Sharded(ranks), Layout(out / "pushed"), weights.save_file
    config, failed = ScaleConfig(run=str(layout.root)), []
    link = FileTransport(config, layout, ranks, sharded.policy)

    def fail(*arguments):
        raise OSError(28, "No space left on device")

    for writer in (fail, original):
        weights.save_file, problem = writer, None
        if ranks.first:
            try:
                link.prepare(1)
            except OSError as error:
                problem = str(error)
            ranks.share(False)
        else:
            link.follow()
        failed.append(ranks.share(bool(problem)))
    save(out / "as_pushed.safetensors", sharded.weights(), ranks)
    return failed


def talking(ranks):
    return {
        "shared": ranks.share({"from": ranks.rank}),
        "collected": ranks.collect([ranks.rank] * (ranks.rank + 1)),
    }


def save(path, tensors, ranks):
    if ranks.first:
        save_file(tensors, path)


def slope(model, **how):
    """Weights after a step of plain gradient descent at a rate of 1: they show the gradient."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    return update(model, optimizer, 0, **how)["grad_norm"]


def copies(out):
    """What ranks do of which every two hold a copy of the weights."""
    ranks = Ranks(shard=2)
    sharded = Sharded(ranks)
    results = {
        "grad_norm": slope(sharded.policy, parallel=ranks),
        "rows": sum(p.to_local().numel() for p in sharded.policy.parameters()),
    }
    save(out / "slope.safetensors", sharded.weights(), ranks)
    results |= {
        "equality": equality(ranks, out, ["prompt_mean"]),
        "accumulating": accumulating(ranks, out),
        "resuming": resuming(ranks, out),
        "full_disk_of_a_push": full_disk_of_a_push(ranks, out),
    }
    save(out / "from_one.safetensors", continuing(ranks, out, 1), ranks)
    (out / f"rank{ranks.rank}.json").write_text(json.dumps(results))
    dist.destroy_process_group()


def main(out):
    ranks = Ranks()
    results = {
        "equality": equality(ranks, out),
        "accumulating": accumulating(ranks, out),
        "non_finite": non_finite(ranks),
        "resuming": resuming(ranks, out),
        "full_disk": full_disk(ranks, out),
        "damaged_share": damaged_share(ranks, out),
        "full_disk_of_a_push": full_disk_of_a_push(ranks, out),
        "talking": talking(ranks),
    }
    save(out / "from_one.safetensors", continuing(ranks, out, 1), ranks)
    ScaleTrainer(Layout(out / "run"), run_config(out / "run")).run()
    (out / f"rank{ranks.rank}.json").write_text(json.dumps(results))
    dist.destroy_process_group()


if __name__ == "__main__":
    die_with_parent()
    set_threads()
    {"main": main, "copies": copies}[sys.argv[2]](Path(sys.argv[1]))
