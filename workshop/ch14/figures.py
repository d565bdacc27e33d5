"""Chapter 14: what length may cost, what data are worth, what a teacher saves; a real model."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from transformers import PreTrainedTokenizerBase

from rlbook.rewards import KimiLength, L1Exact, L1Max, LengthCost
from rlbook.stats import t_interval
from rlbook.tasks import Problem
from rlbook.tasks.habits import FAMILIES
from rlbook.training import Rollout
from rlbook.training.rewards import Reward
from rlbook.viz.style import BAD, GOOD, MUTED, label_lines
from workshop.shared.evidence import ARM_COLOURS
from workshop.shared.texts import (
    WIDTH,
    TextPanel,
    answer_lines,
    heading,
    legend_of,
    panel,
    pushed_pieces,
    right_of,
)

RULES: dict[str, Reward] = {
    "a price: 0.01 a token": LengthCost(0.01),
    "L1-Exact: 40 tokens": L1Exact(0.01, budget=40),
    "L1-Max: 40 tokens": L1Max(0.02, budget=40),
    "Kimi: among siblings": KimiLength(),
}
UPDATES = {
    "SFT on the teacher": ARM_COLOURS["SFT on the teacher"],
    "γ = 0": ARM_COLOURS["on-policy distillation"],
    "γ = 1": "#332288",
}


def an_answer(length: int, right: bool) -> Rollout:
    """An answer of which nothing matters but its length and the verdict."""
    return Rollout(
        problem=Problem("one prompt", "37+8=?", "45"),
        group=0,
        prompt_ids=[1],
        token_ids=[2] * length,
        logps=[0.0] * length,
        versions=[0] * length,
        finish_reason="stop",
        text="",
        correct=right,
    )


def worth(rule: Reward, answers: Sequence[Rollout]) -> list[float]:
    """What each answer of a group earns, all parts together."""
    return np.sum(list(rule(answers).values()), axis=0).tolist()


def draw_rules(axes: Sequence[Axes], lengths: Sequence[int] = range(8, 81)) -> None:
    """What right and wrong answers earn by length, a panel per rule."""
    for ax, (name, rule) in zip(axes, RULES.items(), strict=True):
        for right, colour, label in ((True, GOOD, "right"), (False, BAD, "wrong")):
            ends = [an_answer(min(lengths), True), an_answer(max(lengths), True)]
            earned = [worth(rule, [an_answer(n, right), *ends])[0] for n in lengths]
            ax.plot(lengths, earned, color=colour, label=label)
        ax.axhline(0, color="#9a9a9a", lw=0.8)
        ax.set(ylim=(-0.9, 1.6), xlabel="tokens")
        ax.set_title(name, fontsize=9.5)
    axes[0].set_ylabel("reward")
    label_lines(axes[0])


LIVE = {
    "price from the start": "#D55E00",
    "no price": "#1b1b1b",
    "price after 12 steps": "#0072B2",
}


BREVITY = {
    "no price": "#1b1b1b",
    "0.02 a token": "#D55E00",
    "ShorterBetter": "#0072B2",
    "Kimi, after a warm-up": "#882255",
    "L1-Max, 24 tokens": "#009E73",
    "falling limit": "#E69F00",
    "Concise RL, eight problems": "#8c8c8c",
}


def draw_brevity(
    axes: Sequence[Axes], runs: pd.DataFrame, start: pd.DataFrame, budgets: Sequence[int]
) -> None:
    """Accuracy over tokens, a dot per run; share right within each budget, mean over seeds."""
    cloud, curves = axes
    columns = [f"right_within_{n}" for n in budgets]
    cloud.plot(start["length"][0], start["pass@1"][0], "o", mfc="none", color=MUTED)
    cloud.annotate(
        "start",
        (start["length"][0], start["pass@1"][0]),
        (-6, -12),
        textcoords="offset points",
        color=MUTED,
        fontsize=8.5,
    )
    for name, colour in BREVITY.items():
        arm = runs[runs["arm"] == name]
        cloud.scatter(arm["length"], arm["pass@1"], s=9, color=colour, alpha=0.35, lw=0)
        cloud.plot(arm["length"].mean(), arm["pass@1"].mean(), "X", color=colour, ms=8)
        curves.plot(range(len(budgets)), arm[columns].mean(), color=colour, label=name)
    curves.plot(range(len(budgets)), start[columns].iloc[0], color=MUTED, ls=":", label="start")
    curves.set_xticks(range(len(budgets)), [str(n) for n in budgets])
    curves.set(xlabel="budget in use, tokens", ylabel="share of right answers", ylim=(0, 1))
    cloud.set(xlabel="tokens an answer (crosses: means)", ylabel="pass@1 on held-out sums")
    curves.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8.5)


def draw_limits(ax: Axes, table: pd.DataFrame) -> None:
    """Share of right answers by the number of tokens allowed: cut off, or interrupted."""
    styles = {"cut off": (0, (4, 3)), "interrupted": "-"}
    for (policy, how), rows in table.groupby(["policy", "how"], sort=False):
        colour = MUTED if policy == "base" else GOOD
        label = f"{policy}, {how}"
        ax.plot(rows["tokens"], rows["right"], color=colour, ls=styles[str(how)], label=label)
    ax.set(xlabel="tokens of thought allowed", ylabel="share of right answers", ylim=(0, 1))
    label_lines(ax)


def flops(arm: str, tokens: pd.Series | float, student: int, teacher: int) -> pd.Series | float:
    """Floating-point operations that an arm spends on answers of so many tokens.

    2N to write or read a token with N parameters, 6N to train on it.
    """
    per_token = {
        "RL": 8 * student,
        "SFT on the teacher": 6 * student + 2 * teacher,
        "on-policy distillation": 8 * student + 2 * teacher,
    }
    return tokens * per_token[arm]


def spent_by(rows: pd.DataFrame, student: int, teacher: int) -> pd.Series:
    """Billions of operations that an arm's runs have spent by each step, at their mean length."""
    answers = 64 * rows["step"]
    return flops(str(rows["arm"].iloc[0]), answers * rows["length"], student, teacher) / 1e9


def draw_students(ax: Axes, steps: pd.DataFrame, x: Callable[[pd.DataFrame], pd.Series]) -> None:
    """Held-out accuracy by what has been spent, mean and 95 % range of the mean over seeds."""
    held = steps.dropna(subset=["heldout"])
    for name, rows in held.groupby("arm", sort=False):
        spent = x(rows)
        by = rows.assign(spent=spent).groupby("step")
        mean, half = by["heldout"].mean(), 1.96 * by["heldout"].sem()
        at, colour = by["spent"].mean(), ARM_COLOURS[str(name)]
        ax.plot(at, mean, color=colour, marker="o", ms=3.5, label=str(name))
        ax.fill_between(
            at, (mean - half).clip(0), (mean + half).clip(upper=1), color=colour, alpha=0.15, lw=0
        )
    ax.set(ylabel="held-out accuracy", ylim=(0, 1))
    label_lines(ax)


def family_table(rows: Mapping[str, Mapping[str, float]]) -> pd.DataFrame:
    """`pass@1_level_1` … as a table with a column per family, and their mean."""
    columns = {f"pass@1_level_{level}": name for level, name in enumerate(FAMILIES, 1)}
    table = pd.DataFrame(rows).T[list(columns)].rename(columns=columns)
    return table.assign(mean=table.mean(axis=1)).astype(float)


def draw_copycats(ax: Axes, paths: Mapping[str, Sequence[float]]) -> None:
    """Share of answers that the teacher hardly ever gives, along three updates."""
    for name, path in paths.items():
        ax.plot(path, color=UPDATES[name], label=name)
    ax.set(xlabel="exact gradient steps", ylabel="share of ab and ba", ylim=(0, 0.6))
    label_lines(ax)


def show_opinions(
    rollouts: Sequence[Rollout], tokenizer: PreTrainedTokenizerBase, teacher: Reward
) -> TextPanel:
    """Answers under their prompts, each token tinted by what the teacher thinks of it."""
    (rows,) = teacher(rollouts).values()
    pieces = pushed_pieces(rows, rollouts, tokenizer, "log π_T − log π_θ")
    lines, group = [], None
    for rollout, parts in zip(rollouts, pieces, strict=True):
        if rollout.group != group:
            group = rollout.group
            members = [r for r in rollouts if r.group == group]
            lines += [[], heading(rollout.problem, right_of(members))]
        lines += answer_lines(rollout, parts, WIDTH)
    return panel([*lines[1:], legend_of(rows, "weight")])


def count_families(problems: Mapping[str, Sequence[Problem]]) -> pd.DataFrame:
    """How many problems of each family there are, in a column per selection."""
    names = dict(enumerate(FAMILIES, 1))
    counts = {
        column: pd.Series([names[p.level] for p in chosen]).value_counts()
        for column, chosen in problems.items()
    }
    return pd.DataFrame(counts).reindex(FAMILIES).fillna(0).astype(int)


def draw_choices(ax: Axes, evaluations: pd.DataFrame, base: Mapping[str, float]) -> None:
    """Held-out accuracy by family: the mean of each arm's runs, with a dot per run; the base."""
    columns = [f"pass@1_level_{level}" for level in range(1, len(FAMILIES) + 1)]
    places = np.arange(len(columns))
    ax.plot(places, [base[c] for c in columns], color=MUTED, ls=":", lw=1.4, label="base")
    for name, runs in evaluations.groupby("arm", sort=False):
        colour = ARM_COLOURS[str(name)]
        ax.plot(places, runs[columns].mean(), color=colour, label=str(name))
        for place, column in zip(places, columns, strict=True):
            ax.scatter([place] * len(runs), runs[column], s=7, color=colour, alpha=0.45, lw=0)
    ax.set_xticks(places, list(FAMILIES))
    ax.set(ylim=(-0.02, 1.02), xlim=(-0.2, len(columns) - 0.8), ylabel="share of right answers")
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))


def draw_real_model(axes: Sequence[Axes], steps: pd.DataFrame) -> None:
    """Accuracy on each step's own prompts, a panel per learning rate and a line per run."""
    for ax, (lr, runs) in zip(axes, steps.groupby("lr"), strict=True):
        for (arm, _), run in runs.groupby(["arm", "seed"], sort=False):
            ax.plot(run["step"], run["accuracy"], color=ARM_COLOURS[str(arm)], lw=1, alpha=0.5)
        means = runs.groupby(["arm", "step"], sort=False)["accuracy"].mean()
        for arm in runs["arm"].unique():
            ax.plot(means[arm].index, means[arm], color=ARM_COLOURS[arm], lw=2.4, label=arm)
        ax.set(xlabel="training step", ylim=(0, 1))
        ax.set_title(f"learning rate {lr:g}", fontsize=9.5)
        label_lines(ax)
    axes[0].set_ylabel("share of right answers")


TRIES = 8  # answers to each held-out problem


def share_right(runs: pd.DataFrame, when: str) -> np.ndarray:
    """How often each held-out problem was solved "before" or "after", over all these runs."""
    columns = [column for column in runs if column.startswith(f"{when}_")]
    return runs[columns].to_numpy().mean(axis=0) / TRIES


def held_out_gains(evaluations: pd.DataFrame) -> pd.DataFrame:
    """What each arm's training did to the same held-out problems, at each learning rate.

    The interval is over problems, the runs of an arm averaged: it says what these runs have gained
    on such problems, not what another seed would.
    """
    rows = {}
    for key, runs in evaluations.groupby(["arm", "lr"], sort=False):
        before, after = share_right(runs, "before"), share_right(runs, "after")
        gain, low, high = t_interval(after - before)
        ends = {"before": before.mean(), "after": after.mean()}
        rows[key] = ends | {"gain": gain, "low": low, "high": high}
    return pd.DataFrame(rows).T.astype(float).rename_axis(["arm", "lr"])
