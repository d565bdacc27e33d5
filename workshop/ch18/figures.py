"""Figures of chapter 18: roles, processes, slots, ages, versions, all methods side by side."""

import ast
import inspect
from collections.abc import Callable, Mapping, Sequence
from textwrap import dedent

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from IPython.display import Markdown
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from rlbook.exact.four_completions import FOUR
from rlbook.policy import load_tokenizer
from rlbook.scaling.simulator import PipelineRun
from rlbook.training import Rollout
from rlbook.viz.style import BAD, CYCLE, FAINT, GOOD, INK, MUTED, use_style
from workshop.shared.schematic import GAP, LEFT, chapter_map, schematic

PROCESS, FOLDER = "#eaf2f8", "#f6f1e2"
BOXES = (  # left, bottom, width, height, colour, title, text
    (
        2,
        88,
        96,
        11,
        PROCESS,
        "launcher",
        "starts every process, and starts it again when it dies or hangs",
    ),
    (2, 38, 22, 36, PROCESS, "generators", "vLLM or the\nbook's sampler,\nas HTTP servers"),
    (39, 52, 22, 22, PROCESS, "orchestrator", "prompts, groups,\nrewards, pacing"),
    (76, 38, 22, 36, PROCESS, "trainer ranks", "FSDP2,\nour train_step"),
    (39, 27, 22, 12, FOLDER, "batches/", "a log of batches"),
    (39, 3, 22, 12, FOLDER, "weights/", "or over the network"),
    (76, 3, 22, 17, FOLDER, "step_…/", "model, AdamW,\npool, version"),
)
ARROWS = (  # from, to, bend, colour, what flows, where that is written
    ((39, 69), (24, 69), 0, MUTED, "prompts", (31.5, 71.8)),
    ((24, 57), (39, 57), 0, GOOD, "tokens, log μ,\nversions", (31.5, 62.5)),
    ((50, 52), (50, 39), 0, GOOD, "batch b", (55.5, 45.5)),
    ((61, 34), (76, 46), 0, GOOD, "batch b", (72, 37)),
    ((76, 66), (61, 66), 0, MUTED, "status: b", (68.5, 68.8)),
    ((77, 38), (61, 12), 0, BAD, "version\nb + 1", (63.5, 24)),
    ((39, 8), (13, 38), -0.3, BAD, "after every\nupdate", (14, 15)),
    ((83, 38), (83, 20), 0, MUTED, "", None),
    ((91, 20), (91, 38), 0, MUTED, "", None),
    ((13, 88), (13, 74), 0, FAINT, "", None),
    ((50, 88), (50, 74), 0, FAINT, "", None),
    ((87, 88), (87, 74), 0, FAINT, "", None),
)


WRITTEN_BY = ([4, 4, 4, 5], [4, 4], [4] * 6 + [5] * 2, [4, 4])  # version of every token of FOUR


def opening(runs: Mapping[str, PipelineRun]) -> None:
    """First screen: slots in use, GPUs taking turns and side by side, and the map of the chapter.

    Raises `ValueError` if GPUs side by side do not use more of their slots.
    """
    use_style()
    shares = [run.occupancy for run in runs.values()]
    if shares[0] >= shares[-1]:
        raise ValueError(f"slots in use: {shares}, the last should be the most")
    _, axes = plt.subplots(len(runs), 1, figsize=(8.4, 3.6), sharex=True)
    for ax, (name, run) in zip(axes, runs.items(), strict=True):
        draw_slots(ax, run, first=10, minutes=40)
        ax.set_title(f"{name}: {run.occupancy:.0%} of the slots in use")
    axes[-1].set_xlabel("minutes; a vertical line: an update is done")
    chapter_map({"answers": "generators", "rewards": "orchestrator", "loss": "trainer"})
    plt.show()


def roles() -> None:
    """The four completions, written while version 5 replaces version 4, and trained in batch 5.

    Raises `ValueError` if a token of version 5 has another ratio than 1 in the book's table.
    """
    ratios = (FOUR.logp - FOUR.logp_old).exp()
    new = [ratios[i, t] for i, of in enumerate(WRITTEN_BY) for t, v in enumerate(of) if v == 5]
    if not np.allclose(new, 1):
        raise ValueError(f"tokens of the newest weights have ratios {new}")
    carried = {
        "answers": [" ".join(map(str, versions)) for versions in WRITTEN_BY],
        "rewards": ["1", "1", "0", "0"],
        "loss": [" ".join(str(5 - v) for v in versions) for versions in WRITTEN_BY],
    }
    draw_roles("Weights of version 5 arrive while A and C are being written", carried)
    plt.show()


def listing(*functions: Callable) -> Markdown:
    """The package's own source of these functions, without what the text says as well."""
    return Markdown("```python\n" + "\n\n".join(map(source_of, functions)) + "\n```")


def source_of(function: Callable) -> str:
    """A function's source without its docstring."""
    source = dedent(inspect.getsource(function))
    (node,), lines = ast.parse(source).body, source.splitlines()
    if isinstance(node, ast.FunctionDef) and ast.get_docstring(node):
        del lines[node.body[0].lineno - 1 : node.body[0].end_lineno]
    return "\n".join(lines)


def draw_roles(title: str, carried: Mapping[str, Sequence[str]]) -> Figure:
    """The book's drawing of a step, cut where one process of a pipeline hands over to another."""
    roles = {"prompt": "orchestrator", "answers": "generator", "rewards": "orchestrator"}
    fig = schematic(title, {"answers", "weights"}, carried, roles | {"loss": "trainer"})
    for first in ("answers", "verdicts", "advantages"):
        edge = LEFT[first] - GAP / 2
        fig.axes[0].plot([edge] * 2, [-0.15, 0.75], color=MUTED, lw=1, ls="--")
    return fig


def summed_up(runs: Mapping[str, tuple[pd.DataFrame, Sequence[Sequence[Rollout]]]]) -> pd.DataFrame:
    """What became of runs of nano, a column for each: rows of metrics, and the batches trained."""
    columns = {}
    for name, (rows, batches) in runs.items():
        several = [len(set(rollout.versions)) > 1 for batch in batches for rollout in batch]
        phases = rows[["wait_seconds", "train_seconds", "push_seconds"]].sum()
        columns[name] = {
            "accuracy, first four batches": rows.accuracy[:4].mean(),
            "accuracy, last four": rows.accuracy[-4:].mean(),
            "trainer waits": phases.wait_seconds / phases.sum(),
            "target at the end": rows.target_staleness.iloc[-1],
            "staleness, mean": rows.staleness_mean.mean(),
            "staleness, at most": rows.staleness_max.max(),
            "answers by several versions": np.mean(several),
        }
    return pd.DataFrame(columns)


def mismatches(runs: Mapping[str, tuple[pd.DataFrame, object]]) -> pd.DataFrame:
    """Mean |log π − log μ| of a batch's tokens in runs of nano: fresh, the most, and stale."""
    rows = {name: (of.mismatch_fresh.max(), of.mismatch_stale.median())
            for name, (of, _) in runs.items()}  # fmt: skip
    return pd.DataFrame(rows, index=["of fresh tokens, at most", "of stale tokens, median"])


def draw_processes(ax: Axes) -> None:
    """Who talks to whom, and what passes through the run folder."""
    for left, bottom, width, height, colour, title, text in BOXES:
        style = "square,pad=0" if colour == FOLDER else "round,pad=0,rounding_size=1.5"
        box = FancyBboxPatch((left, bottom), width, height, style, fc=colour, ec="#9a9a9a", lw=0.9)
        ax.add_patch(box)
        font = {"family": "monospace"} if colour == FOLDER else {"fontweight": "bold"}
        centre, top = left + width / 2, bottom + height - 1.5
        ax.text(centre, top, title, ha="center", va="top", fontsize=9.5, **font)
        ax.text(centre, top - 4.8, text, ha="center", va="top", fontsize=8.5, color=MUTED)
    for start, end, bend, colour, text, place in ARROWS:
        bent = f"arc3,rad={bend}"
        style = {"arrowstyle": "-|>", "mutation_scale": 11, "connectionstyle": bent}
        ax.add_patch(FancyArrowPatch(start, end, lw=1.4, color=colour, **style))
        if place:
            x, y = place
            ax.text(x, y, text, fontsize=8.5, color=colour, ha="center", va="center")
    ax.set(xlim=(0, 100), ylim=(0, 100))
    ax.axis("off")


def draw_slots(ax: Axes, run: PipelineRun, first: int, minutes: float) -> None:
    """Slots in use for some minutes after update `first` of a simulated run, and its updates."""
    times = run.clock[first] + np.linspace(0, 60 * minutes, 600)
    writing = (run.started[:, None] <= times) & (times < run.finished[:, None])
    slots = run.cluster.generators * run.cluster.slots
    ax.fill_between((times - times[0]) / 60, writing.sum(0) / slots, color=GOOD, alpha=0.35, lw=0)
    for clock in run.clock[(run.clock > times[0]) & (run.clock < times[-1])]:
        ax.axvline((clock - times[0]) / 60, color=BAD, lw=1)
    ax.set(ylim=(0, 1.05), xlim=(0, minutes), ylabel="slots in use")


def draw_ages(fig: Figure, ages: Mapping[str, tuple[int, Sequence[int]]], bound: int) -> None:
    """Updates made, and how old the trained groups were, by name: (updates, staleness of each)."""
    bars, histogram = fig.subplots(1, 2, width_ratios=(1, 2))
    for row, (colour, (name, (updates, staleness))) in enumerate(
        zip(CYCLE, ages.items(), strict=False)
    ):
        bars.barh(row, updates, color=colour, height=0.55)
        bars.text(updates, row, f" {updates}", va="center", fontsize=9)
        shares = np.bincount(staleness, minlength=bound + 1) / max(1, len(staleness))
        place = np.arange(bound + 1) + 0.4 * (row - 0.5)
        label = f"{name}: {np.mean(staleness or [0]):.1f} on average"
        histogram.bar(place, shares, width=0.38, color=colour, label=label)
    most = max(updates for updates, _ in ages.values())
    bars.set(yticks=range(len(ages)), yticklabels=list(ages), xlim=(0, 1.3 * max(1, most)))
    bars.set(xlabel="updates in 600 s", ylim=(len(ages) - 0.4, -0.6))
    bars.grid(False)
    histogram.set(xlabel="staleness in updates", ylabel="share of groups", ylim=(0, 1.3))
    histogram.set_xticks(range(bound + 1))
    histogram.legend(loc="upper left", fontsize=8.5)


def draw_held_out(ax: Axes, rows: pd.DataFrame, deaths: Mapping[str, float]) -> None:
    """pass@1 on held-out problems by update, its interval, and when somebody was killed."""
    below, above = rows["pass@1"] - rows["pass@1_low"], rows["pass@1_high"] - rows["pass@1"]
    ax.errorbar(
        rows["step"], rows["pass@1"], (below, above), color=GOOD, marker="o", ms=5, capsize=3
    )
    for name, step in deaths.items():
        ax.axvline(step, color=BAD, lw=1, ls="--")
        ax.annotate(name, (step, 0.03), (3, 0), textcoords="offset points", fontsize=8.5, color=BAD)
    ax.set(xlabel="updates", ylabel="pass@1, held out", ylim=(0, 1), xlim=(-2, None))


def draw_versions(ax: Axes, rollouts: Sequence[Rollout], tokenizer) -> None:
    """Completions, each on the colours of the policies that wrote it, in order of appearance."""
    colours = ("#cfe3f3", "#ffd9a0", "#cdeccf", "#f3cfe0", FAINT)
    for row, rollout in enumerate(rollouts):
        versions = list(dict.fromkeys(rollout.versions))
        shown = " → ".join(map(str, versions))
        ax.text(-1, row, f"versions {shown}", ha="right", va="center", fontsize=8.5, color=MUTED)
        column = 0
        for token, version in zip(rollout.token_ids, rollout.versions, strict=True):
            ended = token == tokenizer.eos_token_id
            text = "⏎" if ended else tokenizer.decode([token]).strip() or " "
            colour = colours[versions.index(version) % len(colours)]
            ax.fill_between(
                (column, column + len(text)), row - 0.42, row + 0.42, color=colour, lw=0
            )
            for place, letter in enumerate(text):
                spot = (column + place + 0.5, row)
                ax.annotate(letter, spot, ha="center", va="center", fontsize=7, family="monospace")
            column += len(text)
    longest = max(len(rollout.text) for rollout in rollouts) + 2
    ax.set(xlim=(-0.2 * longest, longest), ylim=(len(rollouts) - 0.4, -0.6))
    ax.axis("off")


def versions(batches: Sequence[Sequence[Rollout]]) -> tuple[int, int]:
    """Draw seven completions that several policies wrote; how many were, and of how many."""
    everything = [rollout for batch in batches for rollout in batch]
    mixed = [rollout for rollout in everything if len(set(rollout.versions)) > 1]
    different = {rollout.text: rollout for rollout in mixed if len(rollout.text) <= 60}
    chosen = [*different.values()][:: max(1, len(different) // 7)][:7]
    _, ax = plt.subplots(figsize=(7.6, 2.1))
    draw_versions(ax, sorted(chosen, key=lambda r: r.versions), load_tokenizer("tiny-habits"))
    ax.set_title("Where the colour changes the weights did: in mid-sentence")
    plt.show()
    return len(mixed), len(everything)


def killed_twice(rows: Sequence[Mapping[str, float]], deaths: Mapping[str, float]) -> None:
    """Accuracy and staleness of a run by update; rings are updates made again after a death."""
    made = pd.DataFrame(rows)
    again = made.duplicated("step", keep="first")
    _, axes = plt.subplots(1, 2, figsize=(8.6, 2.7))
    titles = {"accuracy": "accuracy of the batch", "staleness_mean": "mean staleness"}
    for ax, (column, title) in zip(axes, titles.items(), strict=True):
        ax.plot(made["step"][~again], made[column][~again], color=GOOD)
        ax.plot(made["step"][again], made[column][again], "o", ms=8, mfc="none", color=INK)
        for name, step in deaths.items():
            ax.axvline(step, color=BAD, lw=1, ls="--")
            place, offset = (step, 0.02), (3, 0)
            ax.annotate(name, place, offset, ("data", "axes fraction"), "offset points",
                        fontsize=8, color=BAD)  # fmt: skip
        ax.set(xlabel="updates", title=title)
    plt.show()


def held_out(rows: pd.DataFrame, deaths: Mapping[str, float]) -> None:
    """`draw_held_out` in one call; raises `ValueError` if the last interval does not lie higher."""
    if rows.iloc[-1]["pass@1_low"] <= rows.iloc[0]["pass@1_high"]:
        raise ValueError(f"from {rows.iloc[0]['pass@1']} to {rows.iloc[-1]['pass@1']}: not told")
    _, ax = plt.subplots(figsize=(6.4, 2.9))
    draw_held_out(ax, rows, deaths)
    ax.set_title("Held out: learned, in spite of two deaths")
    plt.show()


def draw_pushes(ax: Axes, pushes: Mapping[str, Sequence[float]]) -> None:
    """What each method does to the 16 tokens of the four completions, a row per method."""
    table = np.array(list(pushes.values()))
    largest = np.abs(table).max(1, keepdims=True)
    image = np.divide(table, largest, out=np.zeros_like(table), where=largest > 0)
    colours = ListedColormap(diverging())
    ax.imshow(image, cmap=colours, norm=TwoSlopeNorm(0, -1, 1), aspect="auto")
    for row, column in np.argwhere(table == 0):
        ax.text(column, row, "·", ha="center", va="center", color=MUTED, fontsize=8)
    labels = [f"{name[0]}{t + 1}" for name, n in zip(FOUR.names, FOUR.lengths.tolist(), strict=True)
              for t in range(n)]  # fmt: skip
    for edge in np.cumsum(FOUR.lengths.tolist())[:-1]:
        ax.axvline(edge - 0.5, color=INK, lw=1)
    ax.set_xticks(range(len(labels)), labels)
    ax.set_yticks(range(len(pushes)), list(pushes))
    ax.tick_params(length=0)
    ax.grid(False)


def diverging() -> np.ndarray:
    """Red for down, white for nothing, blue for up."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("push", (BAD, "white", GOOD))(np.linspace(0, 1, 257))
