"""Two ranks do what one does, and what a single process does. The launcher starts them, once."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file

from rlbook.jsonl import read_jsonl
from rlbook.policy import load_policy
from rlbook.scale.train.parallel import Ranks
from rlbook.scale.train.trainer import ScaleTrainer

pytestmark = pytest.mark.slow

METRICS = ("step", "loss", "grad_norm", "kl", "staleness_mean", "mismatch_stale", "skipped_updates")
PROGRAM = Path(__file__).with_name("ranks_program.py")
spec = importlib.util.spec_from_file_location("ranks_program", PROGRAM)
program = importlib.util.module_from_spec(spec)
spec.loader.exec_module(program)


@pytest.fixture(scope="module")
def one():
    """This process as the only rank."""
    yield Ranks()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def out(one, run_ranks, tmp_path_factory):
    """Folder with the results of two ranks, and what one rank prepared for them."""
    folder = tmp_path_factory.mktemp("ranks")
    program.resuming(one, folder)
    program.run_folder(folder / "run")
    run_ranks(PROGRAM, folder, folder, "main")
    return folder


@pytest.fixture(scope="module")
def results(out):
    """What each of the two ranks found."""
    return [json.loads((out / f"rank{rank}.json").read_text()) for rank in range(2)]


def tensors_of(folder):
    """Everything in a checkpoint, the rows of all ranks together."""
    parts = [load_file(file) for file in sorted(folder.glob("*.safetensors"))]
    names = {name for part in parts for name in part}
    rows = {name: [part[name] for part in parts if name in part] for name in names}
    return {name: torch.cat(found) if found[0].ndim else found[0] for name, found in rows.items()}


def close(got, expected):
    for name, tensor in expected.items():
        torch.testing.assert_close(got[name], tensor, rtol=0, atol=1e-5)
    start = load_policy()[0].state_dict()
    assert any((expected[name] - start[name]).abs().max() > 1e-4 for name in expected)


@pytest.mark.parametrize("aggregation", program.AGGREGATIONS)
def test_two_ranks_take_the_step_of_one_process(aggregation, out, results, one):
    model, _ = load_policy()
    optimizer, alone = program.adamw(model), program.Sharded(one)
    for seed, row in enumerate(results[0]["equality"][aggregation]):
        expected = program.update(model, optimizer, seed, aggregation)
        by_one = alone.update(seed, aggregation=aggregation)
        assert row == pytest.approx(expected, rel=1e-4, abs=1e-5)
        assert by_one == pytest.approx(expected, rel=1e-4, abs=1e-5)
    plain = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    close(load_file(out / f"{aggregation}.safetensors"), plain)
    close(alone.weights(), plain)
    assert results[0]["equality"] == results[1]["equality"]


def test_accumulated_gradients_are_the_same_and_travel_once(out, results):
    model, _ = load_policy()
    optimizer = program.adamw(model)
    for seed in (0, 1):
        program.update(model, optimizer, seed)
    close(load_file(out / "accumulated.safetensors"), model.state_dict())
    for found in (result["accumulating"] for result in results):
        assert found["each"] == found["rounds"] * found["once"] > found["once"] > 0


def test_a_non_finite_gradient_on_one_rank_is_skipped_by_all(results):
    found = [result["non_finite"] for result in results]
    assert sorted(f["has_row"] for f in found) == [False, True]
    for result in found:
        assert result["skipped"] == 1
        assert result["unchanged"]
        assert result["moments"] == 0
        assert "non-finite gradient in" in result["named"][0]
        assert "embed_tokens" in result["named"][0]


def test_resuming_on_two_ranks_is_bit_identical(results):
    for result in results:
        assert result["resuming"] == {
            "state": {"step": 2, "ranks": 2},
            "same_losses": True,
            "same_bits": True,
        }


def test_one_rank_goes_on_where_two_stopped(out, one):
    close(program.continuing(one, out, wrote=2), load_file(out / "straight2.safetensors"))


def test_two_ranks_go_on_where_one_stopped(out, results):
    close(load_file(out / "from_one.safetensors"), load_file(out / "straight1.safetensors"))


def test_a_full_disk_of_one_rank_is_known_to_all(results):
    for result in results:
        assert result["full_disk"] == {"saved": [True, False, True], "step": 1}


def test_a_damaged_share_sends_all_ranks_back_to_the_checkpoint_before(results):
    """Also the one whose own share of it is intact."""
    first, second = (result["damaged_share"] for result in results)
    assert (first["step"], second["step"]) == (1, 1) and first["same"] and second["same"]
    assert len(first["said"]) == 1 and "rank_00001.safetensors" in first["said"][0]
    assert first["left"] == ["latest", "step_000001", "step_000002.damaged"]


def test_a_full_disk_of_a_push_holds_up_no_rank(out, results):
    assert [result["full_disk_of_a_push"] for result in results] == [[True, False]] * 2
    pushed = tensors_of(out / "pushed/weights/v000001")
    expected = load_file(out / "as_pushed.safetensors")
    assert pushed.keys() == expected.keys()
    assert all(torch.equal(pushed[name], expected[name]) for name in expected)


@pytest.fixture(scope="module")
def copies(one, run_ranks, tmp_path_factory):
    """Folder with the results of four ranks, of which every two hold a copy of the weights."""
    folder = tmp_path_factory.mktemp("copies")
    program.resuming(one, folder)
    run_ranks(PROGRAM, folder, folder, "copies", count=4)
    return folder


def test_copies_of_the_weights_have_the_gradient_of_one_process(copies):
    found = [json.loads((copies / f"rank{rank}.json").read_text()) for rank in range(4)]
    model, _ = load_policy()
    whole = sum(p.numel() for p in model.parameters())
    assert found[0]["rows"] + found[1]["rows"] == found[2]["rows"] + found[3]["rows"] == whole
    norm = program.slope(model)
    assert [row["grad_norm"] for row in found] == pytest.approx([norm] * 4, rel=1e-4)
    close(load_file(copies / "slope.safetensors"), model.state_dict())
    model, _ = load_policy()
    optimizer = program.adamw(model)
    for seed, row in enumerate(found[3]["equality"]["prompt_mean"]):
        assert row == pytest.approx(program.update(model, optimizer, seed), rel=1e-4, abs=1e-5)
    close(load_file(copies / "prompt_mean.safetensors"), model.state_dict())


def test_copies_accumulate_within_and_sum_between_once(copies):
    model, _ = load_policy()
    optimizer = program.adamw(model)
    for seed in (0, 1):
        program.update(model, optimizer, seed)
    close(load_file(copies / "accumulated.safetensors"), model.state_dict())
    found = json.loads((copies / "rank0.json").read_text())["accumulating"]
    assert found["each"] == found["rounds"] * found["once"] > found["once"] > 0


def test_copies_are_saved_once_resumed_and_pushed(copies, one):
    for rank in range(4):
        found = json.loads((copies / f"rank{rank}.json").read_text())
        assert found["resuming"]["same_bits"] and found["resuming"]["state"]["ranks"] == 4
        assert found["full_disk_of_a_push"] == [True, False]
    close(program.continuing(one, copies, wrote=4), load_file(copies / "straight4.safetensors"))
    straight = load_file(copies / "straight1.safetensors")
    close(load_file(copies / "from_one.safetensors"), straight)
    saved = copies / "checkpoints4/step_000002"
    kept = [load_file(saved / f"rank_{rank:05d}.safetensors") for rank in range(4)]
    assert kept[0] and kept[1] and not kept[2] and not kept[3]
    pushed = tensors_of(copies / "pushed/weights/v000001")
    expected = load_file(copies / "as_pushed.safetensors")
    assert all(torch.equal(pushed[name], expected[name]) for name in expected)


def test_ranks_talk_in_json(results):
    assert results[1]["talking"]["shared"] == {"from": 0}
    for result in results:
        assert result["talking"]["collected"] == [[0], [1, 1]]


def test_the_whole_trainer_on_two_ranks_is_that_on_one(out, one, results, tmp_path):
    layout = program.run_folder(tmp_path)
    ScaleTrainer(layout, program.run_config(tmp_path)).run()
    step = f"step_{program.BATCHES:06d}"
    ours, theirs = tensors_of(tmp_path / step), tensors_of(out / "run" / step)
    assert len(list((out / "run" / step).glob("rank_*"))) == 2
    assert ours.keys() == theirs.keys()
    for name in ours:
        torch.testing.assert_close(theirs[name], ours[name], rtol=0, atol=1e-5)
    rows = [read_jsonl(folder / "metrics.jsonl") for folder in (out / "run", tmp_path)]
    for row, other in zip(*rows, strict=True):
        timeless = {name: other[name] for name in other if name in METRICS}
        got = {name: row[name] for name in timeless}
        assert got == pytest.approx(timeless, rel=1e-4, abs=1e-5, nan_ok=True)
