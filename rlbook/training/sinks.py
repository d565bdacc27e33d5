"""Where rows of metrics go besides their log: tracking services, by name.

Each is imported only when it is asked for. All rows of a run are one run there, which a resumed run
continues; a metric is called after its log and its column: `metrics/reward`, `eval/pass@1`.
"""

import math
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Protocol

SinkName = Literal["tensorboard", "wandb", "trackio", "mlflow"]
PROJECT = "rlbook"
UPDATE = "update"  # the axis of W&B's charts


class Sink(Protocol):
    def log(self, values: dict[str, float], step: int) -> None:
        """Numbers that belong to an update; steps of different logs come in any order."""

    def close(self) -> None: ...


class TensorBoard:
    """Event files in `<run>/tensorboard`."""

    def __init__(self, folder: Path):
        self.writer = library("torch.utils.tensorboard", "tensorboard").SummaryWriter(
            folder / "tensorboard"
        )

    def log(self, values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        self.writer.close()


class WandB:
    """A run of Weights & Biases."""

    def __init__(self, folder: Path):
        name = name_of(folder)
        self.run = library("wandb").init(
            project=PROJECT, name=name, id=name, resume="allow", dir=str(folder)
        )
        self.run.define_metric("*", step_metric=UPDATE)  # its own steps may not go back

    def log(self, values: dict[str, float], step: int) -> None:
        self.run.log({**values, UPDATE: step})

    def close(self) -> None:
        self.run.finish()


class Trackio:
    """A run of Trackio."""

    def __init__(self, folder: Path):
        self.trackio = library("trackio")
        self.trackio.init(project=PROJECT, name=name_of(folder), resume="allow")

    def log(self, values: dict[str, float], step: int) -> None:
        self.trackio.log(values, step=step)

    def close(self) -> None:
        self.trackio.finish()


class MLflow:
    """A run of MLflow, whose id is kept in the run's folder."""

    def __init__(self, folder: Path):
        self.mlflow, known = library("mlflow"), folder / "mlflow_run"
        self.mlflow.set_experiment(PROJECT)
        if known.exists():
            self.mlflow.start_run(run_id=known.read_text())
        else:
            run = self.mlflow.start_run(run_name=name_of(folder))
            known.write_text(run.info.run_id)

    def log(self, values: dict[str, float], step: int) -> None:
        allowed = {re.sub(r"[^\w./: -]", "_", name): value for name, value in values.items()}
        self.mlflow.log_metrics(allowed, step=step)

    def close(self) -> None:
        self.mlflow.end_run()


SINKS: dict[SinkName, Callable[[Path], Sink]] = {
    "tensorboard": TensorBoard,
    "wandb": WandB,
    "trackio": Trackio,
    "mlflow": MLflow,
}


class Sinks:
    """Several sinks as one. Raises `ImportError` naming the package of one that is missing."""

    def __init__(self, names: Sequence[SinkName], folder: Path):
        folder.mkdir(parents=True, exist_ok=True)
        self.sinks = [SINKS[name](folder) for name in names]

    def __call__(self, log: str, row: Mapping[str, Any]) -> None:
        """The finite numbers in a row of a log; `row["set"]` becomes part of their names."""
        prefix = "/".join([log, *([row["set"]] if row.get("set") else [])])
        values = {
            f"{prefix}/{name}": float(value)
            for name, value in row.items()
            if name != "step" and is_number(value)
        }
        for sink in self.sinks:
            sink.log(values, row["step"])

    def close(self) -> None:
        for sink in self.sinks:
            sink.close()


def name_of(folder: Path) -> str:
    """What a run is called there: as its folder, made unique once."""
    known = folder / "tracked_as"
    if not known.exists():
        known.write_text(f"{folder.resolve().name}-{secrets.token_hex(3)}")
    return known.read_text()


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def library(module: str, package: str = "") -> Any:
    """A module, or an `ImportError` that says what to install."""
    try:
        return import_module(module)
    except ImportError as error:
        package = package or module
        raise ImportError(
            f"sinks: {package} is not installed: pip install {package}, or leave it out"
        ) from error
