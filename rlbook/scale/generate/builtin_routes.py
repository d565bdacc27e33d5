"""The routes of the built-in server: what comes in, what the sampler does, what goes out."""

import asyncio
import json
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, Literal, TypeVar
from uuid import uuid4

from aiohttp import web
from pydantic import BaseModel, Field, ValidationError

from rlbook.scale.generate.continuous import ContinuousSampler
from rlbook.scale.generate.engine import VersionedCompletion
from rlbook.scale.generate.receivers import (
    Announcement,
    Folder,
    Meeting,
    Strict,
    join_group,
    read_folder,
    receive_broadcasts,
)
from rlbook.scale.generate.sampler_thread import SamplerThread

FRESH_LABEL = "default"  # vLLM's name of the weights a server was started with
Body = TypeVar("Body", bound=BaseModel)


class BadRequest(ValueError):
    """The request itself is wrong; the message names the field."""


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


class Nothing(Strict):
    """Transport "file" needs no preparation."""


class Init(Strict):
    init_info: Meeting | Nothing


class Update(Strict):
    update_info: Folder | Announcement


class Finish(Strict):
    weight_version: str | None = None


class Label(Strict):
    new_version: str


class Server:
    """The routes; `labels[v]` is what clients call the weights that the sampler knows as v."""

    def __init__(self, sampler: ContinuousSampler):
        self.thread = SamplerThread(sampler)
        self.labels = [FRESH_LABEL]
        self.received: dict | None = None  # tensors of the open update; None: no update is open
        self.group = None
        self.thread.start()

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/health", self.health),
            web.get("/weight_info", self.weight_info),
            web.get("/is_paused", self.is_paused),
            web.post("/pause", self.pause),
            web.post("/resume", self.resume),
            web.post("/init_weight_transfer_engine", self.init_transfer),
            web.post("/update_weight_version", self.update_label),
            web.post("/start_weight_update", self.start_update),
            web.post("/update_weights", self.update_weights),
            web.post("/finish_weight_update", self.finish_update),
            web.post("/inference/v1/generate", self.generate),
        ]

    async def health(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if self.thread.is_alive() else 503)

    async def weight_info(self, request: web.Request) -> web.Response:
        return web.json_response({"weight_version": self.labels[-1]})

    async def is_paused(self, request: web.Request) -> web.Response:
        return web.json_response({"is_paused": self.thread.paused})

    async def pause(self, request: web.Request) -> web.Response:
        if request.query.get("mode") != "keep":
            raise BadRequest("mode: this server can only keep running requests: pause?mode=keep")
        clear = request.query.get("clear_cache", "true")
        if clear not in ("true", "false"):
            raise BadRequest(f"clear_cache: expected true or false, got {clear!r}")
        await self.ask(lambda: self.thread.pause(clear == "true"))
        return web.json_response({"status": "paused"})

    async def resume(self, request: web.Request) -> web.Response:
        await self.ask(self.thread.resume)
        return web.json_response({"status": "resumed"})

    async def init_transfer(self, request: web.Request) -> web.Response:
        info = (await read_body(request, Init)).init_info
        if isinstance(info, Meeting):
            self.group = None
            self.group = await asyncio.to_thread(join_group, info)
        return web.json_response({"message": "Weight transfer initialized"})

    async def update_label(self, request: web.Request) -> web.Response:
        label = (await read_body(request, Label)).new_version
        await self.ask(lambda: self.rename(label))
        return web.json_response({"success": True, "new_version": label})

    async def start_update(self, request: web.Request) -> web.Response:
        if self.received is not None:
            raise RuntimeError("an update is open: finish it first")
        self.received = {}
        return web.json_response({"message": "Weight update started"})

    async def update_weights(self, request: web.Request) -> web.Response:
        """Receive tensors. They are put aside until the update is finished."""
        if (received := self.received) is None:
            raise RuntimeError("no update is open: /start_weight_update comes first")
        try:
            info = (await read_body(request, Update)).update_info
            if isinstance(info, Folder):
                received |= await asyncio.to_thread(read_folder, info)
            else:
                received |= await asyncio.to_thread(receive_broadcasts, self.group, info)
        except BaseException:
            if self.received is received:  # and not one that was started in the meantime
                self.received = None
            raise
        return web.json_response({"message": "Weights updated"})

    async def finish_update(self, request: web.Request) -> web.Response:
        """Use the received weights. Without a label the update is given up instead."""
        if (received := self.received) is None:
            raise RuntimeError("no update is open: /start_weight_update comes first")
        label = (await read_body(request, Finish)).weight_version
        self.received = None
        if label is not None:
            await self.ask(lambda: self.replace(received, label))
        return web.json_response({"message": "Weight update finished"})

    async def generate(self, request: web.Request) -> web.Response:
        body = await read_body(request, Generation)
        asked = body.sampling_params
        if asked.n > self.thread.sampler.slots:
            raise BadRequest(
                f"sampling_params.n: this server has {self.thread.sampler.slots} slots"
            )
        arguments = asked.n, body.token_ids, asked.max_tokens, asked.temperature
        try:
            futures = await self.ask(lambda: self.thread.add(*arguments))
        except ValueError as error:
            raise BadRequest(f"token_ids, sampling_params.max_tokens: {error}") from None
        completions = await asyncio.gather(*map(asyncio.wrap_future, futures))
        choices = [self.choice(*numbered) for numbered in enumerate(completions)]
        return web.json_response(
            {"request_id": uuid4().hex, "output_mode": "tokens", "choices": choices}
        )

    async def ask(self, action: Callable[[], Any]) -> Any:
        """The result of what the sampler's thread does between two steps."""
        return await asyncio.wrap_future(self.thread.ask(action))

    def rename(self, label: str) -> None:
        """Give the present weights another name; called inside the sampler's thread."""
        self.labels.append(label)
        self.thread.sampler.version = len(self.labels) - 1

    def replace(self, tensors: dict, label: str) -> None:
        """Change weights and label; called inside the sampler's thread."""
        self.thread.sampler.load_weights(tensors, len(self.labels))
        self.labels.append(label)

    def choice(self, index: int, completion: VersionedCompletion) -> dict:
        tokens = zip(completion.token_ids, completion.logps, strict=True)
        return {
            "index": index,
            "token_ids": completion.token_ids,
            "finish_reason": completion.finish_reason,
            "logprobs": {"content": [{"token_id": t, "logprob": logp} for t, logp in tokens]},
            "weight_versions": [
                {"version": self.labels[version], "start": start, "end": end}
                for version, start, end in spans(completion.versions)
            ],
        }


def spans(versions: Sequence[int]) -> list[tuple[int, int, int]]:
    """Runs of equal versions as (version, start, end)."""
    found, end = [], 0
    for version, run in groupby(versions):
        start, end = end, end + sum(1 for _ in run)
        found.append((version, start, end))
    return found


async def read_body(request: web.Request, kind: type[Body]) -> Body:
    """The request's JSON as a checked object; an absent body counts as {}."""
    try:
        return kind.model_validate(json.loads(await request.read() or b"{}"))
    except ValidationError as error:
        problems = [(".".join(map(str, p["loc"])), p["msg"]) for p in error.errors()]
        raise BadRequest("; ".join(f"{field}: {message}" for field, message in problems)) from None
    except ValueError as error:
        raise BadRequest(f"the body is not JSON: {error}") from None
