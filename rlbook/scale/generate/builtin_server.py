"""The book's own sampler behind vLLM's routes: `python -m rlbook.scale.generate.builtin_server`.

The secret that requests have to carry is in the environment: `RLBOOK_TOKEN`.
"""

import argparse
import asyncio
import json
import logging
import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal, TypeVar
from uuid import uuid4

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors.torch import load_file
from torch import Tensor

from rlbook.policy import Completion, load_policy, set_threads
from rlbook.policy.continuous import ContinuousSampler
from rlbook.scale.config import LOOPBACK
from rlbook.scale.generate.protocol import RELOAD_ROUTE, WEIGHTS_VARIABLE, requested_folder
from rlbook.scale.generate.registry import own_host, publish
from rlbook.scale.process import die_with_parent

TOKEN_VARIABLE = "RLBOOK_TOKEN"
FRESH_LABEL = "default"  # vLLM's name of the weights a server was started with
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Body = TypeVar("Body", bound=BaseModel)


class BadRequest(ValueError):
    """The request itself is wrong; the message names the field."""


class Strict(BaseModel):
    """A body whose fields are all known and of their own type."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Sampling(Strict):
    """vLLM's sampling parameters, as far as the whole distribution is asked for."""

    n: int = Field(1, ge=1)
    max_tokens: int = Field(ge=1)
    temperature: float = Field(1.0, ge=0, allow_inf_nan=False)
    top_p: Literal[1] = 1
    top_k: Literal[0, -1] = 0
    min_p: Literal[0] = 0
    logprobs: int | None = None
    detokenize: bool = False
    skip_special_tokens: bool = False


class Generation(Strict):
    """Body of /inference/v1/generate. There is no shared cache, so no use for its salt."""

    token_ids: list[int] = Field(min_length=1)
    sampling_params: Sampling
    cache_salt: str | None = None


class Label(Strict):
    """Body of /update_weight_version: what clients shall call the present weights."""

    new_version: str


class Server:
    """The routes; `labels[v]` is what clients call the weights that the sampler knows as v.

    Steps are taken in a thread while there is something to do: no request waits for the model.
    Between two of them is `async with server.turn()`; nobody touches the sampler otherwise.
    """

    def __init__(self, sampler: ContinuousSampler):
        self.sampler, self.labels, self.paused = sampler, [FRESH_LABEL], False
        self.thread = ThreadPoolExecutor(1, "sampler")
        self._turn, self._woken = asyncio.Lock(), asyncio.Event()
        self._completions: dict[int, asyncio.Future[Completion]] = {}

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[ContinuousSampler]:
        """The sampler between two steps."""
        async with self._turn:
            self._woken.set()
            yield self.sampler

    async def live(self, app: web.Application) -> AsyncIterator[None]:
        """Steps are taken for as long as the application runs."""
        self.stepping = asyncio.create_task(self.step_for_ever())
        yield
        self.stepping.cancel()

    async def step_for_ever(self) -> None:
        """A step that fails ends every completion, for no row can go on."""
        loop = asyncio.get_running_loop()
        while True:
            await self._woken.wait()
            async with self._turn:
                cancelled = [n for n, future in self._completions.items() if future.cancelled()]
                self.sampler.cancel(cancelled)
                for number in cancelled:
                    del self._completions[number]
                if self.paused or not self.sampler.busy:
                    self._woken.clear()
                    continue
                ended: Mapping[int, Completion | Exception]
                try:
                    ended = await loop.run_in_executor(self.thread, self.sampler.step)
                except Exception as error:
                    ended = {number: error for number in self._completions}
                    self.sampler.cancel(ended)
                for number, end in ended.items():
                    future = self._completions.pop(number)
                    if future.done():  # cancelled meanwhile
                        continue
                    if isinstance(end, Exception):
                        future.set_exception(end)
                    else:
                        future.set_result(end)

    def routes(self) -> list[web.RouteDef]:
        """The part of vLLM's interface that rollouts and weight updates need."""
        return [
            web.get("/health", self.health),
            web.get("/weight_info", self.weight_info),
            web.get("/is_paused", self.is_paused),
            web.post("/pause", self.pause),
            web.post("/resume", self.resume),
            web.post("/update_weight_version", self.update_label),
            web.post(RELOAD_ROUTE, self.reload),
            web.post("/inference/v1/generate", self.generate),
        ]

    async def health(self, request: web.Request) -> web.Response:
        """200 while the sampler lives, 503 after."""
        return web.Response(status=503 if self.stepping.done() else 200)

    async def weight_info(self, request: web.Request) -> web.Response:
        """What the present weights are called."""
        return web.json_response({"weight_version": self.labels[-1]})

    async def is_paused(self, request: web.Request) -> web.Response:
        """Whether sampling stands still for an update."""
        return web.json_response({"is_paused": self.paused})

    async def pause(self, request: web.Request) -> web.Response:
        """Stop between two tokens; requests stay, and so does the cache unless asked otherwise."""
        if request.query.get("mode") != "keep":
            raise BadRequest("mode: this server can only keep running requests: pause?mode=keep")
        clear = request.query.get("clear_cache", "true")
        if clear not in ("true", "false"):
            raise BadRequest(f"clear_cache: expected true or false, got {clear!r}")
        async with self.turn() as sampler:
            self.paused = True
            if clear == "true":
                sampler.clear_cache()
        return web.json_response({"status": "paused"})

    async def resume(self, request: web.Request) -> web.Response:
        """Go on with every request where it stood."""
        async with self.turn():
            self.paused = False
        return web.json_response({"status": "resumed"})

    async def update_label(self, request: web.Request) -> web.Response:
        """Name the present weights."""
        label = (await read_body(request, Label)).new_version
        async with self.turn() as sampler:
            self.labels.append(label)
            sampler.version = len(self.labels) - 1
        return web.json_response({"success": True, "new_version": label})

    async def reload(self, request: web.Request) -> web.Response:
        """Load all weights from a folder; they are replaced between two steps, all or none."""
        try:
            folder = requested_folder(await read_json(request), os.environ.get(WEIGHTS_VARIABLE))
        except ValueError as error:
            raise BadRequest(str(error)) from None
        tensors = await asyncio.to_thread(read_folder, Path(folder))
        async with self.turn() as sampler:
            await asyncio.to_thread(sampler.load_weights, tensors, len(self.labels) - 1)
        return web.json_response({"results": [None]})

    async def generate(self, request: web.Request) -> web.Response:
        """`n` completions of a prompt, each token with its log-prob and its weights' name."""
        body = await read_body(request, Generation)
        asked, loop = body.sampling_params, asyncio.get_running_loop()
        if asked.n > self.sampler.slots:
            raise BadRequest(f"sampling_params.n: this server has {self.sampler.slots} slots")
        futures = [loop.create_future() for _ in range(asked.n)]
        async with self.turn() as sampler:
            for future in futures:
                try:
                    number = sampler.add(body.token_ids, asked.max_tokens, asked.temperature)
                except ValueError as error:
                    raise BadRequest(f"token_ids, sampling_params.max_tokens: {error}") from None
                self._completions[number] = future
        choices = [self.choice(*one) for one in enumerate(await asyncio.gather(*futures))]
        return web.json_response(
            {"request_id": uuid4().hex, "output_mode": "tokens", "choices": choices}
        )

    def choice(self, index: int, completion: Completion) -> dict:
        """A completion in the reply; `weight_versions` are spans [start, end) of tokens."""
        tokens = zip(completion.token_ids, completion.logps, strict=True)
        numbered = groupby(enumerate(completion.versions or ()), key=itemgetter(1))
        runs = [(self.labels[version], [place for place, _ in run]) for version, run in numbered]
        return {
            "index": index,
            "token_ids": completion.token_ids,
            "finish_reason": completion.finish_reason,
            "logprobs": {"content": [{"token_id": t, "logprob": logp} for t, logp in tokens]},
            "weight_versions": [
                {"version": label, "start": places[0], "end": places[-1] + 1}
                for label, places in runs
            ],
        }


def read_folder(folder: Path) -> dict[str, Tensor]:
    """The tensors in all safetensors files of a folder, by name."""
    if not (files := sorted(folder.glob("*.safetensors"))):
        raise FileNotFoundError(f"no safetensors files in {folder}")
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


async def read_body(request: web.Request, kind: type[Body]) -> Body:
    """The request's JSON as a checked object."""
    try:
        return kind.model_validate(await read_json(request))
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, p['loc']))}: {p['msg']}" for p in error.errors()]
        raise BadRequest("; ".join(problems)) from None


async def read_json(request: web.Request) -> Any:
    """The request's JSON; an absent body counts as {}."""
    try:
        return json.loads(await request.read() or b"{}")
    except ValueError as error:
        raise BadRequest(f"the body is not JSON: {error}") from None


def guard(token: str | None) -> Callable:
    """Middleware: who does not know the secret learns nothing; errors are written as vLLM's."""
    expected = f"Bearer {token}".encode()

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.headers.get("Authorization", "").encode(errors="surrogateescape")
        if token and not secrets.compare_digest(given, expected):
            return web.json_response({"error": "Unauthorized"}, status=401)
        try:
            return await handler(request)
        except web.HTTPException as error:
            status, kind, message = error.status, "HTTPException", error.reason
        except BadRequest as error:
            status, kind, message = 400, "BadRequestError", str(error)
        except Exception as error:
            logging.exception("%s failed", request.path)
            status, kind, message = 500, type(error).__name__, str(error)
        described = {"message": message, "type": kind, "code": status}
        return web.json_response({"error": described}, status=status)

    return check


def make_app(sampler: ContinuousSampler, token: str | None = None) -> web.Application:
    """The server as an aiohttp application. Chapter 17."""
    app, server = web.Application(middlewares=[guard(token)]), Server(sampler)
    app.cleanup_ctx.append(server.live)
    app.add_routes(server.routes())
    return app


async def start(app: web.Application, host: str, port: int) -> web.AppRunner:
    """Begin to answer requests at an address; port 0 means any free one."""
    # With handler_cancellation a client that hangs up frees its slots.
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, host, port).start()
    return runner


async def serve(app: web.Application, host: str, port: int) -> None:
    """Answer requests for ever, after one line that says where."""
    host, port = (await start(app, host, port)).addresses[0][:2]
    publish(host, port)
    print(f"ready at http://{host}:{port}", flush=True)
    await asyncio.Event().wait()


def parse(arguments: Sequence[str], token: str | None) -> argparse.Namespace:
    """The settings on the command line; exits if they are not safe."""
    parser = argparse.ArgumentParser(prog="python -m rlbook.scale.generate.builtin_server")
    parser.add_argument("--policy", default="tiny", help="see rlbook.policy.load_policy")
    parser.add_argument("--host", default=own_host(), help="another one needs a token")
    parser.add_argument("--port", type=int, default=8100, help="0: any free one")
    parser.add_argument("--slots", type=int, default=128, help="completions at a time")
    parser.add_argument("--dtype", default="float32", choices=["float32"])
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args(arguments)
    if asked.host not in LOOPBACK and not token:
        parser.error(
            f"{asked.host} is reachable from other machines: set {TOKEN_VARIABLE} to a secret"
        )
    return asked


def main() -> None:
    """The server process: on an address that is its own, until it is told to end."""
    token = os.environ.get(TOKEN_VARIABLE)
    asked = parse(sys.argv[1:], token)
    die_with_parent()
    for number in (signal.SIGTERM, signal.SIGINT):  # nothing here is worth a slower end
        signal.signal(number, signal.SIG_DFL)
    set_threads()
    model, tokenizer = load_policy(asked.policy, device=asked.device)
    sampler = ContinuousSampler(model, tokenizer.eos_token_id, asked.slots, seed=asked.seed)
    asyncio.run(serve(make_app(sampler, token), asked.host, asked.port))


if __name__ == "__main__":
    main()
