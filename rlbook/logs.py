"""Logs of training runs in the forms that trainers leave, read under this package's names.

JSON lines, tables (CSV of wandb or TensorBoard), TensorBoard's event files, TRL's
`trainer_state.json`, and what was printed: dictionaries, verl's `step:1 - a/b:0.5`, `a=0.5`,
`Step 1 | Loss: 0.5`; gzip and UTF-16 as well. The columns of each trainer are in `logs.yaml`. Whose
log it is, is decided once, by its columns; a `kl` without any other column of a trainer means
nothing, and is not read. Lines of one step that do not contradict each other are one row.
"""

import csv
import json
import math
import re
import struct
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, takewhile
from pathlib import Path
from typing import Any

import yaml

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Log:
    """A run's rows under this package's names (`rlbook.training.metrics`), what else it printed.

    `beside` is the log of another run on the same first batch, such as one with other
    micro-batches. `trainer` wrote it, "" where nothing says so; `unknown` are columns that no
    trainer's table has. `crash` is the error that ends what was printed, after the last row.
    """

    rows: Sequence[Row]
    text: str = ""
    beside: "Log | None" = None
    trainer: str = "rlbook"
    unknown: Sequence[str] = ()
    crash: str = ""

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
    found: list[Row] = []
    text: list[str] = []
    ending: list[str] = []
    for file in files_of(path):
        for line in lines_of(file):
            row = row_of(line)
            found += [row] if row else []
            if row and not (isinstance(line, str) and all(our_name(n, "") is None for n in row)):
                ending = []
            else:
                text.append(str(line))
                ending.append(text[-1])
    log = in_our_words(found, "\n".join(text), None if beside is None else read_log(beside))
    log = replace(log, crash=error_in(ending))
    if not log.rows and not re.search(OUT_OF_MEMORY, log.text):
        raise ValueError(f"{path}: {why_unread(log)}")
    return log


def why_unread(log: Log) -> str:
    """What is missing in a log without a row."""
    if log.crash:
        return f"no row of metrics before it ended: {log.crash}"
    if not log.text and not log.unknown:
        return "no row in it"
    if any(re.search(r"\bkl$", column) for column in log.unknown):
        return (
            f"a KL to the reference, or to the policy before? Beside {', '.join(log.unknown[:12])} "
            "there is no column that tells the trainer"
        )
    seen = f"; it has {', '.join(log.unknown[:12])}" if log.unknown else ""
    return f"no column here that {', '.join(list(tables())[1:])} write as a metric{seen}"


OUT_OF_MEMORY = r"(?i)out of memory|OutOfMemory|CUBLAS_STATUS_ALLOC_FAILED"
ERROR = (
    r"\w(?:Error|Exception)\b|\bWatchdog caught\b|\btimed out\b|\bKilled\b|Segmentation fault|"
    r"\bSIG(?:KILL|TERM|SEGV|ABRT)\b|core dumped"
)
ENDING = 20  # lines in which a run says why it ended


def error_in(lines: Sequence[str]) -> str:
    """The last error that the last lines name; "" if none."""
    named = [one for one in lines[-ENDING:] if re.search(ERROR, one) and "ignored in" not in one]
    return bare(named[-1]) if named else ""


def bare(line: str) -> str:
    """A printed line without colours and the name of a process, and not too long."""
    line = re.sub(r"\x1b\[[\d;]*m|\(\w+ pid=\d+[^)]*\)", "", line).strip()
    return line if len(line) < 160 else f"{line[:160]}…"


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
    printed = sorted(one for form in PRINTED for one in path.glob(form))
    if not logs and not printed:
        below = {found.parent for form in FORMS_OF_FILES for found in path.rglob(form)}
        runs = ", ".join(sorted(str(one.relative_to(path)) for one in below)[:12])
        raise ValueError(
            f"{path}: no log here ({', '.join(FORMS_OF_FILES)})"
            + (f"; name one of those below it: {runs}" if runs else "")
        )
    return [*logs, *printed]


PRINTED = ("*.log", "*.txt", "*.out")
FORMS_OF_FILES = ("metrics.jsonl", "trainer_state.json", "*.jsonl", "*.csv", *PRINTED)


def text_of(file: Path) -> str:
    """What stands in a file, unzipped, in the encoding it has."""
    data = file.read_bytes()
    if data.startswith(b"\x1f\x8b"):
        data = zlib.decompressobj(wbits=31).decompress(data)  # what is there of one still written
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", errors="replace")
    if b"\0" in data[:2]:
        return data.decode("utf-16-be" if data[0] == 0 else "utf-16-le", errors="replace")
    return data.decode("utf-8-sig", errors="replace")


def lines_of(file: Path) -> Iterable[Any]:
    """Rows of a table, of event files, of JSON as a whole; else lines."""
    if ".tfevents." in file.name:
        return read_events(file.read_bytes())
    text, kind = text_of(file), Path(file.name.removesuffix(".gz")).suffix
    head = text.lstrip()[:1]
    if head in ("{", "["):
        with suppress(json.JSONDecodeError):
            return rows_in(json.loads(text))
        if kind == ".json" and not text.rstrip().endswith(("}", "]")):
            raise ValueError(f"{file} is not JSON: it ends in the middle, copy it again")
    lines = ruled(text.splitlines())
    mark = max(",;\t", key=lines[0].count) if lines else ","
    if kind in (".csv", ".tsv") or is_table(lines[:2], mark):
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
        re.fullmatch(NUMBER, cell.strip().replace(",", "."), re.IGNORECASE)
        for cell in cells
        if cell.strip()
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
    """Rows by column; TensorBoard's tables say in their name what `Value` is.

    Raises `ValueError` for a table of several runs, and for one that would be read in small part.
    """
    names = [name.strip() for name in next(lines, [])]
    tag = re.search(r"tag-(.+)$", stem)
    if names == ["Wall time", "Step", "Value"] and not tag:
        raise ValueError(
            f"{stem}: Value of what? TensorBoard names the file run-<run>-tag-<name>.csv; or give "
            "its event files"
        )
    if {"Name", "State"} <= set(names):
        raise ValueError(f"{stem} is a table of runs: export the history of one of them")
    if len(runs := runs_in(names)) > 1:
        raise ValueError(f"{stem} has {len(runs)} runs, {', '.join(runs)}: export one of them")
    names = [tag[1] if tag and name == "Value" else name for name in names]
    cells = with_points([[cell.strip() for cell in row] for row in lines])
    rows = [dict(zip(names, row, strict=False)) for row in cells]
    known = [n for n in names if (pair := our_name(n, "")) and pair[0] not in NO_METRIC]
    said = [row[name] for name in known for row in rows if row.get(name, "") not in NO_VALUE]
    unread = [cell for cell in said if not is_numeral(cell)]
    if len(unread) > len(said) / 2:
        raise ValueError(
            f"{stem}: {len(unread)} of {len(said)} cells are no numbers, such as {unread[0]!r}"
        )
    return rows


NO_VALUE = ("", "None", "null", "N/A")  # as tables write that there is none


def runs_in(names: Iterable[str]) -> list[str]:
    """Names of the runs of which a table of wandb has the same column."""
    runs: dict[str, list[str]] = defaultdict(list)
    for run, _, column in (name.rpartition(" - ") for name in names):
        runs[column].append(run)
    return max(runs.values(), key=len, default=[])


def with_points(rows: list[list[str]]) -> list[list[str]]:
    """Cells with a point for a decimal comma: where no cell has one, and not all commas could be
    those of thousands."""
    cells = [cell for row in rows for cell in row]
    commas = [cell for cell in cells if re.fullmatch(r"[-+]?\d+,\d+(?:[eE][-+]?\d+)?", cell)]
    thousands = all(re.fullmatch(r"[-+]?[1-9]\d{0,2}(?:,\d{3})+", cell) for cell in commas)
    if thousands or any("." in cell and is_numeral(cell) for cell in cells):
        return rows
    decimal = set(commas)
    return [[cell.replace(",", ".") if cell in decimal else cell for cell in row] for row in rows]


def is_numeral(cell: str) -> bool:
    """Whether a cell can be read as a number."""
    with suppress(ValueError):
        return math.isfinite(float(cell)) or True
    return False


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


def row_of(line: Any) -> dict[str, float | None]:
    """The numbers and nulls in a row or a line by the names there; none for any other text."""
    if isinstance(line, str):
        parsed = None
        with suppress(json.JSONDecodeError):
            parsed = json.loads(line)
        line = parsed if isinstance(parsed, dict) else pairs_in(line)
    if not isinstance(line, Mapping) or SUMMARY in line:
        return {}
    row: dict[str, float | None] = {}
    for name, value in flat(line):
        with suppress(TypeError, ValueError):
            row[name] = (
                value
                if value is None
                else float(
                    re.sub(r"^(\d+)/\d+$", r"\1", value) if isinstance(value, str) else value
                )
            )
    return row if any(value is not None for value in row.values()) else {}


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


@cache
def our_name(column: str, trainer: str) -> tuple[str, str] | None:
    """This package's name of a column, and its name in the trainer's table; None if there is none.

    What stands before the name is taken off until a table has it: a run's name, `train/`,
    `actor_`. A part of the reward keeps its name, `rewards/<part>/mean`; what held-out answers are
    worth is `heldout/<name>`.
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
            worth = f"heldout/{found}" if (found := heldout_worth(name)) else None
            return (worth, worth) if worth else None
    return None


HELD_OUT = r"(?:eval|val|test)(?:uation|idation)?(?:_core)?[_/](.+)"
RIGHT = "acc|correct|verif|math"  # in names of a verdict


def heldout_worth(name: str) -> str | None:
    """The name of a reward or accuracy in an evaluation; None for anything else in it."""
    held = re.fullmatch(HELD_OUT, name)
    found = re.sub(r"/mean(?:@\d+)?$", "", held[1]) if held else ""
    if found.startswith("rewards/"):
        return found if re.fullmatch(rf"rewards/[^/]*(?:{RIGHT})[^/]*", found) else None
    other = re.search(r"(?:^|[/_])(?:std|min|max|best|worst|maj)(?:$|[/_@])", found)
    worth = re.search(r"(?:^|[/_])(?:reward|score|acc|accuracy|pass@1)(?:$|/)", found)
    return found if worth and not other else None


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
    parts = {"accuracy": part_like(RIGHT, names.values())}
    parts["format_ok"] = part_like("format", names.values())
    lost = {name for name in names if ends_in_null([row[name] for row in rows if name in row])}
    ours: list[dict[str, Any]] = []
    for row in rows:
        new: dict[str, Any] = {}
        for name, our in names.items():
            if row.get(name) is not None:
                new.setdefault(our, row[name])
        if not new.keys() - NO_METRIC:
            continue
        if any(not our.startswith("heldout/") for our in new.keys() - NO_METRIC):
            new |= {names[n]: math.nan for n in lost & row.keys() if names[n] not in new}
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
    return Log(joined(ours), text, beside, trainer, unknown)


def ends_in_null(values: Sequence[float | None]) -> bool:
    """Numbers, then null to the end: JSON has no NaN. A null now and then is no value at all."""
    nulls = len(list(takewhile(lambda value: value is None, reversed(values))))
    return max(5, len(values) / 10) <= nulls < len(values)


def joined(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of one step as one, where they agree: charts of one run, an evaluation, a replay.

    Of a step that was done again with another result, both rows are kept.
    """
    kept: list[dict[str, Any]] = []
    last: dict[float, dict[str, Any]] = {}
    for row in rows:
        before = last.get(row.get("step", math.inf))
        if before is not None and all(str(before[n]) == str(row[n]) for n in before.keys() & row):
            before.update(row)
        else:
            kept.append(row)
            if "step" in row:
                last[row["step"]] = row
    return kept


def part_like(pattern: str, names: Iterable[str]) -> str:
    """The part of the reward with such a name; "" if there is none."""
    return next((name for name in names if re.search(rf"^rewards/.*({pattern})", name)), "")
