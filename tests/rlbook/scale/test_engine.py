"""The client against a fake server that answers well, badly, late or not at all."""

import asyncio
import json
from contextlib import asynccontextmanager
from functools import partial

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer, unused_port

from rlbook.durable import write_json
from rlbook.scale.generate.client import GeneratorClient, HTTPEngine
from rlbook.scale.generate.protocol import (
    GenerationFailed,
    RequestRefused,
    labelled_version,
    weight_label,
)

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


class FakeServer:
    """Answers /inference/v1/generate with `reply`, and notes what it was asked.

    It answers as soon as `crowd` requests wait for an answer.
    """

    def __init__(self, reply=None, label="run:3", status=200, crowd=1, token=None):
        self.reply, self.label, self.status, self.token = reply, label, status, token
        self.asked, self.open, self.crowd = [], False, asyncio.Barrier(crowd)

    async def __call__(self, request: web.Request) -> web.Response:
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        body = await request.json() if request.can_read_body else None
        self.asked.append((request.path_qs, body))
        return await getattr(self, request.path.rpartition("/")[2])(body)

    async def weight_info(self, body):
        return web.json_response({"weight_version": self.label})

    async def health(self, body):
        return web.Response(status=self.status)

    async def generate(self, body):
        await self.crowd.wait()
        text = self.reply if isinstance(self.reply, str) else json.dumps(self.reply)
        return web.Response(text=text, status=self.status, content_type="application/json")

    async def update_weight_version(self, body):
        self.label = body["new_version"]
        return web.json_response({"success": True})

    async def collective_rpc(self, body):
        status = 500 if body["kwargs"]["weights_path"] == "missing" else 200
        return web.json_response({"results": [None]}, status=status)

    async def start_weight_update(self, body):
        if self.open:
            return web.json_response({"error": "already active"}, status=500)
        self.open = True
        return web.json_response({})

    async def finish_weight_update(self, body):
        self.open = False
        return web.json_response({})

    async def ok(self, body):
        return web.json_response({})

    pause = resume = ok


@asynccontextmanager
async def served(fake):
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", fake)
    async with TestServer(app) as server:
        yield str(server.make_url(""))


def ask(fake, n=1, max_new_tokens=8, temperature=1.0, token=None):
    """The fake's completions through a client."""

    async def run():
        async with served(fake) as url, GeneratorClient(url, "run", token, PATIENCE) as client:
            limits = {"max_new_tokens": max_new_tokens, "temperature": temperature}
            return await client.complete_at(await client.version(), PROMPT, n, **limits)

    return asyncio.run(run())


def test_request_says_everything_that_decides_the_distribution():
    fake = FakeServer({"choices": [choice()]})
    ask(fake, max_new_tokens=8, temperature=0.7)
    path, body = fake.asked[-1]
    assert path == "/inference/v1/generate"
    assert body["token_ids"] == PROMPT and body["cache_salt"] == "run:3"
    wanted = {"n": 1, "max_tokens": 8, "temperature": 0.7, "top_p": 1, "top_k": 0, "logprobs": 0}
    assert body["sampling_params"].items() >= wanted.items()
    assert "seed" not in body["sampling_params"]


def test_tokens_know_their_version_and_choices_their_order():
    second = choice(1, (7, 7), [("run:4", 0, 2)], finish_reason="length")
    first, last = ask(FakeServer({"choices": [second, choice(0)]}), n=2)
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
        ask(FakeServer(reply))


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
        ask(FakeServer({"error": "too hot"}, status=status))


def test_silence_is_a_failure():
    async def run():
        async with (
            served(FakeServer(crowd=2)) as url,
            GeneratorClient(url, "run", None, 0.2) as one,
        ):
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


def test_token_is_sent_and_its_absence_refused():
    fake = FakeServer({"choices": [choice()]}, token="secret")
    assert ask(fake, token="secret")
    for wrong in (None, "Secret"):
        with pytest.raises(RequestRefused, match=r"401.*Unauthorized"):
            ask(fake, token=wrong)


@pytest.mark.parametrize("label", ["default", "other:3", "run:updating", "run:", "run:-1", "3"])
def test_weights_of_another_run_are_no_version(label):
    async def run():
        async with served(FakeServer(label=label)) as url, GeneratorClient(url, "run") as client:
            assert await client.healthy()
            assert await client.version() is None
            await HTTPEngine([client]).complete(PROMPT, 1, max_new_tokens=8, temperature=1.0)

    with pytest.raises(GenerationFailed, match="no generator has weights of this run"):
        asyncio.run(run())


def test_labels_round_trip_for_any_run_id():
    assert labelled_version(weight_label("a:b", 12), "a:b") == 12
    assert labelled_version(weight_label("a", None), "a") is None
    assert labelled_version("a:12", "a:1") is None


def updated(fake, folder):
    """The fake's version after an update to version 7."""

    async def run():
        async with served(fake) as url, GeneratorClient(url, "run", timeout=PATIENCE) as client:
            async with client.new_weights(7, clear_cache=True):
                fake.version_while_open = await client.version()
                await client.reload(folder)
            return await client.version()

    return asyncio.run(run())


def test_an_update_pauses_hides_the_version_and_resumes():
    fake = FakeServer()
    assert updated(fake, "w") == 7
    assert fake.version_while_open is None
    routes = [path for path, _ in fake.asked if path != "/weight_info"]
    assert routes == [
        "/pause?mode=keep&clear_cache=true",
        "/update_weight_version",
        "/collective_rpc",
        "/update_weight_version",
        "/resume",
    ]
    reload = {"method": "reload_weights", "kwargs": {"weights_path": "w"}}
    assert ("/collective_rpc", reload) in fake.asked


def test_a_failed_update_leaves_a_paused_server_without_version():
    fake = FakeServer()
    with pytest.raises(GenerationFailed, match="collective_rpc: HTTP 500"):
        updated(fake, "missing")
    assert fake.label == "run:updating"
    assert "/resume" not in [path for path, _ in fake.asked]
    assert updated(fake, "w") == 7


def test_a_transfer_left_open_by_a_dead_trainer_is_closed_first():
    fake = FakeServer()
    fake.open = True

    async def run():
        async with served(fake) as url, GeneratorClient(url, "run", timeout=PATIENCE) as client:
            await client.transfer("start_weight_update")

    asyncio.run(run())
    assert fake.open and ("/finish_weight_update", None) in fake.asked


def test_groups_spread_over_the_admitted_servers():
    reply = {"choices": [choice()]}
    old, new, foreign = (
        FakeServer(reply, crowd=3),
        FakeServer(reply, label="run:5", crowd=3),
        FakeServer(reply, label="other:3"),
    )

    async def run():
        async with served(old) as a, served(new) as b, served(foreign) as c:
            gone = f"http://127.0.0.1:{unused_port()}"
            clients = [GeneratorClient(url, "run", timeout=PATIENCE) for url in (a, b, c, gone)]
            for client in clients:
                await client.__aenter__()
            engine = HTTPEngine(clients)
            try:
                await engine.look()
                assert engine.versions == {clients[0]: 3, clients[1]: 5}
                limits = {"max_new_tokens": 8, "temperature": 1.0}
                await asyncio.gather(*(engine.complete(PROMPT, 1, **limits) for _ in range(6)))
            finally:
                for client in clients:
                    await client.__aexit__()

    asyncio.run(run())
    salts = [[body["cache_salt"] for _, body in one.asked if body] for one in (old, new, foreign)]
    assert salts == [["run:3"] * 3, ["run:5"] * 3, []]


class Freezing(GeneratorClient):
    """The client of a server that accepts connections, as a stopped process does."""

    def __init__(self, url, version=3):
        super().__init__(url, "run")
        self.own, self.thawed = version, asyncio.Event()
        self.thawed.set()

    async def _ask(self, route, body=None, method="POST"):
        try:
            await asyncio.wait_for(self.thawed.wait(), PATIENCE)
        except TimeoutError:
            raise GenerationFailed("no answer") from None
        return {"weight_version": f"run:{self.own}"}


def test_a_frozen_server_holds_nobody_up_and_is_back_as_it_thaws(own_time):
    async def run():
        one, two = Freezing("one"), Freezing("two")
        engine = HTTPEngine([one, two])
        watching = asyncio.create_task(engine.watch())
        await asyncio.sleep(0.1)
        assert engine.versions == {one: 3, two: 3}
        one.thawed.clear()
        for version in range(4, 20):  # the other one is heard as often as ever
            two.own = version
            await asyncio.sleep(0.1)
            assert engine.versions[two] == version
        await asyncio.sleep(PATIENCE)
        assert engine.versions == {two: 19}
        one.thawed.set()
        await asyncio.sleep(0.1)
        assert engine.versions == {one: 3, two: 19}
        watching.cancel()

    own_time(run)


def test_what_an_evaluation_has_aside_is_asked_nothing_else_while_there_is_another(own_time):
    async def run():
        one, two = Freezing("one"), Freezing("two")
        engine = HTTPEngine([one, two])
        engine.aside = one
        await engine.look()
        assert engine.versions == {two: 3}
        assert engine.only(one).versions == {one: 3}
        alone = HTTPEngine([one])
        alone.aside = one
        assert alone.versions == {one: 3}

    own_time(run)


def test_a_wrong_secret_ends_the_watch():
    async def run():
        fake = FakeServer(token="secret")
        async with served(fake) as url, GeneratorClient(url, "run", timeout=PATIENCE) as client:
            await HTTPEngine([client]).watch()

    with pytest.raises(RequestRefused, match="401"):
        asyncio.run(run())


def test_every_reply_is_a_sign_of_life():
    beats = []

    async def run():
        async with served(FakeServer(label="default")) as url:
            gone = f"http://127.0.0.1:{unused_port()}"
            for where in (gone, url):
                client = GeneratorClient(where, "run", heartbeat=partial(beats.append, where))
                async with client:
                    assert await client.version() is None
        assert beats == [url]

    asyncio.run(run())


def test_what_a_server_fails_at_another_one_is_asked():
    reply = {"choices": [choice()]}
    broken, well = FakeServer(reply, status=500), FakeServer(reply)

    async def run():
        async with (
            served(broken) as a,
            served(well) as b,
            GeneratorClient(a, "run", timeout=PATIENCE) as one,
            GeneratorClient(b, "run", timeout=PATIENCE) as two,
        ):
            engine = HTTPEngine([one, two])
            assert len(await engine.complete(PROMPT, 4, max_new_tokens=8, temperature=1.0)) == 4
            assert engine.versions == {two: 3}  # until the other one is heard again
            assert (one.running, two.running) == (0, 0)

    asyncio.run(run())


def test_a_failed_completion_is_asked_once_more_and_its_siblings_are_not():
    fake = FakeServer({"choices": [choice()]})
    answered = fake.generate
    fails = iter((False, True, False, False, False))

    async def generate(body):
        return web.Response(status=500) if next(fails) else await answered(body)

    fake.generate = generate
    assert len(asked_of_one(fake, n=4)) == 4
    requests = [body for path, body in fake.asked if path.endswith("/generate")]
    assert len(requests) == 5
    assert {body["sampling_params"]["n"] for body in requests} == {1}


def test_a_completion_that_fails_twice_fails_its_group():
    fake = FakeServer({"choices": [choice()]}, status=500)
    with pytest.raises(GenerationFailed, match="HTTP 500"):
        asked_of_one(fake, n=2)


def test_greedy_is_asked_once():
    fake = FakeServer({"choices": [choice()]})
    completions = asked_of_one(fake, n=3, temperature=0.0)
    assert sum(path.endswith("/generate") for path, _ in fake.asked) == 1
    assert fake.asked[-1][1]["sampling_params"]["n"] == 1
    assert [c.token_ids for c in completions] == [[5, 9, 2]] * 3


def asked_of_one(fake, n, temperature=1.0):
    """`n` completions from an engine of one server."""

    async def run():
        async with served(fake) as url, GeneratorClient(url, "run", timeout=PATIENCE) as client:
            engine = HTTPEngine([client])
            return await engine.complete(PROMPT, n, max_new_tokens=8, temperature=temperature)

    return asyncio.run(run())


def test_no_admitted_server_is_a_failure_that_lists_them():
    async def run():
        async with served(FakeServer(label="default")) as url, GeneratorClient(url, "run") as one:
            engine = HTTPEngine([one])
            await engine.complete(PROMPT, 1, max_new_tokens=8, temperature=1.0)

    with pytest.raises(GenerationFailed, match=r"no generator has weights of this run: http://"):
        asyncio.run(run())


def test_a_server_that_has_moved_is_found_where_it_says_it_is(tmp_path):
    entry, limits = tmp_path / "generator0.json", {"max_new_tokens": 8, "temperature": 1.0}

    async def run():
        async with GeneratorClient(entry, "run", timeout=PATIENCE) as client:
            engine = HTTPEngine([client])
            await engine.look()
            assert engine.versions == {}  # it has not started yet
            for version in (3, 5):
                fake = FakeServer({"choices": [choice()]}, label=f"run:{version}")
                async with served(fake) as url:
                    write_json(entry, {"url": url})
                    await engine.look()
                    assert engine.versions == {client: version}
                    assert len(await engine.complete(PROMPT, 1, **limits)) == 1
                await engine.look()
                assert engine.versions == {}  # it has not started again yet

    asyncio.run(run())
