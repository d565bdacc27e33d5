"""A full-scale run whose adapter learns: over ranks, in checkpoints, on its way to generators."""

import asyncio
import json
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import lora_program as program
import pytest
import torch
import torch.distributed as dist
from aiohttp import web
from lora_program import STEPS, equal, rollouts_of, run_folder, settings, whole
from safetensors.torch import load_file

from rlbook.durable import replace_text
from rlbook.policy import load_policy
from rlbook.policy.adapters import adapter_weights, plain_weights
from rlbook.policy.continuous import ContinuousSampler
from rlbook.scale.generate.builtin_server import make_app
from rlbook.scale.generate.client import GeneratorClient
from rlbook.scale.generate.vllm_adapter import server_options
from rlbook.scale.layout import Layout
from rlbook.scale.train import weights as transports
from rlbook.scale.train.learner import ShardedLearner
from rlbook.scale.train.parallel import Ranks
from rlbook.scale.train.trainer import ScaleTrainer
from rlbook.scale.train.weight_sync import WeightSync
from rlbook.scale.train.weights import FileTransport
from rlbook.training import Learner
from rlbook.training.config import dump_config
from rlbook.training.trainer import policy_of

PROGRAM = Path(__file__).with_name("lora_program.py")


@pytest.fixture(scope="module")
def ranks():
    yield Ranks("cpu")
    dist.destroy_process_group()


def close(got, expected):
    """But for the order of sums, after updates of small steps."""
    assert got.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(got[name], tensor, rtol=0, atol=1e-5)


def test_one_rank_makes_the_weights_of_a_single_process(ranks, tmp_path):
    """The same first values, the base as the reference, the same updates but for rounding."""
    config = settings(tmp_path, optimizer=program.SLOW)
    sharded = ShardedLearner(config, Layout(tmp_path), ranks)
    single = Learner(config, policy_of(config)[0])
    assert equal(whole(adapter_weights(sharded.policy)), adapter_weights(single.model))
    assert sharded.reference is sharded.policy
    program.stir(sharded.policy)
    program.stir(single.model)
    for step in range(STEPS):
        rows = [learner.learn(rollouts_of(step)) for learner in (sharded, single)]
        assert rows[0]["kl_ref"] == pytest.approx(rows[1]["kl_ref"], rel=1e-3)
    assert rows[0]["kl_ref"] > 0
    close(whole(adapter_weights(sharded.policy)), adapter_weights(single.model))


def test_over_a_base_in_bfloat16_the_adapter_and_its_moments_are_float32(ranks, tmp_path):
    train = {"dtype": "bfloat16", "activation_checkpointing": True}
    config = settings(tmp_path, train=train)
    learner = ShardedLearner(config, Layout(tmp_path), ranks)
    base = {n: p for n, p in learner.policy.named_parameters() if ".lora_" not in n}
    before = whole({n: p.detach().clone() for n, p in base.items()})
    assert {p.dtype for p in base.values()} == {torch.bfloat16}
    metrics = learner.learn(rollouts_of(0))
    assert metrics["grad_norm"] > 0 and metrics["skipped_updates"] == 0
    assert equal(whole(base), before)
    optimizer = learner.optimizers["model"]
    own = list(adapter_weights(learner.policy).values())
    assert {id(p) for p in optimizer.state} == {id(p) for p in own}
    assert {p.dtype for p in own} == {torch.float32}
    assert {s["exp_avg"].dtype for s in optimizer.state.values()} == {torch.float32}


def test_a_trainer_that_died_goes_on_bit_for_bit_from_an_adapter_alone(ranks, tmp_path):
    layout = run_folder(tmp_path / "whole")
    ScaleTrainer(layout, settings(layout.root)).run()
    first = run_folder(tmp_path / "cut", batches=STEPS - 1)
    early = settings(first.root, steps=STEPS - 1)
    ScaleTrainer(first, early).run()
    folder = first.checkpoints / f"step_{STEPS - 1:06d}"
    assert not (folder / "model.safetensors").exists()
    stored = load_file(folder / "adapter_model.safetensors")
    moments = load_file(folder / "rank_00000.safetensors")
    assert len(moments) == 3 * len(stored)
    run_folder(first.root)
    ScaleTrainer(first, settings(first.root)).run()
    last = [one.checkpoints / f"step_{STEPS:06d}" for one in (layout, first)]
    for file in ("adapter_model.safetensors", "rank_00000.safetensors"):
        assert equal(*(load_file(one / file) for one in last))
    learner = ShardedLearner(settings(first.root), first, ranks)
    learner.load()
    state, (loaded, _) = dict(plain_weights(learner.policy)), load_policy(str(last[1]))
    found = whole(dict(plain_weights(learner.policy, whole=lambda t: t.full_tensor())))
    assert found.keys() == state.keys() == loaded.state_dict().keys()
    for name, tensor in loaded.state_dict().items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=1e-6)


@asynccontextmanager
async def serving(model):
    """A client of a built-in server around a model, in this process."""
    runner = web.AppRunner(make_app(ContinuousSampler(model, 2, slots=8)))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    async with GeneratorClient(url, "cafe", timeout=120) as client:
        yield client
    await runner.cleanup()


def test_the_builtin_server_gets_it_merged_and_a_probe_agrees(ranks, tmp_path):
    layout = run_folder(tmp_path)
    config = settings(tmp_path)
    learner = ShardedLearner(config, layout, ranks)
    learner.learn(rollouts_of(0))
    server, _ = load_policy()

    async def run():
        sync = await asyncio.to_thread(WeightSync, config, layout, learner)
        async with serving(server) as client:
            sync.clients = [client]
            sync.due = await sync.behind()
            probes = await sync.push()
        return sync, probes

    sync, probes = asyncio.run(run())
    expected = whole(dict(plain_weights(learner.policy, whole=lambda t: t.full_tensor())))
    assert equal(server.state_dict(), expected)
    assert not equal(server.state_dict(), load_policy()[0].state_dict())
    assert all(gap < 1e-4 for gap in sync.gaps(probes).values())


def test_vllm_gets_the_adapter_alone(ranks, tmp_path, monkeypatch):
    """Its two files, as peft has them; the server has room for it, its clients ask for it."""
    monkeypatch.setattr(transports, "takes_adapters", lambda config: True)
    layout, config = run_folder(tmp_path), settings(tmp_path)
    learner = ShardedLearner(config, layout, ranks)
    transport = FileTransport(config, layout, ranks, learner.policy)
    asked = []

    async def load(folder, fresh):
        asked.append((folder, fresh))

    transport.prepare(4)
    asyncio.run(transport.send(SimpleNamespace(load_adapter=load), True))
    assert asked == [(str(layout.version(4).resolve()), True)]
    stored = load_file(layout.version(4) / "adapter_model.safetensors")
    assert equal(stored, whole(adapter_weights(learner.policy)))
    described = json.loads((layout.version(4) / "adapter_config.json").read_text())
    assert (described["r"], described["lora_alpha"], described["peft_type"]) == (4, 8, "LORA")
    options = server_options(config)
    assert options["enable-lora"] and options["max-lora-rank"] == 8
    plain = server_options(settings(tmp_path, model={}))
    assert "enable-lora" not in plain


def test_a_run_of_vllm_on_an_adapter_is_told_to_merge_it(tmp_path):
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ValueError, match="merge it with `rlbook export`"):
        server_options(settings(tmp_path, model={"policy": str(tmp_path)}))


@pytest.mark.slow
def test_two_ranks_make_the_adapter_of_one(ranks, run_ranks, tmp_path):
    one, two = run_folder(tmp_path / "one"), run_folder(tmp_path / "two")
    config = settings(two.root, optimizer=program.SLOW, train={"processes": 2})
    replace_text(two.config, dump_config(config))
    run_ranks(PROGRAM, two.root, two.root, "main")
    ScaleTrainer(one, settings(one.root, optimizer=program.SLOW)).run()
    last = [layout.checkpoints / f"step_{STEPS:06d}" for layout in (one, two)]
    found, expected = (load_file(folder / "adapter_model.safetensors") for folder in reversed(last))
    close(found, expected)
    assert all(weight.abs().max() > 2e-4 for name, weight in expected.items() if "lora_B" in name)


@pytest.fixture(scope="module")
def copies(ranks, run_ranks, tmp_path_factory):
    """Folder with the results of four ranks, of which every two hold a copy of base and adapter."""
    folder = tmp_path_factory.mktemp("copies")
    program.resuming(ranks, folder)
    run_ranks(PROGRAM, folder, folder, "copies", count=4)
    return folder


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    """The learner of a single process, its rows and its adapter before."""
    config = settings(tmp_path_factory.mktemp("single"), optimizer=program.SLOW)
    learner = Learner(config, policy_of(config)[0])
    program.stir(learner.model)
    before = {n: t.detach().clone() for n, t in adapter_weights(learner.model).items()}
    learner.measures_staleness = True  # as a full-scale run's does
    return SimpleNamespace(learner=learner, before=before, rows=program.learned(learner))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["plain", "accumulated"])
def test_copies_of_base_and_adapter_take_the_steps_of_a_single_process(how, copies, single):
    found = [json.loads((copies / f"rank{rank}.json").read_text())[how] for rank in range(4)]
    expected = adapter_weights(single.learner.model)
    close(load_file(copies / f"{how}.safetensors"), expected)
    assert all((expected[n] - old).abs().max() > 1e-4 for n, old in single.before.items())
    size = sum(p.numel() for p in single.learner.model.parameters())
    for one, other in (found[:2], found[2:]):
        assert one["numbers_here"] + other["numbers_here"] == size
    for result in found:
        assert result["base_untouched"]
        assert result["base_gradients"] == result["base_moments"] == 0
        for row, other in zip(result["rows"], single.rows, strict=True):
            got = {name: row[name] for name in other}
            assert got == pytest.approx(other, rel=1e-4, abs=1e-5, nan_ok=True)


@pytest.mark.slow
def test_copies_over_a_base_in_bfloat16_leave_it_as_it_is(copies, single):
    for rank in range(4):
        found = json.loads((copies / f"rank{rank}.json").read_text())["bfloat16"]
        assert found["base_untouched"] and found["base_gradients"] == 0
        for row, exact in zip(found["rows"], single.rows, strict=True):
            assert row["skipped_updates"] == 0
            assert row["grad_norm"] == pytest.approx(exact["grad_norm"], rel=0.3)
    adapter = load_file(copies / "bfloat16.safetensors")
    assert {weight.dtype for weight in adapter.values()} == {torch.float32}


@pytest.mark.slow
def test_any_number_of_ranks_goes_on_from_the_adapter_of_copies(copies, ranks):
    for rank in range(4):
        assert json.loads((copies / f"rank{rank}.json").read_text())["same_bits"]
    straight = load_file(copies / "straight4.safetensors")
    close(program.continuing(ranks, copies, wrote=4), straight)
    close(load_file(copies / "from_one.safetensors"), load_file(copies / "straight1.safetensors"))
    saved = copies / f"run4/step_{program.UPDATES:06d}"
    kept = [load_file(saved / f"rank_{rank:05d}.safetensors") for rank in range(4)]
    assert kept[0] and kept[1] and not kept[2] and not kept[3]
    stored = load_file(saved / "adapter_model.safetensors")
    assert any((stored[name] - straight[name]).abs().max() > 1e-4 for name in stored)


@pytest.mark.slow
def test_copies_push_their_adapter_once_alone_or_merged(copies):
    weights, expected = copies / "pushed/weights", load_file(copies / "as_pushed.safetensors")
    assert equal(load_file(weights / "v000001/adapter_model.safetensors"), expected)
    model, _ = policy_of(settings(copies))
    for name, weight in adapter_weights(model).items():
        weight.data.copy_(expected[name])
    parts = [load_file(file) for file in (weights / "v000000").glob("*.safetensors")]
    pushed, plain = {n: t for part in parts for n, t in part.items()}, dict(plain_weights(model))
    close(pushed, plain)


def test_an_adapter_travels_as_a_file(tmp_path):
    with pytest.raises(ValueError, match=r"set generate\.transport to file"):
        settings(tmp_path, generate={"transport": "nccl"})
    with pytest.raises(ValueError, match="vLLM takes 512 at most"):
        settings(tmp_path, model={"lora": {"rank": 600}})
