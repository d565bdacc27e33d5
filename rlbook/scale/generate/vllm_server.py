"""`python -m rlbook.scale.generate.vllm_server`: vLLM's API server, guarded.

vLLM's own key protects its public routes only. The routes that pause it, load weights into it or
call methods of its workers are open to whoever reaches the port.
"""

import json
import multiprocessing
import os
import secrets
import sys

from rlbook.scale.generate.protocol import RELOAD_ROUTE, WEIGHTS_VARIABLE, requested_folder
from rlbook.scale.generate.registry import free_port, own_host, publish
from rlbook.scale.process import die_with_parent

STARTED_BY_US = "RLBOOK_VLLM_SERVER"
ROUTES = (
    "/health",
    "/weight_info",
    "/is_paused",
    "/pause",
    "/resume",
    "/update_weight_version",
    RELOAD_ROUTE,
    "/init_weight_transfer_engine",
    "/start_weight_update",
    "/update_weights",
    "/finish_weight_update",
    "/inference/v1/generate",
)


class Guard:
    """ASGI middleware: the routes the book uses, for those who know the secret, and no other."""

    def __init__(self, app):
        self.app = app
        token = os.environ.get("VLLM_API_KEY")
        self.expected = f"Bearer {token}".encode() if token else None
        self.weights = os.environ.get(WEIGHTS_VARIABLE)

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close"})
        elif scope["type"] == "http" and self.expected and not self.knows_secret(scope):
            await refuse(send, 401, "Unauthorized")
        elif scope["type"] == "http" and scope["path"] not in ROUTES:
            await refuse(send, 404, "Not a route of this server")
        elif scope["type"] == "http" and scope["path"] == RELOAD_ROUTE:
            await self.reload(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    def knows_secret(self, scope) -> bool:
        given = dict(scope["headers"]).get(b"authorization", b"")
        return secrets.compare_digest(given, self.expected)

    async def reload(self, scope, receive, send) -> None:
        """Let a request through that loads weights of this run; nothing else of this route."""
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        try:
            requested_folder(json.loads(body), self.weights)
        except ValueError as error:
            return await refuse(send, 400, str(error))

        async def again():
            return {"type": "http.request", "body": body, "more_body": False}

        await self.app(scope, again, send)


async def refuse(send, status: int, reason: str) -> None:
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
    from vllm.entrypoints.launchers.api_server.entry import main as serve

    os.environ[STARTED_BY_US] = "1"
    host = own_host()
    port = free_port(host)
    sys.argv += [f"--host={host}", f"--port={port}"]
    publish(host, port)  # early: it is asked until it answers
    serve()


if __name__ == "__main__":
    main()
