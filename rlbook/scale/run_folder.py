"""Opening a run folder: made once, continued by settings that agree, one launcher at a time."""

import fcntl
import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rlbook.scale.config import ScaleConfig, dump_config, load_config
from rlbook.scale.layout import Layout, read_json, write_json

WHERE_IT_RUNS = {  # settings a resumed run may change: they decide nothing that it computes
    *("run", "steps", "tensorboard", "budget", "launch", "checkpoint", "rollout.timeout"),
    *("generator.python", "generator.count", "generator.host", "generator.port"),
    *("generator.token", "generator.servers", "generator.tensor_parallel", "generator.colocated"),
    *("generator.gpu_memory", "generator.slots", "generator.transport", "data.verifiers"),
    *("trainer.processes", "trainer.nodes", "trainer.rendezvous", "trainer.device"),
}


def open_run(layout: Layout, config: ScaleConfig, resume: bool = False) -> list[int]:
    """Make the run folder, or check that `config` continues the run in it.

    Returns the ports of this machine's generators. Raises `ValueError` for a folder that is taken,
    nothing to resume, settings that differ (it names them), or a port in use.
    """
    if resume:
        check_resume(layout, config)
        reopen(layout, config.steps)
    elif layout.config.exists():
        raise ValueError(
            f"{layout.root} already holds a run: continue it with --resume, or choose another "
            "folder with --set run=…"
        )
    ports = choose_ports(config)
    urls = [server_url(config, port) for port in ports]
    layout.root.mkdir(parents=True, exist_ok=True)
    write_private(layout.config, dump_config(config))
    run_id = read_json(layout.servers, {}).get("run_id") or secrets.token_hex(4)
    write_json(layout.servers, {"run_id": run_id, "servers": [*urls, *config.generator.servers]})
    return ports


def check_resume(layout: Layout, config: ScaleConfig) -> None:
    """Raises `ValueError` naming the settings in which `config` differs from the run's own."""
    if not layout.config.exists():
        raise ValueError(f"{layout.root} holds no run to resume: leave --resume out to start one")
    old, new = (flatten(c.model_dump(mode="json")) for c in (load_config(layout.config), config))
    changed = [
        f"{name} was {old.get(name)!r}, is {new.get(name)!r}"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name) and not may_change(name)
    ]
    if changed:
        raise ValueError(
            f"the run in {layout.root} was started with other settings ({'; '.join(changed)}): "
            f"resume {layout.config}, or start a new run with --set run=…"
        )


def may_change(name: str) -> bool:
    return name in WHERE_IT_RUNS or name.partition(".")[0] in WHERE_IT_RUNS


def flatten(document: dict, prefix: str = "") -> dict:
    """{"a": {"b": 1}} as {"a.b": 1}."""
    flat = {}
    for name, value in document.items():
        nested = isinstance(value, dict)
        flat |= flatten(value, f"{prefix}{name}.") if nested else {f"{prefix}{name}": value}
    return flat


def reopen(layout: Layout, steps: int) -> None:
    """A finished run that is given more steps is no longer done."""
    status = read_json(layout.status, {})
    if status.get("done") and status["version"] < steps:
        write_json(layout.status, {**status, "done": False})


def write_private(path: Path, text: str) -> None:
    """Replace a file that only its owner may read: it holds the servers' secret."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    partial.unlink(missing_ok=True)
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    os.replace(partial, path)


def choose_ports(config: ScaleConfig) -> list[int]:
    """A free port for every generator of this machine.

    Raises `ValueError` for a configured port that another program uses.
    """
    generator = config.generator
    sockets = [socket.socket() for _ in range(generator.count)]
    try:
        for index, one in enumerate(sockets):
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bind(one, generator.host, generator.port and generator.port + index)
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def bind(one: socket.socket, host: str, port: int) -> None:
    try:
        one.bind((host, port))
    except OSError as error:
        raise ValueError(
            f"generator {host}:{port} cannot be bound ({error.strerror}): set generator.port to "
            "another port, or to 0 for any free ones"
        ) from None


def server_url(config: ScaleConfig, port: int) -> str:
    """Where this machine's orchestrator and trainer reach a generator."""
    host = config.generator.host
    reachable = "127.0.0.1" if host in ("0.0.0.0", "::") else host
    return f"http://{reachable}:{port}"


@contextmanager
def one_launcher(layout: Layout, role: str) -> Iterator[None]:
    """Hold the folder; the system lets go of it when the process ends, however it ends.

    Raises `ValueError` if another launcher has this role on this machine.
    """
    layout.root.mkdir(parents=True, exist_ok=True)
    with (layout.root / f".{socket.gethostname()}.{role}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"another launcher is at work in {layout.root}: stop it") from None
        yield
