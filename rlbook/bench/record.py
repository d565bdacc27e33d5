"""Benchmark results on disk: a CSV file, and a manifest saying where its numbers come from."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from rlbook.manifest import write_manifest
from rlbook.paths import data_dir


class Skipped(Exception):
    """A benchmark that cannot run here, and why."""


def bench_dir() -> Path:
    return data_dir() / "results" / "bench"


def record(part: str, rows: Sequence[Mapping[str, object]], folder: Path, **settings) -> Path:
    """Write the rows as `<part>.csv` and the manifest as `<part>.json`; path of the CSV file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{part}.csv"
    write_manifest(path.with_suffix(".json"), part=part, **settings)  # before the tree changes
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows({key: _short(value) for key, value in row.items()} for row in rows)
    return path


def _short(value: object) -> object:
    return f"{value:.4g}" if isinstance(value, float) else value
