"""Generators in memory: the book's own server, routes and all, around a sampler that costs nothing.

What is asked goes from the package's own client into the real application of `builtin_server`, and
its answer back. Only the wire between them is pretended, and who writes. Faults are set on a
`Generator` and may change while it is asked. The routes of a transfer are those of vLLM.
"""

import asyncio
import json
import random
import re
from contextlib import asynccontextmanager
from functools import cache
from itertools import count
from types import MappingProxyType, SimpleNamespace
from typing import NamedTuple
from unittest.mock import patch

import aiohttp
import torch
from aiohttp import web
from aiohttp.http import HttpVersion11, RawRequestMessage
from multidict import CIMultiDict
from safetensors.torch import save_file
from yarl import URL

from rlbook.policy import Completion, load_tokenizer
from rlbook.scale.generate import builtin_server
from rlbook.scale.generate.client import GeneratorClient, HTTPEngine
from rlbook.scale.generate.protocol import TRANSFER, labelled_version, weight_label

RUN = "run"
UNLIMITED = aiohttp.ClientTimeout(None)
tokenizer_of_sums = cache(load_tokenizer)


class Asked(NamedTuple):
    """A request: the last part of its path, all of that, its body."""

    route: str
    path: str
    body: dict | None

    @property
    def prompt(self):
        return tokenizer_of_sums().decode(self.body["token_ids"], skip_special_tokens=True)


class Reply(NamedTuple):
    status: int
    content: bytes

    async def read(self):
        return self.content

    async def json(self):
        return json.loads(self.content)


class Generator:
    """A server's process. By default it answers sums, right with probability `right(prompt)`.

    A completion takes `seconds(rng)`; its first half is by the weights at its start, the rest by
    those at its end, and none of it is written while the server is paused. `weights` are the
    version of run `run`; None: those that a process is started with.
    """

    run, seed = RUN, 0
    right = staticmethod(lambda text: 0.5)
    seconds = staticmethod(lambda rng: 0.0)
    dead = False  # nobody listens
    hangs = frozenset()  # by the last part of their path: requests that are never answered
    fails = MappingProxyType({})  # and those that are answered with this status
    trouble = None  # awaited with a request: raises, takes time, or returns the `Reply`
    busy = False  # nothing has to be done step by step

    def __init__(self, name="generator0", weights=None, **settings):
        assert all(hasattr(type(self), setting) for setting in settings), settings
        vars(self).update(settings)
        self.name, self.url = name, f"http://{name}"
        self.rng, self.numbers = random.Random(self.seed), count()
        self.asked, self.in_flight, self.most_in_flight, self.writing = [], {}, 0, {}
        self.life, self.open = 0, False  # `open`: an update by vLLM's engines
        self.start()
        self.weights = weights

    def start(self):
        """A new process, which knows nothing of the one before."""
        self.version, self.server = 0, builtin_server.Server(self)
        self.server.stepping = SimpleNamespace(done=lambda: False)
        with patch.object(builtin_server, "Server", lambda sampler: self.server):
            self.app = builtin_server.make_app(self)
        for step in TRANSFER:
            self.app.router.add_post(f"/{step}", self.transfer)
        self.app.freeze()

    def restart(self):
        """Killed in the middle of whatever it was asked, and back at once, with no weights."""
        self.life += 1
        for request in list(self.in_flight):
            request.cancel()
        self.start()

    # What a test sees of it

    @property
    def label(self):
        return self.server.labels[-1]

    @label.setter
    def label(self, label):
        self.server.labels.append(label)
        self.version = len(self.server.labels) - 1

    @property
    def weights(self):
        return labelled_version(self.label, self.run)

    @weights.setter
    def weights(self, version):
        self.label = "default" if version is None else weight_label(self.run, version)

    @property
    def paused(self):
        return self.server.paused

    @property
    def routes(self):
        """What it was asked, but for the question what it has."""
        return [one.route for one in self.asked if one.route != "weight_info"]

    def bodies(self, route):
        return [one.body for one in self.asked if one.route == route]

    # The sampler of its server

    def add(self, token_ids, max_new_tokens, temperature, stop_ids):
        number = next(self.numbers)
        work = self.complete(number, token_ids, max_new_tokens, self.version)
        self.writing[number] = asyncio.create_task(work)
        return number

    async def complete(self, number, prompt, limit, first):
        server = self.server
        await asyncio.sleep(self.seconds(self.rng))
        async with server.between_steps:
            await server.between_steps.wait_for(lambda: not server.paused)
            server.between_steps.notify()  # so it wakes one after the other
        del self.writing[number]
        if (future := server.futures.pop(number)).done():
            return  # its client has hung up
        tokens, logps, reason = self.write(prompt, limit)
        late = len(tokens) // 2
        versions = [first] * (len(tokens) - late) + [self.version] * late
        future.set_result(Completion(tokens, logps, reason, versions=versions))

    def write(self, prompt, limit):
        """Tokens, their log-probabilities, and why there are no more."""
        tokenizer = tokenizer_of_sums()
        text = tokenizer.decode(prompt, skip_special_tokens=True)
        answer = sum(map(int, re.findall(r"[+-]?\d+", text)))
        answer += self.rng.random() >= self.right(text)
        text = f"<think></think><answer>{answer}</answer>"
        tokens = tokenizer(text, add_special_tokens=False).input_ids
        tokens = [*tokens, tokenizer.eos_token_id][:limit]
        reason = "stop" if tokens[-1] == tokenizer.eos_token_id else "length"
        return tokens, [-0.5] * len(tokens), reason

    def clear_cache(self):
        """There is none."""

    def load_weights(self, tensors, version):
        assert self.paused and tensors, "weights are sent to a generator that writes"
        self.read = tensors

    # Its wire

    async def answer(self, method, path, headers, content):
        """The reply to a request; a connection that breaks raises as aiohttp does."""
        route = path.partition("?")[0].rpartition("/")[2]
        asked = Asked(route, path, json.loads(content) if content else None)
        self.asked.append(asked)
        life, work = self.life, asyncio.ensure_future(self.handled(asked, method, headers, content))
        self.in_flight[work] = asked
        writing = sum(one.route == "generate" for one in self.in_flight.values())
        self.most_in_flight = max(self.most_in_flight, writing)
        try:
            return await work
        except asyncio.CancelledError:
            if self.life != life:
                raise aiohttp.ServerDisconnectedError from None
            raise
        finally:
            del self.in_flight[work]

    async def handled(self, asked, method, headers, content):
        if self.dead:
            raise aiohttp.ClientConnectionError("nobody listens")
        while asked.route in self.hangs:
            await asyncio.sleep(0.05)
        if self.trouble and (reply := await self.trouble(asked)) is not None:
            return reply
        if asked.route in self.fails:
            return Reply(self.fails[asked.route], f"{asked.route} failed".encode())
        try:
            response = await self.app._handle(Request(method, asked.path, headers, content))
        except web.HTTPException as error:
            response = error
        return Reply(response.status, bytes(response.body or b""))

    async def transfer(self, request):
        """A step of vLLM's: an update is begun once, and in its middle there are weights."""
        step = request.path.removeprefix("/")
        if step in ("start_weight_update", "update_weights"):
            if self.open is (step == "start_weight_update"):
                return web.json_response({"error": f"{step}: active: {self.open}"}, status=500)
            self.open = True
        elif step == "finish_weight_update":
            self.open = False
        return web.json_response({})


class Request(web.Request):
    """What aiohttp's server makes of the bytes that came."""

    def __init__(self, method, path, headers, content):
        raw = tuple((name.encode(), value.encode()) for name, value in headers.items())
        known = HttpVersion11, CIMultiDict(headers), raw, False, None, False, False, URL(path)
        here = SimpleNamespace(transport=None, ssl_context=None, sockname=None, peername=None)
        loop = asyncio.get_running_loop()
        super().__init__(RawRequestMessage(method, path, *known), None, here, None, None, loop)
        self._read_bytes = content


class Wire:
    """Stands for a session of aiohttp's with generators that it knows by their URLs."""

    def __init__(self, generators, headers=()):
        self.generators, self.headers = {one.url: one for one in generators}, dict(headers)

    @asynccontextmanager
    async def request(self, method, url, timeout=UNLIMITED, json=None):
        where = "/".join(url.split("/")[:3])
        if (generator := self.generators.get(where)) is None:
            raise aiohttp.ClientConnectionError("nobody listens")
        path = url.removeprefix(where)
        content = b"" if json is None else encoded(json)
        async with asyncio.timeout(timeout.total):
            reply = await generator.answer(method, path, self.headers, content)
        yield reply

    async def close(self):
        """Nothing is open."""

    @asynccontextmanager
    async def post(self, route, json=None):
        """Of the session with one server, which raises what is refused."""
        (url,) = self.generators
        async with self.request("POST", url + route, json=json) as reply:
            if reply.status >= 400:
                raise aiohttp.ClientError(f"HTTP {reply.status}: {reply.content.decode()}")
            yield reply


def encoded(value):
    return json.dumps(value).encode()


class Client(GeneratorClient):
    """The package's client, connected in memory to a generator, or to whichever `where` names."""

    def __init__(self, generator, *others, run_id=RUN, **how):
        self.fleet = [generator, *others]
        super().__init__(how.pop("where", generator.url), run_id, **how)
        self.name, self._session = generator.name, Wire(self.fleet, self._headers)

    async def __aenter__(self):
        return self


def engine_of(*generators):
    """All of them as one, through a client each."""
    return HTTPEngine([Client(one) for one in generators])


async def pushed(client, version, folder):
    """A push as the trainer makes it, of weights that are nothing, from a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (file := folder / "model.safetensors").exists():
        save_file({"nothing": torch.zeros(1)}, file)
    async with client.new_weights(version, clear_cache=False):
        await client.reload(str(folder))
