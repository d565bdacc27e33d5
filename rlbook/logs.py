"""Logs of training runs in the forms that trainers leave, read under this package's names.

JSON lines, tables (CSV of wandb or TensorBoard), TensorBoard's event files, TRL's
`trainer_state.json`, and what was printed: dictionaries, verl's `step:1 - a/b:0.5`, `a=0.5`,
`Step 1 | Loss: 0.5`. The columns of each trainer are in `logs.yaml`. Whose log it is, is decided
once, by its columns; a `kl` without any other column of a trainer means nothing, and is not read.
"""

import csv
import json
import math
import re
import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Log:
    """A run's rows under this package's names (`rlbook.training.metrics`), what else it printed.

    `beside` is the log of another run on the same first batch, such as one with other
    micro-batches. `trainer` wrote it, "" where nothing says so; `unknown` are columns that no
    trainer's table has.
    """

    rows: Sequence[Row]
    text: str = ""
    beside: "Log | None" = None
    trainer: str = "rlbook"
    unknown: Sequence[str] = ()

    def all(self, name: str) -> list[float]:
        """The numbers in a column; none where there is no such column."""
        return numbers(row.get(name) for row in self.rows)

    def fresh(self, name: str) -> list[float]:
        """The same of rows whose tokens the newest weights wrote."""
        return numbers(row.get(name) for row in self.rows if is_fresh(row))

    def windows(self, name: str, width: int = 3) -> list[float]:
        """Means of neighbouring numbers in a column; of all of them where they are fewer."""
        found = self.all(name)
        width = min(width, len(found)) or 1
        return [sum(found[i : i + width]) / width for i in range(len(found) - width + 1)]

    def mean(self, name: str) -> float:
        """The mean of a column; NaN, which no comparison finds, where there is none."""
        return sum(found) / len(found) if (found := self.all(name)) else math.nan

    def first(self, name: str) -> float:
        """The first number in a column; NaN where there is none."""
        return next(iter(self.all(name)), math.nan)

    def most(self, name: str) -> float:
        """The largest number in a column; NaN where there is none."""
        return max(self.all(name), default=math.nan)


def is_fresh(row: Row) -> bool:
    """Whether the newest weights wrote the row's tokens, as far as the log says."""
    return not row.get("staleness")


def numbers(values: Iterable[Any]) -> list[float]:
    """Those that are finite numbers."""
    return [float(v) for v in values if isinstance(v, int | float) and math.isfinite(v)]


def read_log(path: str | Path, beside: str | Path | None = None) -> Log:
    """The log in a run's folder, or a file; lines without metrics are kept as text.

    Raises `FileNotFoundError`, and `ValueError` for a log without one column that is known and
    without the traceback of a full memory.
    """
    path = Path(path)
    found, text = [], []
    for file in files_of(path):
        for line in lines_of(file):
            row = row_of(line)
            found.append(row) if row else text.append(str(line))
    log = in_our_words(found, "\n".join(text), None if beside is None else read_log(beside))
    if not log.rows and not re.search(OUT_OF_MEMORY, log.text):
        trainers = ", ".join(list(tables())[1:])
        seen = f"; it has {', '.join(log.unknown[:12])}" if log.unknown else ""
        raise ValueError(f"{path}: no column here that {trainers} write as a metric{seen}")
    return log


OUT_OF_MEMORY = r"(?i)out of memory|OutOfMemory|CUBLAS_STATUS_ALLOC_FAILED"


def files_of(path: Path) -> list[Path]:
    """The log of a run, and what it printed.

    A folder's own log, or TRL's newest state, else event files of TensorBoard, else all tables.
    """
    if not path.is_dir():
        if not path.exists():
            raise FileNotFoundError(f"no log {path}: name a run's folder or a file")
        if path.suffix == ".wandb":
            raise ValueError(f"{path} is wandb's own form: export the run's history as CSV or JSON")
        return [path]
    states = sorted(path.glob("checkpoint-*/trainer_state.json"), key=lambda f: f.stat().st_mtime)
    choices = (
        [path / "metrics.jsonl"],
        [path / "trainer_state.json"],
        states[-1:],
        sorted(path.rglob("*.tfevents.*")),
        [*sorted(path.glob("*.jsonl")), *sorted(path.glob("*.csv"))],
    )
    logs = next((there for files in choices if (there := [f for f in files if f.exists()])), [])
    printed = sorted([*path.glob("*.log"), *path.glob("*.txt")])
    if not logs and not printed:
        raise ValueError(f"{path}: no log here (metrics.jsonl, trainer_state.json, *.csv, *.log)")
    return [*logs, *printed]


def lines_of(file: Path) -> Iterable[Any]:
    """Rows of a table, of event files, of JSON as a whole; else lines."""
    if ".tfevents." in file.name:
        return read_events(file.read_bytes())
    text = file.read_text(errors="replace").lstrip("\ufeff")
    head = text.lstrip()[:1]
    if head in ("{", "["):
        with suppress(json.JSONDecodeError):
            return rows_in(json.loads(text))
        if file.suffix == ".json" and not text.rstrip().endswith(("}", "]")):
            raise ValueError(f"{file} is not JSON: it ends in the middle, copy it again")
    lines = ruled(text.splitlines())
    mark = max(",;\t", key=lines[0].count) if lines else ","
    if file.suffix in (".csv", ".tsv") or is_table(lines[:2], mark):
        return read_table(file.stem, csv.reader(lines, delimiter=mark))
    return lines


def ruled(lines: list[str]) -> list[str]:
    """A table drawn with bars, as notebooks print it, with tabs in their place; else the lines."""
    if not all(line.strip().startswith("|") for line in lines[:3]):
        return lines
    rows = [line.strip().strip("|") for line in lines if not re.fullmatch(r"[|\s:+-]*", line)]
    return [row.replace("|", "\t") for row in rows]


def is_table(head: Sequence[str], mark: str) -> bool:
    """Whether two lines are names and numbers with a mark between them."""
    cells = head[1].split(mark) if len(head) > 1 else []
    return 2 < len(cells) == len(head[0].split(mark)) and all(
        re.fullmatch(NUMBER, cell.strip(), re.IGNORECASE) for cell in cells if cell.strip()
    )


def rows_in(whole: Any) -> list[Any]:
    """Rows of a JSON document: a list of them, TRL's `log_history`, columns, or one row."""
    if isinstance(whole, list):
        return whole
    if isinstance(whole.get("log_history"), list):
        return list(whole["log_history"])
    columns = {
        name: list(values.values()) if isinstance(values, dict) else values
        for name, values in whole.items()
        if isinstance(values, list | dict) and len(values) > 1
    }
    if columns and all(
        isinstance(c, list) and type(c[0]) in (int, float) for c in columns.values()
    ):
        return [
            dict(zip(columns, row, strict=False)) for row in zip(*columns.values(), strict=False)
        ]
    return [whole]


def is_number(value: Any) -> bool:
    """Whether it is one, and no switch."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def read_table(stem: str, lines: Iterator[list[str]]) -> list[dict[str, str]]:
    """Rows by column; TensorBoard's tables say in their name what `Value` is."""
    names = [name.strip() for name in next(lines)]
    tag = re.search(r"tag-(.+)$", stem)
    if names == ["Wall time", "Step", "Value"] and not tag:
        raise ValueError(
            f"{stem}: Value of what? TensorBoard names the file run-<run>-tag-<name>.csv; or give "
            "its event files"
        )
    names = [tag[1] if tag and name == "Value" else name for name in names]
    return [dict(zip(names, map(str.strip, row), strict=False)) for row in lines]


def read_events(data: bytes) -> list[dict[str, float]]:
    """The scalars in an event file of TensorBoard, a row per step.

    Records of length (8 bytes), checksum (4), protobuf `Event`, checksum (4): there, 2 is the
    step and 5 the summary, whose values (1) have a tag (1) and a float (2) or a tensor (8).
    """
    rows: dict[int, dict[str, float]] = defaultdict(dict)
    at = 0
    while at + 12 <= len(data):
        size = int.from_bytes(data[at : at + 8], "little")
        event = fields(data[at + 12 : at + 12 + size])
        at += size + 16
        step = next(iter(event[2]), 0)
        for value in chain.from_iterable(fields(summary)[1] for summary in event[5]):
            parts = fields(value)
            tensor = fields(parts[8][0]) if parts[8] else defaultdict(list)
            found = [*parts[2], *tensor[5], *tensor[4]]
            if found and len(found[0]) == 4:
                rows[step][parts[1][0].decode()] = struct.unpack("<f", found[0])[0]
    return [{"step": step, **row} for step, row in sorted(rows.items()) if row]


def fields(data: bytes) -> dict[int, list[Any]]:
    """A protobuf message by the number of its fields: whole numbers, or bytes."""
    found: dict[int, list[Any]] = defaultdict(list)
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte, at = data[at], at + 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = varint()
        if key & 7 == 0:
            found[key >> 3].append(varint())
        else:
            size = {1: 8, 5: 4}.get(key & 7) or varint()
            found[key >> 3].append(data[at : at + size])
            at += size
    return found


NUMBER = r"[-+]?(?:\d+\.?\d*(?:e[-+]?\d+)?|\.\d+|nan|inf(?:inity)?)(?![\w.%])"
WRAPPED = rf"(?:[\w.]+\()?({NUMBER})"  # np.float64(0.5), tensor(0.5)
FORMS = [
    re.compile(form, re.IGNORECASE)
    for form in (
        rf"""['"]([^'"]+)['"]\s*:\s*['"]?{WRAPPED}""",  # a dictionary
        rf"([\w/@.()-]+):\s?{WRAPPED}\)?(?= - |\s*$)",  # verl
        rf"([\w/@.]+)\s?=\s?{WRAPPED}",
        rf"(?:\||^)\s*([a-z][\w. ]*):\s*{WRAPPED}",  # prime-rl
    )
]
STEP = re.compile(r"\bstep[ :#]+(\d+)\b", re.IGNORECASE)
SUMMARY = "train_runtime"  # of the row of totals that ends a log of TRL, under its last step


def row_of(line: Any) -> dict[str, float]:
    """The numbers in a row or a line by the names they have there; none for any other text."""
    if isinstance(line, str):
        parsed = None
        with suppress(json.JSONDecodeError):
            parsed = json.loads(line)
        line = parsed if isinstance(parsed, dict) else pairs_in(line)
    if not isinstance(line, Mapping) or SUMMARY in line:
        return {}
    row = {}
    for name, value in flat(line):
        with suppress(TypeError, ValueError):
            row[name] = float(
                re.sub(r"^(\d+)/\d+$", r"\1", value) if isinstance(value, str) else value
            )
    return row


def pairs_in(line: str) -> dict[str, str]:
    """Names and numbers in a printed line, by the form that finds most; and its step."""
    found = max((form.findall(line) for form in FORMS), key=len)
    if len(found) < 2:
        return {}
    step = STEP.search(line)
    return ({"step": step[1]} if step else {}) | dict(found)


def flat(row: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The values in a nested row, names joined by /."""
    for name, value in row.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}/")
        elif not isinstance(value, bool):
            yield f"{prefix}{name}", value


# Names


@cache
def tables() -> dict[str, dict[str, str]]:
    """This package's name of each column, by trainer."""
    text = Path(__file__).with_suffix(".yaml").read_text()
    return {
        trainer: {their: our for our, names in table.items() for their in names.split()}
        for trainer, table in yaml.safe_load(text).items()
    }


@cache
def every_name() -> dict[str, str]:
    """The same of all trainers, but for `kl`: theirs are not one thing."""
    merged = {their: our for table in tables().values() for their, our in table.items()}
    return {their: our for their, our in merged.items() if their != "kl"}


# What is said of these is not said of the policy in training.
OTHERS = ("eval", "val", "test", "critic", "ref", "timing", "perf", "prompt")
NO_METRIC = {"step", "learning_rate"}  # settings are printed under these names as well


def our_name(column: str, trainer: str) -> tuple[str, str] | None:
    """This package's name of a column, and its name in the trainer's table; None if there is none.

    What stands before the name is taken off until a table has it: a run's name, `train/`,
    `actor_`. A part of the reward keeps its name, `rewards/<part>/mean`.
    """
    known = every_name() | ({"kl": tables()[trainer]["kl"]} if trainer else {})
    column = re.sub(r" */ *", "/", column)
    parts = re.sub(r"[^\w/@]+", "_", column.rpartition(" - ")[2].lower()).strip("_").split("/")
    for i, part in enumerate(parts):
        name = "/".join([part.strip("_"), *parts[i + 1 :]])
        bare = re.sub(r"^(?:train|policy|actor|metrics?|mean|avg)_", "", name)
        for one in dict.fromkeys((name, bare, re.sub(r"/(?:mean|avg)$|_(?:mean|avg)$", "", bare))):
            if one in known:
                return known[one], one
        if name.startswith("rewards/") and not name.endswith(("/std", "__min", "__max")):
            return name.removesuffix("/mean") + "/mean", name
        if part.startswith(OTHERS):
            return None
    return None


def trainer_of(columns: Iterable[str]) -> str:
    """Whose log has these columns: that of most of them, `kl` apart; "" where it could be any's."""
    named = {found[1] for name in columns if (found := our_name(name, ""))}
    counts = {
        trainer: len(named & table.keys())
        for trainer, table in tables().items()
        if trainer != "any"
    }
    best = max(counts, key=lambda trainer: counts[trainer])
    return best if counts[best] else ""


def in_our_words(rows: Sequence[Row], text: str = "", beside: Log | None = None) -> Log:
    """Rows of some trainer as a `Log`; rows without a metric are left out.

    verl writes no share of silent groups, older TRL the spread of rewards alone: all groups are
    silent where advantages lie between 0 and 0 or the spread is 0, and else not all.
    """
    columns = list(dict.fromkeys(name for row in rows for name in row))
    trainer = trainer_of(columns)
    found = {name: our_name(name, trainer) for name in columns}
    order = list(every_name())
    names = {
        name: pair[0]
        for name, pair in sorted(
            ((n, p) for n, p in found.items() if p),
            key=lambda np: order.index(np[1][1]) if np[1][1] in order else len(order),
        )
    }
    parts = {"accuracy": part_like("acc|correct|verif|math", names.values())}
    parts["format_ok"] = part_like("format", names.values())
    ours: list[dict[str, Any]] = []
    for row in rows:
        new: dict[str, Any] = {}
        for name, our in names.items():
            if name in row:
                new.setdefault(our, row[name])
        if not new.keys() - NO_METRIC:
            continue
        for name, part in parts.items():
            if part in new:
                new.setdefault(name, new[part])
        spread = new.get(
            "reward_std", new.get("advantage_max", 0) - new.get("advantage_min", math.nan)
        )
        if not math.isnan(spread):
            new.setdefault("equal_rewards", float(spread == 0))
        ours.append(new)
    unknown = [name for name, pair in found.items() if not pair and not name.startswith("_")]
    return Log(ours, text, beside, trainer, unknown)


def part_like(pattern: str, names: Iterable[str]) -> str:
    """The part of the reward with such a name; "" if there is none."""
    return next((name for name in names if re.search(rf"^rewards/.*({pattern})", name)), "")
