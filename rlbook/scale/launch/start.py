"""`rlbook scale`: starts a run's processes, looks after them, ends when the run is done."""

import secrets
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from rlbook.durable import read_json
from rlbook.extras import require
from rlbook.scale.batch_log import spool_end
from rlbook.scale.config import ScaleConfig
from rlbook.scale.launch.commands import chosen_engine, run_commands
from rlbook.scale.launch.dry_run import check_start
from rlbook.scale.launch.forward import forwarding
from rlbook.scale.launch.machine import gpu_problem
from rlbook.scale.launch.processes import Command, Start, start_here
from rlbook.scale.launch.progress import ProgressLine
from rlbook.scale.launch.rollback import roll_back
from rlbook.scale.launch.supervisor import Supervisor, TooManyDeaths
from rlbook.scale.layout import Layout
from rlbook.scale.run_folder import one_launcher, open_run


def scale(config: ScaleConfig, resume: bool = False, rollback: int | None = None) -> int:
    """`launch` for a shell: says how it ended and how to go on; returns the exit code."""
    layout = Layout(config.folder)
    goes_on = f"; go on with `rlbook scale {layout.config} --resume`"
    try:
        status = launch(config, resume, rollback)
    except TooManyDeaths as error:
        say(f"{error}\nstopped at {reached(layout)} of {config.steps}{goes_on}")
        return 1
    except Interrupted:
        say(f"stopped at {reached(layout)} of {config.steps}{goes_on}")
        return 130
    failed = (spool_end(layout) or {}).get("failed", False)
    say(f"{'stopped' if failed else 'done'}: {ending(layout, status)} in {layout.root}")
    return int(failed)


class Interrupted(Exception):
    """The launcher was asked to stop: SIGINT or SIGTERM."""


def launch(
    config: ScaleConfig,
    resume: bool = False,
    rollback: int | None = None,
    tick: Callable[[Supervisor], object] = lambda supervisor: None,
) -> dict:
    """Run to the end, whatever dies on the way; returns the trainer's last status.

    With `rollback` an existing run goes on from its checkpoint of that update. `tick` is called
    after every look at the processes.
    Raises `TooManyDeaths` naming the process and the end of its log, `Interrupted` on a signal
    (both leave a folder that `resume` continues), and `ValueError` for what cannot start.
    Chapter 17.
    """
    layout, config = Layout(config.folder), with_token(config)
    check_machine(config)
    check_start(config)
    commands = run_commands(config, layout)
    with stop_signals(), one_launcher(layout), machines(config, layout, commands) as start:
        if rollback is not None:
            roll_back(layout, rollback)
        open_run(layout, config, resume or rollback is not None)
        announce(config, layout)
        progress = ProgressLine(layout, config.steps)
        with (
            forwarding(config, layout) as forward,
            Supervisor(commands, layout, config.launch, start) as supervisor,
        ):

            def each_turn(one: Supervisor) -> None:
                progress(one)
                forward()
                tick(one)

            supervisor.watch(lambda: is_done(layout), each_turn)
        progress.end()
    return read_json(layout.status)


def with_token(config: ScaleConfig) -> ScaleConfig:
    """With a secret for this start, unless it has one."""
    if config.generate.token:
        return config
    return config.replace(generate={"token": secrets.token_urlsafe(24)})


def machines(
    config: ScaleConfig, layout: Layout, commands: list[Command]
) -> AbstractContextManager[Start]:
    """What starts commands, on this machine or on those of a Ray cluster."""
    if config.launch.engine == "local":
        return nullcontext(start_here)
    from rlbook.scale.launch.cluster import cluster

    return cluster(commands, layout.config)


def reached(layout: Layout) -> str:
    """How far a run has come, in words."""
    return f"update {read_json(layout.status, {}).get('version', 0)}"


def ending(layout: Layout, status: dict) -> str:
    """How many steps were made, and why if there should have been more."""
    end = spool_end(layout)
    return f"{status['version']} steps" + (f" ({end['reason']})" if end else "")


def say(text: str) -> None:
    """A line to stderr, below a line of progress if there may be one."""
    print(f"\n{text}" if sys.stderr.isatty() else text, file=sys.stderr, flush=True)


def check_machine(config: ScaleConfig) -> None:
    """Raises `ValueError` if this machine has fewer GPUs than it is to use, or smaller ones.

    For one of several machines `ImportError` without Ray, which sees to the others.
    """
    if config.launch.engine == "ray":
        return require("cluster", "ray")
    if problem := gpu_problem(config):
        raise ValueError(problem)


def is_done(layout: Layout) -> bool:
    """Whether the trainer has said that the run is over."""
    return bool(read_json(layout.status, {}).get("done"))


def announce(config: ScaleConfig, layout: Layout) -> None:
    """Say what is about to run, with what, and where its logs are."""
    say(
        f"{layout.root}: {config.steps} steps of {config.method.name} on "
        f"{config.model.policy}; {config.generate.count} generators ({chosen_engine(config)}), "
        f"{config.train.processes} trainer processes; logs in {layout.logs}"
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
