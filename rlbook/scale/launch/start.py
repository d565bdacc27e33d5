"""`rlbook scale`: starts a run's processes, looks after them, ends when the run is done."""

import secrets
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from rlbook.durable import damage, held, read_json, write_json
from rlbook.jsonl import last_row
from rlbook.scale.batch_log import log_end, prune
from rlbook.scale.config import ScaleConfig
from rlbook.scale.generate.vllm_adapter import chosen_engine
from rlbook.scale.launch.commands import run_commands
from rlbook.scale.launch.dry_run import check_compiler, check_machine, check_start
from rlbook.scale.launch.processes import Start, preload, start_here
from rlbook.scale.launch.supervisor import Supervisor, TooManyDeaths, say
from rlbook.scale.layout import ROLLED_BACK, Layout, check_same_settings, open_run
from rlbook.scale.plan.table import duration
from rlbook.training import RunLog
from rlbook.training.checkpoint import point_latest, step_folders
from rlbook.training.sinks import Forward
from rlbook.training.trainer import cut_once

TERMINAL_SECONDS, FILE_SECONDS = 1.0, 30.0  # between lines of progress
LOGS = ("metrics", "rollouts", "eval", "samples")


class Interrupted(Exception):
    """The launcher was asked to stop: SIGINT or SIGTERM."""


def scale(config: ScaleConfig, resume: bool = False, rollback: int | None = None) -> int:
    """`launch` for a shell: says how it ended and how to go on; returns the exit code."""
    layout = Layout(config.folder)
    try:
        status = launch(config, resume, rollback)
    except (TooManyDeaths, Interrupted) as error:
        died = isinstance(error, TooManyDeaths)
        say(
            f"{error if died else ''}\nstopped at update {layout.trained()} of {config.steps}; "
            f"go on with `rlbook scale {layout.config} --resume{remedy(error, config)}`"
        )
        return 1 if died else 130
    end = log_end(layout)
    failed, why = end.get("failed", False), f" ({end['reason']})" if end else ""
    say(f"{'stopped' if failed else 'done'}: {status['version']} steps{why} in {layout.root}")
    return int(failed)


def remedy(error: Exception, config: ScaleConfig) -> str:
    """The settings, for a resumed run, that would help against the death that ended one."""
    name = getattr(error, "name", "")
    if "out of memory" not in str(error).lower() or not name.startswith(("trainer", "generator")):
        return ""
    if name.startswith("generator"):
        return f" generate.slots={max(1, config.generate.slots // 2)}"
    small = f" optimizer.micro_batch_tokens={max(1, config.optimizer.micro_batch_tokens // 2)}"
    more = "" if config.train.activation_checkpointing else " train.activation_checkpointing=true"
    return small + more


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
    Chapter 18.
    """
    config = cut_once(config)
    if not config.generate.token:  # every start has a secret of its own
        config = config.replace(generate={"token": secrets.token_urlsafe(24)})
    layout = Layout(config.folder)
    check_machine(config)
    check_compiler(config)
    if config.launch.engine == "local":
        preload()  # while all else is looked at
    commands = run_commands(config, layout, check_start(config))
    machines: AbstractContextManager[Start] = nullcontext(start_here)
    if config.launch.engine == "ray":
        from rlbook.scale.launch.cluster import cluster

        machines = cluster(commands, layout.config)
    with stop_signals(), held(layout.root), machines as start:
        if rollback is not None:
            check_same_settings(layout, config, *ROLLED_BACK)
            roll_back(layout, rollback)
        open_run(layout, config, resume, rolled_back=rollback is not None)
        say(
            f"{layout.root}: {config.steps} steps of {config.method.name} on "
            f"{config.model.policy}; {config.generate.count} generators ({chosen_engine(config)}), "
            f"{config.train.processes} trainer processes; logs in {layout.logs}"
        )
        progress = ProgressLine(layout, config.steps)
        with (
            Forward(config.sinks, layout.root) as forward,
            Supervisor(commands, layout, config.launch, start) as supervisor,
        ):

            def turn(supervisor: Supervisor) -> None:
                progress(supervisor)
                forward()
                tick(supervisor)

            supervisor.watch(lambda: bool(read_json(layout.status, {}).get("done")), turn)
    return read_json(layout.status)


def roll_back(layout: Layout, step: int) -> None:
    """Make the checkpoint of update `step` the newest, as if the run had not gone on from there.

    Later checkpoints are set aside as `step_….undone`; later batches and rows of logs go. The
    prompts of the forgotten updates are asked again, for the older weights: `optimizer.lr` may be
    another then. Nothing may be running.
    Raises `ValueError` for a step that is not kept, or damaged.
    """
    folders = step_folders(layout.checkpoints)
    kept = {int(folder.name.removeprefix("step_")): folder for folder in folders}
    if step not in kept:
        steps = ", ".join(map(str, kept)) or "none"
        raise ValueError(f"{layout.root} keeps no checkpoint of update {step}: it has {steps}")
    if found := damage(kept[step]):
        raise ValueError(f"{kept[step]} is damaged ({found}): choose another step")
    point_latest(kept[step])
    prune(layout, since=step)
    (layout.batches / "END").unlink(missing_ok=True)
    for later, folder in kept.items():
        if later > step:
            undone = folder.with_name(f"{folder.name}.undone")
            shutil.rmtree(undone, ignore_errors=True)
            folder.rename(undone)
    for name in LOGS:
        if layout.log(name).exists():
            RunLog(layout.root, step, name=name).close()
    sent = read_json(layout.sent, {})
    write_json(layout.sent, {log: min(last, step) for log, last in sent.items()})
    write_json(layout.status, {"version": step, "done": False, "time": time.time()})


class ProgressLine:
    """Called after every look of the supervisor; rewrites a terminal's line, else prints lines."""

    def __init__(self, layout: Layout, steps: int):
        self.layout, self.steps, self.due = layout, steps, 0.0
        self.first: tuple[float, int] | None = None  # time and step of the first row seen

    def __call__(self, supervisor: Supervisor) -> None:
        if (now := time.monotonic()) < self.due:
            return
        live = sys.stderr.isatty()
        self.due = now + (TERMINAL_SECONDS if live else FILE_SECONDS)
        row, left = last_row(self.layout.log("metrics")), None
        if row:
            row = last_row(self.layout.log("rollouts")) | row
            since, start = self.first = self.first or (now, row["step"])
            if row["step"] > start:  # extrapolated from the updates of this launcher
                left = (now - since) / (row["step"] - start) * (self.steps - row["step"])
        line = status_line(row, self.steps, supervisor.deaths, left)
        if row.get("step", 0) >= self.steps:
            line += f" · {' and '.join(supervisor.finishing())} finishing"
        print(f"\r\x1b[K{line}" if live else f"{line}\n", end="", file=sys.stderr, flush=True)


def status_line(row: dict, steps: int, deaths: int, seconds_left: float | None) -> str:
    """`update 12/40 · accuracy 0.41 · staleness 1.8 · 950 tokens/s · 1 death · 2 min left`."""
    parts = [f"update {row['step']}/{steps}" if row else "waiting for the first update"]
    formats = {
        "accuracy": "accuracy {:.3f}",
        "staleness_mean": "staleness {:.1f}",
        "tokens_per_second": "{:,.0f} tokens/s",
    }
    parts += [text.format(row[name]) for name, text in formats.items() if name in row]
    if deaths:
        parts.append(f"{deaths} death{'s' * (deaths > 1)}")
    if seconds_left is not None:
        parts.append(f"{duration(seconds_left)} left")
    return " · ".join(parts)


@contextmanager
def stop_signals() -> Iterator[None]:
    """Inside the block, SIGINT and SIGTERM raise `Interrupted`; once is enough, more is ignored."""

    def stop(number: int, frame) -> None:
        for name in before:
            signal.signal(name, signal.SIG_IGN)
        raise Interrupted(signal.Signals(number).name)

    before = {name: signal.signal(name, stop) for name in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)
