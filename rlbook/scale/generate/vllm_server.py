"""`python -m rlbook.scale.generate.vllm_server`: vLLM's API server, guarded.

vLLM's own key protects its public routes only. The routes that pause it, load weights into it or
call methods of its workers are open to whoever reaches the port.

An engine that waits in NCCL for a trainer that has died waits for ever, and nobody can call it
back. The server answers on meanwhile, so it looks alive. It therefore ends itself, and its engine
with it, if a request of a weight update is not done some time after the trainer has hung up, or
later than any trainer waits. The launcher starts it again, and the trainer, which finds it without
weights, sends them anew. The NCCL part of this has not run yet: no GPU.

It also ends itself as soon as its engine is dead. vLLM's server would first wait for the answers to
all requests, and to those of a weight update there is none any more.
"""

import asyncio
import json
import multiprocessing
import os
import secrets
import sys
from typing import NoReturn

from rlbook.scale.generate.protocol import (
    PUSH_VARIABLE,
    RELOAD_ROUTE,
    WEIGHTS_VARIABLE,
    requested_folder,
)
from rlbook.scale.generate.registry import free_port, own_host, publish
from rlbook.scale.process import die_with_parent

STARTED_BY_US = "RLBOOK_VLLM_SERVER"
UPDATE_ROUTES = (  # the engine answers these, and may have to wait for the trainer
    "/pause",
    "/init_weight_transfer_engine",
    "/start_weight_update",
    "/update_weights",
    "/finish_weight_update",
)
ROUTES = (
    *UPDATE_ROUTES,
    *("/health", "/weight_info", "/is_paused", "/resume", "/update_weight_version"),
    *(RELOAD_ROUTE, "/inference/v1/generate"),
)
GRACE = 30.0  # seconds in which an update may end after the trainer has hung up
LOOK_SECONDS = 0.5  # between two looks at the engine


class Guard:
    """ASGI middleware: the routes the book uses, for those who know the secret, and no other."""

    def __init__(self, app):
        self.app = app
        token = os.environ.get("VLLM_API_KEY")
        self.expected = f"Bearer {token}".encode() if token else None
        self.weights = os.environ.get(WEIGHTS_VARIABLE)
        seconds = os.environ.get(PUSH_VARIABLE)
        self.limit = float(seconds) if seconds else None
        self.looking: asyncio.Task | None = None

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] == "websocket":
            return await send({"type": "websocket.close"})
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        if self.looking is None and "app" in scope:
            self.looking = asyncio.create_task(end_with_engine(scope["app"]))
        path, given = scope["path"], dict(scope["headers"]).get(b"authorization", b"")
        if self.expected and not secrets.compare_digest(given, self.expected):
            return await refuse(send, 401, "Unauthorized")
        if path not in ROUTES:
            return await refuse(send, 404, "Not a route of this server")
        if path in UPDATE_ROUTES:
            return await self.update(scope, receive, send)
        if path == RELOAD_ROUTE:  # weights of this run are loaded; nothing else of this route
            body = await body_of(receive)
            try:
                requested_folder(json.loads(body), self.weights)
            except ValueError as error:
                return await refuse(send, 400, str(error))
            receive = replayed(body, receive)
        await self.app(scope, receive, send)

    async def update(self, scope, receive, send) -> None:
        """A part of a weight update; if it cannot end any more, this process ends."""
        body = await body_of(receive)
        hung_up = asyncio.create_task(receive())
        messages = replayed(body, lambda: asyncio.shield(hung_up))
        work = asyncio.create_task(self.app(scope, messages, send))
        await asyncio.wait([work, hung_up], timeout=self.limit, return_when="FIRST_COMPLETED")
        await asyncio.wait([work], timeout=GRACE)
        if not work.done():
            end_server(f"{scope['path']} still waits for a trainer that no longer does")
        hung_up.cancel()
        await work


async def end_with_engine(app) -> None:
    """End this process once the engine of vLLM's application is dead."""
    while not app.state.engine_client.errored:
        await asyncio.sleep(LOOK_SECONDS)
    end_server("its engine has died")


async def body_of(receive) -> bytes:
    """All of a request's body."""
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    return body


def replayed(body: bytes, receive):
    """A `receive` for an application: the body that has been read, then what comes after it."""
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def again():
        return messages.pop() if messages else await receive()

    return again


def end_server(reason: str) -> NoReturn:
    """End this process at once; its engine dies with it."""
    print(
        f"generator: {reason}; this server ends and is started again", file=sys.stderr, flush=True
    )
    os._exit(1)


async def refuse(send, status: int, reason: str) -> None:
    """Answer a request with an error instead of passing it on."""
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps({"error": reason}).encode()})


def register() -> None:
    """vLLM calls this in each of its processes (entry point `vllm.general_plugins`).

    Its engine would outlive a killed server, with all its memory.
    """
    if STARTED_BY_US in os.environ and multiprocessing.parent_process():
        die_with_parent()


def main() -> None:
    """vLLM's own server, on a free port that the run folder then names."""
    from vllm.entrypoints.launchers.api_server.entry import main as serve

    os.environ[STARTED_BY_US] = "1"
    host = own_host()
    port = free_port(host)
    sys.argv += [f"--host={host}", f"--port={port}"]
    publish(host, port)  # early: it is asked until it answers
    serve()


if __name__ == "__main__":
    main()
