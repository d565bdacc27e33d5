"""Figures of the benchmarks, one per part, drawn from the CSV file beside them."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rlbook.stats import t_interval
from rlbook.stats.intervals import Interval
from rlbook.viz.style import BAD, FAINT, GOOD, INK, MUTED, label_lines, use_style
from workshop.shared.evidence import learning_curves

OTHERS = {"trl": "TRL", "generate": "model.generate", "plain": "all logits at once"}
OURS = {"rlbook": "rlbook", "chunked": "chunked"}


def save_figure(csv: Path) -> Path:
    """Draw the part a CSV file belongs to and save the picture beside it."""
    use_style()
    figure = FIGURES[csv.stem](pd.read_csv(csv))
    path = csv.with_suffix(".png")
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)
    return path


def trl_figure(table: pd.DataFrame) -> Figure:
    methods = list(dict.fromkeys(table["method"]))
    figure, axes = plt.subplots(1, len(methods) + 1, figsize=(9, 3.2))
    for method, ax in zip(methods, axes, strict=False):
        part = table[table["method"] == method]
        paired_bars(ax, part, "completions", "program", "seconds")
        updates = int(part["updates"].iloc[0])
        ax.set_title(f"{method.upper()}, updates a step: {updates}")
        ax.set_ylabel("seconds per step")
        ours = part[part["program"] == "rlbook"]
        for place, speedup in enumerate(ours["speedup"]):
            height = part["seconds"].to_numpy().reshape(-1, 2)[place].max()
            ax.annotate(f"{speedup:.1f}×", (place, height), ha="center", va="bottom", color=INK)
    last = table[table["method"] == methods[-1]]
    paired_bars(axes[-1], last, "completions", "program", "peak_mib")
    axes[-1].set_title(f"Memory of the process, {methods[-1].upper()}")
    axes[-1].set_ylabel("MiB at the peak")
    for ax in axes:
        ax.set_xlabel("completions a step")
    return figure


def trl_learning_figure(table: pd.DataFrame) -> Figure:
    methods = list(dict.fromkeys(table["method"]))
    figure, axes = plt.subplots(1, len(methods), figsize=(8, 3.2), sharey=True, squeeze=False)
    gaps = learning_gap(table)
    for method, ax in zip(methods, axes[0], strict=True):
        part = table[table["method"] == method]
        learning_curves(
            part,
            ax=ax,
            by="program",
            arms=["trl", "rlbook"],
            colours={"trl": BAD, "rlbook": GOOD},
            labels={"trl": "TRL", "rlbook": "rlbook"},
        )
        gap = gaps[method]
        ax.set_title(f"{method.upper()}: {gap.mean:+.3f} [{gap.low:+.3f}, {gap.high:+.3f}]")
        ax.set_xlabel("step")
        ax.set_ylabel("share of right answers")
        ax.set_ylim(0, 1)
    return figure


def learning_gap(table: pd.DataFrame, last: int = 5) -> dict[str, Interval]:
    """Ours minus TRL's accuracy over the last steps: {method: (mean, low, high)}, 95 % over seeds.

    The two programs meet the same prompts at the same seed, so the differences are paired.
    """
    tail = table[table["step"] > table["step"].max() - last]
    means = tail.pivot_table(index=["method", "seed"], columns="program", values="accuracy")
    gap = means["rlbook"] - means["trl"]
    return {method: t_interval(gap[method].to_numpy()) for method in dict.fromkeys(tail["method"])}


def versions_figure(table: pd.DataFrame) -> Figure:
    figure, axes = plt.subplots(1, 2, figsize=(8, 3.2), sharey=True)
    step = table[table["part"] == "step"]
    for ax, (trained, rows) in zip(axes, step.groupby("trained"), strict=True):
        for method, part in rows.groupby("method", sort=False):
            places = part["completions"].astype(str)
            reach = [part["speedup"] - part["speedup_low"], part["speedup_high"] - part["speedup"]]
            label = f"{method}, updates a step: {part['updates'].iloc[0]}"
            ax.errorbar(places, part["speedup"], yerr=reach, marker="o", capsize=3, label=label)
        ax.axhline(1, color=FAINT, lw=1)
        ax.set(xlabel="completions a step", ylabel="older seconds / today's", ylim=(0, None))
        ax.set_title(f"A policy after {trained} steps")
    axes[0].legend(frameon=False)
    return figure


def sampler_figure(table: pd.DataFrame) -> Figure:
    figure, (speed, share) = plt.subplots(1, 2, figsize=(8, 3.2))
    paired_bars(speed, table, "batch", "engine", "tokens_per_second")
    speed.set(xlabel="completions at once", ylabel="completion tokens a second")
    speed.set_title("Sampling speed")
    paired_bars(share, table, "batch", "engine", "share_of_limit")
    share.set(xlabel="completions at once", ylabel="time of the matrix products / time taken")
    share.set_title("Share of the machine's limit")
    return figure


def train_step_figure(table: pd.DataFrame) -> Figure:
    figure, ax = plt.subplots(figsize=(5.5, 3))
    places = np.arange(len(table))
    ax.bar(places, table["share_of_limit"], width=0.5, color=GOOD)
    ax.axhline(0.6, color=MUTED, lw=1, ls="--")
    ax.annotate("goal", (places[-1] + 0.3, 0.6), va="bottom", color=MUTED)
    ax.set_xticks(places, table["rows"])
    ax.set(xlabel="sequences of 48 tokens", ylabel="share of the limit", ylim=(0, 1))
    ax.set_title("Forward, backward and AdamW against torch.mm")
    return figure


def profiles_figure(table: pd.DataFrame) -> Figure:
    parts = list(dict.fromkeys(table["part"]))
    figure, axes = plt.subplots(1, len(parts), figsize=(9, 3.6))
    for part, ax in zip(parts, axes, strict=True):
        rows = table[table["part"] == part].iloc[::-1]
        names = rows["operation"].replace(
            {"aten::": "", "_scaled_dot_product_flash_attention_for_cpu": "attention"}, regex=True
        )
        colours = [BAD if name == "limit" else GOOD for name in rows["operation"]]
        ax.barh(names, rows["milliseconds"], color=colours)
        ax.set(xlabel="milliseconds")
        ax.set_title(f"Where the time goes: {part}")
    return figure


def head_figure(table: pd.DataFrame) -> Figure:
    table = table.assign(
        shape="V "
        + (table["vocabulary"] // 1000).astype(str)
        + "k\nD "
        + table["width"].astype(str)
    )
    figure, axes = plt.subplots(1, 2, figsize=(8, 3.2))
    for ax, column, label in zip(
        axes,
        ("seconds", "peak_mib"),
        ("seconds, forward and backward", "MiB at the peak"),
        strict=True,
    ):
        paired_bars(ax, table, "shape", "form", column)
        ax.set_ylabel(label)
    axes[0].set_title("Log-probabilities: time")
    axes[1].set_title("… and memory")
    return figure


def growth_figure(table: pd.DataFrame) -> Figure:
    axes_of = list(dict.fromkeys(table["axis"]))
    figure, axes = plt.subplots(1, len(axes_of), figsize=(9, 3), sharey=True)
    names = {"completions": "completions a step", "length": "completion tokens"}
    for name, ax in zip(axes_of, axes, strict=True):
        rows = table[table["axis"] == name]
        ax.plot(rows["value"], rows["sample_us"], "o-", ms=4, color=GOOD, label="sampling")
        ax.plot(rows["value"], rows["train_us"], "o-", ms=4, color=BAD, label="update")
        ax.set_xscale("log", base=2)
        ax.set_xticks(rows["value"], rows["value"])
        ax.set_xlabel(names.get(name, name))
        ax.margins(x=0.18)
    axes[0].set_ylim(bottom=0)
    axes[0].set_ylabel("µs per completion token")
    label_lines(axes[-1])
    figure.suptitle("What a token costs", x=0.01, ha="left", fontsize=11, fontweight="bold")
    return figure


def sharing_figure(table: pd.DataFrame) -> Figure:
    """Tokens of a step by how they are counted, and what computing each once saves."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3))
    for name, colour in (("padded", FAINT), ("real", MUTED), ("distinct", GOOD)):
        left.plot(table["step"], table[name], "o-", ms=4, color=colour, label=name)
    left.set(xlabel="step", ylabel="tokens of a batch", ylim=(0, None))
    saved = table["whole_seconds"] / table["shared_seconds"]
    right.plot(
        table["step"], table["padded"] / table["distinct"], "--", color=MUTED, label="tokens"
    )
    right.plot(table["step"], saved, "o-", ms=4, color=GOOD, label="seconds")
    right.set(xlabel="step", ylabel="whole rows / distinct prefixes", ylim=(0, None))
    for ax in (left, right):
        label_lines(ax)
    return figure


def startup_figure(table: pd.DataFrame) -> Figure:
    rows = table.iloc[::-1]
    figure, ax = plt.subplots(figsize=(7, 0.26 * len(rows) + 0.9))
    chapters = rows["what"].str.endswith(".ipynb")
    bars = ax.barh(rows["what"], rows["seconds"], color=np.where(chapters, FAINT, GOOD))
    ax.bar_label(bars, fmt="%.1f", padding=3, color=MUTED, fontsize=8)
    ax.set_xlabel("seconds")
    ax.set_title("Start-up, and the time a whole chapter runs")
    return figure


def pipeline_figure(table: pd.DataFrame) -> Figure:
    """Lines are the simulator's, dots were measured."""
    panels = (
        ("seconds per update", {"seconds": GOOD}),
        ("share of the time idle", {"generator_idle": GOOD, "trainer_idle": BAD}),
        ("mean staleness, in updates", {"mean_staleness": GOOD}),
    )
    slots = list(dict.fromkeys(table["slots"]))
    figure, axes = plt.subplots(
        len(slots), len(panels), figsize=(8.4, 2.3 * len(slots)), sharex=True, squeeze=False
    )
    for line, number in zip(axes, slots, strict=True):
        rows = {name: part for name, part in table[table["slots"] == number].groupby("source")}
        places = range(len(rows["measured"]))
        for ax, (title, columns) in zip(line, panels, strict=True):
            for column, colour in columns.items():
                label = column.removesuffix("_idle")
                ax.plot(places, rows["simulated"][column], color=colour, label=label)
                ax.plot(places, rows["measured"][column], "o", ms=5, color=colour, clip_on=False)
            ax.set_title(title if ax is not line[0] else f"{number} slots: {title}")
            ax.set_xticks(places, rows["measured"]["max_staleness"])
            ax.set_ylim(bottom=0)
            ax.margins(x=0.1, y=0.1)
            if len(columns) > 1:
                ax.legend()
    for ax in axes[-1]:
        ax.set_xlabel("largest staleness allowed")
    return figure


def paired_bars(ax: Axes, table: pd.DataFrame, x: str, by: str, y: str) -> None:
    """For every value of `x` two bars side by side: the peer's and ours."""
    labels = {**OTHERS, **OURS}
    values = table.pivot_table(index=x, columns=by, values=y, sort=False)
    peer, own = (next(n for n in values.columns if n in names) for names in (OTHERS, OURS))
    for name, colour, shift in ((peer, BAD, -0.19), (own, GOOD, 0.19)):
        places = np.arange(len(values)) + shift
        ax.bar(places, values[name], width=0.36, color=colour, label=labels[name])
    ax.set_xticks(np.arange(len(values)), values.index)
    ax.legend()
    ax.margins(y=0.15)


def gaps_figure(table: pd.DataFrame) -> Figure:
    figure, ax = plt.subplots(figsize=(4.6, 3.4))
    for world, rows in table.groupby("world", sort=False):
        ax.loglog(rows["whole_gradient"], rows["shared_gradient"], "o", ms=5, label=world)
    ends = table[["whole_gradient", "shared_gradient"]].to_numpy()
    ax.plot([ends.min(), ends.max()], [ends.min(), ends.max()], color=INK, lw=0.8, zorder=0)
    ax.set(xlabel="whole rows", ylabel="every distinct prefix once")
    ax.set_title("Distance from the gradient in float64")
    ax.legend()
    return figure


FIGURES = {
    "trl": trl_figure,
    "trl_late": trl_figure,
    "trl_learning": trl_learning_figure,
    "versions": versions_figure,
    "sampler": sampler_figure,
    "train_step": train_step_figure,
    "profiles": profiles_figure,
    "head": head_figure,
    "growth": growth_figure,
    "sharing": sharing_figure,
    "gaps": gaps_figure,
    "startup": startup_figure,
    "pipeline": pipeline_figure,
}
