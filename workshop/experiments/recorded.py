"""What the tables and manifests of `data/results` hold of a run, and whether it is the same run."""

import csv
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlbook.training import RunConfig
from rlbook.training.metrics import group_by
from workshop.experiments.design import Variant

if TYPE_CHECKING:
    from workshop.experiments.run import Run

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


def is_recorded(run: "Run", arms: Mapping[str, Any]) -> bool:
    """Whether a manifest's arms hold this run with the settings that it has now."""
    data = arms.get(run.arm.label, {})
    values = data.get("values", {})
    beside = [v for v in run.arm.tried if dict(v.values) == values] or [run.arm.tried[0]]
    made = {name: value for name, value in data.items() if name not in BESIDE_THE_RUN}
    if not made or settings_of(RunConfig(**made)) != settings_of(beside[0].config):
        return False
    return any(is_variant(one, run.variant) for one in data.get("variants", [{}]))


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
