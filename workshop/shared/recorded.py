"""What the tables and manifests of `data/results` hold of a run, and whether it is the same run."""

import csv
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlbook.grouping import group_by
from rlbook.training import RunConfig
from workshop.shared.design import Arm, Variant

# Manifests keep the names of their commit: what was where is where now.
MOVED = {
    "workshop.experiments.brevity": "workshop.ch14.brevity",
    "workshop.experiments.credit": "workshop.ch15.experiments",
    "workshop.experiments.efficiency": "workshop.ch14.experiments",
    "workshop.experiments.lacking": "workshop.ch14.experiments",
    "workshop.experiments.rlhf": "workshop.ch04.experiments",
    "workshop.experiments.tricks": "workshop.ch12.experiments",
}
BESIDE_THE_RUN = ("seconds", "tuning_seconds", "values", "variants")


def stored(table: Path) -> dict[tuple[str, str], list[dict[str, str]]]:
    """The rows of a table as text, by arm and seed; none where there is no table."""
    if not table.is_file():
        return {}
    with table.open(newline="") as file:
        return group_by(csv.DictReader(file), lambda row: (row["arm"], row["seed"]))


def rows_of(run: "Run", rows: Mapping[tuple[str, str], list[dict[str, str]]]) -> list[dict]:
    """The run's rows without its key, numbers as numbers and nothing where nothing stood."""
    key = {name: str(value) for name, value in run.key.items()}
    mine = [row for row in rows.get((key["arm"], key["seed"]), ()) if key.items() <= row.items()]
    return [
        {name: number(text) for name, text in row.items() if name not in key and text}
        for row in mine
    ]


def number(text: str) -> float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def recorded_config(settings: Mapping[str, Any]) -> RunConfig:
    """The settings that a manifest or a run's record holds, with import paths of today."""
    return RunConfig(**as_called_now(dict(settings)))


def as_called_now(data: Any) -> Any:
    """The same with every import path `module:name` of a module that has moved as it is now."""
    if isinstance(data, str):
        module, colon, name = data.partition(":")
        return f"{MOVED.get(module, module)}:{name}" if colon else data
    if isinstance(data, dict):
        return {key: as_called_now(value) for key, value in data.items()}
    return [as_called_now(value) for value in data] if isinstance(data, list) else data


def is_recorded(run: "Run", arms: Mapping[str, Any]) -> bool:
    """Whether a manifest's arms hold this run with the settings that it has now."""
    data = arms.get(run.arm.label, {})
    values = data.get("values", {})
    beside = [v for v in run.arm.tried if dict(v.values) == values] or [run.arm.tried[0]]
    made = {name: value for name, value in data.items() if name not in BESIDE_THE_RUN}
    if not made or settings_of(recorded_config(made)) != settings_of(beside[0].config):
        return False
    return any(is_variant(one, of_grid(run)) for one in data.get("variants", [{}]))


def of_grid(run: "Run") -> Variant:
    """The run's variant; of a rate beyond those tried, one that differs in its rate alone."""
    tried, beside = run.arm.tried, {**run.variant.values, "lr": 0}
    if run.variant in tried:
        return run.variant
    return next(v for v in tried if {**v.values, "lr": 0} == beside)


def is_variant(recorded: Mapping[str, Any], variant: Variant) -> bool:
    """Whether a manifest's entry is this variant: the same values, and the method it states."""
    values = {name: value for name, value in recorded.items() if name != "method"}
    config = variant.config
    stated = config.replace(method=recorded.get("method", config.method))
    return values == dict(variant.values) and settings_of(stated) == settings_of(config)


def settings_of(config: RunConfig) -> dict[str, Any]:
    """Everything that decides the run: a method's note, on where papers disagree, does not."""
    return config.replace(method=replace(config.method, note="")).to_dict()


def as_data(variant: Variant, beside: RunConfig) -> dict[str, Any]:
    """A variant's values, and its method where that is not the one stated beside it."""
    method = variant.config.method
    return dict(variant.values) | ({} if method == beside.method else {"method": method.to_dict()})


@dataclass(frozen=True)
class Run:
    """One training run of an experiment; its log and its record lie under `runs/experiments`."""

    experiment: str
    arm: Arm
    variant: Variant
    seed: int

    @property
    def key(self) -> dict[str, Any]:
        """Its first columns in a table."""
        return {"arm": self.arm.label, **self.variant.values, "seed": self.seed}

    @property
    def folder(self) -> Path:
        parts = [
            self.arm.label,
            *(f"{name} {value}" for name, value in self.variant.values.items()),
        ]
        return seed_folder(Path("runs/experiments") / self.experiment, " ".join(parts), self.seed)

    @property
    def record_path(self) -> Path:
        return self.folder / "run.json"

    @property
    def record(self) -> dict[str, Any]:
        """Settings, seconds and evaluation of a finished run."""
        return json.loads(self.record_path.read_text())

    @property
    def finished(self) -> bool:
        """Whether it has ended, with the settings that the variant has now."""
        return self.record_path.is_file() and same_settings(self.record, self.variant.config)

    def keep(self, evaluation: Mapping[str, Any], seconds: float) -> None:
        """Write the record of the finished run."""
        record = {"config": self.variant.config.to_dict(), "seconds": seconds}
        self.folder.mkdir(parents=True, exist_ok=True)
        half = self.record_path.with_suffix(".partial")
        half.write_text(json.dumps({**record, "evaluation": dict(evaluation)}))
        os.replace(half, self.record_path)


def seed_folder(root: Path, label: str, seed: int) -> Path:
    """Where a run is kept."""
    return root / "".join(c if c.isalnum() else "-" for c in label) / f"seed{seed}"


def same_settings(record: dict[str, Any], config: RunConfig) -> bool:
    """Whether a run was made with these; a setting that did not exist then has its default."""
    return type(config)(**as_called_now(record["config"])).to_dict() == config.to_dict()


def rounded(row: dict, digits: int) -> dict:
    return {k: float(f"{v:.{digits}g}") if isinstance(v, float) else v for k, v in row.items()}
