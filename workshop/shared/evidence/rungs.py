"""The ladder: every row that trains, on one budget in two worlds."""

import json
from collections.abc import Collection, Iterable

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rlbook.paths import data_dir
from rlbook.stats import t_interval
from rlbook.training import RunConfig
from rlbook.viz.style import FAINT, INK, METHOD_COLOURS, MUTED
from workshop.shared.evidence.tables import check_table, load_results

__all__ = ["RUNGS", "WORLDS", "batches_made", "ladder", "prompts_asked"]

RUNGS = (
    *("REINFORCE", "REINFORCE, batch mean", "REINFORCE, moving average", "PPO"),
    *("GRPO", "GRPO, no σ", "RLOO", "ReMax", "REINFORCE++", "OPO", "Dr. GRPO", "DAPO"),
    *("CISPO", "GSPO", "MaxRL", "DPPO", "DPPO, KL", "LitePPO", "GPG"),
)  # as chapters 02 to 12 tell of them
WORLDS = {"sums": "Sums: care is asked for", "habits": "Habits: a belief has to change"}
NEW = METHOD_COLOURS["grpo"]


def batches_made(world: str) -> pd.Series:
    """How many batches a row made of its 2,560 answers, the mean of its runs."""
    steps = load_results(f"ladder_{world}")
    return steps.groupby(["arm", "seed"])["step"].max().groupby("arm").mean()


def prompts_asked(world: str) -> pd.Series:
    """Into how many prompts a row's batch is cut, as the experiment's manifest states it."""
    facts = json.loads(check_table(data_dir() / "results" / f"ladder_{world}.csv").read_text())
    default = RunConfig().rollout.prompts
    stated = {row: arm.get("rollout", {}) for row, arm in facts["arms"].items()}
    return pd.Series({row: cut.get("prompts", default) for row, cut in stated.items()})


def ladder(title: str, own: Collection[str]) -> Figure:
    """Held-out pass@1 of the rows of chapters 02 to 12, `own` in colour, in two worlds.

    A dot is the mean of ten runs at the row's own best rate, the line its 95 % interval; beside it
    stand the batches that the row made and the prompts in each. Source: the experiments
    `ladder_sums` and `ladder_habits`.
    """
    fig, axes = plt.subplots(1, 2, figsize=(9.4, 1.3 + 0.2 * len(RUNGS)), sharey=True)
    for ax, (world, name) in zip(axes, WORLDS.items(), strict=True):
        draw_rungs(ax, load_results(f"ladder_{world}_eval"), own)
        base = load_results(f"ladder_{world}_start")["pass@1"].mean()
        ax.axvline(base, color=MUTED, lw=1, ls=(0, (4, 3)))
        ax.set(xlabel="pass@1 after 2,560 answers")
        ax.set_title(name, fontsize=10, pad=12)
        write_beside(ax, 1.07, "batches", batches_made(world)[[*RUNGS]].map("{:.0f}".format))
    write_beside(axes[1], 1.25, "prompts", prompts_asked("habits")[[*RUNGS]])
    fig.suptitle(title, x=0.01, ha="left", weight="bold")
    return fig


def write_beside(ax: Axes, x: float, name: str, values: Iterable[object]) -> None:
    """A column of numbers to the right of the rungs, under its name."""
    for place, text in enumerate([name, *values], start=-1):
        ax.text(
            x, place, text, transform=ax.get_yaxis_transform(), ha="center", va="center",
            fontsize=8, color=MUTED,
        )  # fmt: skip


def draw_rungs(ax: Axes, ends: pd.DataFrame, own: Collection[str]) -> None:
    """A row per rung: mean and interval over its seeds."""
    for place, row in enumerate(RUNGS):
        found = t_interval(ends.loc[ends.arm == row, "pass@1"].to_numpy())
        ink = NEW if row in own else INK
        ax.axhline(place, color=FAINT, lw=0.6, zorder=0)
        ax.plot([found.low, found.high], [place] * 2, color=ink, lw=2 if row in own else 1.2)
        ax.plot(found.mean, place, "o", color=ink, ms=6 if row in own else 4)
    ax.set_yticks(range(len(RUNGS)), RUNGS, fontsize=9)
    ax.set(ylim=(len(RUNGS) - 0.5, -0.5))
    ax.grid(visible=False)
