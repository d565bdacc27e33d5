"""Arms of experiments: their colours, and curves and bars over seeds, with intervals."""

from collections.abc import Iterable, Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from rlbook.objectives import METHODS
from rlbook.stats import t_interval
from rlbook.viz.style import CYCLE, FAINT, METHOD_COLOURS, label_lines

__all__ = [
    "ARM_COLOURS",
    "FAMILY_COLOURS",
    "arm_colours",
    "colour_of",
    "compare_bars",
    "draw_openings",
    "learning_curves",
]

# Arms of the experiments: one that is a method's own choice has the colour of that method.
ARM_COLOURS = {
    "no trust region": "#1b1b1b",
    "clip 0.2": METHOD_COLOURS["ppo"],
    "clip-higher 0.28": METHOD_COLOURS["dapo"],
    "CISPO": METHOD_COLOURS["cispo"],
    "GSPO": METHOD_COLOURS["gspo"],
    "DPPO": METHOD_COLOURS["dppo"],
    "DAPO": METHOD_COLOURS["dapo"],
    "ScaleRL": METHOD_COLOURS["scalerl"],
    "RLOO": METHOD_COLOURS["rloo"],
    "GRPO": METHOD_COLOURS["grpo"],
    "MaxRL": METHOD_COLOURS["maxrl"],
    "mean per answer": METHOD_COLOURS["grpo"],
    "mean over each answer": METHOD_COLOURS["grpo"],
    "prompt mean": "#CC79A7",
    "token mean": METHOD_COLOURS["dapo"],
    "constant": METHOD_COLOURS["dr_grpo"],
    "cliff": METHOD_COLOURS["grpo"],
    "ramp": METHOD_COLOURS["dapo"],
    "filter": "#E69F00",
    "one update": "#1b1b1b",
    "16 minibatches, no trust region": "#6b6b6b",
    "16 minibatches, clip 0.2": METHOD_COLOURS["ppo"],
    "4 passes of 4, no trust region": "#a8a8a8",
    "4 passes of 4, clip 0.2": "#E69F00",
    "GRPO, twice the batches": "#56B4E9",
    "+ dynamic sampling": METHOD_COLOURS["dapo"],
    "PPO, critic": METHOD_COLOURS["ppo"],
    "PPO, critic, λ = 1": METHOD_COLOURS["ppo"],
    "PPO, critic, λ = 0.95": "#882255",
    "GRPO, no σ": "#1b1b1b",
    "GRPO + KL": "#332288",
    "PPO's loss, siblings": METHOD_COLOURS["lite_ppo"],
    "batch mean": METHOD_COLOURS["reinforce_batch_mean"],
    "RL": METHOD_COLOURS["rloo"],
    "SFT on the teacher": "#E69F00",
    "on-policy distillation": METHOD_COLOURS["opd"],
    "no price": "#1b1b1b",
    "0.005 a token": "#56B4E9",
    "0.02 a token": "#D55E00",
    "L1-Max, 32 tokens": "#009E73",
    "Kimi, among siblings": "#882255",
    "all families": "#1b1b1b",
    "pass rate 0.2 to 0.8": "#0072B2",
    "as many, any": "#56B4E9",
    "brackets only": "#CC79A7",
    "four problems": "#E69F00",
    "easy first": "#009E73",
    "RL alone": METHOD_COLOURS["rloo"],
    "cold start, then RL": "#E69F00",
    "R1's four stages": "#882255",
    "150 pairs": "#E69F00",
    "1000 pairs": "#D55E00",
    "4000 pairs": "#7a1032",
    "1000 pairs, β = 0.03": "#8fd3c1",
    "1000 pairs, β = 0.1": "#00795a",
    "misled annotators, β = 0.1": "#6b6b6b",
    "outcome": METHOD_COLOURS["rloo"],
    "step groups": "#8c8c8c",
    "process": "#0072B2",
    "VinePPO, k = 2": "#D55E00",
    "PRIME": "#882255",
    "PRIME, slow judge": "#44AA66",
    "tool tokens trained": "#AA4499",
    "outcome, tool repaired": "#009E73",
    "base": "#6b6b6b",
    "verifier": METHOD_COLOURS["grpo"],
    "majority vote": "#D55E00",
    "agreement": "#E69F00",
    "confidence": "#771155",
    "EM-FT": "#d9a0c4",
    "coin, one update": "#1b1b1b",
    "coin, 8 updates, no clip": "#b5b5b5",
    "coin, 8 updates, clip": "#56B4E9",
    "format only": "#44AA66",
    "wrong labels": "#771155",
    "LitePPO": METHOD_COLOURS["lite_ppo"],
    "bonus": "#004488",
    "adaptive": "#1b1b1b",
    "Clip-Cov": "#D55E00",
    "KL-Cov": "#882255",
    "KL-Cov, k3": "#9a9a9a",
}
# Families of habits, from the one that the base has right to the one it hardly ever has.
FAMILY_COLOURS = {
    "plain": "#a0c4d8",
    "bracket": "#56a5c9",
    "double minus": "#1b7fb0",
    "precedence": "#c98a1b",
    "power": "#b4491f",
    "square": "#7a1032",
}


def colour_of(name: str, default: str | None = None) -> str:
    """The book's colour of a method (`METHOD_COLOURS`) or an arm (`ARM_COLOURS`), or `default`.

    A row of the table that has none of its own gets one of `CYCLE`, always the same.
    Raises `ValueError` for an unknown name without a default.
    """
    colour = METHOD_COLOURS.get(name) or ARM_COLOURS.get(name) or default
    if colour is None and name in METHODS:
        colour = CYCLE[list(METHODS).index(name) % len(CYCLE)]
    if colour is None:
        raise ValueError(
            f"no colour for {name!r}; methods: {', '.join(METHOD_COLOURS)}; "
            f"arms: {', '.join(ARM_COLOURS)}"
        )
    return colour


def learning_curves(
    df: pd.DataFrame,
    y: str = "accuracy",
    ax: Axes | None = None,
    *,
    x: str = "step",
    by: str = "arm",
    arms: Sequence[str] | None = None,
    colours: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    smooth: int = 1,
    level: float = 0.95,
) -> Axes:
    """Mean of `y` over seeds with Student's t interval, one labelled line per arm.

    `df` has the columns `by`, "seed", `x` and `y`; `smooth` averages each seed's curve over that
    many steps (centred) before anything else. A single seed is drawn thin, without an interval.
    Raises `ValueError` naming a missing column or arm.
    """
    missing = {by, "seed", x, y} - set(df.columns)
    if missing:
        raise ValueError(f"no column {sorted(missing)} in {list(df.columns)}")
    ax = ax or plt.gca()
    lines = []
    for arm, colour in arm_colours(df, by, arms, colours).items():
        seeds = df[df[by] == arm].pivot_table(index=x, columns="seed", values=y)
        seeds = seeds.rolling(smooth, center=True, min_periods=1).mean()
        label = (labels or {}).get(arm, arm)
        steps, runs = seeds.index.to_numpy(), seeds.to_numpy().T
        if len(runs) == 1:
            lines += ax.plot(steps, runs[0], color=colour, lw=1, label=label)
            continue
        mean, low, high = t_interval(runs, level)
        ax.fill_between(steps, low, high, color=colour, alpha=0.18, lw=0)
        lines += ax.plot(steps, mean, color=colour, label=label)
    ax.set(xlabel=x, ylabel=y.replace("_", " "))
    ax.margins(x=0.01)
    label_lines(ax, lines)
    return ax


def compare_bars(
    df: pd.DataFrame,
    y: str,
    ax: Axes | None = None,
    *,
    by: str = "arm",
    arms: Sequence[str] | None = None,
    colours: Mapping[str, str] | None = None,
    level: float = 0.95,
    within: tuple[float, float] = (-np.inf, np.inf),
) -> Axes:
    """One row per arm: every seed as a dot, the mean and its t interval as a bar through them.

    `df` has a row per arm and seed. `within` is what `y` can be at all, (0, 1) for a rate: the part
    of an interval outside is not drawn, which costs it no coverage. Raises `ValueError` naming a
    missing column or arm.
    """
    if missing := {by, y} - set(df.columns):
        raise ValueError(f"no column {sorted(missing)} in {list(df.columns)}")
    ax = ax or plt.gca()
    names = arm_colours(df, by, arms, colours)
    for row, (arm, colour) in enumerate(names.items()):
        runs = df.loc[df[by] == arm, y].to_numpy(dtype=float)
        ax.plot(runs, np.full(len(runs), row), "o", ms=5, color=colour, alpha=0.45, mew=0)
        if len(runs) > 1:
            mean, *ends = t_interval(runs, level)
            ax.plot(np.clip(np.array(ends, dtype=float), *within), [row, row], color=colour, lw=2.5)
            ax.plot(mean, row, "o", ms=9, color=colour, mec="white", mew=1.2, zorder=4)
    ax.set_yticks(range(len(names)), list(names))
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.set_xlabel(y.replace("_", " "))
    ax.grid(axis="y", visible=False)
    return ax


def arm_colours(
    df: pd.DataFrame,
    by: str,
    arms: Sequence[str] | None,
    colours: Mapping[str, str] | None,
) -> dict[str, str]:
    """Arms in order, each with its colour: given, else its method's, else the next of the cycle."""
    present = list(dict.fromkeys(df[by]))
    arms = list(arms or present)
    if unknown := [arm for arm in arms if arm not in present]:
        raise ValueError(f"no arm {unknown}; there are {present}")
    known = {**METHOD_COLOURS, **ARM_COLOURS, **(colours or {})}
    taken = {known[arm] for arm in arms if arm in known}
    free = iter([c for c in CYCLE if c not in taken] + list(CYCLE) * len(arms))
    return {arm: known[arm] if arm in known else next(free) for arm in arms}


def draw_openings(axes: Sequence[Axes], steps: pd.DataFrame, arms: Iterable[str]) -> None:
    """Probability of the rare opening after each batch, a panel per learning rate."""
    for ax, (lr, part) in zip(axes, steps.groupby("lr"), strict=True):
        nameless = None if ax is axes[0] else dict.fromkeys(arms, " ")
        learning_curves(part, "opens_rarely", ax, arms=[*arms], labels=nameless)
        ax.axhline(0.5, color=FAINT, lw=1, zorder=0)
        ax.set(xlabel="batches", ylabel="", ylim=(-0.02, 1.02))
        ax.set_title(f"lr {lr:g}", fontsize=10)
    axes[0].set_ylabel("probability of the opening")
