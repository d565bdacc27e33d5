"""The evidence of a chapter: recorded tables, differences with their verdicts."""

import json
from collections.abc import Sequence
from math import floor, log10
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from rlbook.manifest import SUFFIX, sha256
from rlbook.paths import data_dir
from rlbook.stats.differences import paired_differences
from rlbook.tasks.habits import FAMILIES
from rlbook.viz.live import in_notebook
from rlbook.viz.style import BAD, FAINT, GOOD, INK, MUTED
from workshop.shared.evidence.arms import FAMILY_COLOURS, learning_curves

__all__ = [
    "AGE_AND_ROUGHNESS",
    "READ_MARK",
    "at_each_rate",
    "batches_until",
    "by_arm",
    "check_table",
    "difference_table",
    "draw_differences",
    "draw_families",
    "load_results",
    "regions_by_world",
    "short",
]

PARTS = (
    "_eval",
    "_sweep",
    "_second",
    "_start",
)  # of an experiment's tables, beside the one of its steps
READ_MARK = "read {table}, SHA-256 {sha}"


def load_results(name: str) -> pd.DataFrame:
    """Table `data/results/<name>.csv` of a reference experiment: a row per arm, seed and step.

    "bench/<part>" is a benchmark's, "<name>_eval" has a row per run, "<name>_sweep" one per run of
    what was tried before, "<name>_start" one per arm, of its policy before step 1. The table is the
    one that its manifest records: `ValueError` if it is not, `FileNotFoundError` that lists the
    tables there are if there is none. In a notebook its hash is printed, so that a test can tell a
    page drawn from another table than the committed one.
    """
    folder = data_dir() / "results"
    path = folder / f"{name}.csv"
    if not path.is_file():
        tables = (p.relative_to(folder).with_suffix("") for p in folder.rglob("*.csv"))
        found = ", ".join(sorted(p.as_posix() for p in tables)) or "none"
        experiment = experiment_of(name)
        raise FileNotFoundError(
            f"no results {name!r} (there are: {found}); "
            f"`python -m workshop experiments {experiment}` makes them"
        )
    check_table(path)
    if in_notebook():
        print(READ_MARK.format(table=f"{name}.csv", sha=sha256(path)[:12]))
    # "null" is a word of the ledger, not a missing number
    return pd.read_csv(path, keep_default_na=False, na_values=["", "nan", "NaN"])


def check_table(path: Path) -> Path:
    """The manifest of a result's table, which is shown to be the one recorded there.

    The manifest stands beside it: `<name>.manifest.json` of `<name>.csv`, `<name>_eval.csv`,
    `<name>_sweep.csv` and `<name>_start.csv`.
    Raises `FileNotFoundError` where there is none, `ValueError` for another table than recorded.
    """
    beside = path.with_name(experiment_of(path.stem) + SUFFIX)
    if not beside.is_file():
        raise FileNotFoundError(f"{path.name} has no manifest: expected {beside.name} beside it")
    recorded = json.loads(beside.read_text()).get("tables", {}).get(path.name)
    found = sha256(path)
    if recorded != found:
        told = f"records SHA-256 {recorded[:12]}…" if recorded else "records no hash of it"
        raise ValueError(
            f"{path.name} is not the table of its manifest: {beside.name} {told}, the file has "
            f"{found[:12]}…; restore both with `git checkout -- {path.parent.name}`, or run the "
            "command in the manifest again"
        )
    return beside


def experiment_of(table: str) -> str:
    """The experiment that a table belongs to."""
    return next((table.removesuffix(part) for part in PARTS if table.endswith(part)), table)


def difference_table(evaluations: pd.DataFrame, metric: str, against: str) -> pd.DataFrame:
    """Every arm against one, paired by seed: mean, interval, verdict; see `paired_differences`."""
    runs = by_arm(evaluations, metric)
    table = pd.DataFrame(paired_differences(runs, against)).set_index("arm")
    table.insert(0, metric, [np.mean(list(runs[arm].values())) for arm in table.index])
    return table.drop(columns=["seeds", "p"])


AGE_AND_ROUGHNESS = {
    "new, exact": "mask_new",
    "old": "mask_old",
    "rough": "mask_rough",
    "old and rough": "mask_old_rough",
}


def regions_by_world(
    metric: str = "pass@1", against: str = "no region"
) -> tuple[pd.DataFrame, ...]:
    """What five trust regions come to where samples are old, rough, both or neither.

    Two tables, a row per region and a column per world: the mean of ten runs, each region at its
    own best rate, and the paired difference from one region with its 95 % interval. The tables
    stand in chapter 11. Source: the experiments `workshop.shared.mask_and_age`.
    """
    runs = {world: load_results(f"{name}_eval") for world, name in AGE_AND_ROUGHNESS.items()}
    ends = pd.DataFrame({world: by.groupby("arm")[metric].mean() for world, by in runs.items()})
    spelt = "{0[mean]:+.2f} [{0[low]:+.2f}, {0[high]:+.2f}]".format
    beside = {
        world: difference_table(by, metric, against).apply(spelt, axis=1)
        for world, by in runs.items()
    }
    return ends.round(2), pd.DataFrame(beside)


def at_each_rate(evaluations: pd.DataFrame, metric: str, against: str) -> pd.DataFrame:
    """`difference_table` at each learning rate apart: no verdict rests on a single one."""
    tables = {lr: difference_table(runs, metric, against) for lr, runs in evaluations.groupby("lr")}
    return pd.concat(tables, names=["lr"])


def by_arm(runs: pd.DataFrame, metric: str, arm: str = "arm") -> dict[str, dict[Any, float]]:
    """The metric of every arm's runs by seed, as `paired_differences` wants them."""
    return {
        str(name): dict(zip(rows["seed"], rows[metric], strict=True))
        for name, rows in runs.groupby(arm, sort=False)
    }


def batches_until(
    steps: pd.DataFrame,
    column: str,
    level: float = 0.5,
    *,
    over: int = 1,
    start: float | None = None,
    runs: Sequence[str] = ("arm", "lr", "seed"),
) -> pd.Series:
    """The first batch at which each run has a column above a level: at ½, its half time.

    What counts is the mean over the last `over` batches, without those in which nothing was
    measured. One more than all batches where it never gets there. With `start`, the value before
    the first batch, the time is that of a straight line between two batches. `runs` are the columns
    that tell runs apart, of which a table need not have all.
    """
    keys = [key for key in runs if key in steps]
    means = steps.pivot(index="step", columns=keys, values=column)
    means = means.rolling(over, min_periods=1).mean()
    reached = means > level
    first = reached.idxmax().where(reached.any(), steps["step"].max() + 1)
    if start is not None:
        ahead = (means - level) / (means - means.shift(fill_value=start))
        first = first - ahead.where(reached).bfill().iloc[0].fillna(0.0)
    return first.reindex(pd.MultiIndex.from_frame(steps[keys].drop_duplicates())).rename("batches")


def draw_differences(ax: Axes, table: pd.DataFrame, against: str) -> None:
    """One row per arm: the difference with its interval, in colour where it is real."""
    for row, (_, values) in enumerate(table.iterrows()):
        colour = (GOOD if values["mean"] > 0 else BAD) if values["real"] else FAINT
        ax.plot([values["low"], values["high"]], [row, row], color=colour, lw=2.5, zorder=2)
        ax.plot(values["mean"], row, "o", ms=7, color=colour, mec="white", zorder=3)
    ax.axvline(0, color=INK, lw=1)
    ax.set_yticks(range(len(table)), table.index)
    for label, real in zip(ax.get_yticklabels(), table["real"], strict=True):
        label.set_color(INK if real else MUTED)
    ax.set(ylim=(len(table) - 0.4, -0.6), xlabel=f"{table.columns[0]}, minus that of {against}")
    ax.grid(axis="y", visible=False)


def family_rows(steps: pd.DataFrame, column: str = "accuracy") -> pd.DataFrame:
    """A row per family of habits, step, arm and seed, from columns such as `accuracy_level_3`.

    Families whose problems were not drawn in a step have no row there.
    """
    names = {f"{column}_level_{level}": family for level, family in enumerate(FAMILIES, 1)}
    present = [name for name in names if name in steps]
    runs = ["arm", "seed", "step"]
    long = steps[[*runs, *present]].melt(runs, present, "family", column)
    return long.assign(family=long["family"].map(names)).dropna()


def draw_families(
    ax: Axes, steps: pd.DataFrame, arm: str, column: str = "accuracy", smooth: int = 5
) -> None:
    """One line per family of habits: how often it is right, step by step, mean over seeds."""
    rows = family_rows(steps[steps["arm"] == arm], column)
    learning_curves(rows, column, ax, by="family", colours=FAMILY_COLOURS, smooth=smooth)
    ax.set(ylim=(0, 1), xlabel="training step", ylabel="share of right answers")


def short(rate: float) -> str:
    """A learning rate as 2.5e-5."""
    exponent = floor(log10(rate) + 1e-9)
    return f"{rate / 10**exponent:.3g}e{exponent}"
