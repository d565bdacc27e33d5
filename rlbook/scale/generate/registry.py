"""Where the generators of a run are: each says so itself, in the run folder, whenever it starts."""

import os
import socket
from pathlib import Path

from rlbook.durable import read_json, write_json

ENTRY_VARIABLE = "RLBOOK_SERVER"  # environment: the file in which a server publishes its URL
HOST_VARIABLE = "RLBOOK_HOST"  # environment: the address it is to bind, if not this machine's own
TOKEN_VARIABLE = "RLBOOK_TOKEN"  # environment: the secret that requests have to carry
LOCALHOST = "127.0.0.1"


def own_host() -> str:
    """The address that a server is to bind. `ValueError` if it would be open to other machines."""
    host = os.environ.get(HOST_VARIABLE, LOCALHOST)
    if host != LOCALHOST and not os.environ.get(TOKEN_VARIABLE):
        raise ValueError(f"{host} is reachable from other machines: set {TOKEN_VARIABLE}")
    return host


def publish(host: str, port: int) -> None:
    """Let the run know this server's address, if a run has started it."""
    if entry := os.environ.get(ENTRY_VARIABLE):
        write_json(Path(entry), {"url": f"http://{host}:{port}"})


def published(entry: Path) -> str | None:
    """The URL in a file of the registry; None if its server has not started yet."""
    return read_json(entry, {}).get("url")


def free_port(host: str) -> int:
    """For a server that cannot choose one itself; whoever is quicker may take it meanwhile."""
    with socket.create_server((host, 0)) as listening:
        return listening.getsockname()[1]
