"""Weights from the trainer's side into the built-in server's, through files."""

import asyncio
from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from aiohttp import web
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from rlbook.paths import data_dir
from rlbook.policy.continuous import ContinuousSampler
from rlbook.scale.config import ScaleConfig, TrainConfig
from rlbook.scale.generate.builtin_server import make_app
from rlbook.scale.generate.client import GeneratorClient
from rlbook.scale.layout import Layout
from rlbook.scale.train import weights
from rlbook.scale.train.parallel import Ranks, shard
from rlbook.scale.train.weight_sync import (
    MOST_WRONG,
    GeneratorPool,
    WeightSync,
    WrongWeights,
    gaps_of,
    probe,
    tolerance,
)
from rlbook.scale.train.weights import FileTransport, whole_tensors
from rlbook.tasks import Problem
from rlbook.training import Rollout

TINY = LlamaConfig.from_pretrained(data_dir() / "tiny-sums")

RUN_ID = "cafe"


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """A busy machine is not a silent one."""
    monkeypatch.setattr("rlbook.scale.train.weight_sync.SILENCE", 120.0)


@pytest.fixture(scope="module")
def ranks():
    yield Ranks("cpu")
    dist.destroy_process_group()


def policy_with(seed):
    torch.manual_seed(seed)
    return LlamaForCausalLM(TINY).eval()


@asynccontextmanager
async def serving(*models):
    """Clients of built-in servers around these models, all in this process."""
    clients, runners = [], []
    for model in models:
        app = make_app(ContinuousSampler(model, 2, slots=8))
        runners.append(web.AppRunner(app))
        await runners[-1].setup()
        await web.TCPSite(runners[-1], "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runners[-1].addresses[0][1]}"
        clients.append(await GeneratorClient(url, RUN_ID, timeout=120).__aenter__())
    try:
        yield clients
    finally:
        for client, runner in zip(clients, runners, strict=True):
            await client.__aexit__()
            await runner.cleanup()


def sender(root, ranks):
    config = ScaleConfig(run=str(root))
    prober = partial(probe, config, policy_with(0).config.vocab_size)
    return FileTransport(config, Layout(root), ranks), prober


def same(model, other):
    return all(torch.equal(v, other.state_dict()[k]) for k, v in model.state_dict().items())


def test_weights_arrive_bit_for_bit_at_every_version(ranks, tmp_path):
    sent = [policy_with(1), policy_with(2)]
    servers = [policy_with(3), policy_with(4)]
    link, prober = sender(tmp_path, ranks)
    probes = []

    async def run():
        async with serving(*servers) as clients:
            generators = GeneratorPool(clients, link, prober, limit=20)
            for version, policy in enumerate(sent):
                link.gather(policy, version)
                probes.append(await generators.push(await generators.behind(version), version))
                assert [await c.version() for c in clients] == [version, version]
                assert all(same(policy, server) for server in servers)

    asyncio.run(run())
    assert [len(p) for p in probes] == [2, 0]
    first = shard(sent[0], ranks.mesh, TrainConfig())
    config = ScaleConfig(run=str(tmp_path))
    right = gaps_of(probes[0], ranks, first, config)
    assert len(right) == 2 and all(gap < tolerance(config) for gap in right.values())
    wrong = gaps_of(probes[0], ranks, shard(sent[1], ranks.mesh, TrainConfig()), config)
    assert wrong.keys() == right.keys()
    assert all(gap > tolerance(config) for gap in wrong.values())


def test_a_failure_in_the_middle_leaves_a_generator_without_a_version(ranks, tmp_path):
    """Half of the weights under the old label would poison every batch."""
    link, prober = sender(tmp_path, ranks)

    async def run():
        async with serving(policy_with(2)) as (client,):
            generators = GeneratorPool([client], link, prober, limit=20, clock=lambda: clock[0])
            link.gather(policy_with(1), 0)
            await generators.push([client], 0)
            link.gather(policy_with(3), 1)
            await link.connect(client, False)
            (link.folder / "model-00000.safetensors").write_bytes(b"not a tensor")
            with pytest.warns(RuntimeWarning, match="version 1 is not delivered"):
                await generators.push([client], 1)
            assert await client.version() is None
            clock[0] = 5.0
            link.gather(policy_with(3), 2)
            probes = await generators.push(await generators.behind(2), 2)
            assert [await client.version(), len(probes)] == [2, 1]

    clock = [0.0]
    asyncio.run(run())


def test_a_full_disk_is_a_failed_push(ranks, tmp_path, monkeypatch):
    link, prober = sender(tmp_path, ranks)

    def full(*arguments):
        raise OSError(28, "No space left on device")

    async def run():
        async with serving(policy_with(2)) as (client,):
            generators = GeneratorPool([client], link, prober, limit=20, clock=lambda: clock[0])
            monkeypatch.setattr("rlbook.scale.train.weights.save_file", full)
            link.gather(policy_with(1), 0)
            with pytest.warns(RuntimeWarning, match="No space left on device"):
                await generators.push([client], 0)
            assert await client.version() is None
            monkeypatch.undo()
            clock[0] = 5.0
            link.gather(policy_with(1), 0)
            await generators.push(await generators.behind(0), 0)
            assert await client.version() == 0

    clock = [0.0]
    asyncio.run(run())


def test_only_the_last_folders_are_kept(ranks, tmp_path):
    link, _ = sender(tmp_path, ranks)
    policy = policy_with(1)
    (tmp_path / "weights" / ".v000006.123.partial").mkdir(parents=True)  # of a killed trainer
    for version in (7, 8, 9, 3):  # back to 3: resumed from a checkpoint
        link.gather(policy, version)
    assert sorted(p.name for p in (tmp_path / "weights").iterdir()) == ["v000003", "v000009"]
    stored = load_file(tmp_path / "weights" / "v000003" / "model-00000.safetensors")
    assert all(torch.equal(v, policy.state_dict()[k]) for k, v in stored.items())


def test_a_tied_head_is_sent_under_its_own_name(ranks):
    config = LlamaConfig(
        vocab_size=24, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, tie_word_embeddings=True,
    )  # fmt: skip
    policy = LlamaForCausalLM(config).eval()
    embedding = policy.get_input_embeddings().weight.detach().clone()
    shard(policy, ranks.mesh, TrainConfig())
    sent = dict(whole_tensors(policy, torch.float32))
    assert torch.equal(sent["lm_head.weight"], embedding)
    assert torch.equal(sent["model.embed_tokens.weight"], embedding)


def test_files_hold_the_weights_in_the_generators_dtype_a_few_at_a_time(
    ranks, tmp_path, monkeypatch
):
    monkeypatch.setattr(weights, "FILE_BYTES", 100_000)
    policy = policy_with(1)
    shard(policy, ranks.mesh, TrainConfig())
    config = ScaleConfig(run=str(tmp_path), generate={"dtype": "bfloat16"})
    link = FileTransport(config, Layout(tmp_path), ranks)
    link.gather(policy, 3)
    files = [load_file(file) for file in link.folder.glob("*.safetensors")]
    assert len(files) > 3
    largest = max(p.numel() for p in policy.parameters())
    held = [sum(tensor.nbytes for tensor in file.values()) for file in files]
    assert max(held) < 100_000 + 2 * largest
    stored = {name: tensor for file in files for name, tensor in file.items()}
    expected = policy_with(1).bfloat16().state_dict()
    assert stored.keys() == expected.keys()
    assert all(torch.equal(stored[name], expected[name]) for name in expected)


@pytest.fixture
def sync(ranks, tmp_path):
    (tmp_path / "run_id").write_text(RUN_ID)
    policy = policy_with(1)
    scored = shard(policy, ranks.mesh, TrainConfig())
    learner = SimpleNamespace(parallel=ranks, policy=policy, scored=scored, step=3)
    made = WeightSync(ScaleConfig(run=str(tmp_path)), Layout(tmp_path), learner)
    yield made
    made.close()


def test_a_trainer_lives_for_as_long_as_its_push_takes(sync, monkeypatch):
    """The first one has no time to be compared with: nothing else shows that it goes on."""
    monkeypatch.setattr("rlbook.scale.train.weight_sync.HEARTBEAT_SECONDS", 0.001)
    beats = []
    monkeypatch.setattr(sync.ranks, "alive", lambda: beats.append("gather"))

    async def slow(clients, version):
        tensors = len(beats)
        assert tensors >= len(list(sync.learner.policy.parameters()))
        async with asyncio.timeout(60):
            while len(beats) < tensors + 5:
                await asyncio.sleep(0.001)
        return []

    monkeypatch.setattr(sync.generators, "push", slow)
    sync.deliver()


def test_a_trainer_whose_every_generator_is_wrong_ends_and_says_so(sync, monkeypatch):
    problem, logps = Problem("probe", "", ""), [-9.0, -9.0]
    written = [Rollout(problem, 0, [1, 9, 10], [5, 6], logps, [0, 0], "length", "")]

    async def push(clients, version):
        return [(sync.generators.clients[0].url, written)]

    monkeypatch.setattr(sync.generators, "push", push)
    with pytest.warns(RuntimeWarning, match="not those of the weights"):
        for _ in range(MOST_WRONG - 1):
            sync.deliver()
        with pytest.raises(WrongWeights, match=r"no generator computes .* check model\.policy"):
            sync.deliver()
