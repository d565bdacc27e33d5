"""The run log: one row of metrics a step, as JSONL and CSV."""

import csv
import json
import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


class RunLog:
    """Appends each step's metrics to `<folder>/<name>.jsonl`, flushed at once.

    `resume_step` drops rows of steps the resumed run will take again. A log with an unreadable line
    is kept beside it as `<name>.jsonl.bak`.
    """

    def __init__(
        self,
        folder: Path,
        resume_step: float = 0,
        name: str = "metrics",
    ):
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{name}.jsonl"
        lines = read_lines(self.path)
        rows = parse_rows(lines)
        if len(rows) < len(lines):
            shutil.copyfile(self.path, f"{self.path}.bak")
        kept = [row for row in rows if row["step"] <= resume_step]
        rewritten = self.path.with_suffix(".partial")
        rewritten.write_text("".join(json.dumps(row) + "\n" for row in kept))
        os.replace(rewritten, self.path)
        self._file = self.path.open("a")

    def __call__(self, metrics: dict) -> None:
        self._file.write(json.dumps(metrics) + "\n")
        self._file.flush()

    def close(self) -> None:
        """End the log and write it once more as `metrics.csv`."""
        self._file.close()
        write_csv(self.path.with_suffix(".csv"), read_jsonl(self.path))


def read_jsonl(path: Path) -> list[dict]:
    """Rows of a run log; lines that are none are left out: a killed run leaves half a line."""
    return parse_rows(read_lines(path))


def read_lines(path: Path) -> list[str]:
    """Lines of a text file; none if there is no file."""
    return path.read_text(errors="replace").splitlines() if path.is_file() else []


def parse_rows(lines: Iterable[str]) -> list[dict]:
    """The lines that hold a JSON object, as dictionaries."""
    rows = []
    for line in lines:
        with suppress(json.JSONDecodeError):
            row = json.loads(line)
            rows += [row] if isinstance(row, dict) else []
    return rows


def write_csv(path: Path, rows: Iterable[dict]) -> None:
    """Rows as CSV with the union of their columns, in order of first appearance."""
    rows = list(rows)
    columns = list(dict.fromkeys(name for row in rows for name in row))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
