"""Evidence: a chapter's scorecard, differences with their verdicts, families of habits."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from IPython.display import Markdown
from matplotlib.axes import Axes

from rlbook.stats.differences import paired_differences
from rlbook.tasks.habits import FAMILIES
from rlbook.viz.curves import learning_curves
from rlbook.viz.style import BAD, FAINT, FAMILY_COLOURS, GOOD, INK, MUTED

SCORECARD = {
    "claim": "claim",
    "exact": "exact",
    "pressing": "trained where it presses",
    "control": "trained on the control",
    "paper": "paper",
}


def scorecard(rows: Sequence[Mapping[str, str]]) -> Markdown:
    """A chapter's last table: what it claims, and what became of it in each kind of evidence.

    A row has the keys of `SCORECARD`; what was not looked at may be left out and is shown as "–".
    Raises `ValueError` naming an unknown or missing key.
    """
    for row in rows:
        if unknown := row.keys() - SCORECARD.keys():
            raise ValueError(f"no column {sorted(unknown)}; a scorecard has {list(SCORECARD)}")
        if not row.get("claim"):
            raise ValueError(f"a row of a scorecard needs a claim: {dict(row)}")
    lines = [list(SCORECARD.values()), ["---"] * len(SCORECARD)]
    lines += [[row.get(key, "–").replace("|", "\\|") for key in SCORECARD] for row in rows]
    return Markdown("\n".join(f"| {' | '.join(line)} |" for line in lines))


def difference_table(evaluations: pd.DataFrame, metric: str, against: str) -> pd.DataFrame:
    """Every arm against one, paired by seed: mean, interval, verdict; see `paired_differences`."""
    runs = {
        arm: dict(zip(rows["seed"], rows[metric], strict=True))
        for arm, rows in evaluations.groupby("arm", sort=False)
    }
    table = pd.DataFrame(paired_differences(runs, against)).set_index("arm")
    table.insert(0, metric, [np.mean(list(runs[arm].values())) for arm in table.index])
    return table.drop(columns=["seeds", "p"])


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


def by_family(steps: pd.DataFrame, column: str = "accuracy") -> pd.DataFrame:
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
    rows = by_family(steps[steps["arm"] == arm], column)
    learning_curves(rows, column, ax, by="family", colours=FAMILY_COLOURS, smooth=smooth)
    ax.set(ylim=(0, 1), xlabel="training step", ylabel="share of right answers")
