"""Chapter 04: what a reward model likes, how sure it is, and how far one may follow it."""

from collections.abc import Iterator, Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes

from rlbook.exact import FOUR, EnumerablePolicy
from rlbook.rewards import Preference, RewardModel
from rlbook.stats import t_interval, wilson_interval
from rlbook.tasks.habits import FAMILIES, HabitsTask
from rlbook.training import Rollout
from rlbook.viz import LivePlot
from rlbook.viz.style import INK, MUTED, label_lines
from workshop.ch04.preferences import best_of_n, kl_optimum
from workshop.shared.evidence import colour_of, draw_families, learning_curves
from workshop.shared.opening import quiet_setup
from workshop.shared.schematic import chapter_map, schematic

PROXY, TRUTH = colour_of("1000 pairs"), "#0072B2"
LOG = {"reward": PROXY, "accuracy": TRUTH}
FAMILY_OF = dict(enumerate(FAMILIES, 1))


def opening(steps: pd.DataFrame, arm: str = "1000 pairs") -> None:
    """The first screen: score and truth of one arm, all seeds, above the map of the chapter.

    Raises `ValueError` unless in every seed the score ends higher and the truth lower.
    """
    quiet_setup()
    runs = steps[steps["arm"] == arm].pivot(index="step", columns="seed")
    rise, fall = (runs[what].iloc[-5:].mean() - runs[what].iloc[:5].mean() for what in LOG)
    if rise.min() <= 0 or fall.max() >= 0:
        raise ValueError("the score does not rise, or the truth does not fall, in every seed")
    fig = plt.figure(figsize=(8.6, 4.4))
    grid = fig.add_gridspec(2, 2, height_ratios=(3, 1.3))
    titles = ("The reward model's score", "The share of right answers")
    for place, (what, colour), title in zip(range(2), LOG.items(), titles, strict=True):
        ax = fig.add_subplot(grid[0, place])
        smooth = runs[what].rolling(3, center=True, min_periods=1).mean()
        ax.plot(smooth, color=colour, lw=0.8, alpha=0.35)
        ax.plot(smooth.mean(axis=1), color=colour, lw=2.4)
        ax.set(title=f"{title} {'falls' if what == 'accuracy' else 'rises'}", xlabel="PPO step")
    chapter_map({"verdicts": "a network's score", "rewards": "score − KL penalty"},
                fig.add_subplot(grid[1, :]))  # fmt: skip
    plt.show()


def watch(
    runs: Mapping[str, Iterator[Mapping[str, float]]],
    total: int,
    changed: Mapping[str, object] | None = None,
    before: Mapping[str, Sequence[Mapping[str, float]]] | None = None,
) -> dict[str, list]:
    """Make runs side by side and draw score, truth and distance as they go; their rows.

    `changed` is what each run changes, `before` the rows of runs that were made already.
    """
    title = "Score, share of right answers, and KL to the base (in nats an answer)"
    live = LivePlot("reward", "accuracy", "kl_to_base", smooth=3, title=title)
    for name, rows in (before or {}).items():
        for _ in live.watch(rows, name, total=total):
            pass
    live.side_by_side(runs, changed, total=total)
    return {name: list(rows) for name, rows in live.history.items()}


def hump(path: pd.DataFrame) -> None:
    """Proxy and truth of the best policy for each β. Raises `ValueError` unless the truth turns."""
    if path["truth"].max() < path["truth"].iloc[[0, -1]].max() + 0.2:
        raise ValueError("the truth does not turn on this path")
    _, ax = plt.subplots(figsize=(5.4, 2.8))
    draw_path(ax, path)
    ax.set_title("The smaller β, the higher the proxy: the truth turns")
    plt.show()


def rewards_of_tokens(scores: torch.Tensor, beta: float = 0.1) -> None:
    """The book's drawing of a training step, with a network's score and the KL penalty."""
    penalty = beta * (FOUR.logp - FOUR.logp_old).sum(1)
    carried = {
        "answers": ["right", "right", "wrong", "wrong"],
        "verdicts": [f"{score:.0f}" for score in scores],
        "rewards": [f"{reward:.3f}" for reward in scores - penalty],
    }
    notes = {"verdicts": "a network's score", "rewards": "score − penalty"}
    title = "The score comes from a network, and distance is penalised"
    schematic(title, {*notes}, carried, notes | {"advantages": "a critic's"})
    plt.show()


def pursuits(steps: pd.DataFrame, sides: Sequence[Sequence[str]]) -> None:
    """Truth of several arms, more pairs on the left and KL penalties on the right.

    Raises `ValueError` where the titles would not be true of the table.
    """
    last, (pairs, penalties) = highest_and_last(steps)[2].mean(), sides
    without = [arm for arm in pairs if arm != "verifier"]
    if last[without].max() > 0.1:
        raise ValueError("an arm without a penalty ends above a tenth")
    if not last[penalties].is_monotonic_increasing:
        raise ValueError("more penalty does not end higher, or the verifier is not highest")
    _, axes = plt.subplots(1, 2, figsize=(9.6, 3.4), sharey=True)
    draw_pursuit(axes, steps, sides)
    axes[0].set_title("More pairs: all end below a tenth")
    axes[1].set_title("More KL penalty: a higher end")
    plt.show()


def preference_table(pairs: Sequence[Preference]) -> pd.DataFrame:
    """A row for each pair: what was asked, what was liked better, and whether that is right."""
    rows = [
        {
            "prompt": pair.chosen.problem.prompt,
            "chosen": pair.chosen.text,
            "rejected": pair.rejected.text,
            "chosen is right": pair.chosen.correct,
        }
        for pair in pairs
    ]
    return pd.DataFrame(rows).set_index("prompt")


def agreement(model: RewardModel, pairs: Sequence[Preference]) -> pd.Series:
    """Share of each family's pairs in which the model scores the chosen answer higher."""
    scores = model.scores([p.chosen for p in pairs] + [p.rejected for p in pairs])
    agrees = (scores[: len(pairs)] > scores[len(pairs) :]).double()
    found = pd.Series(agrees.numpy(), [FAMILY_OF[pair.level] for pair in pairs])
    return found.groupby(level=0, sort=False).mean().reindex(list(FAMILIES)).dropna()


def scores_by_rule(
    model: RewardModel, rollouts: Sequence[Rollout], task: HabitsTask
) -> pd.DataFrame:
    """Mean score of the answers by each rule, and their number, family by family."""
    frame = pd.DataFrame(
        {
            "family": [FAMILY_OF[r.problem.level] for r in rollouts],
            "rule": [task.label(r.problem, r.text, not r.truncated) for r in rollouts],
            "score": model.scores(rollouts).tolist(),
        }
    )
    kept = frame[frame["rule"] != "other"]
    table = kept.pivot_table(index="family", columns="rule", values="score", sort=False)
    order = [family for family in FAMILIES if family in table.index]
    return table.loc[order, ["right", "misconception"]]


def draw_calibration(ax: Axes, rows: Sequence[Mapping[str, float]]) -> None:
    """Agreement with the labels against confidence, with Wilson intervals."""
    ax.plot([0.5, 1], [0.5, 1], color=MUTED, lw=1, ls=(0, (4, 3)))
    for row in rows:
        agreeing = round(row["agreement"] * row["pairs"])
        bounds = wilson_interval(agreeing, row["pairs"])
        ax.plot([row["confidence"]] * 2, [bounds.low, bounds.high], color=PROXY, lw=2)
        ax.plot(row["confidence"], row["agreement"], "o", color=PROXY, ms=7, mec="white")
    ax.set(xlabel="the model's confidence σ(|margin|)", ylabel="labels that agree")
    ax.set(xlim=(0.48, 1.0), ylim=(0.3, 1.02))


def penalty_path(
    reference: EnumerablePolicy,
    proxy: torch.Tensor,
    truth: torch.Tensor,
    betas: Sequence[float],
) -> pd.DataFrame:
    """KL to the reference, expected proxy and expected truth of the optimum for each β."""
    return pd.DataFrame(
        [found(kl_optimum(reference, proxy, b).probs, reference, proxy, truth) for b in betas],
        index=pd.Index(betas, name="β"),
    )


def best_of_n_path(
    reference: EnumerablePolicy, proxy: torch.Tensor, truth: torch.Tensor, ns: Sequence[int]
) -> pd.DataFrame:
    """The same of best-of-n, for each n."""
    return pd.DataFrame(
        [found(best_of_n(reference, proxy, n), reference, proxy, truth) for n in ns],
        index=pd.Index(ns, name="n"),
    )


def found(
    p: torch.Tensor, reference: EnumerablePolicy, proxy: torch.Tensor, truth: torch.Tensor
) -> dict[str, float]:
    """Where a distribution over the answers stands."""
    distance = (torch.special.xlogy(p, p) - p * reference.logp).sum()
    return {"KL": distance.item(), "proxy": (p @ proxy).item(), "truth": (p @ truth).item()}


def draw_path(ax: Axes, path: pd.DataFrame, marker: str = "") -> None:
    """Proxy, scaled to end at 1, and truth against the distance from the reference."""
    span = path["proxy"].max() - path["proxy"].min()
    scaled = (path["proxy"] - path["proxy"].min()) / span
    look = {"marker": marker or None, "ms": 4}
    ax.plot(path["KL"], scaled, color=PROXY, label="proxy (scaled)", **look)
    ax.plot(path["KL"], path["truth"], color=TRUTH, label="truth", **look)
    ax.set(xlabel="KL to the base, nats an answer", ylim=(0, 1.05))
    label_lines(ax)


def draw_pursuit(
    axes: Sequence[Axes],
    steps: pd.DataFrame,
    arms: Sequence[Sequence[str]],
    column: str = "accuracy",
    smooth: int = 3,
) -> None:
    """One column of the log, step by step, on each of the axes for some of the arms."""
    what = {"accuracy": "share of right answers", "reward": "score of the reward model"}
    for ax, some in zip(axes, arms, strict=True):
        learning_curves(steps, column, ax, arms=some, smooth=smooth)
        ax.set(xlabel="PPO step", ylabel="")
        if column == "accuracy":
            ax.set_ylim(0, 1)
    axes[0].set_ylabel(what[column])


def highest_and_last(steps: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """By seed and arm: the best mean over five steps, the step where it ends, and the last one."""
    runs = steps.pivot_table(index="step", columns=["arm", "seed"], values="accuracy")
    smooth = runs.rolling(5).mean().dropna()
    found = smooth.max(), smooth.idxmax(), smooth.iloc[-1]
    high, when, last = (series.unstack("arm") for series in found)
    return high, when, last


def paired(tables: Mapping[str, pd.DataFrame], arms: Mapping[str, str]) -> pd.DataFrame:
    """Mean with 95 % interval of arm minus arm, seed by seed, of every table."""
    rows = {}
    for arm, other in arms.items():
        means = {what: t_interval((t[arm] - t[other]).to_numpy()) for what, t in tables.items()}
        rows[f"{arm} minus {other}"] = {
            what: f"{m.mean:+.2f} [{m.low:+.2f}, {m.high:+.2f}]" for what, m in means.items()
        }
    return pd.DataFrame(rows).T


def family_course(
    steps: pd.DataFrame, arms: Sequence[str], levels: Sequence[int], width: int = 5
) -> pd.DataFrame:
    """Share of right answers of every family, from the first steps to the last, of several arms."""
    early, late = steps["step"] <= width, steps["step"] > steps["step"].max() - width
    columns = {f"accuracy_level_{level}": FAMILY_OF[level] for level in levels}
    first, last = (
        steps[part].groupby("arm")[list(columns)].mean().rename(columns=columns)
        for part in (early, late)
    )
    cells = {
        family: [f"{first.loc[arm, family]:.2f} → {last.loc[arm, family]:.2f}" for arm in arms]
        for family in columns.values()
    }
    return pd.DataFrame(cells, index=list(arms))


def answers_table(said: Mapping[str, Sequence[Rollout]]) -> pd.DataFrame:
    """What several policies answer to the same prompts: steps, answer, verdict."""
    columns = {name: [shortened(r) for r in rollouts] for name, rollouts in said.items()}
    prompts = [r.problem.prompt for r in next(iter(said.values()))]
    return pd.DataFrame(columns, index=prompts)


def shortened(rollout: Rollout) -> str:
    """An answer without its tags."""
    text = rollout.text.replace("<think>", "").replace("</think>", " ").replace("<answer>", "→ ")
    return f"{'✓' if rollout.correct else '✗'} {text.replace('</answer>', '')}"


def by_distance(steps: pd.DataFrame, arm: str) -> pd.DataFrame:
    """Mean over seeds of KL and truth, at the steps where the distance was measured."""
    mine = steps[steps["arm"] == arm].copy()
    by_seed = mine.groupby("seed")["accuracy"]
    mine["accuracy"] = by_seed.transform(lambda s: s.rolling(3, center=True, min_periods=1).mean())
    return mine.dropna(subset="kl_to_base").groupby("step")[["kl_to_base", "accuracy"]].mean()


def course_of(steps: pd.DataFrame) -> dict[str, float]:
    """Truth of an arm at first, at the best of its mean curve and at the end; what it cost."""
    mean = steps.groupby("step")[["accuracy", "reward", "kl_to_base"]].mean()
    smooth = mean["accuracy"].rolling(5).mean()
    return {
        "first five": mean["accuracy"].iloc[:5].mean(),
        "best five": smooth.max(),
        "up to step": smooth.idxmax(),
        "last five": smooth.iloc[-1],
        "score at the end": mean["reward"].iloc[-5:].mean(),
        "KL at the end": mean["kl_to_base"].dropna().iloc[-1],
    }


def draw_at_equal_kl(
    axes: Sequence[Axes], log: pd.DataFrame, best_of: pd.DataFrame, farthest: float = 8.0
) -> None:
    """Proxy and truth of a PPO run (means over three steps) and of best-of-n, by distance."""
    columns = ["kl_to_base", "reward", "accuracy"]
    smooth = log[columns].rolling(3, center=True).mean().dropna()
    near = smooth[smooth["kl_to_base"] <= farthest]
    for ax, ours, theirs in zip(axes, ("reward", "accuracy"), ("proxy", "truth"), strict=True):
        ax.plot(near["kl_to_base"], near[ours], "o-", ms=4, color=PROXY, label="PPO")
        line = {"color": MUTED, "label": "best of n"}
        ax.plot(best_of["KL at most"], best_of[theirs], "s-", ms=4, **line)
        ax.set(xlabel="KL to the base, nats an answer")
        label_lines(ax)
    axes[0].set_ylabel("score of the reward model")
    axes[1].set_ylabel("share of right answers")


def draw_by_rate(axes: Sequence[Axes], runs: Mapping[str, pd.DataFrame]) -> None:
    """Truth of one arm at several learning rates, by step and by distance from the base."""
    for shade, (rate, steps) in zip((PROXY, INK), runs.items(), strict=True):
        curve = steps.groupby("step")["accuracy"].mean().rolling(3, center=True).mean()
        axes[0].plot(curve, color=shade, label=f"rate {rate}")
        found = by_distance(steps, steps["arm"].iloc[0])
        axes[1].plot(found["kl_to_base"], found["accuracy"], "o-", ms=4, color=shade, label=rate)
    axes[0].set(xlabel="PPO step", ylabel="share of right answers", ylim=(0, 0.6))
    axes[1].set(xlabel="KL to the base, nats an answer")
    label_lines(axes[0])
    label_lines(axes[1])


def stopped_at(steps: pd.DataFrame, nats: float) -> pd.Series:
    """Accuracy of every seed where its distance first reaches `nats`; its last where it never does.

    Accuracies are means over three steps: a single one is of 96 answers.
    """
    found = {}
    for seed, run in steps.sort_values("step").groupby("seed"):
        smooth = run["accuracy"].rolling(3, center=True, min_periods=1).mean()
        reached = np.flatnonzero(run["kl_to_base"].ge(nats))
        found[seed] = smooth.iloc[reached[0] if len(reached) else -1]
    return pd.Series(found, name=nats)


def stop_chosen_elsewhere(steps: pd.DataFrame, tried: Sequence[float]) -> pd.DataFrame:
    """For every seed the distance that the *other* seeds would stop at, and what it gives here."""
    table = pd.concat([stopped_at(steps, nats) for nats in tried], axis=1)
    rows = {}
    for seed in table.index:
        nats = table.drop(index=seed).mean().idxmax()
        rows[seed] = {"stops at": nats, "stopped": table.loc[seed, nats]}
    ends = stopped_at(steps, float("inf"))
    return pd.DataFrame(rows).T.assign(end=ends)


def draw_families_of(ax: Axes, steps: pd.DataFrame, arm: str, levels: Sequence[int]) -> None:
    """Share of right answers by family, of one arm."""
    kept = [f"accuracy_level_{level}" for level in levels]
    draw_families(ax, steps[["arm", "seed", "step", *kept]], arm)
    ax.axhline(0, color=INK, lw=0.8)
