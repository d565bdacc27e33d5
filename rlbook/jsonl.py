"""Rows of JSON, one a line: what a run logs, read again also where it was killed.

JSON has no word for a number that is none: NaN is written as null, and null read as NaN.
"""

import json
import math
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def read_jsonl(path: Path) -> list[Row]:
    """Rows of a run log; lines that are none are left out: a killed run leaves half a line."""
    return parse_rows(read_lines(path))


def last_row(path: Path) -> Row:
    """The last complete row of a run log; empty if there is none."""
    return (parse_rows(read_lines(path)[-2:]) or [{}])[-1]


def line_of(row: Row) -> str:
    """A row as a line of JSON; what is not finite becomes null."""
    finite = {
        k: v if not isinstance(v, float) or math.isfinite(v) else None for k, v in row.items()
    }
    return json.dumps(finite, allow_nan=False) + "\n"


def read_lines(path: Path) -> list[str]:
    """Lines of a text file; none if there is no file."""
    return path.read_text(errors="replace").splitlines() if path.is_file() else []


def join_rows(*logs: Iterable[Row]) -> list[Row]:
    """Rows of several logs by step; where they disagree, the last log is right."""
    rows: dict[int, Row] = {}
    for log in logs:
        for row in log:
            rows[row["step"]] = {**rows.get(row["step"], {}), **row}
    return [rows[step] for step in sorted(rows)]


def parse_rows(lines: Iterable[str]) -> list[Row]:
    """The lines that hold a JSON object, as dictionaries."""
    rows = []
    for line in lines:
        with suppress(json.JSONDecodeError):
            row = json.loads(line)
            if isinstance(row, dict):
                rows.append({k: math.nan if v is None else v for k, v in row.items()})
    return rows
