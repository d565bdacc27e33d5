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

from rlbook.exact import FOUR
from rlbook.scaling.compute_curves import Bootstrap, Sigmoid
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
from rlbook.training import Rollout
from rlbook.viz.style import BAD, CYCLE, FAINT, GOOD, INK, MUTED, label_lines, use_style
from workshop.ch17.accelerators import knee, split
from workshop.ch17.claims import SLOW, first_hours
from workshop.ch17.scalerl import published_curves
from workshop.shared.evidence import draw_differences, load_results
from workshop.shared.live import LiveFigure
from workshop.shared.schematic import chapter_map, over_a_map, schematic

SCHEDULE_COLOURS = {
    "generate, then update": MUTED,
    "PPO-off-policy-8": "#D55E00",
    "PipelineRL-2": "#56B4E9",
    "PipelineRL-8": "#0072B2",
}
NOISE = np.random.default_rng(0).standard_normal(250).round(2)  # of the lengths, repeated as needed


def opening() -> None:
    """First screen: two published runs up to 8,000 GPU-hours, one exchange at two rates, the map.

    Raises `ValueError` if the exchange does not raise the mean at 4e-4 by a tenth, or changes it by
    half as much at 2e-4.
    """
    use_style()
    left, right, below = over_a_map(1, 1)
    seen = first_hours(published_curves())
    for run, colour in zip(seen, (CYCLE[0], CYCLE[1]), strict=True):
        left.plot(seen.index, seen[run], "o-", color=colour, label=f"run {run}")
    left.set(xlim=(1000, 9000), ylim=(0.35, 0.62), xlabel="GPU-hours", ylabel="pass rate, held out")
    left.set_xticks(seen.index, [f"{hours:,}" for hours in seen.index])
    left.set_title("Which run would you keep?")
    label_lines(left)
    runs = load_results("pipeline")
    last = runs[runs["step"] == 80].pivot(index="seed", columns="arm", values="pass@1")
    gains = []
    for place, suffix in enumerate(("", SLOW)):
        pair = last[[f"PipelineRL-2{suffix}", f"DAPO's clip{suffix}"]].to_numpy()
        gains.append(float((pair[:, 1] - pair[:, 0]).mean()))
        at = np.array([place - 0.17, place + 0.17])
        right.plot(at, pair.T, color=FAINT, lw=1, zorder=1)
        for x, ends, colour in zip(at, pair.T, (BAD, GOOD), strict=True):
            right.plot([x] * len(ends), ends, "o", ms=5, color=colour, mec="white")
    if not gains[0] > 0.1 > 0.05 > abs(gains[1]):
        raise ValueError(f"the title does not hold: {gains}")
    ticks = [place + shift for place in (0, 1) for shift in (-0.17, 0.17)]
    names = [f"{loss}\n{rate}" for rate in ("4e-4", "2e-4") for loss in ("its loss", "a clip")]
    right.set_xticks(ticks, names)
    right.set(ylim=(0.3, 1), ylabel="accuracy, held out")
    right.set_title("What is a part worth? Ask the rate")
    boxes = {"answers": "a little old", "advantages": "σ of the batch"}
    chapter_map(boxes | {"loss": "capped, per prompt", "weights": "sent mid-answer"}, below)
    plt.show()


def crossing(first: str, then: str, curves: Mapping[str, Sigmoid]) -> float:
    """Draws two published curves; GPU-hours at which the second passes the first.

    Raises `ValueError` if the first is not a tenth ahead once, and .03 behind at 100,000.
    """
    compute = np.geomspace(1500, 100_000, 20_000)
    gap = curves[first](compute) - curves[then](compute)
    if not gap.max() > 0.1 > -0.03 > gap[-1]:
        raise ValueError(f"the title does not hold: {gap.max():.2f}, then {gap[-1]:.2f}")
    at = float(compute[np.flatnonzero(np.diff(np.sign(gap)))[0]])
    _, ax = plt.subplots(figsize=(6.8, 3))
    ticks = (2000, 5000, 10_000, 20_000, 50_000, 100_000)
    draw_curves(ax, {name: curves[name] for name in (first, then)}, 1500, 100_000, ticks)
    ax.axvspan(1500, 8000, color=FAINT, alpha=0.35, lw=0)
    ax.axvline(at, color="#9a9a9a", lw=1, ls=":")
    ax.set_title(f"The small batch leads for about {round(at, -3):,.0f} GPU-hours, then loses")
    plt.show()
    return at


def bands(boots: Mapping[str, Bootstrap], seen: np.ndarray, reward: np.ndarray) -> pd.Series:
    """Draws what each part of a run leaves open; how wide the interval of A is, by part.

    Raises `ValueError` if the first part's is not three times as wide as the last's.
    """
    compute = np.geomspace(1500, 100_000, 500)
    width = pd.Series({name: np.ptp(boot.interval("A")[1:]) for name, boot in boots.items()})
    if width.iloc[0] < 3 * width.iloc[-1]:
        raise ValueError(f"the title does not hold: {width.round(3).to_dict()}")
    draw_bands({name: boot.band(compute) for name, boot in boots.items()}, compute, seen, reward)
    plt.title("Before the bend, the end is anyone's guess")
    plt.show()
    return width


def touched(advantages: Sequence[float], push: np.ndarray) -> None:
    """The book's drawing with what ScaleRL's row makes of the four completions.

    `push`: (4, T), the negative gradient of the loss in the log-probabilities.
    """
    largest = [max(row, key=abs) for row in np.asarray(push)]
    carried = {
        "verdicts": ["right" if reward else "wrong" for reward in FOUR.rewards],
        "rewards": [f"{2 * r - 1:+.0f}" for r in FOUR.rewards],
        "advantages": [f"{a:+.0f}" for a in advantages],
        "loss": [f"{x:+.2f}" for x in largest],
    }
    notes = {"answers": "old and new weights", "advantages": "σ of the batch"}
    notes |= {"loss": "largest push of a token", "weights": "sent in mid-answer"}
    lit = {"answers", "advantages", "loss", "weights"}
    schematic("ScaleRL touches most boxes, and no touch is its own", lit, carried, notes)
    plt.show()


def then_and_now(before: Sequence[Rollout], after: Sequence[Rollout]) -> None:
    """Prints answers to the same problems before training and after it."""
    for old, new in zip(before, after, strict=True):
        print(f"before: {old.text.strip()}\nafter:  {new.text.strip()}\n")


def by_part(table: pd.DataFrame, exchanged: Sequence[str]) -> None:
    """What each exchange changes at two rates, from a table by rate and arm.

    Raises `ValueError` unless a clip at 4e-4 is the only exchange that can be told from none.
    """
    if table.index[table["real"]].tolist() != [("4e-4", "DAPO's clip")]:
        raise ValueError(f"the titles do not hold: {table[table['real']]}")
    _, axes = plt.subplots(1, 2, figsize=(7.8, 2.5), sharex=True)
    for ax, rate in zip(axes, ("4e-4", "2e-4"), strict=True):
        draw_differences(ax, table.loc[rate].loc[exchanged], "the recipe")
    axes[0].set_title("At 4e-4 a clip helps")
    axes[1].set_title("At 2e-4 no exchange matters")
    axes[1].set_yticklabels([])
    plt.show()


def masks_and_age(runs: pd.DataFrame) -> None:
    """Runs with samples eight updates old at two rates, by loss, beside fresh samples.

    Raises `ValueError` if a clip does not end above CISPO in the mean at 4e-4, or parts from it at
    2e-4, or an arm ends there below the base.
    """
    last = runs[runs["step"] == 80].pivot(index="seed", columns="arm", values="pass@1")
    old = ["PipelineRL-0", "DAPO's clip, k = 8", "PipelineRL-8", "cap 1.26, k = 8"]
    gain = {s: (last[old[1] + s] - last[old[2] + s]).mean() for s in ("", SLOW)}
    slow = last[[arm + SLOW for arm in old[:3]]].mean()
    if (
        gain[""] < 0.2
        or abs(gain[SLOW]) > 0.05
        or slow.min() < runs["pass@1"][runs["step"] == 0].max()
    ):
        raise ValueError(f"the titles do not hold: {gain}, {slow}")
    _, axes = plt.subplots(1, 2, figsize=(7.8, 2.7), sharey=True)
    for ax, names in zip(axes, (old, [arm + SLOW for arm in old[:3]]), strict=True):
        short = {name: name.removesuffix(SLOW) for name in names}
        shown = runs[runs["arm"].isin(names)].replace({"arm": short})
        draw_arms(ax, shown, "pass@1", list(short.values()), smooth=1)
    axes[0].set(ylabel="accuracy, held out", title="4e-4: a mask holds old samples")
    axes[1].set_title("2e-4: no collapse")
    plt.show()


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
