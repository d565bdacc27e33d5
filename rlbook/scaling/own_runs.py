"""`rlbook fit`: ScaleRL's compute curve through a reader's own runs, and what it leaves open.

Seeds of one recipe are pooled; several recipes are compared as chapter 17 compares them.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isnan, nan
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import yaml

from rlbook.jsonl import read_jsonl
from rlbook.scaling import (
    Bootstrap,
    Points,
    bootstrap_common_asymptote,
    bootstrap_seeds,
    bootstrap_sigmoid,
    difference,
    distinct_draws,
    fit_common_asymptote,
    open_end,
)
from rlbook.scaling.seeds import Recipe, pooled
from rlbook.stats import Interval

Compute = Literal["updates", "answers", "tokens", "seconds", "gpu-hours"]
REWARDS = ("pass@1", "heldout", "accuracy", "reward")  # the first that there is; two held out
HELD_OUT = REWARDS[:2]
FEW_SEEDS = 5
RESAMPLES = 200
SETTINGS_OF_NO_RECIPE = ("seed", "run")


def read_runs(paths: Sequence[str]) -> pd.DataFrame:
    """All rows of the runs at these paths, with columns `recipe`, `seed` and compute so far.

    A path is a run folder (of `rlbook train` or `rlbook scale`), a .jsonl log or a .csv table with
    a column `step`, and `name=path` puts it into the recipe of that name. Without one, folders
    whose settings differ in nothing but the seed are one recipe, named after the first; a table
    is divided by its columns `arm` and `seed`. Raises `FileNotFoundError` and `ValueError` with the
    path.
    """
    tables: list[pd.DataFrame] = []
    known: dict[str, str] = {}
    for given in paths:
        name, _, path = given.rpartition("=")
        tables.append(read_path(Path(path), name, known))
    return pd.concat(tables, ignore_index=True)


def read_path(path: Path, name: str, known: dict[str, str]) -> pd.DataFrame:
    """Rows of the runs at one path; `known` names recipes by settings that were met before."""
    if path.is_dir():
        settings, seed = recipe_of(path)
        recipe = name or known.setdefault(settings, path.name)
        return folder_rows(path).assign(recipe=recipe, seed=str(path) if seed is None else seed)
    if not path.is_file():
        raise FileNotFoundError(f"no run at {path}")
    if path.suffix not in (".jsonl", ".csv"):
        raise ValueError(f"{path} is not a run folder, a .jsonl log or a .csv table")
    table = pd.read_csv(path) if path.suffix == ".csv" else pd.DataFrame(read_jsonl(path))
    if "step" not in table:
        raise ValueError(f"{path} has no column step; it has {', '.join(table) or 'no rows'}")
    arm = table.get("arm", pd.Series(path.stem if path.suffix == ".csv" else path.parent.name))
    table["recipe"] = name or arm.reindex(table.index, method="ffill")
    if "seed" not in table:
        table["seed"] = str(path)
    done = ("answers", "tokens") if "answers" in table else ()
    parts = table.groupby(["recipe", "seed"], sort=False)
    runs = [with_compute(rows, done=done) for _, rows in parts]
    return pd.concat(runs)


def recipe_of(folder: Path) -> tuple[str, int | None]:
    """What tells the recipe of a run folder from others, its settings, and its seed."""
    file = folder / "config.yaml"
    if not file.is_file():
        return str(folder), None
    settings = yaml.safe_load(file.read_text())
    seed = settings.get("seed", 0)
    settings = {k: v for k, v in settings.items() if k not in SETTINGS_OF_NO_RECIPE}
    settings.get("generate", {}).pop("token", None)
    return json.dumps(settings, sort_keys=True), seed


def folder_rows(folder: Path) -> pd.DataFrame:
    """A row per update and per evaluation of a run, with compute so far."""
    logs = [pd.DataFrame(read_jsonl(folder / f"{name}.jsonl")) for name in ("rollouts", "metrics")]
    updates = pd.concat([log for log in logs if len(log)] or [pd.DataFrame(columns=["step"])])
    updates = updates.groupby("step").first().reset_index()
    evaluations = pd.DataFrame(read_jsonl(folder / "eval.jsonl"))
    if updates.empty and evaluations.empty:
        raise FileNotFoundError(f"no run in {folder}: metrics.jsonl and eval.jsonl are missing")
    start = min((row["time"] for row in read_jsonl(folder / "events.jsonl")), default=None)
    updates = with_compute(updates, start)
    if evaluations.empty:
        return updates
    if len(updates):
        spent = updates[["step", *(c for c in ("answers", "tokens") if c in updates)]]
        evaluations = pd.merge_asof(evaluations.sort_values("step"), spent, on="step")
        evaluations = evaluations.fillna(dict.fromkeys(spent.columns, 0))
    return pd.concat([updates, with_compute(evaluations, start, done=("answers", "tokens"))])


def with_compute(
    rows: pd.DataFrame, start: float | None = None, done: Sequence[str] = ()
) -> pd.DataFrame:
    """Rows of one run with `updates`, `answers`, `tokens` and `seconds` until each, where known.

    Rows tell what their own update took; those in `done` are sums already.
    """
    rows = rows.sort_values("step").assign(updates=rows["step"])
    for column, total in (("completions", "answers"), ("tokens", "tokens")):
        if column in rows and total not in done:
            rows[total] = rows[column].cumsum()
    if "time" in rows and start is not None:
        rows["seconds"] = rows["time"] - start
    return rows


@dataclass(frozen=True)
class RecipeFit:
    """A recipe's curve; intervals are over seeds where it has several, over points where one.

    `open_end` says why its asymptote is not known; None if it is.
    """

    runs: Recipe
    boot: Bootstrap
    open_end: str | None

    @property
    def points(self) -> int:
        """How many points of all seeds the curve goes through."""
        return len(pooled(self.runs).compute)

    @property
    def last(self) -> float:
        """Compute of the last point."""
        return float(pooled(self.runs).compute.max())

    @property
    def doubled(self) -> Interval:
        """Predicted reward after twice the compute."""
        return self.boot.band(2 * self.last)


@dataclass(frozen=True)
class Comparison:
    """A recipe beside the first; intervals are nan where a recipe has one run only.

    A_difference is that of the curves by themselves; B, its difference and C_mid are those with one
    A for all recipes.
    """

    A_difference: Interval
    A: float
    B: Interval
    B_difference: Interval
    C_mid: float


@dataclass(frozen=True)
class Report:
    """Every recipe's fit and, if there are several, its comparison with the first."""

    x: str
    y: str
    R_0: float | None
    fits: Mapping[str, RecipeFit]
    comparisons: Mapping[str, Comparison]


def fit_own_runs(
    table: pd.DataFrame,
    x: Compute = "updates",
    y: str | None = None,
    R_0: float | None = None,
    drop: int = 0,
    gpus: int | None = None,
) -> Report:
    """Fit every recipe of `read_runs`, and compare them with the first.

    y       column to fit; the first of `REWARDS` that the runs have
    R_0     reward at no compute; from evaluations before the first update, or fitted
    drop    points left out at the start of every run
    gpus    that a run held, for x="gpu-hours"

    Raises `ValueError` for a column that is missing (it names those that are there) and for too
    few points.
    """
    y = y or next((name for name in REWARDS if name in table), "pass@1")
    table = measured(table, x, y, gpus)
    start = table.loc[table["compute"] == 0, "reward"]
    R_0 = float(start.mean()) if R_0 is None and len(start) else R_0
    recipes = {
        str(name): {seed: points_of(run, drop) for seed, run in rows.groupby("seed", sort=False)}
        for name, rows in table[table["compute"] > 0].groupby("recipe", sort=False)
    }
    check_enough(recipes, y, R_0)
    fits = {name: fit_recipe(runs, R_0) for name, runs in recipes.items()}
    return Report(x, y, R_0, fits, compare(recipes, fits, R_0) if len(fits) > 1 else {})


def measured(table: pd.DataFrame, x: Compute, y: str, gpus: int | None) -> pd.DataFrame:
    """Rows that have a reward, in columns `recipe`, `seed`, `compute` and `reward`."""
    if x == "gpu-hours":
        if gpus is None:
            raise ValueError("gpu-hours are seconds times GPUs: say how many a run held, --gpus 8")
        scale, x = gpus / 3600, "seconds"
    else:
        scale = 1.0
    numbers = table.select_dtypes("number").dropna(axis="columns", how="all")
    for column in (y, x):
        if column not in numbers:
            raise ValueError(f"the runs have no column {column}; there are {', '.join(numbers)}")
    rows = table.dropna(subset=[x, y])
    return rows[["recipe", "seed"]].assign(compute=rows[x] * scale, reward=rows[y])


def points_of(run: pd.DataFrame, drop: int) -> Points:
    """Compute and reward of a run's rows in order, without the first `drop`."""
    run = run.sort_values("compute")[drop:]
    return Points(run["compute"].to_numpy(float), run["reward"].to_numpy(float))


def check_enough(recipes: Mapping[str, Recipe], y: str, R_0: float | None) -> None:
    """Raises `ValueError` naming a run too short for a curve with an interval."""
    if not recipes:
        raise ValueError(f"no values of {y} after the start of a run: nothing to fit")
    needed = 4 + (R_0 is None)
    for name, runs in recipes.items():
        fewest = min(len(set(points.compute)) for points in runs.values())
        if fewest < needed:
            advice = ", or give the reward at the start with --r0" if R_0 is None else ""
            raise ValueError(
                f"{name} has a run with {fewest} points of {y} to fit, and a curve with intervals "
                f"needs {needed}: evaluate more often, or drop fewer{advice}"
            )


def fit_recipe(runs: Recipe, R_0: float | None) -> RecipeFit:
    """A recipe's curve, its intervals from seeds or, of a single run, from points."""
    several = len(runs) > 1
    boot = (
        bootstrap_seeds(runs, R_0, RESAMPLES)
        if several
        else bootstrap_sigmoid(*pooled(runs), R_0, resamples=RESAMPLES)
    )
    return RecipeFit(runs, boot, open_end(boot, float(pooled(runs).compute.max())))


def compare(
    recipes: Mapping[str, Recipe], fits: Mapping[str, RecipeFit], R_0: float | None
) -> dict[str, Comparison]:
    """Every recipe beside the first, by itself and with one asymptote for all."""
    several = all(len(runs) > 1 for runs in recipes.values())
    free = {name: fit.boot for name, fit in fits.items()}
    common = (
        bootstrap_common_asymptote(recipes, R_0, RESAMPLES)
        if several
        else {
            name: Bootstrap(f.curve, ()) for name, f in fit_common_asymptote(recipes, R_0).items()
        }
    )
    first = next(iter(recipes))

    def minus(boots: Mapping[str, Bootstrap], name: str, parameter: str) -> Interval:
        if several:
            return difference(boots[name], boots[first], parameter)
        gap = getattr(boots[name].curve, parameter) - getattr(boots[first].curve, parameter)
        return Interval(gap, nan, nan)

    return {
        name: Comparison(
            minus(free, name, "A"),
            boot.curve.A,
            boot.interval("B") if several else Interval(boot.curve.B, nan, nan),
            minus(common, name, "B"),
            boot.curve.C_mid,
        )
        for name, boot in common.items()
    }


def as_data(report: Report) -> dict[str, Any]:
    """The report as JSON writes it; intervals are [estimate, low, high]."""
    fits = {
        name: {
            "runs": len(fit.runs),
            "points": fit.points,
            "last": fit.last,
            **{p: list(fit.boot.interval(p)) for p in ("A", "B", "C_mid", "R_0")},
            "at_twice_the_compute": [float(x) for x in fit.doubled],
            "intervals_over": "seeds" if len(fit.runs) > 1 else "points of one run",
            "open_end": fit.open_end,
        }
        for name, fit in report.fits.items()
    }
    facts = {"x": report.x, "y": report.y, "R_0_given": report.R_0, "recipes": fits}
    if not report.comparisons:
        return facts
    return facts | {"against_the_first": {n: asdict(c) for n, c in report.comparisons.items()}}


def as_text(report: Report) -> str:
    """The report as tables, and below them what a reader may not conclude from it."""
    rows = {
        name: {
            "runs": len(fit.runs),
            "points": fit.points,
            "A": spelt(fit.boot.interval("A"), ".3f"),
            "B": spelt(fit.boot.interval("B"), ".2f"),
            "C_mid": spelt(fit.boot.interval("C_mid"), ",.4g"),
            "R_0": f"{fit.boot.curve.R_0:.3f}",
            "at twice the compute": spelt(fit.doubled, ".3f"),
        }
        for name, fit in report.fits.items()
    }
    parts = [f"{report.y} against {report.x}", pd.DataFrame(rows).T.to_string()]
    if report.comparisons:
        first = next(iter(report.comparisons))
        A = report.comparisons[first].A
        beside = {
            name: {
                f"A − A of {first}": spelt(row.A_difference, "+.3f"),
                f"B with A = {A:.3f}": spelt(row.B, ".2f"),
                f"B − B of {first}": spelt(row.B_difference, "+.2f"),
                "C_mid": f"{row.C_mid:,.4g}",
            }
            for name, row in report.comparisons.items()
        }
        parts.append(pd.DataFrame(beside).T.to_string())
    return "\n\n".join([*parts, "\n".join(f"* {note}" for note in notes(report))])


def notes(report: Report) -> list[str]:
    """What the numbers rest on, and what they leave open."""
    found = [
        f"{', '.join(names)}: {ground_of(count)}"
        for count in sorted({len(fit.runs) for fit in report.fits.values()})
        for names in [[name for name, fit in report.fits.items() if len(fit.runs) == count]]
    ]
    if report.y not in HELD_OUT:
        found.append(f"{report.y} is not that of held-out problems, whose curve says more")
    if report.R_0 is None:
        found.append("R_0 is fitted: no evaluation before the first update, and no --r0")
    found += [
        f"WARNING: the asymptote of {name} is not identified: {fit.open_end}"
        for name, fit in report.fits.items()
        if fit.open_end
    ]
    first = next(iter(report.fits))
    return found + [
        f"{name} and {first} seem to differ in A: with one A for both, their B are not their own"
        for name, row in report.comparisons.items()
        if is_clear(row.A_difference)
    ]


def ground_of(runs: int) -> str:
    """What the intervals of a recipe come from, and how far that carries."""
    if runs == 1:
        return "one run, intervals from the scatter of its points; another seed may lie outside"
    ground = f"intervals from {runs} seeds, drawn with replacement"
    if runs >= FEW_SEEDS:
        return ground
    return f"{ground} in one of {distinct_draws(runs)} ways: a range of what was seen, no more"


def is_clear(gap: Interval) -> bool:
    """Whether an interval leaves 0 out."""
    return bool(gap.low > 0 or gap.high < 0)


def spelt(interval: Interval, form: str) -> str:
    """`0.61 [0.59, 0.63]`, without brackets where there is no interval."""
    mean, low, high = (format(float(x), form) for x in interval)
    return mean if isnan(interval.low) else f"{mean} [{low}, {high}]"
