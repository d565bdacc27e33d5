"""The built-in server: its protocol, weight updates, refusals, and how its process ends."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from types import SimpleNamespace
from unittest.mock import AsyncMock

import aiohttp
import pytest
import torch
from aiohttp.test_utils import TestServer
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from rlbook.policy.continuous import ContinuousSampler
from rlbook.scale.generate import builtin_server
from rlbook.scale.generate.builtin_server import make_app
from rlbook.scale.generate.client import GeneratorClient
from rlbook.scale.generate.protocol import (
    WEIGHTS_VARIABLE,
    GenerationFailed,
    RequestRefused,
    reload_request,
)
from rlbook.scale.process import HOST_VARIABLE, TOKEN_VARIABLE, own_host

GENERATE = "/inference/v1/generate"


def build(seed=0, tied=False):
    """A random model with a context that no test fills."""
    torch.manual_seed(seed)
    sizes = dict(vocab_size=23, hidden_size=32, intermediate_size=48, num_hidden_layers=2)
    heads = dict(num_attention_heads=4, num_key_value_heads=2, initializer_range=0.2)
    other = dict(max_position_embeddings=10**6, pad_token_id=None, tie_word_embeddings=tied)
    return LlamaForCausalLM(LlamaConfig(**sizes, **heads, **other)).eval()


@asynccontextmanager
async def running(model=None, slots=8):
    """A server in this process. No token ends a completion, so all have the length asked for."""
    sampler = ContinuousSampler(model or build(), stop_ids=(), slots=slots)
    async with TestServer(make_app(sampler)) as server:
        yield str(server.make_url("")).rstrip("/")


def finish(coroutine):
    """Run to the end; something that would hang fails instead."""
    asyncio.run(asyncio.wait_for(coroutine, 300))


async def call(url, method, route, body=None, data=None, **headers):
    """Status of one bare request, and JSON or, of an error, what is wrong."""
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, url + route, json=body, data=data, headers=headers) as response,
    ):
        content = await response.text()
        failed = response.status >= 400
        return response.status, content if failed or not content else json.loads(content)


def generation(token_ids=(0, 3), **sampling):
    sampling = {"n": 1, "max_tokens": 4, "temperature": 1.0} | sampling
    return {"token_ids": list(token_ids), "sampling_params": sampling}


def teacher_forced(model, prompt, tokens):
    with torch.no_grad():
        logits = model(torch.tensor([prompt + tokens])).logits
    logp = logits[0, len(prompt) - 1 : -1].log_softmax(-1)
    return logp.gather(-1, torch.tensor(tokens)[:, None]).squeeze(-1)


def write_weights(model, folder):
    folder.mkdir()
    save_file({n: t.clone() for n, t in model.state_dict().items()}, folder / "model.safetensors")
    return str(folder)


def assert_sampled_by(model, prompt, completion):
    expected = teacher_forced(model, prompt, completion.token_ids)
    torch.testing.assert_close(torch.tensor(completion.logps), expected, rtol=0, atol=1e-5)


def test_a_reply_has_the_form_of_vllm():
    async def check():
        async with running() as url:
            body = generation(n=2, top_p=1.0, top_k=0, min_p=0.0, logprobs=0, detokenize=False)
            status, reply = await call(url, "POST", GENERATE, body | {"cache_salt": "r:0"})
            assert status == 200
            assert [choice["index"] for choice in reply["choices"]] == [0, 1]
            for choice in reply["choices"]:
                tokens = choice["token_ids"]
                assert len(tokens) == 4 and choice["finish_reason"] == "length"
                content = choice["logprobs"]["content"]
                assert [entry["token_id"] for entry in content] == tokens
                expected = teacher_forced(build(), [0, 3], tokens)
                logps = torch.tensor([entry["logprob"] for entry in content])
                torch.testing.assert_close(logps, expected, rtol=0, atol=1e-5)
                spans = [{"version": "default", "start": 0, "end": 4}]
                assert choice["weight_versions"] == spans
            assert reply["choices"][0]["token_ids"] != reply["choices"][1]["token_ids"]

    finish(check())


def test_states_and_labels():
    async def check():
        async with running() as url:
            assert await call(url, "GET", "/health") == (200, "")
            assert await call(url, "GET", "/weight_info") == (200, {"weight_version": "default"})
            for _ in range(2):
                paused = await call(url, "POST", "/pause?mode=keep&clear_cache=false")
                assert paused == (200, {"status": "paused"})
            for _ in range(2):
                assert await call(url, "POST", "/resume") == (200, {"status": "resumed"})
            renamed = await call(url, "POST", "/update_weight_version", {"new_version": "r:4"})
            assert renamed == (200, {"success": True, "new_version": "r:4"})
            assert await call(url, "GET", "/weight_info") == (200, {"weight_version": "r:4"})

    finish(check())


@pytest.mark.parametrize(
    ("route", "body", "named"),
    [
        (GENERATE, generation(token_ids=[]), "token_ids"),
        (GENERATE, generation(token_ids=[0, 23]), "token ids outside the vocabulary"),
        (GENERATE, generation(token_ids=["a"]), "token_ids.0"),
        (GENERATE, {"sampling_params": {"max_tokens": 1}}, "token_ids"),
        (GENERATE, generation(n=0), "sampling_params.n"),
        (GENERATE, generation(max_tokens=10**6), "max_new_tokens=1000000"),
        (GENERATE, generation(max_tokens=None), "sampling_params.max_tokens"),
        (GENERATE, generation(temperature=-1), "sampling_params.temperature"),
        (GENERATE, generation(top_p=0.9), "sampling_params.top_p"),
        (GENERATE, generation(top_k=5), "sampling_params.top_k"),
        (GENERATE, generation(stop=["x"]), "sampling_params.stop"),
        (GENERATE, b"{", "Invalid JSON"),
        (GENERATE, b"\xff", "Invalid JSON"),
        ("/pause", None, "mode"),
        ("/update_weight_version", {}, "new_version"),
        ("/collective_rpc", {"method": "shutdown"}, "reload_weights"),
        ("/collective_rpc", b"{", "Invalid JSON"),
    ],
)
def test_wrong_requests_are_refused_naming_the_field(route, body, named):
    async def check():
        async with running() as url:
            sent = {"data": body} if isinstance(body, bytes) else {"body": body}
            status, reply = await call(url, "POST", route, **sent)
            assert status == 400 and named in reply
            assert (await call(url, "POST", GENERATE, generation()))[0] == 200

    finish(check())


def test_without_the_secret_nothing_is_told(monkeypatch):
    monkeypatch.setenv(TOKEN_VARIABLE, "søcret")

    async def check():
        async with running() as url:
            routes = [("GET", "/health"), ("POST", "/resume"), ("POST", GENERATE), ("GET", "/none")]
            for method, route in routes:
                for given in ({}, {"Authorization": "Bearer other"}, {"Authorization": "søcret"}):
                    told = await call(url, method, route, **given)
                    assert told == (401, "401: Unauthorized")
            known = {"Authorization": "Bearer søcret"}
            assert await call(url, "GET", "/health", **known) == (200, "")
            assert (await call(url, "GET", "/none", **known))[0] == 404
            assert (await call(url, "GET", "/resume", **known))[0] == 405

    finish(check())


def test_weights_change_under_a_running_request(tmp_path):
    info = write_weights(build(1), tmp_path / "v3")

    async def check():
        async with running() as url, GeneratorClient(url, "run") as client:
            async with client.new_weights(2, clear_cache=False):
                await client.reload(write_weights(build(0), tmp_path / "v2"))
            ask = partial(client.complete_at, 2, [0, 3], 2, temperature=1.0)
            task = asyncio.create_task(ask(max_new_tokens=1000))
            await asyncio.sleep(0)
            await ask(max_new_tokens=5)  # beside the other, which by then has as many tokens
            async with client.new_weights(3, clear_cache=True):
                assert await client.version() is None
                await client.reload(info)
                await asyncio.sleep(0.05)
                assert not task.done()
            assert await client.version() == 3
            for completion in await task:
                tokens, old = completion.token_ids, completion.versions.count(2)
                assert completion.versions == [2] * old + [3] * (1000 - old) and 0 < old < 1000
                before = teacher_forced(build(0), [0, 3], tokens)[:old]
                after = teacher_forced(build(1), [0, 3], tokens)[old:]
                torch.testing.assert_close(
                    torch.tensor(completion.logps), torch.cat([before, after]), rtol=0, atol=1e-4
                )

    finish(check())


def test_a_paused_server_takes_requests_and_answers_them_later():
    async def check():
        async with running() as url, GeneratorClient(url, "run") as client:
            await client.pause(clear_cache=False)
            task = asyncio.create_task(call(url, "POST", GENERATE, generation()))
            await asyncio.sleep(0.1)
            assert not task.done() and await client.healthy()
            await client.resume()
            assert (await task)[0] == 200

    finish(check())


@pytest.mark.parametrize("trouble", ["no folder", "empty folder", "no safetensors", "a part"])
def test_a_failed_update_leaves_the_old_weights(tmp_path, trouble):
    folder = tmp_path / "weights"
    if trouble != "no folder":
        folder.mkdir()
    if trouble == "no safetensors":
        (folder / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0nonsense")
    if trouble == "a part":
        save_file({"model.norm.weight": torch.zeros(32)}, folder / "model.safetensors")

    async def check():
        async with running() as url, GeneratorClient(url, "run") as client:
            with pytest.raises(GenerationFailed, match="HTTP 500"):
                async with client.new_weights(1, clear_cache=False):
                    await client.reload(str(folder))
            assert await client.version() is None
            await client.resume()
            _, reply = await call(url, "POST", GENERATE, generation())
            choice = reply["choices"][0]
            assert choice["weight_versions"][0]["version"] == "run:updating"
            expected = teacher_forced(build(0), [0, 3], choice["token_ids"])
            logps = torch.tensor([entry["logprob"] for entry in choice["logprobs"]["content"]])
            torch.testing.assert_close(logps, expected, rtol=0, atol=1e-5)
            async with client.new_weights(2, clear_cache=False):
                await client.reload(write_weights(build(1), tmp_path / "good"))
            (completion,) = await client.complete_at(
                2, [0, 3], 1, max_new_tokens=5, temperature=1.0
            )
            assert_sampled_by(build(1), [0, 3], completion)

    finish(check())


def test_nobody_else_has_the_sampler_while_weights_are_loaded_though_the_client_hung_up(tmp_path):
    begun, go_on = threading.Event(), threading.Event()

    def load_weights(tensors, version):
        begun.set()
        assert go_on.wait(300)

    server = builtin_server.Server(SimpleNamespace(load_weights=load_weights, version=0))
    body = json.dumps(reload_request(write_weights(build(1), tmp_path / "v1"))).encode()

    async def check():
        reloading = asyncio.create_task(
            server.reload(SimpleNamespace(read=AsyncMock(return_value=body)))
        )
        assert await asyncio.to_thread(begun.wait, 300)
        reloading.cancel()
        await asyncio.sleep(0.01)
        assert server.between_steps.locked()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await reloading
        assert not server.between_steps.locked()

    asyncio.run(check())


def test_folders_outside_the_run_are_not_read(tmp_path, monkeypatch):
    monkeypatch.setenv(WEIGHTS_VARIABLE, str(tmp_path / "weights"))
    outside = write_weights(build(1), tmp_path / "elsewhere")

    async def check():
        async with running() as url, GeneratorClient(url, "run") as client:
            with pytest.raises(RequestRefused, match=r"is not in .*weights"):
                await client.reload(outside)
            (tmp_path / "weights").mkdir()
            async with client.new_weights(1, clear_cache=False):
                await client.reload(write_weights(build(1), tmp_path / "weights" / "v1"))
            (completion,) = await client.complete_at(
                1, [0, 3], 1, max_new_tokens=5, temperature=1.0
            )
            assert_sampled_by(build(1), [0, 3], completion)

    finish(check())


@pytest.mark.parametrize("tied", [False, True])
def test_a_tied_head_follows_its_embedding(tied, tmp_path):
    async def check():
        async with running(build(0, tied)) as url, GeneratorClient(url, "run") as client:
            async with client.new_weights(1, clear_cache=True):
                await client.reload(write_weights(build(1, tied), tmp_path / "v1"))
            (completion,) = await client.complete_at(
                1, [0, 3], 1, max_new_tokens=20, temperature=1.0
            )
            assert_sampled_by(build(1, tied), [0, 3], completion)

    finish(check())


def test_diverged_weights_are_reported_until_better_ones_arrive(tmp_path):
    broken = build(0)
    with torch.no_grad():
        broken.model.norm.weight.fill_(torch.nan)

    async def check():
        async with running() as url, GeneratorClient(url, "run") as client:
            async with client.new_weights(1, clear_cache=False):
                await client.reload(write_weights(broken, tmp_path / "v1"))
            with pytest.raises(GenerationFailed, match="not finite"):
                await client.complete_at(1, [0, 3], 2, max_new_tokens=5, temperature=1.0)
            async with client.new_weights(2, clear_cache=False):
                await client.reload(write_weights(build(1), tmp_path / "v2"))
            completions = await client.complete_at(2, [0, 3], 2, max_new_tokens=5, temperature=1.0)
            assert all(completion.versions == [2] * 5 for completion in completions)

    finish(check())


def test_a_client_that_hangs_up_frees_its_slots():
    async def check():
        async with running(slots=2) as url:
            body = generation(n=2, max_tokens=900_000)
            endless = asyncio.create_task(call(url, "POST", GENERATE, body))
            await asyncio.sleep(0.1)
            endless.cancel()
            assert (await call(url, "POST", GENERATE, generation(n=2)))[0] == 200

    finish(check())


def test_a_server_outlives_a_step_in_which_it_cannot_even_forget(monkeypatch):
    """Forgetting copies the cache: on a full GPU that raises, as a step may."""
    trouble = iter([MemoryError("no room for the copy")])
    cancel = ContinuousSampler.cancel

    def once(sampler, numbers):
        for error in trouble:
            raise error
        return cancel(sampler, numbers)

    monkeypatch.setattr(ContinuousSampler, "cancel", once)

    async def check():
        async with running(slots=2) as url:
            assert (await call(url, "POST", GENERATE, generation(n=2)))[0] >= 500
            assert (await call(url, "POST", GENERATE, generation(n=2)))[0] == 200
            assert (await call(url, "GET", "/health"))[0] == 200

    finish(check())


def test_many_requests_share_few_slots():
    async def check():
        async with running(slots=4) as url, GeneratorClient(url, "run") as client:
            await call(url, "POST", "/update_weight_version", {"new_version": "run:0"})
            prompts = [[0, 3 + i] for i in range(12)]
            groups = await asyncio.gather(
                *(client.complete_at(0, p, 3, max_new_tokens=9, temperature=1.0) for p in prompts)
            )
            for prompt, group in zip(prompts, groups, strict=True):
                assert len(group) == 3
                for completion in group:
                    assert_sampled_by(build(), prompt, completion)
            more = await client.complete_at(0, [0], 5, max_new_tokens=9, temperature=1.0)
            assert len(more) == 5

    finish(check())


def test_a_server_reachable_by_others_needs_a_secret(monkeypatch):
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    assert own_host() == "127.0.0.1"
    for host in ("0.0.0.0", "192.168.1.7"):
        monkeypatch.setenv(HOST_VARIABLE, host)
        with pytest.raises(ValueError, match=f"{host} is reachable"):
            own_host()
    monkeypatch.setenv(TOKEN_VARIABLE, "secret")
    assert own_host() == "192.168.1.7"


@contextmanager
def process(slots, token="", launcher=()):
    """A server process, or one that a process with other `launcher` arguments starts."""
    module = "rlbook.scale.generate.builtin_server"
    argv = [*launcher, sys.executable, "-m", module, "tiny", "cpu", str(slots), "0"]
    environment = os.environ | {TOKEN_VARIABLE: token}
    with subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, text=True) as started:
        try:
            yield started
        finally:
            started.kill()


def ready_url(server):
    line = server.stdout.readline()
    assert "ready at http://" in line, line
    return line.split()[-1]


def test_a_server_ends_answers_at_every_declared_token(little_policy, monkeypatch):
    policy, served = little_policy(), []
    policy[0].generation_config.eos_token_id = [2, 5]
    monkeypatch.setattr(builtin_server, "load_policy", lambda name, device: policy)
    monkeypatch.setattr(builtin_server, "make_app", served.append)
    monkeypatch.setattr(builtin_server.web, "run_app", lambda app, **how: how["sock"].close())
    for alone in ("die_with_parent", "publish", "say"):
        monkeypatch.setattr(builtin_server, alone, lambda *words: None)
    monkeypatch.setattr(sys, "argv", ["server", "little", "cpu", "4", "0"])
    builtin_server.main()
    assert served[0].stop_ids == {2, 5}


@pytest.mark.slow
def test_a_server_process_answers_and_ends_at_once_when_told_to():
    async def check(url):
        async with GeneratorClient(url, "run", token="secret") as client:
            await client.name_weights(None)
            assert await client.version() is None and await client.healthy()
            assert (await call(url, "GET", "/health"))[0] == 401
            ask = call(url, "POST", GENERATE, generation(), Authorization="Bearer secret")
            assert len((await ask)[1]["choices"][0]["token_ids"]) == 4
            body = generation([1], max_tokens=200, n=100)
            busy = call(url, "POST", GENERATE, body, Authorization="Bearer secret")
            busy = asyncio.create_task(busy)
            await client.pause(clear_cache=False)
            server.send_signal(signal.SIGTERM)
            with pytest.raises(aiohttp.ClientError):
                await busy

    with process(100, token="secret") as server:
        finish(check(ready_url(server)))
        assert server.wait(timeout=120) == -signal.SIGTERM


@pytest.mark.slow
def test_a_server_dies_with_the_process_that_started_it():
    code = "import subprocess, sys; subprocess.run(sys.argv[1:])"
    with process(8, launcher=(sys.executable, "-c", code)) as parent:
        ready_url(parent)
        parent.kill()
        assert parent.stdout.read() == ""  # returns when the last holder of the pipe has ended
