"""Against real vLLM servers: log-probabilities, weight updates in flight, tied heads, deaths.

The model of one server has an output head of its own, that of the other a tied one.
"""

import asyncio
import copy
import os
import signal
import subprocess
import time
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaForCausalLM

from rlbook.policy import load_policy, logprobs
from rlbook.policy.adapters import adapter_weights, add_adapter, save_adapter, start_adapter
from rlbook.scale.config import ScaleConfig
from rlbook.scale.generate.client import GeneratorClient, HTTPEngine
from rlbook.scale.generate.protocol import GenerationFailed, RequestRefused, reload_request
from rlbook.scale.generate.vllm_adapter import check_version, server_options, vllm_python
from rlbook.scale.launch.commands import generator
from rlbook.scale.layout import Layout
from rlbook.scale.process import published

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
    model.config.eos_token_id = model.generation_config.eos_token_id = 3  # <unk>
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

    def __init__(self, folder, tied, lora=None):
        self.adapter = lora is not None
        self.model, self.folder = write_policy(folder / "policy", tied), folder
        layout, self.log = Layout(folder), folder / "log"
        self.entry = layout.server("generator0")
        generate = {"engine": "vllm", "token": TOKEN}
        policy = {"policy": str(folder / "policy"), "lora": lora}
        config = ScaleConfig(run=str(folder), model=policy, generate=generate)
        command = generator(config, layout, 0)
        with self.log.open("w") as log:
            environment = os.environ | command.env
            self.process = subprocess.Popen(command.argv, env=environment, stdout=log, stderr=log)

    @property
    def url(self):
        wait_until(lambda: published(self.entry), 300, "the server has not said where it is")
        return published(self.entry)

    @asynccontextmanager
    async def client(self, token=TOKEN, timeout=600.0):
        given = {"adapter": self.adapter}
        async with GeneratorClient(self.url, "run", token, timeout, **given) as client:
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
        """A folder of the run with a model's weights, a tied head included."""
        path = self.folder / "weights" / name
        path.mkdir(parents=True, exist_ok=True)
        save_file(tensors_of(model), path / "model.safetensors")
        return str(path)

    def adapted(self, seed):
        """The policy with an adapter of its own, and the folder of that."""
        model = copy.deepcopy(self.model)
        add_adapter(model, 4, 8.0, base="base")
        start_adapter(model, seed, "cpu")
        draws = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, weight in adapter_weights(model).items():
                if "lora_B" in name:
                    weight.normal_(0, 0.02, generator=draws)
        path = self.folder / "weights" / f"adapter{seed}"
        path.mkdir(parents=True, exist_ok=True)
        save_adapter(model, path, adapter_weights(model))
        return model, str(path)


def tensors_of(model):
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    """Both servers, started side by side: importing vLLM takes longest."""
    check_version(PYTHON)
    started = []
    try:
        for tied in (False, True):
            started.append(Server(tmp_path_factory.mktemp("run"), tied))
        yield started
    finally:
        for server in started:
            server.process.terminate()
        for server in started:
            try:
                server.process.wait(120)
            except subprocess.TimeoutExpired:
                server.process.kill()


@pytest.fixture
def untied(servers):
    return servers[0]


@pytest.fixture
def tied_server(servers):
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


async def under_way(client, prompt):
    """Until those who ask now have some tokens: who asks after them for a few has his."""
    await asyncio.sleep(0)
    await client.complete_at(await client.version(), prompt, 1, max_new_tokens=5, temperature=1.0)


async def updated_in_flight(client, prompt, clear_cache, version, info):
    """Completions during which version `version` arrived."""
    at = await client.version()
    batch = asyncio.gather(*(client.complete_at(at, prompt, 8, **LIMITS) for _ in range(12)))
    await under_way(client, prompt)
    async with client.new_weights(version, clear_cache):
        await client.reload(info)
    return [completion for group in await batch for completion in group]


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
def test_log_probabilities_are_those_of_the_trainer(untied, temperature):
    prompt = prompt_of(7)

    async def run():
        async with untied.client() as client:
            async with client.new_weights(0, True):
                await client.reload(untied.weights(untied.model, "v0"))
            limits = {"max_new_tokens": 100, "temperature": temperature}
            return await HTTPEngine([client]).complete(prompt, 8, **limits)

    completions = asyncio.run(run())
    differences, versions = difference(untied.model, prompt, completions, temperature)
    assert len(completions) == 8 and len(differences) > 100
    assert same(differences)
    assert set(versions.tolist()) == {0}
    assert len({tuple(c.token_ids) for c in completions}) == (8 if temperature else 1)


def test_update_in_flight_is_exact_when_the_cache_is_cleared(untied):
    prompt, new = prompt_of(7), perturbed(untied.model, 1)

    async def run():
        async with untied.client() as client:
            async with client.new_weights(0, True):
                await client.reload(untied.weights(untied.model, "v0"))
            info = untied.weights(new, "v1")
            return await updated_in_flight(client, prompt, True, 1, info)

    completions = asyncio.run(run())
    by_old, versions = difference(untied.model, prompt, completions, 0.8)
    by_new, _ = difference(new, prompt, completions, 0.8)
    assert set(versions.tolist()) == {0, 1}
    assert any(len(set(c.versions)) == 2 for c in completions)
    assert same(by_old[versions == 0])
    assert same(by_new[versions == 1])
    assert by_old[versions == 1].mean() > 1e-2  # the two policies are told apart


def test_a_kept_cache_is_stale_for_running_requests_and_no_others(untied):
    long = prompt_of(140)  # the CPU build shares prompts in blocks of 128 tokens
    old, new = perturbed(untied.model, 2), perturbed(untied.model, 3)
    limits = {"max_new_tokens": 100, "temperature": 0.8}

    async def run():
        async with untied.client() as client:
            async with client.new_weights(2, True):
                await client.reload(untied.weights(old, "v2"))
            before = await client.complete_at(await client.version(), long, 8, **limits)
            running = await updated_in_flight(
                client, prompt_of(7), False, 3, untied.weights(new, "v3")
            )
            return (
                before,
                running,
                await client.complete_at(await client.version(), long, 8, **limits),
            )

    before, running, after = asyncio.run(run())
    assert same(difference(old, long, before, 0.8)[0])
    assert same(difference(new, long, after, 0.8)[0])
    by_new, versions = difference(new, prompt_of(7), running, 0.8)
    crossed = torch.cat([torch.full((len(c.versions),), 2 in c.versions) for c in running])
    assert (crossed & (versions == 3)).any()
    assert by_new[crossed & (versions == 3)].mean() > 1e-3


def test_a_failed_update_is_repaired_by_the_next(untied):
    prompt, new = prompt_of(7), perturbed(untied.model, 4)
    some = dict(list(tensors_of(new).items())[:5])

    async def run():
        async with untied.client() as client:
            missing = untied.folder / "weights" / "missing"
            with pytest.raises(GenerationFailed, match="HTTP 500"):
                async with client.new_weights(4, True):
                    await client.reload(str(missing))
            assert await client.version() is None
            part = untied.folder / "weights" / "part"
            part.mkdir()
            save_file(some, part / "model.safetensors")
            await client.pause(True)  # by a trainer that dies before it is done
            await client.name_weights(None)
            await client.reload(str(part))
            async with client.new_weights(4, True):
                await client.reload(untied.weights(new, "v4"))
            return await client.complete_at(await client.version(), prompt, 4, **LIMITS)

    differences, versions = difference(new, prompt, asyncio.run(run()), 0.8)
    assert same(differences) and set(versions.tolist()) == {4}


def test_it_sleeps_without_a_token_and_then_goes_on_exactly(untied):
    """Also woken by the trainer after the one that put it to sleep; and it takes new weights then.

    What the CPU build cannot show is that memory becomes free: it says so, and moves none.
    """
    prompt, new = prompt_of(7), perturbed(untied.model, 6)

    async def run():
        async with untied.client() as client, untied.client() as later:
            async with client.new_weights(5, True):
                await client.reload(untied.weights(untied.model, "v5"))
            batch = asyncio.gather(*(client.complete_at(5, prompt, 8, **LIMITS) for _ in range(12)))
            await under_way(client, prompt)
            await client.sleep()
            await client.sleep()  # as on one that sleeps
            one = LIMITS | {"max_new_tokens": 1}
            asked = asyncio.create_task(client.complete_at(5, prompt, 1, **one))
            await asyncio.sleep(1)
            assert not asked.done() and not batch.done()
            assert await client.healthy() and await later.version() == 5
            await later.wake()
            await later.wake()  # as on one that is awake
            before = [completion for group in await batch for completion in group] + await asked
            await client.sleep()
            await client.wake()
            async with client.new_weights(6, True):
                await client.reload(untied.weights(new, "v6"))
            return before, await client.complete_at(6, prompt, 4, **LIMITS)

    before, after = asyncio.run(run())
    for model, completions, version in ((untied.model, before, 5), (new, after, 6)):
        differences, versions = difference(model, prompt, completions, 0.8)
        assert same(differences) and set(versions.tolist()) == {version}
    assert "sleep mode is not supported on CPU, ignore it" in untied.log.read_text()


ASK_THE_PLATFORM = """
from vllm.platforms import current_platform
print("can it sleep:", current_platform.is_sleep_mode_available())
"""


def test_a_build_that_would_not_start_in_sleep_mode_is_not_asked_to():
    argv = [PYTHON, "-c", ASK_THE_PLATFORM]
    said = subprocess.run(argv, capture_output=True, text=True, timeout=600).stdout
    assert "can it sleep: False" in said
    turns = {"colocated": True, "max_staleness": 0, "sleep": True}
    assert "enable-sleep-mode" not in server_options(ScaleConfig(generate=turns))


def test_nothing_is_open_to_strangers(untied):
    async def run():
        async with GeneratorClient(untied.url, "run") as stranger:
            for route in ("pause?mode=keep", "collective_rpc", "v1/completions"):
                with pytest.raises(RequestRefused, match="401"):
                    await stranger._ask(f"/{route}", {})
        async with untied.client() as client:
            for wrong in ({"method": "reset_weights"}, reload_request("/etc")):
                with pytest.raises(RequestRefused, match="400"):
                    await client._ask("/collective_rpc", wrong)
            with pytest.raises(RequestRefused, match="400"):
                await client.complete_at(4, prompt_of(300), 1, max_new_tokens=1, temperature=1.0)

    asyncio.run(run())


def test_a_tied_head_follows_every_update(tied_server):
    prompt = prompt_of(7)
    policies = [perturbed(tied_server.model, seed) for seed in (5, 6, 5)]

    async def run():
        answers = []
        async with tied_server.client() as client:
            for version, policy in enumerate(policies):
                async with client.new_weights(version, True):
                    await client.reload(tied_server.weights(policy, f"v{version}"))
                answers.append(
                    await client.complete_at(await client.version(), prompt, 4, **LIMITS)
                )
        return answers

    for version, (policy, answer) in enumerate(zip(policies, asyncio.run(run()), strict=True)):
        differences, versions = difference(policy, prompt, answer, 0.8)
        assert same(differences) and set(versions.tolist()) == {version}


@pytest.fixture(scope="module")
def lora_server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("lora"), False, {"rank": 4, "alpha": 8})
    yield server
    server.process.terminate()
    server.process.wait(120)


def test_an_adapter_alone_changes_what_is_being_written(lora_server):
    """No further from the trainer's numbers than whole weights; a second trainer meets its name."""
    prompt = prompt_of(7)
    (old, first), (new, second) = lora_server.adapted(1), lora_server.adapted(2)

    async def load(client, version, folder, fresh):
        async with client.new_weights(version, True):
            await client.load_adapter(folder, fresh)

    async def run():
        async with lora_server.client() as client:
            await load(client, 0, first, True)
            batch = asyncio.gather(*(client.complete_at(0, prompt, 8, **LIMITS) for _ in range(8)))
            await under_way(client, prompt)
            await load(client, 1, second, False)
            across = [completion for group in await batch for completion in group]
            await load(client, 2, first, True)
            return across, await client.complete_at(2, prompt, 4, **LIMITS)

    across, again = asyncio.run(run())
    by_old, versions = difference(old, prompt, across, 0.8)
    by_new, _ = difference(new, prompt, across, 0.8)
    assert any(len(set(c.versions)) == 2 for c in across)
    assert same(by_old[versions == 0]) and same(by_new[versions == 1])
    assert by_old[versions == 1].mean() > 1e-2  # the two are told apart,
    base, _ = difference(lora_server.model, prompt, across, 0.8)
    assert base.mean() > 1e-2  # and from their base
    assert same(difference(old, prompt, again, 0.8)[0])


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


def test_killing_the_server_ends_its_engine(tied_server):
    async def run():
        async with tied_server.client():
            pass

    asyncio.run(run())
    children = tied_server.children()
    assert children
    tied_server.process.send_signal(signal.SIGKILL)
    tied_server.process.wait(120)
    wait_until(lambda: all(map(gone, children)), 120, "the engine outlived its server")


def test_requests_on_a_killed_engine_fail_at_once(untied):
    """Also those of a weight update, which vLLM's server would never answer nor end before."""

    async def run():
        async with untied.client(timeout=600) as client:
            async with client.new_weights(9, True):
                await client.reload(untied.weights(untied.model, "v0"))
            running = [
                asyncio.create_task(
                    client.complete_at(await client.version(), prompt_of(7), 8, **LIMITS)
                )
                for _ in range(30)
            ]
            await under_way(client, prompt_of(7))
            for child in untied.children():
                os.kill(child, signal.SIGSTOP)
            running.append(pause := asyncio.create_task(client.pause(clear_cache=False)))
            await asyncio.sleep(1)  # the server passes it on to its engine
            assert not pause.done()
            for child in untied.children():
                os.kill(child, signal.SIGKILL)
            return await asyncio.wait_for(asyncio.gather(*running, return_exceptions=True), 300)

    outcomes = asyncio.run(run())
    failed = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    assert failed and all(isinstance(error, GenerationFailed) for error in failed)
    assert all(untied.url in str(error) for error in failed)
    wait_until(lambda: untied.process.poll() is not None, 300, "the server outlived it")


SENDING_END = """
import asyncio
from pathlib import Path
from types import SimpleNamespace
import torch
from vllm.distributed.weight_transfer import nccl_engine

from rlbook.scale.config import ScaleConfig
from rlbook.scale.layout import Layout
from rlbook.scale.train.weights import NCCLTransport

NAMES = ("world_size", "rank_offset", "packed", "names", "dtype_names", "shapes")
sent, asked, told = [], ([], []), []
nccl_engine.open_trainer_endpoint = lambda info: "group"
nccl_engine.packed_nccl_broadcast_producer = lambda iterator, **how: sent.extend(iterator)


class Generator:
    def __init__(self, number):
        self.url, self.name = f"http://127.0.0.1:{number}", f"generator{number}"
        self.asked = asked[number]

    async def transfer(self, step, init_info=None, update_info=None):
        info = init_info or update_info or {}
        self.asked.append((step, *(info[name] for name in NAMES if name in info)))


async def push():
    ranks = SimpleNamespace(
        device=torch.device("cpu"), first=True, share=told.append, alive=lambda: None
    )
    policy = torch.nn.ParameterDict({"a": torch.ones(2, 3), "b": torch.zeros(4)})
    transport = NCCLTransport(ScaleConfig(tensor_parallel=2), Layout(Path()), ranks, policy)
    generators = Generator(0), Generator(1)
    for fresh in (True, False):
        transport.expect(generators)
        await asyncio.gather(*(transport.send(one, fresh) for one in generators))
    return transport

asyncio.run(push())
update = ("update_weights", ["a", "b"], ["float32", "float32"], [[2, 3], [4]])
pushed = [("start_weight_update",), update, ("finish_weight_update",)]
closed = ("shutdown_weight_transfer_engine",)
for own, first in zip(asked, (1, 3), strict=True):  # trainer, and two workers of each
    meeting = ("init_weight_transfer_engine", 5, first, True)
    assert own == [closed, meeting, *2 * pushed], own
assert [name for name, _ in sent] == ["a", "b", "a", "b"]
assert told == [True, True]  # the other ranks: gather along, once per transfer
print("agrees")
"""


def test_the_sending_end_of_nccl_speaks_with_the_engine_of_vllm():
    """vLLM's own trainer-side engine, but for the two calls that need a GPU."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [PYTHON, "-c", SENDING_END], env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0 and "agrees" in done.stdout, done.stderr[-3000:]
