"""Weights from the trainer's side into the built-in server's, through files."""

import asyncio
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from aiohttp import web
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from rlbook.paths import data_dir
from rlbook.policy import logprobs
from rlbook.policy.continuous import ContinuousSampler
from rlbook.scale.config import ScaleConfig, TrainConfig
from rlbook.scale.generate.builtin_server import make_app
from rlbook.scale.generate.client import GeneratorClient
from rlbook.scale.generate.protocol import GenerationFailed
from rlbook.scale.layout import Layout
from rlbook.scale.train import weights
from rlbook.scale.train.parallel import Ranks, shard
from rlbook.scale.train.weight_sync import MOST_WRONG, TOLERANCE, WeightSync, WrongWeights
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


def same(model, other):
    return all(torch.equal(v, other.state_dict()[k]) for k, v in model.state_dict().items())


def sharded(policy, ranks):
    shard(policy, ranks.mesh, TrainConfig())
    return policy


def learner_of(ranks, policy, step):
    """What a push reads of a learner: its weights, their version, and its log-probs."""
    learner = SimpleNamespace(parallel=ranks, policy=policy, step=step)
    limit = ScaleConfig().optimizer.micro_batch_tokens
    learner.logprobs = lambda batch: ranks.over(logprobs, learner.policy, batch, limit, 1.0)[0]
    return learner


@asynccontextmanager
async def syncing(root, ranks, policy, *servers):
    """The trainer's end for built-in servers around these models, and their clients."""
    learner = learner_of(ranks, policy, 0)
    (root / "run_id").write_text(RUN_ID)
    sync = await asyncio.to_thread(WeightSync, ScaleConfig(run=str(root)), Layout(root), learner)
    async with serving(*servers) as sync.clients:
        yield sync
    await asyncio.to_thread(sync.close)


async def push(sync, version):
    """A look and a push; what was written for a probe, by URL."""
    sync.learner.step = version
    sync.due = await sync.behind()
    return await sync.push()


def test_weights_arrive_bit_for_bit_at_every_version(ranks, tmp_path):
    sent = [policy_with(1), policy_with(2)]
    servers = [policy_with(3), policy_with(4)]

    async def run():
        async with syncing(tmp_path, ranks, sent[0], *servers) as sync:
            for version, sync.transport.policy in enumerate(sent):
                probes = await push(sync, version)
                assert len(probes) == 2 * (version == 0)
                assert [await c.version() for c in sync.clients] == [version, version]
                assert all(same(sync.transport.policy, server) for server in servers)
                if version == 0:
                    for policy, right in ((1, True), (2, False)):
                        sync.learner.policy = sharded(policy_with(policy), ranks)
                        gaps = sync.gaps(probes)
                        assert gaps.keys() == probes.keys()
                        assert all((gap < TOLERANCE["float32"]) == right for gap in gaps.values())
                    await sync.judge(dict.fromkeys(probes, 0.0))

    asyncio.run(run())


def test_a_failure_in_the_middle_leaves_a_generator_without_a_version(ranks, tmp_path):
    """Half of the weights under the old label would poison every batch."""

    async def run():
        async with syncing(tmp_path, ranks, policy_with(1), policy_with(2)) as sync:
            (client,) = sync.clients
            await push(sync, 0)
            sync.transport.prepare(1)
            (sync.transport.folder / "model-00000.safetensors").write_bytes(b"not a tensor")
            with pytest.warns(RuntimeWarning, match="version 1 is not delivered"):
                await push(sync, 1)
            assert await client.version() is None
            sync.retry_at.clear()
            assert len(await push(sync, 2)) == 1
            assert await client.version() == 2

    asyncio.run(run())


def test_a_full_disk_is_a_failed_push(ranks, tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    async def run():
        async with syncing(tmp_path, ranks, policy_with(1), policy_with(2)) as sync:
            (client,) = sync.clients
            monkeypatch.setattr("rlbook.scale.train.weights.save_file", full)
            with pytest.warns(RuntimeWarning, match="No space left on device"):
                await push(sync, 0)
            assert await client.version() is None
            monkeypatch.undo()
            sync.retry_at.clear()
            await push(sync, 0)
            assert await client.version() == 0

    asyncio.run(run())


def test_only_the_last_folders_are_kept(ranks, tmp_path):
    policy = policy_with(1)
    link = FileTransport(ScaleConfig(run=str(tmp_path)), Layout(tmp_path), ranks, policy)
    (tmp_path / "weights" / ".v000006.123.partial").mkdir(parents=True)  # of a killed trainer
    for version in (7, 8, 9, 3):  # back to 3: resumed from a checkpoint
        link.prepare(version)
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
    link = FileTransport(config, Layout(tmp_path), ranks, policy)
    link.prepare(3)
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
    learner = learner_of(ranks, sharded(policy_with(1), ranks), 3)
    made = WeightSync(ScaleConfig(run=str(tmp_path)), Layout(tmp_path), learner)
    yield made
    made.close()


def test_a_trainer_lives_for_as_long_as_its_push_takes(sync, monkeypatch):
    """The first one has no time to be compared with: nothing else shows that it goes on."""
    monkeypatch.setattr("rlbook.scale.train.weight_sync.HEARTBEAT_SECONDS", 0.001)
    beats = []
    monkeypatch.setattr(sync.ranks, "alive", lambda: beats.append("gather"))

    @asynccontextmanager
    async def slow(version, clear_cache):
        tensors = len(beats)
        assert tensors >= len(list(sync.learner.policy.parameters()))
        async with asyncio.timeout(60):
            while len(beats) < tensors + 5:
                await asyncio.sleep(0.001)
        raise GenerationFailed("too slow")
        yield

    sync.due = sync.clients
    monkeypatch.setattr(sync.clients[0], "new_weights", slow)
    with pytest.warns(RuntimeWarning, match="too slow"):
        sync.deliver()


def test_a_trainer_whose_every_generator_is_wrong_ends_and_says_so(sync, monkeypatch):
    problem, logps = Problem("probe", "", ""), [-9.0, -9.0]
    written = [Rollout(problem, 0, [1, 9, 10], [5, 6], logps, [0, 0], "length", "")]

    async def push():
        return {sync.clients[0].url: written}

    sync.due = sync.clients
    monkeypatch.setattr(sync, "push", push)
    with pytest.warns(RuntimeWarning, match="not those of the weights"):
        for _ in range(MOST_WRONG - 1):
            sync.deliver()
        with pytest.raises(WrongWeights, match=r"no generator computes .* check model\.policy"):
            sync.deliver()
