"""What a run left behind, put together for its report, and what it writes as it goes on."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from statistics import median

from rlbook.durable import read_json
from rlbook.jsonl import join_rows, parse_rows, read_jsonl, read_lines
from rlbook.scale.config import load_config
from rlbook.scale.layout import Layout

SECRETS = ("generate.token",)


@dataclass(frozen=True)
class RunRecord:
    """Rows and settings of a run folder; `steps` joins the trainer's and orchestrator's rows."""

    root: Path
    settings: dict = field(default_factory=dict)
    planned: int = 0  # steps that the run is to make
    status: dict = field(default_factory=dict)
    steps: list[dict] = field(default_factory=list)
    evaluations: list[dict] = field(default_factory=list)  # on the run's own held-out problems
    sets: dict[str, list[dict]] = field(default_factory=dict)  # on others, by their names
    events: list[dict] = field(default_factory=list)
    samples: list[dict] = field(default_factory=list)

    def column(self, name: str) -> tuple[list[int], list[float]]:
        """Steps and values of a metric, where it was reported."""
        rows = [row for row in self.steps if isinstance(row.get(name), int | float)]
        return [row["step"] for row in rows], [float(row[name]) for row in rows]

    @property
    def deaths(self) -> list[dict]:
        """Rows of processes that died."""
        return [row for row in self.events if row["event"] == "death"]

    @property
    def seconds(self) -> float:
        """From the first start of a process to the last thing known of the run."""
        times = [row["time"] for row in (*self.events, *self.steps) if "time" in row]
        return max(times) - min(times) if times else 0.0


def read_run(folder: str | Path) -> RunRecord:
    """All that a run folder tells, whether the run has ended or not; secrets left out.

    Raises `FileNotFoundError` for a folder without a run.
    """
    layout = Layout(Path(folder))
    if not layout.config.is_file():
        raise FileNotFoundError(f"no run in {folder}: config.yaml is missing")
    config = load_config(layout.config)
    settings = flatten(config.to_dict())
    evaluations = read_jsonl(layout.log("eval"))
    hidden = {name: "(set)" for name in SECRETS if settings.get(name)}
    return RunRecord(
        layout.root,
        {**settings, **hidden},
        config.steps,
        read_json(layout.status, {}),
        join_rows(read_jsonl(layout.log("rollouts")), read_jsonl(layout.log("metrics"))),
        [row for row in evaluations if "set" not in row],
        {
            name: [row for row in evaluations if row.get("set") == name]
            for name in dict.fromkeys(row["set"] for row in evaluations if "set" in row)
        },
        read_jsonl(layout.log("events")),
        read_jsonl(layout.log("samples")),
    )


def flatten(document: dict, prefix: str = "") -> dict:
    """{"a": {"b": 1}} as {"a.b": 1}."""
    flat: dict = {}
    for name, value in document.items():
        nested = isinstance(value, dict)
        flat |= flatten(value, f"{prefix}{name}.") if nested else {f"{prefix}{name}": value}
    return flat


def key_figures(record: RunRecord) -> dict[str, str]:
    """What one wants to know first, in words and numbers."""
    version = record.status.get("version", 0)
    state = "done" if record.status.get("done") else "not finished"
    figures = {
        "Run": f"{record.root}: {version} of {record.planned} steps, {state}",
        "Model and task": f"{record.settings.get('model.policy')}, "
        f"{record.settings.get('data.task')}, {record.settings.get('method.name')}",
        "Time": f"{record.seconds / 60:.1f} minutes from the first start to the last update",
        "Deaths": deaths_in_words(record),
    }
    own = {"Held-out": record.evaluations} if record.evaluations else {}
    for name, rows in (own | record.sets).items():
        first_and_last = map(evaluation_in_words, (rows[0], rows[-1]))
        figures[f"{name} pass@1"] = " → ".join(first_and_last)
    medians = {
        "Tokens per second": ("tokens_per_second", "{:,.0f}"),
        "Mean staleness of a trained token": ("staleness_mean", "{:.2f} updates"),
        "Mismatch of fresh tokens": ("mismatch_fresh", "{:.2e} nats"),
        "Trainer idle": ("trainer_idle", "{:.0%}"),
        "Generators idle": ("generator_idle", "{:.0%}"),
        "MFU": ("mfu", "{:.1%}"),
    }
    for label, (name, text) in medians.items():
        values = [value for value in record.column(name)[1] if value == value]
        if values:
            figures[label] = f"{text.format(median(values))} (median over updates)"
    return figures


def evaluation_in_words(row: dict) -> str:
    """`0.412 [0.350, 0.475] after 20 steps`."""
    interval = ""
    if "pass@1_low" in row:
        interval = f" [{row['pass@1_low']:.3f}, {row['pass@1_high']:.3f}]"
    return f"{row['pass@1']:.3f}{interval} after {row['step']} steps"


def deaths_in_words(record: RunRecord) -> str:
    """`3: trainer 2 (killed by SIGKILL), generator0 1 (exit code 0)`."""
    if not record.deaths:
        return "none"
    parts = []
    for name in dict.fromkeys(row["process"] for row in record.deaths):
        reasons = [row["reason"] for row in record.deaths if row["process"] == name]
        parts.append(f"{name} {len(reasons)} ({', '.join(dict.fromkeys(reasons))})")
    return f"{len(record.deaths)}: {', '.join(parts)}"


def follow(
    layout: Layout, running: Callable[[], bool], seconds: float = 0.2
) -> Iterator[dict[str, float]]:
    """A row per update as it is made, the orchestrator's metrics and the trainer's together.

    An update that a restarted trainer makes again comes again. Looks every `seconds`, and a last
    time when `running()` has become false. Chapter 18.
    """
    seen: list[str] = []
    while True:
        last = not running()
        lines = read_lines(layout.log("metrics"))
        sampled = {row["step"]: row for row in read_jsonl(layout.log("rollouts"))}
        known = takewhile(lambda pair: pair[0] == pair[1], zip(seen, lines, strict=False))
        for row in parse_rows(lines[len(list(known)) :]):
            yield {**sampled.get(row["step"], {}), **row}
        if last:
            return
        seen = lines
        time.sleep(seconds)
