"""`python -m rlbook.scale.generate.vllm_server`: vLLM's API server, guarded.

vLLM's own key protects its public routes only. The routes that pause it, load weights into it or
call methods of its workers are open to whoever reaches the port.
"""

import os
import secrets

STARTED_BY_US = "RLBOOK_VLLM_SERVER"
ROUTES = (
    "/health",
    "/weight_info",
    "/is_paused",
    "/pause",
    "/resume",
    "/init_weight_transfer_engine",
    "/update_weight_version",
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

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close"})
        elif scope["type"] == "http" and self.expected and not self.knows_secret(scope):
            await refuse(send, 401, "Unauthorized")
        elif scope["type"] == "http" and scope["path"] not in ROUTES:
            await refuse(send, 404, "Not a route of this server")
        else:
            await self.app(scope, receive, send)

    def knows_secret(self, scope) -> bool:
        given = dict(scope["headers"]).get(b"authorization", b"")
        return secrets.compare_digest(given, self.expected)


async def refuse(send, status: int, reason: str) -> None:
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": f'{{"error": "{reason}"}}'.encode()})


def main() -> None:
    from vllm.entrypoints.launchers.api_server.entry import main as serve

    os.environ[STARTED_BY_US] = "1"
    serve()


if __name__ == "__main__":
    main()
