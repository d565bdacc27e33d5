"""The book's own sampler behind vLLM's routes:

python -m rlbook.scale.generate.builtin_server <policy> <device> <slots> <seed>
"""

import asyncio
import logging
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from uuid import uuid4

from aiohttp import web
from aiohttp.typedefs import Handler
from pydantic import BaseModel, Field
from safetensors.torch import load_file
from torch import Tensor

from rlbook.policy import Completion, end_ids, load_policy, set_threads
from rlbook.policy.continuous import ContinuousSampler
from rlbook.scale.generate.protocol import RELOAD_ROUTE, Sampling, authorized, requested_folder
from rlbook.scale.process import allow_open_files, die_with_parent, own_host, publish, say


class Generation(BaseModel, extra="forbid", strict=True):
    """Body of /inference/v1/generate. There is no shared cache, so no use for its salt."""

    token_ids: list[int] = Field(min_length=1)
    sampling_params: Sampling
    cache_salt: str | None = None


class Label(BaseModel, extra="forbid", strict=True):
    """Body of /update_weight_version: what clients shall call the present weights."""

    new_version: str


class Server:
    """The routes; `labels[v]` is what clients call the weights that the sampler knows as v.

    Steps are taken in a thread while there is something to do: no request waits for the model.
    Who holds `between_steps` has the sampler to himself; nobody touches it otherwise.
    """

    def __init__(self, sampler: ContinuousSampler):
        self.sampler, self.paused = sampler, False
        self.labels = ["default"]  # as vLLM calls the weights that a server was started with
        self.between_steps = asyncio.Condition()
        self.futures: dict[int, asyncio.Future[Completion]] = {}  # of what the sampler writes

    async def start(self, app: web.Application) -> None:
        """Begin to take steps."""
        self.stepping = asyncio.create_task(self.step_for_ever())

    async def step_for_ever(self) -> None:
        """One step after another, as long as there is something to write."""
        while True:
            async with self.between_steps:
                await self.between_steps.wait_for(lambda: self.sampler.busy and not self.paused)
                await self.step()

    async def step(self) -> None:
        """A step that fails ends every completion, for no row can go on."""
        awaited = {number: one for number, one in self.futures.items() if not one.done()}
        hung_up, self.futures = self.futures.keys() - awaited, awaited
        try:
            ended = await asyncio.to_thread(self.go_on_without, hung_up)
        except Exception as error:
            for future in awaited.values():
                if not future.done():
                    future.set_exception(error)
            return
        for number, completion in ended.items():
            if number in awaited and not awaited[number].done():
                awaited[number].set_result(completion)

    def go_on_without(self, hung_up: set[int]) -> dict[int, Completion]:
        """One step of the sampler, which forgets those whose clients have hung up first."""
        self.sampler.cancel(hung_up)
        return self.sampler.step()

    async def health(self, request: web.Request) -> web.Response:
        """200 while the sampler lives, 503 after."""
        return web.Response(status=503 if self.stepping.done() else 200)

    async def weight_info(self, request: web.Request) -> web.Response:
        """What the present weights are called."""
        return web.json_response({"weight_version": self.labels[-1]})

    async def pause(self, request: web.Request) -> web.Response:
        """Stop between two tokens; requests stay, and so does the cache if it is asked to."""
        if request.query.get("mode") != "keep":
            raise web.HTTPBadRequest(text="mode: this server can only keep requests: mode=keep")
        async with self.between_steps:
            self.paused = True
            if request.query.get("clear_cache") != "false":
                self.sampler.clear_cache()
        return web.json_response({"status": "paused"})

    async def resume(self, request: web.Request) -> web.Response:
        """Go on with every request where it stood."""
        async with self.between_steps:
            self.paused = False
            self.between_steps.notify()
        return web.json_response({"status": "resumed"})

    async def update_label(self, request: web.Request) -> web.Response:
        """Name the present weights."""
        with refusing():
            label = Label.model_validate_json(await request.read()).new_version
        async with self.between_steps:
            self.labels.append(label)
            self.sampler.version = len(self.labels) - 1
        return web.json_response({"success": True, "new_version": label})

    async def reload(self, request: web.Request) -> web.Response:
        """Load all weights from a folder; they are replaced between two steps, all or none."""
        with refusing():
            folder = requested_folder(await request.read())
        tensors = await asyncio.to_thread(read_folder, Path(folder))
        async with self.between_steps:
            load = asyncio.to_thread(self.sampler.load_weights, tensors, self.sampler.version)
            loading = asyncio.create_task(load)
            try:
                await asyncio.shield(loading)
            finally:  # also if the client hangs up: the thread goes on writing
                await loading
        return web.json_response({"results": [None]})

    async def generate(self, request: web.Request) -> web.Response:
        """`n` completions of a prompt, each token with its log-prob and its weights' name."""
        with refusing():
            body = Generation.model_validate_json(await request.read())
        asked = body.sampling_params
        wanted = body.token_ids, asked.max_tokens, asked.temperature, asked.stop_token_ids
        async with self.between_steps:
            with refusing():
                numbers = [self.sampler.add(*wanted) for _ in range(asked.n)]
            futures = {number: asyncio.Future[Completion]() for number in numbers}
            self.futures |= futures
            self.between_steps.notify()
        written = enumerate(await asyncio.gather(*futures.values()))
        reply = {"request_id": uuid4().hex, "output_mode": "tokens"}
        return web.json_response(reply | {"choices": [self.choice(*one) for one in written]})

    def choice(self, index: int, completion: Completion) -> dict:
        """A completion in the reply; `weight_versions` are spans [start, end) of tokens."""
        tokens = zip(completion.token_ids, completion.logps, strict=True)
        spans, start = [], 0
        for version, run in groupby(completion.versions or ()):
            end = start + len(list(run))
            spans.append({"version": self.labels[version], "start": start, "end": end})
            start = end
        return {
            "index": index,
            "token_ids": completion.token_ids,
            "finish_reason": completion.finish_reason,
            "logprobs": {"content": [{"token_id": t, "logprob": logp} for t, logp in tokens]},
            "weight_versions": spans,
        }


def read_folder(folder: Path) -> dict[str, Tensor]:
    """The tensors in all safetensors files of a folder, by name."""
    if not (files := sorted(folder.glob("*.safetensors"))):
        raise FileNotFoundError(f"no safetensors files in {folder}")
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


@contextmanager
def refusing() -> Iterator[None]:
    """What is wrong inside the block is wrong with the request: HTTP 400 says what."""
    try:
        yield
    except ValueError as error:
        raise web.HTTPBadRequest(text=str(error)) from None


@web.middleware
async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Who does not know the secret learns nothing; others are told why a request failed."""
    given = request.headers.get("Authorization", "").encode(errors="surrogateescape")
    if not authorized(given):
        raise web.HTTPUnauthorized
    try:
        return await handler(request)
    except web.HTTPException:
        raise
    except Exception as error:
        logging.exception("%s failed", request.path)
        raise web.HTTPInternalServerError(text=f"{type(error).__name__}: {error}") from None


def make_app(sampler: ContinuousSampler) -> web.Application:
    """The part of vLLM's interface that rollouts and weight updates need."""
    app, server = web.Application(middlewares=[guard]), Server(sampler)
    app.on_startup.append(server.start)
    app.add_routes(
        [
            web.get("/health", server.health),
            web.get("/weight_info", server.weight_info),
            web.post("/pause", server.pause),
            web.post("/resume", server.resume),
            web.post("/sleep", server.pause),  # there is no other memory to give back
            web.post("/wake_up", server.resume),
            web.post("/update_weight_version", server.update_label),
            web.post(RELOAD_ROUTE, server.reload),
            web.post("/inference/v1/generate", server.generate),
        ]
    )
    return app


def main() -> None:
    """The server process: on an address that is its own, until it is told to end."""
    die_with_parent()
    allow_open_files()
    set_threads()
    listening = socket.create_server((own_host(), 0))
    policy, device, slots, seed = sys.argv[1:]
    model, tokenizer = load_policy(policy, device=device)
    sampler = ContinuousSampler(model, end_ids(model, tokenizer), int(slots), seed=int(seed))
    host, port = listening.getsockname()
    publish(host, port)
    say(f"ready at http://{host}:{port}")
    web.run_app(
        make_app(sampler),
        sock=listening,
        access_log=None,
        handle_signals=False,  # nothing here is worth a slower end
        handler_cancellation=True,  # a client that hangs up frees its slots
        print=None,
    )


if __name__ == "__main__":
    main()
