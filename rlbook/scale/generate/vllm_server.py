"""`python -m rlbook.scale.generate.vllm_server`: vLLM's API server, guarded.

vLLM's own key protects its public routes only. The routes that pause it, load weights into it or
call methods of its workers are open to whoever reaches the port.

An engine that waits in NCCL for a trainer that has died waits for ever, while its server answers
on. So the server ends itself, and its engine with it, if a request of a weight update is not done
some time after the trainer has hung up, or later than any trainer waits, and as soon as the engine
is dead: vLLM's server would first wait for its answers. The launcher starts it again, and the
trainer sends the weights anew. The NCCL part of this has not run yet: no GPU.
"""

import asyncio
import multiprocessing
import os
import sys
from typing import Any, NoReturn, cast

from rlbook.scale.generate import protocol
from rlbook.scale.process import ENTRY_VARIABLE, die_with_parent, free_port, own_host, publish, say

# The engine answers these, and may have to wait for the trainer.
UPDATE_ROUTES = ("/pause", "/sleep", "/wake_up", *(f"/{step}" for step in protocol.TRANSFER))
OTHER_ROUTES = ("/health", "/weight_info", "/resume", "/update_weight_version")
LOADING = (protocol.RELOAD_ROUTE, protocol.ADAPTER_ROUTE)
ROUTES = (*UPDATE_ROUTES, *OTHER_ROUTES, *LOADING, "/inference/v1/generate")
GRACE = 30.0  # seconds in which an update may end after the trainer has hung up
LOOK_SECONDS = 0.5  # between two looks at the engine


class Adapters:
    """What vLLM's workers can do besides (`worker-extension-cls`)."""

    def load_adapter(self, weights_path: str) -> None:
        """Take the adapter in a folder in place of the one that there is, for requests that are
        being answered as well."""
        from vllm.lora.request import LoRARequest

        worker = cast(Any, self)
        (number,) = worker.list_loras()
        worker.remove_lora(number)
        worker.add_lora(LoRARequest(protocol.ADAPTER, number, weights_path))


class Guard:
    """ASGI middleware: the routes the book uses, for those who know the secret, and no other."""

    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] == "lifespan":  # comes once, when the engine has started
            self.looking = asyncio.create_task(end_with_engine(scope["app"]))
            return await self.app(scope, receive, send)
        if scope["type"] != "http":
            return await send({"type": "websocket.close"})
        path = scope["path"]
        if not protocol.authorized(dict(scope["headers"]).get(b"authorization", b"")):
            return await refuse(send, 401, "Unauthorized")
        if path not in ROUTES:
            return await refuse(send, 404, "Not a route of this server")
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        if path == protocol.RELOAD_ROUTE:  # only weights of this run are loaded by it
            try:
                protocol.requested_folder(body)
            except ValueError as error:
                return await refuse(send, 400, str(error))
        await self.pass_on(scope, body, receive, send)

    async def pass_on(self, scope, body: bytes, receive, send) -> None:
        """Have the application answer; if it is an update that cannot end, this process ends."""
        hung_up = asyncio.ensure_future(receive())
        messages = [{"type": "http.request", "body": body}]

        async def again():
            return messages.pop() if messages else await asyncio.shield(hung_up)

        work = asyncio.ensure_future(self.app(scope, again, send))
        if scope["path"] in UPDATE_ROUTES:
            limit = float(os.environ.get(protocol.PUSH_VARIABLE, "inf"))
            await asyncio.wait([work, hung_up], timeout=limit, return_when="FIRST_COMPLETED")
            await asyncio.wait([work], timeout=GRACE)
            if not work.done():
                end_server(f"{scope['path']} still waits for a trainer that no longer does")
        try:
            await work
        finally:
            hung_up.cancel()


async def end_with_engine(app) -> None:
    """End this process once the engine of vLLM's application is dead."""
    while not app.state.engine_client.errored:
        await asyncio.sleep(LOOK_SECONDS)
    end_server("its engine has died")


def end_server(reason: str) -> NoReturn:
    """End this process at once; its engine dies with it."""
    say(f"generator: {reason}; this server ends and is started again")
    os._exit(1)


async def refuse(send, status: int, reason: str) -> None:
    """Answer a request with an error instead of passing it on."""
    await send({"type": "http.response.start", "status": status})
    await send({"type": "http.response.body", "body": reason.encode()})


def register() -> None:
    """vLLM calls this in each of its processes (entry point `vllm.general_plugins`)."""
    # Its engine would outlive a killed server, with all its memory.
    if ENTRY_VARIABLE in os.environ and multiprocessing.parent_process():
        die_with_parent()


def main() -> None:
    """vLLM's own server, on a free port that the run folder then names."""
    from vllm.entrypoints.launchers.api_server.entry import main as serve

    os.environ.pop("VLLM_API_KEY", None)  # the guard asks for the run's secret, on all routes
    host = own_host()
    port = free_port(host)
    sys.argv += [f"--host={host}", f"--port={port}"]
    publish(host, port)  # early: it is asked until it answers
    serve()


if __name__ == "__main__":
    main()
