"""The run log: one row of metrics a step, as JSONL and CSV."""

import csv
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rlbook.jsonl import line_of, parse_rows, read_jsonl, read_lines

__all__ = ["RunLog", "write_csv"]


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
        rewritten.write_text("".join(map(line_of, kept)))
        os.replace(rewritten, self.path)
        self._file = self.path.open("a")

    def __call__(self, *rows: dict[str, Any]) -> None:
        self._file.write("".join(map(line_of, rows)))
        self._file.flush()

    def close(self) -> None:
        """End the log and write it once more as `metrics.csv`."""
        self._file.close()
        write_csv(self.path.with_suffix(".csv"), read_jsonl(self.path))


def write_csv(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Rows as CSV with the union of their columns, in order of first appearance."""
    rows = list(rows)
    columns = list(dict.fromkeys(name for row in rows for name in row))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
