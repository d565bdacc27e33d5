"""Chapter 17: compute curves fitted by hand, and who waits for whom in an asynchronous run."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from rlbook.scaling.compute_curves import Sigmoid
from rlbook.scaling.simulator import (
    Cluster,
    Lengths,
    PipelineRun,
    Schedule,
    generate_then_update,
    pipeline_rl,
    simulate,
)
from rlbook.stats import Interval
from rlbook.viz.style import BAD, CYCLE, FAINT, GOOD, INK, MUTED, label_lines
from workshop.ch17.accelerators import knee, split
from workshop.shared.live import LiveFigure

SCHEDULE_COLOURS = {
    "generate, then update": MUTED,
    "PPO-off-policy-8": "#D55E00",
    "PipelineRL-2": "#56B4E9",
    "PipelineRL-8": "#0072B2",
}
NOISE = np.random.default_rng(0).standard_normal(250).round(2)  # of the lengths, repeated as needed


def draw_curves(
    ax: Axes, curves: Mapping[str, Sigmoid], low: float, high: float, ticks: Sequence[float]
) -> None:
    """Reward against compute on a logarithmic axis, a labelled line per curve."""
    compute = np.geomspace(low, high, 300)
    for name, curve in curves.items():
        ax.plot(compute, curve(compute), label=name)
    ax.set(xscale="log", xlim=(low, high), xlabel="GPU-hours", ylabel="pass rate, held out")
    ax.set_xticks(ticks, [f"{t:,.0f}" for t in ticks])
    ax.set_xticks([], minor=True)
    label_lines(ax)


def draw_bands(
    bands: Mapping[str, Interval], compute: np.ndarray, seen: np.ndarray, reward: np.ndarray
) -> Axes:
    """What the parts of a run allow for all of it, an area for each, behind the run's points."""
    _, ax = plt.subplots(figsize=(6.6, 2.9))
    for (name, band), colour in zip(bands.items(), ("#D55E00", "#E69F00", "#0072B2"), strict=False):
        ax.fill_between(compute, band.low, band.high, color=colour, alpha=0.3, lw=0, label=name)
    ax.plot(seen, reward, "o", ms=3, color=MUTED, zorder=1)
    ticks = (2000, 5000, 10_000, 20_000, 50_000, 100_000)
    ax.set(xscale="log", xlim=(1400, 105_000), ylim=(0.37, 0.72))
    ax.set(xlabel="GPU-hours", ylabel="pass rate, held out")
    ax.set_xticks(ticks, [f"{t:,}" for t in ticks])
    ax.set_xticks([], minor=True)
    ax.legend(loc="upper left", title="fitted on points")
    return ax


def fit_explorer(
    compute: ArrayLike, reward: ArrayLike, R_0: float, stop: float, start: Sigmoid
) -> LiveFigure:
    """Fit A, B and C_mid by hand on the filled points; the hollow ones are the future."""
    compute, reward = np.asarray(compute, dtype=float), np.asarray(reward, dtype=float)

    def draw(fig: Figure, A: float, B: float, C_mid: int) -> None:
        fit_figure(fig, Sigmoid(A, B, C_mid, R_0), compute, reward, stop)

    return LiveFigure(
        "fit",
        draw,
        {"A": start.A, "B": start.B, "C_mid": int(start.C_mid)},
        hint="push the first error below 0.004, the noise; then look at the second. Then set A "
        "to 0.68 and find B and C_mid with which the first is below 0.004 again.",
        figsize=(7.6, 3.6),
        points=np.column_stack([compute.round(1), reward.round(5)]).tolist(),
        stop=stop,
        R_0=R_0,
    )


def fit_figure(
    fig: Figure,
    curve: Sigmoid,
    compute: np.ndarray,
    reward: np.ndarray,
    stop: float,
) -> None:
    """A sigmoid over points seen (C ≤ stop) and unseen, with the error on each."""
    ax = fig.subplots()
    seen = compute <= stop
    ax.axvspan(compute.min() * 0.9, stop, color=FAINT, alpha=0.35, lw=0)
    ax.plot(compute[seen], reward[seen], "o", ms=4, color=GOOD)
    ax.plot(compute[~seen], reward[~seen], "o", ms=4, mfc="white", color=MUTED)
    grid = np.geomspace(compute.min() * 0.9, compute.max() * 1.05, 200)
    ax.plot(grid, curve(grid), color=BAD)
    ax.axhline(curve.A, color=BAD, lw=1, ls=":")
    ax.text(grid[0] * 1.03, curve.A, f"A = {curve.A:.3f}", color=BAD, va="bottom", fontsize=9)
    errors = [np.sqrt(((curve(compute) - reward)[part] ** 2).mean()) for part in (seen, ~seen)]
    ax.set(xscale="log", xlim=(grid[0], grid[-1]), ylim=(0.36, 0.74))
    ax.set(xlabel="GPU-hours", ylabel="pass rate, held out")
    ticks = (2000, 5000, 10_000, 20_000, 50_000, 100_000)
    ax.set_xticks(ticks, [f"{t:,}" for t in ticks])
    ax.set_xticks([], minor=True)
    ax.set_title(f"error on the filled points {errors[0]:.4f}, beyond {errors[1]:.4f}")


def draw_arms(ax: Axes, log: pd.DataFrame, y: str, arms: Sequence[str], smooth: int = 3) -> None:
    """Smoothed curves against the step: every seed thin, the mean over seeds thick and labelled."""
    lines = []
    for arm, colour in zip(arms, (INK, *CYCLE), strict=False):
        seeds = log[log.arm == arm].pivot_table(index="step", columns="seed", values=y)
        seeds = seeds.rolling(smooth, center=True, min_periods=1).mean()
        ax.plot(seeds, color=colour, lw=0.7, alpha=0.45)
        lines += ax.plot(seeds.mean(axis=1), color=colour, label=arm)
    ax.set_xlabel("updates")
    ax.margins(x=0.01)
    label_lines(ax, lines)


def draw_intervals(ax: Axes, intervals: Mapping[str, Interval]) -> None:
    """A row per name: the estimate as a dot, its interval as a bar, and where zero is."""
    for row, interval in enumerate(intervals.values()):
        ax.plot([interval.low, interval.high], [row, row], color=MUTED, lw=2.5)
        ax.plot(interval.mean, row, "o", ms=7, color=INK, mec="white", zorder=3)
    ax.axvline(0, color=INK, lw=1)
    ax.set_yticks(range(len(intervals)), list(intervals))
    ax.set_ylim(len(intervals) - 0.5, -0.5)
    ax.grid(axis="y", visible=False)


def draw_scaling(axes: Sequence[Axes], rows: list[dict], schedules: Sequence[Schedule]) -> None:
    """Tokens per second of the whole cluster and of one accelerator; dots mark the knees."""
    whole, each = axes
    for schedule in schedules:
        mine = [row for row in rows if row["schedule"] == schedule.name]
        n = np.array([row["accelerators"] for row in mine])
        colour = SCHEDULE_COLOURS.get(schedule.name)
        speed = np.array([row["tokens_per_second"] for row in mine])
        whole.plot(n, speed / 1000, "o-", ms=3, color=colour, label=schedule.name)
        each.plot(n, speed / n, "o-", ms=3, color=colour, label=schedule.name)
        x = knee(rows, schedule)
        if np.isfinite(x):
            y = (speed / n).max() / 2
            each.plot(x, y, "o", ms=9, mfc="white", mew=2, color=colour, zorder=5)
    for ax in axes:
        ax.set_xscale("log", base=2)
        ax.set_xticks(n[::2], n[::2])
        ax.set_xlabel("accelerators")
    whole.set_ylabel("thousand tokens per second")
    each.set_ylabel("tokens per second of each")
    label_lines(whole)


def draw_lags(ax: Axes, runs: Mapping[str, PipelineRun]) -> None:
    """Share of the trained tokens by staleness, bars side by side."""
    width = 0.8 / len(runs)
    for i, (name, run) in enumerate(runs.items()):
        x = np.arange(len(run.staleness_shares)) + (i - (len(runs) - 1) / 2) * width
        ax.bar(
            x, run.staleness_shares, width, color=SCHEDULE_COLOURS.get(name, CYCLE[i]), label=name
        )
    ax.set(xlabel="staleness of a token, in updates", ylabel="share of the trained tokens")
    ax.set_xticks(range(max(len(run.staleness_shares) for run in runs.values())))
    ax.grid(axis="x", visible=False)


def draw_time(ax: Axes, runs: Mapping[str, PipelineRun]) -> None:
    """Where the time of the slots and of the trainers goes: two stacked bars per schedule."""
    parts = {"working": GOOD, "waiting": FAINT, "weight transfer": BAD}
    labels = []
    for i, (name, run) in enumerate(runs.items()):
        sync = run.sync_share
        sides = {
            "slots": (run.occupancy, 1 - run.occupancy - sync, sync),
            "trainers": (run.training / run.seconds, run.trainer_idle, sync),
        }
        for j, (side, shares) in enumerate(sides.items()):
            left, y = 0.0, 2.5 * i + j
            for share, (part, colour) in zip(shares, parts.items(), strict=True):
                label = part if not labels and not j else None
                ax.barh(y, share, 0.85, left=left, color=colour, label=label)
                left += share
            labels.append((y, f"{name}: {side}"))
    ax.set_yticks([y for y, _ in labels], [label for _, label in labels])
    ax.set(xlim=(0, 1), xlabel="share of the time")
    ax.invert_yaxis()
    ax.grid(visible=False)
    ax.legend(loc="upper center", bbox_to_anchor=(0.4, -0.18), ncols=3)


def draw_timeline(ax: Axes, run: PipelineRun, seconds: float, oldest: int = 4) -> None:
    """A row per slot with its completions, darker when older at training; below, the updates.

    `run` counts from its start (no warm-up) and has one generator.
    """
    free: list[float] = []  # when each row is free again
    for i in np.argsort(run.started, kind="stable"):
        start, end = run.started[i], run.finished[i]
        row = next((r for r, t in enumerate(free) if t <= start + 1e-6), len(free))
        free[row : row + 1] = [end]
        shade = colormaps["YlGnBu"](0.2 + 0.6 * run.start_staleness[i] / oldest)
        ax.barh(row, end - start, 0.8, left=start, color=shade)
    for version, end in enumerate(run.clock[1:]):
        length = run.cluster.update_time(run.lengths[run.trained_version == version].sum())
        sync = run.cluster.sync * ((version + 1) % run.schedule.period == 0)
        ax.barh(len(free) + 1, length, 1.6, left=end - sync - length, color=INK)
    ax.set(xlim=(0, seconds), ylim=(len(free) + 2.2, -0.8))
    ax.set_yticks([(len(free) - 1) / 2, len(free) + 1], [f"{len(free)} slots", "trainer"])
    ax.set_title(f"{run.schedule.name}: {run.tokens_per_second:.0f} tokens per second")
    ax.grid(visible=False)


def pipeline_explorer(
    cluster: Cluster,
    mean: float,
    max_tokens: float,
    batch: int,
    staleness: int = 4,
    sigma: float = 0.8,
) -> LiveFigure:
    """Allowed staleness, tail of the lengths and size of the cluster; idle time against age."""

    def draw(fig: Figure, staleness: int, sigma: float, accelerators: int) -> None:
        pipeline_figure(
            fig, cluster, Lengths(mean, sigma, max_tokens), batch, staleness, accelerators
        )

    return LiveFigure(
        "pipeline",
        draw,
        {"staleness": staleness, "sigma": sigma, "accelerators": 16},
        hint="Staleness 0, then 1, 2, 4, 8. Then equal lengths (σ = 0), and back. Where does one "
        "more update of staleness stop helping, and what moves that point?",
        figsize=(7.8, 3.6),
        cluster=asdict(cluster),
        lengths={"mean": mean, "max_tokens": max_tokens},
        batch=batch,
        noise=NOISE.tolist(),
    )


def lengths_from(noise: np.ndarray, law: Lengths) -> np.ndarray:
    """Lengths of completions by the law from standard normal noise."""
    tokens = np.round(law.mean * np.exp(law.sigma * noise - law.sigma**2 / 2))
    return np.clip(tokens, 1, law.max_tokens).astype(int)


def pipeline_figure(
    fig: Figure, cluster: Cluster, lengths: Lengths, batch: int, staleness: int, accelerators: int
) -> None:
    """PipelineRL with bounded staleness beside generate-then-update on as many accelerators."""
    schedule = pipeline_rl(staleness)
    shape = split(schedule, cluster, lengths, batch, accelerators)
    tokens = lengths_from(NOISE, lengths)
    run = simulate(schedule, shape, tokens, batch, 20, 6)
    turns = replace(cluster, generators=accelerators, trainers=accelerators)
    reference = simulate(generate_then_update(), turns, tokens, batch, 12, 4)
    left, right = fig.subplots(1, 2, width_ratios=(1.15, 1))
    draw_time(left, {schedule.name: run})
    left.set_title(f"{shape.generators} generators, {shape.trainers} trainers")
    draw_lags(right, {schedule.name: run})
    right.set_xticks(range(0, staleness + 1, 1 if staleness < 9 else 2))
    ratio = run.tokens_per_second / reference.tokens_per_second
    right.set_title(f"{ratio:.1f} times as fast as turns")
