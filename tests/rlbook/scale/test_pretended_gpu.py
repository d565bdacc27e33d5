"""What a laptop can find out about a trainer on a GPU: see `pretended_gpu` and `cycle_program`."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch.distributed as dist
from safetensors.torch import load_file, save_file

from rlbook.durable import CHECKSUMS, checksums, write_json
from rlbook.scale.generate.protocol import TRANSFER
from rlbook.scale.train.parallel import Ranks

PROGRAM = Path(__file__).with_name("cycle_program.py")
spec = importlib.util.spec_from_file_location("cycle_program", PROGRAM)
program = importlib.util.module_from_spec(spec)
spec.loader.exec_module(program)

SMALL = 1 << 16  # bytes: norms, step counts, masks
REFERENCE = {"name": "grpo", "kl": {"kind": "k3", "beta": 0.05}}
HALF = {"train": {"dtype": "bfloat16", "activation_checkpointing": True}}


def check(found, gap=2e-5):
    """The findings of one rank; bfloat16 rounds more coarsely than the default `gap`."""
    stages = ("update", "save", "load", "resumed update", "file push", "push")
    assert {stage: found[stage] for stage in stages if stage in found} == {}
    assert found["loaded elsewhere"] == found["moments elsewhere"] == []
    assert found["durable"] and found["step"] == 2 * program.BATCHES
    # Fused and foreach AdamW round differently; a lost moment is a thousand times as much.
    assert found["gap"] < gap
    for name in ("save peak", "left by push"):  # a push gathers a buffer, as planned below
        assert found[name] <= found["unit"] + SMALL, name
    for name in ("push", "file push"):
        assert found[f"{name} peak"] <= found[f"{name} planned"] + SMALL, name
    # What is alive on the device at once is what the plan counts, all but its floor.
    planned = sum(n for part, n in found["planned"].items() if part != "everything else")
    assert 0.7 * planned <= found["update peak"] <= planned + SMALL


def check_sender(found):
    """What rank 0 alone can know: a generator got everything."""
    assert found["sent wrong"] == found["sent elsewhere"] == found["files wrong"] == []
    update = ["pause", "update_weight_version", *TRANSFER, "update_weight_version", "resume"]
    assert found["asked"] == update  # the transfer first ends a group that there might be


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="one rank"),
        pytest.param({"method": "cispo"}, id="recomputed", marks=pytest.mark.slow),
        pytest.param({"method": REFERENCE}, id="reference", marks=pytest.mark.slow),
        pytest.param(HALF, id="bfloat16", marks=pytest.mark.slow),
    ],
)
def test_the_whole_cycle_on_one_rank(changes, tmp_path):
    try:
        found = program.cycle(Ranks(), tmp_path, changes)
    finally:
        dist.destroy_process_group()
    check(found, gap=5e-4 if changes is HALF else 2e-5)
    check_sender(found)


@pytest.mark.slow
def test_a_checkpoint_of_the_format_before_is_gone_on_from(tmp_path):
    """One rank's file had the same tensors, and did not say where its rows begin."""

    def without_places(root):
        folder = root / f"step_{program.BATCHES:06d}"
        file = folder / "rank_00000.safetensors"
        save_file(load_file(file), file)
        write_json(folder / CHECKSUMS, checksums(folder))

    try:
        found = program.cycle(Ranks(), tmp_path, before_loading=without_places)
    finally:
        dist.destroy_process_group()
    check(found)


@pytest.mark.slow
def test_the_whole_cycle_on_two_ranks(run_ranks, tmp_path):
    run_ranks(PROGRAM, tmp_path, tmp_path, "{}")
    first, second = (json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2))
    check(first)
    check(second)
    check_sender(first)
