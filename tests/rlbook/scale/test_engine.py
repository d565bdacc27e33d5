"""The client against a server that answers well, badly, late or not at all."""

import asyncio
import json
from contextlib import asynccontextmanager
from functools import partial

import pytest
import torch
from aiohttp import web
from aiohttp.test_utils import TestServer, unused_port
from fleet import Client, Generator, Reply, engine_of
from safetensors.torch import save_file

from rlbook.durable import write_json
from rlbook.scale.generate.client import GeneratorClient, HTTPEngine
from rlbook.scale.generate.protocol import (
    GenerationFailed,
    RequestRefused,
    labelled_version,
    weight_label,
)
from rlbook.scale.process import TOKEN_VARIABLE

PROMPT = [1, 17, 24]
PATIENCE = 60.0  # seconds that a busy machine may take


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    monkeypatch.setattr("rlbook.scale.generate.client.STATUS_SECONDS", PATIENCE)


def choice(index=0, tokens=(5, 9, 2), versions=(("run:3", 0, 2), ("run:4", 2, 3)), **changes):
    """One choice as vLLM 0.32 writes it."""
    content = [
        {"token_id": t, "logprob": -0.5 * (i + 1), "rank": 1, "top_logprobs": []}
        for i, t in enumerate(tokens)
    ]
    spans = [{"version": v, "start": a, "end": b} for v, a, b in versions]
    return {
        "index": index,
        "finish_reason": "stop",
        "stop_reason": None,
        "token_ids": list(tokens),
        "logprobs": {"content": content},
        "weight_versions": spans,
    } | changes


def replying(reply, status=200):
    """What a server does that answers every prompt with this; text as it is, else as JSON."""
    content = (reply if isinstance(reply, str) else json.dumps(reply)).encode()

    async def trouble(asked):
        if asked.route == "generate":
            return Reply(status, content)

    return {"weights": 3, "trouble": trouble}


@asynccontextmanager
async def served(generator):
    """Its routes on a port of this machine."""

    async def answer(request):
        content = await request.read()
        reply = await generator.answer(request.method, request.path_qs, request.headers, content)
        return web.Response(status=reply.status, body=reply.content)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(app) as server:
        yield str(server.make_url(""))


def ask(generator, n=1, max_new_tokens=8, temperature=1.0, token=None):
    """Its completions through a client, over HTTP."""

    async def run():
        async with served(generator) as url, GeneratorClient(url, "run", token, PATIENCE) as client:
            limits = {"max_new_tokens": max_new_tokens, "temperature": temperature}
            return await client.complete_at(await client.version(), PROMPT, n, **limits)

    return asyncio.run(run())


def test_request_says_everything_that_decides_the_distribution():
    generator = Generator(weights=3)
    ask(generator, max_new_tokens=8, temperature=0.7)
    *_, (_, path, body) = generator.asked
    assert path == "/inference/v1/generate"
    assert body["token_ids"] == PROMPT and body["cache_salt"] == "run:3"
    wanted = {"n": 1, "max_tokens": 8, "temperature": 0.7, "top_p": 1, "top_k": 0, "logprobs": 0}
    assert body["sampling_params"].items() >= wanted.items()
    assert "seed" not in body["sampling_params"]


def test_tokens_know_their_version_and_choices_their_order():
    second = choice(1, (7, 7), [("run:4", 0, 2)], finish_reason="length")
    first, last = ask(Generator(**replying({"choices": [second, choice(0)]})), n=2)
    assert first.token_ids == [5, 9, 2] and first.versions == [3, 3, 4]
    assert first.logps == [-0.5, -1.0, -1.5] and first.finish_reason == "stop"
    assert last.token_ids == [7, 7] and last.versions == [4, 4]
    assert last.finish_reason == "length"


def without(field, **changes):
    broken = choice(**changes)
    del broken[field]
    return broken


def logprob(value):
    return {"content": [{"logprob": value}, {"logprob": -1.0}, {"logprob": -1.0}]}


MALFORMED = {
    "not JSON": "<html>",
    "not an object": [1, 2],
    "no choices": {},
    "null choices": {"choices": None},
    "too few choices": {"choices": []},
    "too many choices": {"choices": [choice(0), choice(1)]},
    "wrong index": {"choices": [choice(4)]},
    "no token ids": {"choices": [without("token_ids")]},
    "no log-probabilities": {"choices": [choice(logprobs=None)]},
    "no versions": {"choices": [choice(weight_versions=None)]},
    "no finish reason": {"choices": [without("finish_reason")]},
    "aborted": {"choices": [choice(finish_reason="abort")]},
    "empty": {"choices": [choice(tokens=(), versions=())]},
    "too long": {"choices": [choice(tokens=[5] * 9, versions=[("run:3", 0, 9)])]},
    "text for tokens": {"choices": [choice(token_ids=["a", "b", "c"])]},
    "negative token": {"choices": [choice(token_ids=[5, -9, 2])]},
    "boolean token": {"choices": [choice(token_ids=[5, True, 2])]},
    "one log-probability short": {
        "choices": [choice(logprobs={"content": [{"logprob": -1.0}] * 2})]
    },
    "text for log-probability": {"choices": [choice(logprobs=logprob("-1"))]},
    "NaN": {"choices": [choice(logprobs=logprob(float("nan")))]},
    "clamped -inf": {"choices": [choice(logprobs=logprob(-9999.0))]},
    "probability above one": {"choices": [choice(logprobs=logprob(0.5))]},
    "weights of another run": {"choices": [choice(versions=[("other:3", 0, 3)])]},
    "weights of no run": {"choices": [choice(versions=[("default", 0, 3)])]},
    "half-loaded weights": {"choices": [choice(versions=[("run:updating", 0, 3)])]},
    "hole between spans": {"choices": [choice(versions=[("run:3", 0, 1), ("run:4", 2, 3)])]},
    "overlapping spans": {"choices": [choice(versions=[("run:3", 0, 2), ("run:4", 1, 3)])]},
    "spans too short": {"choices": [choice(versions=[("run:3", 0, 2)])]},
    "spans too long": {"choices": [choice(versions=[("run:3", 0, 4)])]},
    "empty span": {"choices": [choice(versions=[("run:3", 0, 0), ("run:4", 0, 3)])]},
}


@pytest.mark.parametrize("reply", MALFORMED.values(), ids=MALFORMED)
def test_malformed_reply_is_a_failure_that_names_the_server(reply):
    with pytest.raises(GenerationFailed, match=r"http://127\.0\.0\.1:\d+.* sent "):
        ask(Generator(**replying(reply)))


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (500, GenerationFailed),
        (503, GenerationFailed),
        (429, GenerationFailed),
        (400, RequestRefused),
        (404, RequestRefused),
    ],
)
def test_server_errors_may_pass_and_client_errors_do_not(status, error):
    with pytest.raises(error, match=f"HTTP {status}.*too hot"):
        ask(Generator(**replying({"error": "too hot"}, status)))


def test_silence_is_a_failure():
    async def run():
        silent = Generator(weights=3, hangs={"generate"})
        async with served(silent) as url, GeneratorClient(url, "run", None, 0.2) as one:
            await one.complete_at(3, PROMPT, 1, max_new_tokens=8, temperature=1.0)

    with pytest.raises(GenerationFailed, match=r"generate: no answer within 0\.2 s"):
        asyncio.run(run())


def test_nobody_there_is_a_failure():
    async def run(url):
        async with GeneratorClient(url, "run") as client:
            assert await client.version() is None
            assert not await client.healthy()
            await client.complete_at(3, PROMPT, 1, max_new_tokens=8, temperature=1.0)

    with pytest.raises(GenerationFailed, match=r"generate: ClientConnectorError"):
        asyncio.run(run(f"http://127.0.0.1:{unused_port()}"))


def test_token_is_sent_and_its_absence_refused(monkeypatch):
    monkeypatch.setenv(TOKEN_VARIABLE, "secret")
    generator = Generator(weights=3)
    assert ask(generator, token="secret")
    for wrong in (None, "Secret"):
        with pytest.raises(RequestRefused, match=r"401.*Unauthorized"):
            ask(generator, token=wrong)


@pytest.mark.parametrize("label", ["default", "other:3", "run:updating", "run:", "run:-1", "3"])
def test_weights_of_another_run_are_no_version(label):
    generator = Generator()
    generator.label = label

    async def run():
        assert await Client(generator).healthy()
        assert await Client(generator).version() is None
        await engine_of(generator).complete(PROMPT, 1, max_new_tokens=8, temperature=1.0)

    with pytest.raises(GenerationFailed, match="no generator has weights of this run"):
        asyncio.run(run())


def test_labels_round_trip_for_any_run_id():
    assert labelled_version(weight_label("a:b", 12), "a:b") == 12
    assert labelled_version(weight_label("a", None), "a") is None
    assert labelled_version("a:12", "a:1") is None


async def updated(generator, folder):
    """Its version while it is updated to version 7, and after."""
    client = Client(generator)
    async with client.new_weights(7, clear_cache=True):
        before = await client.version()
        await client.reload(folder)
    return before, await client.version()


def test_an_update_pauses_hides_the_version_and_resumes(tmp_path):
    save_file({"w": torch.zeros(1)}, tmp_path / "model.safetensors")
    generator = Generator()
    assert asyncio.run(updated(generator, str(tmp_path))) == (None, 7)
    assert [one.path for one in generator.asked if one.route != "weight_info"] == [
        "/pause?mode=keep&clear_cache=true",
        "/update_weight_version",
        "/collective_rpc",
        "/update_weight_version",
        "/resume",
    ]
    reload = {"method": "reload_weights", "kwargs": {"weights_path": str(tmp_path)}}
    assert generator.bodies("collective_rpc") == [reload]


def test_a_failed_update_leaves_a_paused_server_without_version(tmp_path):
    generator = Generator()
    with pytest.raises(GenerationFailed, match="collective_rpc: HTTP 500"):
        asyncio.run(updated(generator, str(tmp_path)))
    assert generator.label == "run:updating" and generator.paused
    assert "resume" not in generator.routes
    save_file({"w": torch.zeros(1)}, tmp_path / "model.safetensors")
    assert asyncio.run(updated(generator, str(tmp_path))) == (None, 7)


def test_a_transfer_left_open_by_a_dead_trainer_is_closed_first():
    generator = Generator()
    asyncio.run(Client(generator).transfer("start_weight_update"))
    asyncio.run(Client(generator).transfer("start_weight_update"))  # another trainer
    start = "start_weight_update"
    assert generator.open and generator.routes == [start, start, "finish_weight_update", start]


def test_groups_spread_over_the_admitted_servers(own_time):
    old, new, dead = Generator("old", 3), Generator("new", 5), Generator("dead", 5, dead=True)
    foreign = Generator("foreign", 3, run="other")
    for one in (old, new):
        one.seconds = lambda rng: 1.0

    async def run():
        engine = engine_of(old, new, foreign, dead)
        await engine.look()
        assert {client.name: held for client, held in engine.versions.items()} == {
            "old": 3,
            "new": 5,
        }
        limits = {"max_new_tokens": 8, "temperature": 1.0}
        await asyncio.gather(*(engine.complete(PROMPT, 1, **limits) for _ in range(6)))

    own_time(run)
    salts = [[b["cache_salt"] for b in one.bodies("generate")] for one in (old, new, foreign)]
    assert salts == [["run:3"] * 3, ["run:5"] * 3, []]


def test_a_frozen_server_holds_nobody_up_and_is_back_as_it_thaws(own_time):
    one, two = Generator("one", 3), Generator("two", 3)

    async def run():
        engine = engine_of(one, two)
        first, second = engine.clients
        watching = asyncio.create_task(engine.watch())
        await asyncio.sleep(0.1)
        assert engine.versions == {first: 3, second: 3}
        one.hangs = {"weight_info"}  # accepts connections, as a stopped process does
        for version in range(4, 20):  # the other one is heard as often as ever
            two.weights = version
            await asyncio.sleep(0.1)
            assert engine.versions[second] == version
        await asyncio.sleep(PATIENCE)
        assert engine.versions == {second: 19}
        one.hangs = {}
        await asyncio.sleep(0.15)
        assert engine.versions == {first: 3, second: 19}
        watching.cancel()

    own_time(run)


def test_what_an_evaluation_has_aside_is_asked_nothing_else_while_there_is_another(own_time):
    async def run():
        engine = engine_of(Generator("one", 3), Generator("two", 3))
        one, two = engine.clients
        engine.aside = one
        await engine.look()
        assert engine.versions == {two: 3}
        assert engine.only(one).versions == {one: 3}
        alone = HTTPEngine([one])
        alone.aside = one
        assert alone.versions == {one: 3}

    own_time(run)


def test_a_wrong_secret_ends_the_watch(monkeypatch):
    monkeypatch.setenv(TOKEN_VARIABLE, "secret")
    with pytest.raises(RequestRefused, match="401"):
        asyncio.run(engine_of(Generator()).watch())


def test_every_reply_is_a_sign_of_life():
    beats = []

    async def run():
        async with served(Generator()) as url:
            gone = f"http://127.0.0.1:{unused_port()}"
            for where in (gone, url):
                client = GeneratorClient(where, "run", heartbeat=partial(beats.append, where))
                async with client:
                    assert await client.version() is None
        assert beats == [url]

    asyncio.run(run())


def complete(n, *generators, temperature=1.0):
    """`n` completions from an engine of these, and the engine."""

    async def run():
        engine = engine_of(*generators)
        return await engine.complete(PROMPT, n, 8, temperature), engine

    return asyncio.run(run())


def test_what_a_server_fails_at_another_one_is_asked():
    broken, well = Generator("broken", 3, fails={"generate": 500}), Generator("well", 3)
    completions, engine = complete(4, broken, well)
    assert len(completions) == 4 and [one.running for one in engine.clients] == [0, 0]
    assert engine.versions == {engine.clients[1]: 3}  # until the other one is heard again


def test_a_failed_completion_is_asked_once_more_and_its_siblings_are_not():
    fails = iter((False, True, False, False, False))

    async def trouble(asked):
        if asked.route == "generate" and next(fails):
            return Reply(500, b"")

    generator = Generator(weights=3, trouble=trouble)
    assert len(complete(4, generator)[0]) == 4
    requests = generator.bodies("generate")
    assert len(requests) == 5
    assert {body["sampling_params"]["n"] for body in requests} == {1}


def test_a_completion_that_fails_twice_fails_its_group():
    with pytest.raises(GenerationFailed, match="HTTP 500"):
        complete(2, Generator(weights=3, fails={"generate": 500}))


def test_greedy_is_asked_once():
    generator = Generator(**replying({"choices": [choice()]}))
    completions, _ = complete(3, generator, temperature=0.0)
    (body,) = generator.bodies("generate")
    assert body["sampling_params"]["n"] == 1
    assert [c.token_ids for c in completions] == [[5, 9, 2]] * 3


def test_no_admitted_server_is_a_failure_that_lists_them():
    with pytest.raises(GenerationFailed, match=r"no generator has weights of this run: http://"):
        complete(1, Generator())


def test_a_server_that_has_moved_is_found_where_it_says_it_is(tmp_path):
    entry, here, there = tmp_path / "generator0.json", Generator("here", 3), Generator("there", 5)

    async def run():
        client = Client(here, there, where=entry)
        engine = HTTPEngine([client])
        await engine.look()
        assert engine.versions == {}  # it has not started yet
        for one in (here, there):
            write_json(entry, {"url": one.url})
            await engine.look()
            assert engine.versions == {client: one.weights}
            assert len(await engine.complete(PROMPT, 1, max_new_tokens=8, temperature=1.0)) == 1
            one.dead = True
            await engine.look()
            assert engine.versions == {}  # it has not started again yet

    asyncio.run(run())
