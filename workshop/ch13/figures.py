"""Chapter 13: votes, cold bases, coins and clips drawn; what 256 tries solve; a run's log."""

from collections.abc import Iterable, Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from rlbook.exact import SoftmaxPolicy
from rlbook.policy import Sampler
from rlbook.stats import pass_at_k, t_interval
from rlbook.tasks.habits import FAMILIES
from rlbook.training import Rollout, Trainer, collect_rollouts
from rlbook.viz.style import BAD, FAINT, GOOD, INK, MUTED, label_lines, use_style
from workshop.ch13.majority_reward import CountReward, ascend, election
from workshop.ch13.random_reward import clipping_bias, logit
from workshop.shared import texts
from workshop.shared.evidence import (
    ARM_COLOURS,
    compare_bars,
    learning_curves,
    load_results,
)
from workshop.shared.explorer import Explorer, slider
from workshop.shared.schematic import chapter_map, over_a_map
from workshop.shared.texts import TextPanel

NAMES = {
    "habits": dict(enumerate(FAMILIES, 1)),
    "sums": {level: f"{level} numbers" for level in range(2, 8)},
}
DASHES = (0, (4, 3))
KS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
TRIES = 256
WIDTHS = {
    "0.2 / 0.2": (0.2, ARM_COLOURS["clip 0.2"]),
    "0.2 / 0.25": (0.25, INK),
    "0.2 / 0.28": (0.28, ARM_COLOURS["clip-higher 0.28"]),
}
CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, 3**0.5 / 2]])  # right, one wrong, another


WORLD_COLOURS = {"sums": "#0072B2", "habits": "#D55E00"}


def opening() -> None:
    """First screen: one vote in two worlds, its reward, right answers before and after; the map.

    Ten seeds of `label_free`, five of `label_free_control`, at 3e-4. Raises `ValueError` if the
    reward does not rise in every run, a length of sums does not gain or a kind of habits does not
    do as the title says.
    """
    use_style()
    left, *right, below = over_a_map(1.1, 1, 1)
    chapter_map({"rewards": "what most of the group say"}, below)
    titles = {"sums": "Sums: all lengths gain", "habits": "Habits: only plain gains"}
    for ax, (world, table) in zip(
        right, {"sums": "label_free_control", "habits": "label_free"}.items(), strict=True
    ):
        steps = load_results(table).query("lr == 3e-4 and arm == 'majority vote'")
        rewards = steps.pivot(index="step", columns="seed", values="reward")
        ends = load_results(f"{table}_eval").query("lr == 3e-4 and arm == 'majority vote'")
        start = load_results(f"{table}_start").query("arm == 'majority vote'")
        before, after = (
            {level: rows[f"pass@1_level_{level}"].mean() for level in NAMES[world]}
            for rows in (start, ends)
        )
        gains = [after[level] - before[level] for level in NAMES[world]]
        lose = max(gains[1:]) if world == "habits" else -min(gains[1:])
        if (rewards[-5:].mean() <= rewards[:5].mean()).any() or gains[0] <= 0 or lose >= 0:
            raise ValueError(f"the titles do not hold in {world}: {gains}")
        colours = {"majority vote": WORLD_COLOURS[world]}
        label = {"majority vote": world}
        learning_curves(steps, "reward", left, smooth=3, colours=colours, labels=label)
        draw_shift(ax, before, after, NAMES[world])
        ax.set_title(titles[world])
    left.set(ylim=(0, 1.02), xlabel="batches", ylabel="reward: share of the majority")
    left.set_title("The reward rises in both")
    plt.show()


def before_and_after(trained: Trainer, base: Sequence[Rollout], n: int = 4) -> TextPanel:
    """Answers of the base to one problem, and n of the trained policy's."""
    problem = base[0].problem
    engine = Sampler(trained.model, trained.tokenizer.eos_token_id)
    now = collect_rollouts(engine, trained.tokenizer, trained.task, [problem], n=n, seed=0)
    return texts.before_after(problem, base, now)


def against_the_cold(
    runs: Mapping[str, pd.DataFrame], cold: Mapping[str, Mapping[float, Mapping[str, float]]]
) -> None:
    """Every run of both worlds beside the untrained base at each temperature, mean over kinds.

    Raises `ValueError` if a run's arm passes the greedy base in sums, or the vote does in habits.
    """
    means = {w: {t: np.mean(list(kinds.values())) for t, kinds in cold[w].items()} for w in cold}
    fig, axes = plt.subplots(1, 2, figsize=(9.5, 3.4), sharey=True, layout="constrained")
    for ax, (world, table) in zip(axes, runs.items(), strict=True):
        columns = [f"pass@1_level_{level}" for level in NAMES[world]]
        ends = table.groupby("arm")[columns].mean().mean(axis=1)
        best = ends.max() if world == "sums" else ends["majority vote"]
        if best >= means[world][0.0]:
            raise ValueError(f"the title does not hold in {world}: {best:.2f}")
        draw_against_cold(ax, table, means[world], NAMES[world])
        ax.set_title(world)
    finding = "Sums: the untrained base, asked greedily, is ahead. Habits: a vote is below it"
    headline(fig, finding)
    plt.show()


def signs(logs: Mapping[str, pd.DataFrame]) -> None:
    """What a run without labels can log, in both worlds, and the truth in the last column.

    Raises `ValueError` if, without labels, a column behaves otherwise in one world than in the
    other, or the truth does not differ.
    """
    arms = ("verifier", "majority vote", "confidence")
    for arm in arms[1:]:
        moves = {
            world: late_minus_early(steps[steps["arm"] == arm]) for world, steps in logs.items()
        }
        alike = pd.DataFrame(moves)[["sums", "habits"]].loc[["reward", "agreement", "entropy"]]
        if (np.sign(alike["sums"]) != np.sign(alike["habits"])).any():
            raise ValueError(f"{arm} does not look alike in both worlds: {alike}")
        if not moves["sums"]["accuracy"] > 0.05 > 0 > moves["habits"]["accuracy"]:
            raise ValueError(f"the truth of {arm} does not differ: {moves}")
    fig, axes = plt.subplots(2, 4, figsize=(10.5, 4), sharex=True)
    draw_signs(axes, logs, arms)
    headline(fig, "Three columns look alike in both worlds; only the truth differs")
    plt.show()


def late_minus_early(steps: pd.DataFrame) -> pd.Series:
    """The mean of the last five steps minus that of the first five."""
    columns = ["reward", "agreement", "entropy", "accuracy"]
    late = steps[steps["step"] > steps["step"].max() - 5]
    return late[columns].mean() - steps.loc[steps["step"] <= 5, columns].mean()


def on_a_real_model(steps: pd.DataFrame, ends: pd.DataFrame) -> None:
    """SmolLM2 by step: right answers to short sums beside greedy decoding, steps shown for long.

    Raises `ValueError` unless short sums are learned beyond the greedy answers, and steps go.
    """
    greedy, shown = ends["greedy_pass@1_1"]["start"], ends["steps_2"]
    if ends["pass@1_1"]["RLOO"] < greedy + 0.2 or not shown["RLOO"] < 0.1 < 0.5 < shown["start"]:
        raise ValueError(f"the title does not hold: {ends.loc[['start', 'RLOO']]}")
    fig, axes = plt.subplots(1, 2, figsize=(9.5, 3.2), layout="constrained")
    draw_real_model(axes, steps[steps["arm"] != "start"], greedy)
    headline(fig, "SmolLM2: short sums are learned, and steps are unlearned")
    plt.show()


def draw_shift(
    ax: Axes, before: Mapping[int, float], after: Mapping[int, float], names: Mapping[int, str]
) -> None:
    """One row per level: from what was right before (grey) to what is right after (coloured)."""
    for row, level in enumerate(names):
        start, end = before[level], after[level]
        colour = GOOD if end > start else BAD
        ax.plot([start, end], [row, row], color=colour, lw=2.5, zorder=2)
        ax.plot(start, row, "o", ms=7, color=ARM_COLOURS["base"], zorder=3)
        ax.plot(end, row, ">" if end > start else "<", ms=8, color=colour, mec="white", zorder=4)
    ax.set_yticks(range(len(names)), list(names.values()))
    ax.set(ylim=(len(names) - 0.5, -0.5), xlim=(-0.03, 1.03), xlabel="right at one try")
    ax.grid(axis="y", visible=False)


def draw_simplex(ax: Axes, reward: CountReward, n: int, steps: int = 120, lr: float = 1.0) -> None:
    """Paths of exact updates over three answers; colour tells whether the right one wins."""
    for start in grid(8):
        path = ascend(start, n, reward, steps, lr)
        colour = GOOD if path[-1, 0] > path[-1, 1:].max() + 1e-6 else BAD
        xy = path.numpy() @ CORNERS
        ax.plot(*xy.T, color=colour, lw=1, alpha=0.75)
        ax.plot(*xy[0], "o", ms=3, color=colour)
    ax.plot(*CORNERS[[0, 1, 2, 0]].T, color=MUTED, lw=1)
    words = ("right", "one wrong answer", "another")
    for (x, y), word in zip(CORNERS, words, strict=True):
        colour = GOOD if word == "right" else MUTED
        below = {"va": "top" if y == 0 else "bottom", "ha": "center", "color": colour}
        ax.annotate(word, (x, y), (0, -6 if y == 0 else 5), textcoords="offset points", **below)
    ax.set(aspect="equal", xlim=(-0.15, 1.25), ylim=(-0.12, 1.0))
    ax.axis("off")


def grid(cuts: int) -> list[Float[Tensor, " 3"]]:
    """Starting points inside the triangle, off its lines of symmetry."""
    inner = [
        (a + 0.35, b + 0.15, cuts - a - b - 0.5)
        for a in range(cuts)
        for b in range(cuts - a)
        if cuts - a - b > 0.5
    ]
    return [torch.tensor(point, dtype=torch.float64) / cuts for point in inner]


def election_explorer(n: int = 16, wrong: int = 1) -> Explorer:
    """How often a group's majority is right, by the chance that one answer is."""
    return Explorer(
        election_figure,
        hint="let the mistakes scatter over four answers. Then ask more voters: what gets steeper, "
        "and what does not move?",
        figsize=(7.2, 3.4),
        n=slider(2, 32, n, 1, label="group size n"),
        wrong=slider(1, 4, wrong, 1, label="wrong answers"),
    )


def election_figure(fig: Figure, n: int, wrong: int) -> None:
    """Chance that the label is right, against p; below the diagonal a vote is worse than a try."""
    ax = fig.subplots()
    rates = torch.linspace(0, 1, 61, dtype=torch.float64)
    wins = [election(shared(p.item(), wrong), n)[0].item() for p in rates]
    ax.plot([0, 1], [0, 1], color=FAINT, lw=1.5)
    ax.plot(rates, wins, color=ARM_COLOURS["majority vote"])
    threshold = 1 / (wrong + 1)
    ax.axvline(threshold, color=MUTED, ls=DASHES, lw=1)
    ax.annotate(
        f"even with every\nwrong answer: {threshold:.2f}",
        (threshold, 0.02),
        (6, 0),
        textcoords="offset points",
        color=MUTED,
    )
    ax.set(xlim=(0, 1), ylim=(0, 1.02), xlabel="chance p that one answer is right")
    ax.set(ylabel="chance that the label is right")
    plural = "s share the rest" if wrong > 1 else " takes the rest"
    ax.set_title(f"A vote of {n}: the leader wins ({wrong} wrong answer{plural})")


def shared(p: float, wrong: int) -> Float[Tensor, " A"]:
    """Right with probability p, the rest in equal parts on the wrong answers."""
    return torch.tensor([p, *wrong * [(1 - p) / wrong]], dtype=torch.float64)


def draw_levels(
    axes: Sequence[Axes],
    runs: pd.DataFrame,
    base: Mapping[int, float],
    names: Mapping[int, str],
    column: str = "pass@1",
) -> None:
    """A panel per level, a row per arm with its seeds; the dashed line is the base."""
    for ax, (level, name) in zip(axes, names.items(), strict=True):
        compare_bars(runs, f"{column}_level_{level}", ax, within=(0, 1))
        ax.axvline(base[level], color=ARM_COLOURS["base"], ls=DASHES, lw=1.2)
        ax.set(xlim=(-0.05, 1.05), title=name, xlabel="")
        ax.set_xticks([0, 0.5, 1], ["0", ".5", "1"])
    for ax in axes[1:]:
        ax.set_yticklabels([])


def headline(fig: Figure, finding: str) -> None:
    """What a row of small panels shows, above them all."""
    fig.suptitle(finding, x=0.01, ha="left", fontweight="bold", fontsize=12)


def draw_push(ax: Axes, p: float, distance: float = 0.75) -> None:
    """The expected push of the clip on the logit, against how far the logit has moved."""
    moves = torch.linspace(-distance, distance, 601, dtype=torch.float64)
    old = torch.tensor([p, 1 - p], dtype=torch.float64)
    for label, (high, colour) in WIDTHS.items():
        now = (logit(p) + moves).sigmoid().tolist()
        pushes = [push_on_logit(q, old, high) for q in now]
        ax.plot(moves, pushes, color=colour, label=label, lw=1.6)
    ax.axhline(0, color=MUTED, lw=0.8)
    ax.axvline(0, color=MUTED, lw=0.8, ls=DASHES)
    ax.set(xlabel="how far the logit has moved since sampling", ylabel="expected push of the clip")
    ax.legend(loc="upper right", title="window")


def push_on_logit(p: float, old: Tensor, high: float) -> float:
    """`clipping_bias` of two answers along the one direction that counts: up for the first."""
    bias = clipping_bias(SoftmaxPolicy.from_probs([p, 1 - p]), old, 0.2, high)
    return bias[0].item()


def draw_coin_runs(ax: Axes, paths: Mapping[str, Float[Tensor, "B R"]]) -> None:
    """Mean move of the logit over runs with a band of two standard errors, a labelled line each.

    The logit, because noise alone lowers the mean probability of an answer above one half.
    """
    colours = {label: colour for label, (_, colour) in WIDTHS.items()}
    for label, path in paths.items():
        moves = path.logit() - path[0].logit()
        mean, error = moves.mean(1), moves.std(1) / path.shape[1] ** 0.5
        colour = colours.get(label, ARM_COLOURS["base"])
        batches = range(len(path))
        ax.fill_between(batches, mean - 2 * error, mean + 2 * error, color=colour, alpha=0.15, lw=0)
        ax.plot(batches, mean, color=colour, label=label)
    ax.axhline(0, color=MUTED, lw=0.8)
    ax.set(xlabel="batches", ylabel="mean move of the logit, 400 runs", xlim=(0, len(path) - 1))
    label_lines(ax)


def pass_curve(counts: Iterable[float], ks: Sequence[int] = KS) -> list[float]:
    """Unbiased pass@k of problems with so many right answers of 256."""
    counts = np.asarray(list(counts))
    return [pass_at_k(TRIES, counts, k).mean() for k in ks]


def counts_of(runs: pd.DataFrame, arm: str, level: int) -> Float[np.ndarray, "S P"]:
    """Right answers of 256 by seed and problem, from the columns `right_<level>_<problem>`."""
    columns = [name for name in runs if name.startswith(f"right_{level}_")]
    return runs.loc[runs["arm"] == arm, columns].to_numpy()


def draw_coverage(
    axes: Sequence[Axes],
    runs: pd.DataFrame,
    base: Mapping[int, np.ndarray],
    names: Mapping[int, str],
) -> None:
    """pass@k by level: the base dashed, a thin line per run and a thick one for the arm's mean."""
    for ax, (level, name) in zip(axes, names.items(), strict=True):
        curve, colour = pass_curve(base[level]), ARM_COLOURS["base"]
        ax.plot(KS, curve, color=colour, ls=DASHES, label="base")
        for arm in dict.fromkeys(runs["arm"]):
            curves = [pass_curve(counts) for counts in counts_of(runs, arm, level)]
            ax.plot(KS, np.array(curves).T, color=ARM_COLOURS[arm], lw=0.7, alpha=0.6)
            ax.plot(KS, np.mean(curves, axis=0), color=ARM_COLOURS[arm], label=arm)
        ax.set_xscale("log", base=2)
        ax.set_xticks([1, 16, 256], ["1", "16", "256"])
        ax.set_xticks([], minor=True)
        ax.set(ylim=(-0.03, 1.05), title=name, xlabel="k")
    axes[0].set_ylabel("pass@k")


def coverage_table(
    runs: pd.DataFrame, base: Mapping[int, np.ndarray], names: Mapping[int, str], k: int = TRIES
) -> pd.DataFrame:
    """pass@k by level of the base, and each arm's gain on these problems, t interval over runs."""
    rows = {}
    for level, name in names.items():
        start = pass_at_k(TRIES, base[level], k).mean()
        rows[name] = {"base": f"{start:.2f}"}
        for arm in dict.fromkeys(runs["arm"]):
            after = pass_at_k(TRIES, counts_of(runs, arm, level), k).mean(axis=1)
            gain = t_interval(after - start)
            rows[name][arm] = f"{gain.mean:+.2f} [{gain.low:+.2f}, {gain.high:+.2f}]"
    return pd.DataFrame(rows).T


SIGNS = {
    "own": "own reward, rescaled",
    "agreement": "agreement",
    "entropy": "entropy",
    "accuracy": "truth",
}


def draw_signs(axes: np.ndarray, worlds: Mapping[str, pd.DataFrame], arms: Sequence[str]) -> None:
    """A row of panels per world: what a run without labels can log, and the truth at the end."""
    for number, (world, steps) in enumerate(worlds.items()):
        row, steps = axes[number], with_own(steps[steps["arm"].isin(arms)])
        for ax, (column, title) in zip(row, SIGNS.items(), strict=True):
            learning_curves(steps, column, ax, smooth=5, arms=arms)
            for label in list(ax.texts):
                label.remove()
            ax.set(title="" if number else title, xlabel="", ylabel="")
            ax.set_ylim(0, 0.22 if column == "entropy" else 1.02)
        label_lines(row[-1])
        row[0].set_ylabel(world, color=INK, fontweight="bold")


def with_own(steps: pd.DataFrame) -> pd.DataFrame:
    """Rewards on one scale: nothing but a shift and a stretch, each arm's smallest 0, largest 1."""
    smooth = steps.groupby(["arm", "seed"])["reward"].transform(
        lambda r: r.rolling(5, center=True, min_periods=1).mean()
    )
    low, high = (smooth.groupby(steps["arm"]).transform(end) for end in ("min", "max"))
    return steps.assign(own=(smooth - low) / (high - low))


def log_table(steps: pd.DataFrame, arms: Sequence[str]) -> pd.DataFrame:
    """First and last five steps of what a run logs, mean over seeds, as "before → after"."""
    columns = ["reward", "agreement", "entropy", "accuracy", "label_accuracy"]
    last = steps["step"].max()
    early, late = (
        steps[chosen].groupby("arm")[columns].mean()
        for chosen in (steps["step"] <= 5, steps["step"] > last - 5)
    )
    text = {
        column: [f"{early.loc[arm, column]:.2f} → {late.loc[arm, column]:.2f}" for arm in arms]
        for column in columns
    }
    return pd.DataFrame(text, index=list(arms))


def draw_against_cold(
    ax: Axes, runs: pd.DataFrame, cold: Mapping[float, float], names: Mapping[int, str]
) -> None:
    """A row per arm with its seeds, the mean over levels; squares: the base, by temperature."""
    columns = [f"pass@1_level_{level}" for level in names]
    arms = list(dict.fromkeys(runs["arm"]))
    rows = [f"base, T = {t:g}" if t else "base, greedy" for t in cold] + arms
    for row, p in enumerate(cold.values()):
        ax.plot(p, row, "s", ms=7, mfc="none", mec=ARM_COLOURS["base"], mew=1.6)
    for row, arm in enumerate(arms, len(cold)):
        means = runs.loc[runs["arm"] == arm, columns].mean(axis=1)
        look = {"color": ARM_COLOURS[arm.split(",")[0]]}  # "EM-FT, one prompt": that of EM-FT
        ax.plot(means, [row] * len(means), "o", ms=4, alpha=0.5, **look)
        ax.plot(means.mean(), row, "|", ms=15, mew=2.5, **look)
    ax.axhline(len(cold) - 0.5, color=FAINT, lw=1)
    ax.set_yticks(range(len(rows)), rows)
    ax.set(ylim=(len(rows) - 0.5, -0.5), xlabel="right at one try, mean over kinds")
    ax.grid(axis="y", visible=False)


def draw_real_model(axes: Sequence[Axes], steps: pd.DataFrame, greedy: float) -> None:
    """A pretrained model: right answers to short sums, and steps shown for long ones.

    Left the held-out pass@1 of sums of two numbers, a thin line a run, with the untrained model's
    greedy answers as a line; right the share of its answers to sums of three that show a step,
    means alone, for a batch has few of them.
    """
    for ax, column in zip(axes, ("heldout_1", "steps_2"), strict=True):
        for arm, runs in steps.groupby("arm", sort=False):
            colour = REAL_COLOURS[str(arm)]
            asked = runs.dropna(subset=[column])
            for _, run in asked.groupby("seed") if ax is axes[0] else ():
                ax.plot(run["step"], run[column], color=colour, lw=1, alpha=0.4)
            mean = asked.groupby("step")[column].mean()
            ax.plot(mean.index, mean, color=colour, lw=2.4, label=arm)
        ax.set(xlabel="training step", ylim=(-0.02, 1.02))
        label_lines(ax)
    axes[0].axhline(greedy, color=MUTED, ls=DASHES, lw=1)
    axes[0].text(26, greedy - 0.06, "untrained, greedy", color=MUTED, fontsize=8)
    axes[0].set(ylabel="right at one try, held out")
    axes[1].set(ylabel="answers that show a step")


REAL_COLOURS = {
    "RLOO": ARM_COLOURS["RLOO"],
    "GRPO": ARM_COLOURS["GRPO"],
    "MaxRL": ARM_COLOURS["MaxRL"],
    "format only": MUTED,
    "majority vote": ARM_COLOURS["majority vote"],
    "coin": FAINT,
}
