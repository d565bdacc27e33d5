"""Benchmark results on disk: a CSV file, and a manifest saying where its numbers come from."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlbook.manifest import SUFFIX, manifest, write_manifest
from rlbook.paths import data_dir
from rlbook.training.runlog import write_csv

Row = Mapping[str, object]


class Skipped(Exception):
    """A benchmark that cannot run here, and why."""


def bench_dir() -> Path:
    return data_dir() / "results" / "bench"


def record(part: str, run: Callable[[], Sequence[Row]], folder: Path, **settings: Any) -> Path:
    """Run a part and write its rows as `<part>.csv`, its manifest beside it; path of the CSV."""
    facts, start = manifest(part=part, **settings), time.perf_counter()
    rows = run()
    facts |= {"seconds": round(time.perf_counter() - start, 1)}
    path = folder / f"{part}.csv"
    write_csv(path, [{key: _short(value) for key, value in row.items()} for row in rows])
    write_manifest(folder / f"{part}{SUFFIX}", facts, [path])
    return path


def _short(value: object) -> object:
    return f"{value:.4g}" if isinstance(value, float) else value
