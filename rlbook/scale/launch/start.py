"""`rlbook scale`: starts a run's processes, looks after them, ends when the run is done."""

import secrets
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from rlbook.scale.config import ScaleConfig
from rlbook.scale.launch.commands import Role, chosen_engine, run_commands
from rlbook.scale.launch.dry_run import check_start
from rlbook.scale.launch.progress import ProgressLine
from rlbook.scale.launch.rollback import roll_back
from rlbook.scale.launch.supervisor import Supervisor, TooManyDeaths
from rlbook.scale.layout import Layout, read_json
from rlbook.scale.run_folder import choose_ports, one_launcher, open_run
from rlbook.scale.spool import spool_end

PLACEHOLDER = "choose-your-own"  # in the configs that come with the book


def scale(
    config: ScaleConfig, resume: bool = False, role: Role = "all", rollback: int | None = None
) -> int:
    """`launch` for a shell: says how it ended and how to go on; returns the exit code."""
    layout = Layout(config.folder)
    goes_on = f"; go on with `rlbook scale {layout.config} --resume`" if role == "all" else ""
    try:
        status = launch(config, resume, role, rollback)
    except TooManyDeaths as error:
        say(f"{error}\nstopped at {reached(layout)} of {config.updates}{goes_on}")
        return 1
    except Interrupted:
        say(f"stopped at {reached(layout)} of {config.updates}{goes_on}")
        return 130
    failed = (spool_end(layout) or {}).get("failed", False)
    say(f"{'stopped' if failed else 'done'}: {ending(layout, status)} in {layout.root}")
    return int(failed)


class Interrupted(Exception):
    """The launcher was asked to stop: SIGINT or SIGTERM."""


def launch(
    config: ScaleConfig, resume: bool = False, role: Role = "all", rollback: int | None = None
) -> dict:
    """Run to the end, whatever dies on the way; returns the trainer's last status.

    With `rollback` an existing run goes on from its checkpoint of that update.
    Raises `TooManyDeaths` naming the process and the end of its log, `Interrupted` on a signal
    (both leave a folder that `resume` continues), and `ValueError` for what cannot start.
    Chapter 17.
    """
    layout, config = Layout(config.folder), with_token(config)
    with stop_signals(), one_launcher(layout, role):
        if rollback is not None:
            roll_back(layout, rollback)
        ports = prepare(layout, config, resume or rollback is not None, role)
        commands = run_commands(config, layout, role, ports)
        progress = ProgressLine(layout, config.updates)
        announce(config, layout, len(ports))
        with Supervisor(commands, layout, config.launch) as supervisor:
            supervisor.watch(lambda: is_done(layout), progress)
        progress.end()
    return read_json(layout.status)


def with_token(config: ScaleConfig) -> ScaleConfig:
    """With a secret for this start, unless it has one, or servers elsewhere had to know it."""
    if config.generate.token or config.generate.servers:
        return config
    return config.replace(generate={"token": secrets.token_urlsafe(24)})


def prepare(layout: Layout, config: ScaleConfig, resume: bool, role: Role) -> list[int]:
    """The run folder, as far as this role makes it; returns the ports of its generators."""
    check_gpus(config, role)
    if config.generate.token == PLACEHOLDER:
        raise ValueError("generate.token is the example's: set it to a secret of your own")
    if role == "all":
        check_start(config)
        return open_run(layout, config, resume)
    if role == "generators":
        if config.generate.port == 0 or config.generate.count == 0:
            raise ValueError(
                "generators alone: set generate.count to their number and generate.port to the "
                "first of the ports under which generate.servers names them elsewhere"
            )
        return choose_ports(config)
    while not layout.servers.exists():  # written by the launcher with role "all"
        time.sleep(1)
    return []


def reached(layout: Layout) -> str:
    return f"update {read_json(layout.status, {}).get('version', 0)}"


def ending(layout: Layout, status: dict) -> str:
    """How many updates were made, and why if there should have been more."""
    end = spool_end(layout)
    return f"{status['version']} updates" + (f" ({end['reason']})" if end else "")


def say(text: str) -> None:
    print(f"\n{text}" if sys.stderr.isatty() else text, file=sys.stderr, flush=True)


def check_gpus(config: ScaleConfig, role: Role) -> None:
    """Raises `ValueError` if this machine has fewer GPUs than it is to use."""
    if config.model.device != "cuda":
        return
    generate = config.generate
    generating = 0 if role == "trainer" else generate.count * generate.tensor_parallel
    training = 0 if role == "generators" else config.train.processes
    needed = max(generating, training) if generate.colocated else generating + training
    if needed > (found := torch.cuda.device_count()):
        raise ValueError(
            f"model.device is cuda and this machine has {found} GPUs for {generating} of "
            f"generators and {training} of trainers: lower generate.count or train.processes, "
            "set generate.colocated, or train a tiny model with model.device cpu"
        )


def is_done(layout: Layout) -> bool:
    """Whether the trainer has said that the run is over."""
    return bool(read_json(layout.status, {}).get("done"))


def announce(config: ScaleConfig, layout: Layout, servers: int) -> None:
    trainers = config.train.ranks
    say(
        f"{layout.root}: {config.updates} updates of {config.method.name} on "
        f"{config.model.policy}; {servers + len(config.generate.servers)} generators "
        f"({chosen_engine(config)}), {trainers} trainer processes; logs in {layout.logs}"
    )


@contextmanager
def stop_signals() -> Iterator[None]:
    """Inside the block, SIGINT and SIGTERM raise `Interrupted`; once is enough, more is ignored."""

    def stop(number: int, frame) -> None:
        for name in (signal.SIGINT, signal.SIGTERM):
            signal.signal(name, signal.SIG_IGN)
        raise Interrupted(signal.Signals(number).name)

    before = {name: signal.signal(name, stop) for name in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)
