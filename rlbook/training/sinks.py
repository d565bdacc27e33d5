"""Where rows of metrics go besides their log: tracking services, by name.

Each is imported only when it is asked for. All rows of a run are one run there, which a resumed run
continues; a metric is called after its log and its column: `metrics/reward`, `eval/pass@1`.
"""

import math
import re
import secrets
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from rlbook.durable import read_json, write_json
from rlbook.jsonl import read_jsonl

SinkName = Literal["tensorboard", "wandb", "trackio", "mlflow"]
Service = tuple[Callable[[dict[str, float], int], Any], Callable[[], Any]]  # log at a step, close
PROJECT = "rlbook"
FORWARDED = ("metrics", "rollouts", "eval")
SECONDS = 5.0  # between looks for rows to forward: logs are read whole


class Sinks:
    """Several sinks as one. Raises `ImportError` naming the package of one that is missing."""

    def __init__(self, names: Sequence[SinkName], folder: Path):
        folder.mkdir(parents=True, exist_ok=True)
        self.services = [SERVICES[name](folder) for name in names]

    def __call__(self, log: str, row: Mapping[str, Any]) -> None:
        """The finite numbers in a row of a log; `row["set"]` becomes part of their names."""
        prefix = "/".join([log, *([row["set"]] if row.get("set") else [])])
        values = {
            f"{prefix}/{name}": float(value)
            for name, value in row.items()
            if name != "step" and isinstance(value, int | float) and math.isfinite(value)
        }
        for send, _ in self.services:
            send(values, row["step"])

    def close(self) -> None:
        """Tell every service that the run has ended."""
        for _, finish in self.services:
            finish()


class Forward:
    """Sends the rows of a run folder's logs to its sinks, as `with Forward(names, folder) as send`.

    Each row once, also if a process writes it again, or after a restart. A service that cannot be
    reached now must not end a run: what is not sent is kept. The rest is sent on the way out.
    """

    def __init__(self, names: Sequence[SinkName], folder: Path):
        self.folder, self.sinks, self.due = folder, Sinks(names, folder) if names else None, 0.0
        self.sent: dict[str, int] = read_json(folder / "sent.json", {})  # last step by log and set

    def __call__(self) -> None:
        """Look for rows now and then."""
        if time.monotonic() >= self.due:
            try:
                self.send()
            except Exception as error:
                warnings.warn(f"sinks: {error}", RuntimeWarning, stacklevel=2)
            self.due = time.monotonic() + SECONDS

    def send(self) -> None:
        """Send all that is new."""
        if self.sinks is None:
            return
        before = dict(self.sent)
        for log in FORWARDED:
            for row in read_jsonl(self.folder / f"{log}.jsonl"):
                key = f"{log}/{row.get('set', '')}"
                if row["step"] > self.sent.get(key, -1):
                    self.sinks(log, row)
                    self.sent[key] = row["step"]
        if self.sent != before:
            write_json(self.folder / "sent.json", self.sent)

    def __enter__(self) -> "Forward":
        return self

    def __exit__(self, *error: object) -> None:
        if self.sinks is not None:
            try:
                if error[0] is None:
                    self.send()
            finally:
                self.sinks.close()


def tensorboard(folder: Path) -> Service:
    """Event files in `<run>/tensorboard`."""
    writer = library("torch.utils.tensorboard").SummaryWriter(folder / "tensorboard")

    def log(values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)

    return log, writer.close


def wandb(folder: Path) -> Service:
    """A run of Weights & Biases."""
    own = {"name": name_of(folder), "id": name_of(folder), "dir": str(folder)}
    run = library("wandb").init(project=PROJECT, resume="allow", **own)
    run.define_metric("*", step_metric="update")  # its own steps may not go back
    return lambda values, step: run.log({**values, "update": step}), run.finish


def trackio(folder: Path) -> Service:
    """A run of Trackio."""
    service = library("trackio")
    service.init(project=PROJECT, name=name_of(folder), resume="allow")
    return lambda values, step: service.log(values, step=step), service.finish


def mlflow(folder: Path) -> Service:
    """A run of MLflow, whose id is kept in the run's folder."""
    service, known = library("mlflow"), folder / "mlflow_run"
    service.set_experiment(PROJECT)
    if known.exists():
        service.start_run(run_id=known.read_text())
    else:
        known.write_text(service.start_run(run_name=name_of(folder)).info.run_id)

    def log(values: dict[str, float], step: int) -> None:
        allowed = {re.sub(r"[^\w./: -]", "_", name): value for name, value in values.items()}
        service.log_metrics(allowed, step=step)

    return log, service.end_run


SERVICES: dict[SinkName, Callable[[Path], Service]] = {
    "tensorboard": tensorboard,
    "wandb": wandb,
    "trackio": trackio,
    "mlflow": mlflow,
}


def name_of(folder: Path) -> str:
    """What a run is called there: as its folder, made unique once."""
    known = folder / "tracked_as"
    if not known.exists():
        known.write_text(f"{folder.resolve().name}-{secrets.token_hex(3)}")
    return known.read_text()


def library(module: str) -> Any:
    """A module, or an `ImportError` that says what to install."""
    try:
        return import_module(module)
    except ImportError as error:
        package = module.rpartition(".")[2]
        raise ImportError(
            f"sinks: {package} is not installed: pip install {package}, or leave it out"
        ) from error
