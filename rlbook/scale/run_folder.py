"""Opening a run folder: made once, continued by settings that agree, one launcher at a time."""

import fcntl
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from rlbook.scale.config import ScaleConfig, dump_config, load_config
from rlbook.scale.layout import Layout, read_json, replace_text, write_json
from rlbook.training.resume import fixed_differences

# What a resumed run may change: how long it goes on, where it runs, what it may use, how it is
# watched. Up to rounding, nothing of it decides what is learnt, as `evaluation.prompts` does:
# training leaves held-out problems out.
RESUMABLE = (
    *("run", "steps", "tensorboard", "launch", "checkpoint", "budget", "model.device"),
    *("evaluation.every", "evaluation.samples", "optimizer.micro_batch_tokens"),
    *("generate.python", "generate.count", "generate.host", "generate.port", "generate.token"),
    *("generate.servers", "generate.tensor_parallel", "generate.colocated", "generate.gpu_memory"),
    *("generate.slots", "generate.transport", "generate.timeout", "generate.verifiers"),
    "generate.vllm",
    *("train.processes", "train.nodes", "train.rendezvous", "train.activation_checkpointing"),
)


def open_run(layout: Layout, config: ScaleConfig, resume: bool = False) -> list[int]:
    """Make the run folder, or check that `config` continues the run in it.

    Returns the ports of this machine's generators. Raises `ValueError` for a folder that is taken,
    nothing to resume, settings that differ (it names them), or a port in use.
    """
    if resume:
        check_resume(layout, config)
        reopen(layout, config.updates)
    elif layout.config.exists():
        raise ValueError(
            f"{layout.root} already holds a run: continue it with --resume, or choose another "
            "folder with --set run=…"
        )
    ports = choose_ports(config)
    urls = [server_url(config, port) for port in ports]
    layout.root.mkdir(parents=True, exist_ok=True)
    replace_text(layout.config, dump_config(config), mode=0o600)  # it holds the servers' secret
    run_id = read_json(layout.servers, {}).get("run_id") or secrets.token_hex(4)
    write_json(layout.servers, {"run_id": run_id, "servers": [*urls, *config.generate.servers]})
    return ports


def check_resume(layout: Layout, config: ScaleConfig) -> None:
    """Raises `ValueError` naming the settings in which `config` differs from the run's own."""
    if not layout.config.exists():
        raise ValueError(f"{layout.root} holds no run to resume: leave --resume out to start one")
    saved = load_config(layout.config)
    changed = [
        f"{name} was {old!r}, is {new!r}"
        for name, (old, new) in fixed_differences(saved, config, RESUMABLE).items()
    ]
    if changed:
        raise ValueError(
            f"the run in {layout.root} was started with other settings ({'; '.join(changed)}). "
            f"These may change: {', '.join(RESUMABLE)}. Resume {layout.config} without the others, "
            "or start a new run with --set run=…"
        )


def reopen(layout: Layout, updates: int) -> None:
    """A finished run that is given more updates is no longer done."""
    status = read_json(layout.status, {})
    if status.get("done") and status["version"] < updates:
        write_json(layout.status, {**status, "done": False})


def choose_ports(config: ScaleConfig) -> list[int]:
    """A free port for every generator of this machine.

    Raises `ValueError` for a configured port that another program uses.
    """
    generate = config.generate
    sockets = [socket.socket() for _ in range(generate.count)]
    try:
        for index, one in enumerate(sockets):
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bind(one, generate.host, generate.port and generate.port + index)
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def bind(one: socket.socket, host: str, port: int) -> None:
    try:
        one.bind((host, port))
    except OSError as error:
        raise ValueError(
            f"generator {host}:{port} cannot be bound ({error.strerror}): set generate.port to "
            "another port, or to 0 for any free ones"
        ) from None


def server_url(config: ScaleConfig, port: int) -> str:
    """Where this machine's orchestrator and trainer reach a generator."""
    host = config.generate.host
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
