"""One arm of an experiment, by seed, with what a rival would ask of it; read from the tables."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from statistics import fmean
from typing import Any

import pandas as pd

from rlbook.manifest import SUFFIX
from rlbook.paths import data_dir
from rlbook.stats.intervals import Interval, t_interval
from rlbook.training import RunConfig
from workshop.shared.choice import AtRate
from workshop.shared.evidence import batches_until, load_results

HELD_OUT = "held-out answers"
PREFIXES = "fixed prefixes"  # what the policy decides there, exactly: no answers at all
BATCHES = "its own training batches"
ANOTHER = "answers that another policy wrote"
WRITER = "accuracy_of_writer"  # as `experiments.run` names it
TRIED = ("_eval", "_sweep", "_second")  # tables with a row per run
PIPELINE, HALF = "pipeline", ", half the rate"
AT_START = {  # a column of steps or of the end: that of the start
    "accuracy": "pass@1",
    "opens_rarely": "opens_careful",
    "after_*": "before_*",
}

Load = Callable[[str], pd.DataFrame]


@dataclass(frozen=True)
class Runs:
    """One arm, trained once for each seed.

    values    the result by seed
    writer    who wrote what was marked: one of the four above
    written   answers a run had sampled, for any purpose
    tried     what each learning rate came to that was tried, more being better
    rate      that of these runs
    start     the column by which learning is judged, before any update; None: not known
    ends      the same column at the end, by seed: `values` where it is the column itself
    first     the column in the first batch, where it is one of batches
    rates     what the arm comes to at each rate that was tried, the chosen first; none where no
              rate was chosen
    """

    name: str
    values: Mapping[Any, float]
    writer: str
    written: float
    tried: Mapping[float, float]
    rate: float
    start: float | None = None
    ends: Mapping[Any, float] = field(default_factory=dict)
    first: float | None = None
    rates: tuple[AtRate, ...] = ()

    @property
    def best(self) -> float:
        """The best of the rates that were tried."""
        return max(self.tried, key=self.tried.__getitem__)

    @property
    def edge(self) -> bool:
        """Whether that is an end of the grid, so that a better one may lie beyond."""
        return self.best in (min(self.tried), max(self.tried))

    @property
    def end(self) -> float:
        return fmean((self.ends or self.values).values())

    def gain(self) -> Interval:
        """What was learned: end minus start, over seeds; `start` must be known."""
        return t_interval([value - self.start for value in (self.ends or self.values).values()])

    def way(self) -> str:
        """From where to where."""
        return f"{self.name!r} {self.start:.3f} → {self.end:.3f}"

    def told_rates(self) -> str:
        """The rate, and the best of those tried with its edge."""
        tried = ", ".join(f"{rate:g}" for rate in sorted(self.tried))
        best = f"{self.best:g}{', an edge' if self.edge else ''}"
        return f"{self.rate:g} of {tried} (best {best})"


@dataclass(frozen=True)
class Column:
    """What a result is: a column of the evaluation, or of a stretch of the log.

    name        with a star at the end: the mean of all columns that begin so
    steps       first and last step of the log that count; None: the evaluation of the end
    half_time   not the value, but the batches until it exceeds ½, on a line between two of them
    prefixes    the log's column is what the policy decides on fixed prefixes
    learned     the column by which learning is judged, where that is another
    """

    name: str
    steps: tuple[int, int] | None = None
    half_time: bool = False
    prefixes: bool = False
    learned: "Column | None" = None

    def of(self, runs: pd.DataFrame) -> dict[Any, float]:
        """By seed, from the rows of one arm at one rate."""
        if self.half_time:
            raise ValueError(f"the half time of {self.name} needs where it starts: use `until`")
        if self.steps:
            runs = runs[runs["step"].between(*self.steps)]
        return self.pick(runs).groupby(runs["seed"]).mean().to_dict()

    def until(self, runs: pd.DataFrame, start: float | None) -> dict[Any, float]:
        """The half time by seed."""
        found = batches_until(runs, self.name, start=start, runs=("seed",))
        return {seed: float(value) for (seed,), value in found.items()}

    def pick(self, rows: pd.DataFrame) -> pd.Series:
        """The column, or the mean of those that it names by a star."""
        if not self.name.endswith("*"):
            return rows[self.name]
        return rows[[c for c in rows if c.startswith(self.name[:-1])]].mean(axis=1)

    def before(self, start: pd.DataFrame) -> float | None:
        """The column of a policy that has not made a step, if the table has it."""
        name = AT_START.get(self.name, self.name.replace("accuracy_level", "pass@1_level"))
        if start.empty or not any(c.startswith(name.rstrip("*")) for c in start):
            return None
        return float(Column(name).pick(start).iloc[0]) if name in start or "*" in name else None


def runs_of(
    experiment: str, arm: str, column: Column, lr: float | None = None, load: Load = load_results
) -> Runs:
    """An arm of a committed experiment, at a rate if it was run at several.

    Raises `ValueError` for an arm or a rate that there is not.
    """
    if experiment == PIPELINE:
        return of_pipeline(arm, column, load)
    log, ends = (rows_of(load(f"{experiment}{part}"), arm, experiment) for part in ("", "_eval"))
    rates = sorted(ends["lr"].unique()) if "lr" in ends else [only_rate(experiment, arm)]
    if lr is None and len(rates) > 1:
        raise ValueError(f"{arm!r} of {experiment} ran at {rates}: say which lr")
    lr = rates[0] if lr is None else lr
    if lr not in rates:
        raise ValueError(f"{arm!r} of {experiment} has no runs at {lr:g}: there are {rates}")
    start = start_of(experiment, arm, load)
    judged = column.learned or column
    at_all = {rate: ends_of(judged, at(log, rate), at(ends, rate)) for rate in rates}
    mine, my_log = at(ends, lr), at(log, lr)
    begins = first_batch(judged, load(experiment)) if judged.steps else judged.before(start)
    values = column_values(column, my_log, mine, column.before(start))
    return Runs(
        arm,
        values,
        writer_of(column, my_log),
        written(my_log),
        tuned(experiment, arm, load) or {rate: fmean(v.values()) for rate, v in at_all.items()},
        lr,
        begins,
        at_all[lr],
        first_of(column, my_log),
        () if column.steps or column.half_time else at_each_rate(experiment, arm, column, load),
    )


def at_each_rate(experiment: str, arm: str, column: Column, load: Load) -> tuple[AtRate, ...]:
    """The arm at every rate that was tried, the one that was chosen first; none if none was."""
    facts = manifest_of(experiment)
    if "chosen_by" not in facts:
        return ()
    chosen, score = facts["arms"][arm]["values"], Column(facts["chosen_by"])
    parts = [part for part in TRIED if f"{experiment}{part}.csv" in facts["tables"]]
    tables = pd.concat([load(f"{experiment}{part}") for part in parts])
    found = {}
    for values, rows in tables[tables["arm"] == arm].groupby(list(chosen)):
        rate = dict(zip(chosen, values, strict=True))["lr"]
        tuned = rows["seed"].isin(facts["tuning_seeds"])
        ends, tried = (column.of(part) if len(part) else {} for part in (rows[~tuned], rows[tuned]))
        found[values] = AtRate(float(rate), ends, score.of(rows), tried)
    first = found.pop(tuple(chosen.values()))
    return (first, *found.values())


def column_values(
    column: Column, log: pd.DataFrame, ends: pd.DataFrame, start: float | None
) -> dict[Any, float]:
    if column.half_time:
        return column.until(log, start)
    if column.steps and writer_of(column, log) == ANOTHER:
        return Column(column.name.replace("accuracy", WRITER), column.steps).of(log)
    return column.of(log if column.steps else ends)


def ends_of(column: Column, log: pd.DataFrame, ends: pd.DataFrame) -> dict[Any, float]:
    """What the policy has come to, by seed: the column itself where it is no half time."""
    if column.half_time:
        last = int(log["step"].max())
        return Column(column.name, (last, last)).of(log)
    return column_values(column, log, ends, None)


def rows_of(table: pd.DataFrame, arm: str, experiment: str) -> pd.DataFrame:
    rows = table[table["arm"] == arm]
    if rows.empty:
        known = ", ".join(map(str, table["arm"].unique()))
        raise ValueError(f"{experiment} has no arm {arm!r}; there are {known}")
    return rows


def at(rows: pd.DataFrame, lr: float) -> pd.DataFrame:
    return rows[rows["lr"] == lr] if "lr" in rows else rows


def writer_of(column: Column, log: pd.DataFrame) -> str:
    """Who wrote what the column marks."""
    if not column.steps and not column.half_time:
        return HELD_OUT
    if column.prefixes:
        return PREFIXES
    taught = WRITER in log and log[WRITER].notna().any()
    return ANOTHER if taught and column.name.startswith("accuracy") else BATCHES


def first_of(column: Column, log: pd.DataFrame) -> float | None:
    """The accuracy of the first batch, which the policy wrote before any update."""
    if not column.steps or not column.name.startswith("accuracy"):
        return None
    return fmean(column_values(Column(column.name, (1, 1)), log, log, None).values())


def first_batch(column: Column, log: pd.DataFrame) -> float:
    """The column in the first batches of all arms, which the same policy wrote."""
    return float(column.pick(log[log["step"] == 1]).mean())


def written(log: pd.DataFrame) -> float:
    """Answers that a run sampled: for whatever purpose, where that was counted."""
    by_seed = log.groupby("seed")
    if "answers_sampled" in log:
        return float(by_seed["answers_sampled"].max().mean())
    return float(by_seed["completions"].sum().mean())


def tuned(experiment: str, arm: str, load: Load) -> dict[float, float]:
    """Mean score of each rate on the seeds that chose; nothing where none was chosen."""
    facts = manifest_of(experiment)
    if "chosen_by" not in facts:
        return {}
    tried = rows_of(load(f"{experiment}_sweep"), arm, experiment)
    for name, value in facts["arms"][arm].get("values", {}).items():
        if name != "lr":  # such as the width at which the arm was run
            tried = tried[tried[name] == value]
    return tried.groupby("lr")[facts["chosen_by"]].mean().to_dict()


def only_rate(experiment: str, arm: str) -> float:
    """The rate of an arm that was tried at one; what is not stated is the default."""
    stated = manifest_of(experiment)["arms"][arm].get("optimizer", {})
    return float(stated.get("lr", RunConfig().optimizer.lr))


@cache
def manifest_of(experiment: str) -> dict[str, Any]:
    return json.loads((data_dir() / "results" / f"{experiment}{SUFFIX}").read_text())


def start_of(experiment: str, arm: str, load: Load) -> pd.DataFrame:
    """The arm's row of the table of starts; of the evaluation where that has what was before."""
    measured_itself = any(c.startswith("before_") for c in load(f"{experiment}_eval"))
    table = load(f"{experiment}_eval" if measured_itself else f"{experiment}_start")
    return table[table["arm"] == arm]


def of_pipeline(label: str, column: Column, load: Load) -> Runs:
    """An arm of chapter 17's pipeline: one table with held-out rows, two rates as two labels."""
    table, name = load(PIPELINE), label.removesuffix(HALF)
    rows, (first, last) = rows_of(table, label, PIPELINE), column.steps or (80, 80)
    ends = table[table["step"] == last]
    labels = {4e-4: name, 2e-4: name + HALF}
    tried = {rate: ends[ends["arm"] == one][column.name] for rate, one in labels.items()}
    mine = rows[rows["step"].between(first, last)]
    return Runs(
        label,
        mine.groupby("seed")[column.name].mean().to_dict(),
        HELD_OUT,
        float(rows[rows["step"] == last]["answers"].mean()),
        {rate: float(scores.mean()) for rate, scores in tried.items() if len(scores)},
        2e-4 if label.endswith(HALF) else 4e-4,
        float(table[table["step"] == 0][column.name].mean()),
    )
