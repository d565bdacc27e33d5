"""What test_engine_server runs: the guard before an engine that waits in its updates for ever."""

import asyncio

import uvicorn

from rlbook.scale.generate import vllm_server
from rlbook.scale.process import LOCALHOST, free_port, publish


async def application(scope, receive, send):
    if scope["type"] == "http" and scope["path"] in vllm_server.UPDATE_ROUTES:
        await receive()
        print("waits", flush=True)
        await asyncio.Event().wait()
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})


if __name__ == "__main__":
    vllm_server.GRACE = 1.0
    port = free_port(LOCALHOST)
    publish(LOCALHOST, port)
    uvicorn.run(vllm_server.Guard(application), port=port, lifespan="off", log_level="error")
