"""`rlbook scale`: starts a run's processes, looks after them, ends when the run is done."""

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rlbook.scale.commands import Role, chosen_engine, run_commands
from rlbook.scale.config import ScaleConfig
from rlbook.scale.layout import Layout, read_json
from rlbook.scale.progress import ProgressLine
from rlbook.scale.run_folder import choose_ports, one_launcher, open_run
from rlbook.scale.supervisor import Supervisor


class Interrupted(Exception):
    """The launcher was asked to stop: SIGINT or SIGTERM."""


def launch(config: ScaleConfig, resume: bool = False, role: Role = "all") -> dict:
    """Run to the end, whatever dies on the way; returns the trainer's last status.

    Raises `TooManyDeaths` naming the process and the end of its log, `Interrupted` on a signal
    (both leave a folder that `resume` continues), and `ValueError` for what cannot start.
    Chapter 17.
    """
    layout = Layout(config.folder)
    with stop_signals(), one_launcher(layout, role):
        ports = prepare(layout, config, resume, role)
        commands = run_commands(config, layout, role, ports)
        progress = ProgressLine(layout, config.steps)
        announce(config, layout, len(ports))
        with Supervisor(commands, layout, config.launch) as supervisor:
            supervisor.watch(lambda: is_done(layout), progress)
        progress.end()
    return read_json(layout.status)


def prepare(layout: Layout, config: ScaleConfig, resume: bool, role: Role) -> list[int]:
    """The run folder, as far as this role makes it; returns the ports of its generators."""
    if role == "all":
        return open_run(layout, config, resume)
    if role == "generators":
        if config.generator.port == 0:
            raise ValueError(
                "generator.port 0: other machines must know the ports, set the first one"
            )
        return choose_ports(config)
    while not layout.servers.exists():  # written by the launcher with role "all"
        time.sleep(1)
    return []


def is_done(layout: Layout) -> bool:
    """Whether the trainer has said that the run is over."""
    return bool(read_json(layout.status, {}).get("done"))


def announce(config: ScaleConfig, layout: Layout, servers: int) -> None:
    trainers = config.trainer.processes * config.trainer.nodes
    print(
        f"{layout.root}: {config.steps} updates of {config.trainer.method} on "
        f"{config.model.policy}; {servers + len(config.generator.servers)} generators "
        f"({chosen_engine(config)}), {trainers} trainer processes; logs in {layout.logs}",
        file=sys.stderr,
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
