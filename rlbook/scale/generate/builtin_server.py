"""The book's own sampler behind vLLM's routes: `python -m rlbook.scale.generate.builtin_server`.

The secret that requests have to carry is in the environment: `RLBOOK_TOKEN`.
"""

import argparse
import asyncio
import logging
import os
import secrets
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence

from aiohttp import web

from rlbook.policy import load_policy, set_threads
from rlbook.scale.conflicts import LOOPBACK
from rlbook.scale.generate.builtin_routes import BadRequest, Server
from rlbook.scale.generate.continuous import ContinuousSampler
from rlbook.scale.process import die_with_parent

TOKEN_VARIABLE = "RLBOOK_TOKEN"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def guard(token: str | None) -> Callable:
    """Middleware: who does not know the secret learns nothing."""
    expected = f"Bearer {token}".encode()

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.headers.get("Authorization", "").encode(errors="surrogateescape")
        if token and not secrets.compare_digest(given, expected):
            return web.json_response({"error": "Unauthorized"}, status=401)
        return await handler(request)

    return check


@web.middleware
async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Exceptions as vLLM writes them, with status 400 for a wrong request and 500 otherwise."""
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


def make_app(sampler: ContinuousSampler, token: str | None = None) -> web.Application:
    """The server as an aiohttp application. Chapter 17."""
    app = web.Application(middlewares=[guard(token), errors_as_json])
    app.add_routes(Server(sampler).routes())
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
    runner = await start(app, host, port)
    host, port = runner.addresses[0][:2]
    print(f"ready at http://{host}:{port}", flush=True)
    await asyncio.Event().wait()


def parse(arguments: Sequence[str], token: str | None) -> argparse.Namespace:
    """The settings on the command line; exits if they are not safe."""
    parser = argparse.ArgumentParser(prog="python -m rlbook.scale.generate.builtin_server")
    parser.add_argument("--policy", default="tiny", help="see rlbook.policy.load_policy")
    parser.add_argument("--host", default="127.0.0.1", help="another one needs a token")
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
