"""Chapter 05: what a prompt is worth, and what its solve rate decides about its share."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from torch import Tensor

from rlbook.exact import FOUR
from rlbook.scaling.memory import StateMemory
from rlbook.stats import Interval, pass_at_k, t_interval
from rlbook.stats.differences import paired_differences
from rlbook.tasks.audit import Audit
from rlbook.tasks.habits import FAMILIES
from rlbook.training import Rollout
from rlbook.viz.style import BAD, FAINT, GOOD, INK, MUTED, label_lines, readable
from workshop.bases.habits_card import majority
from workshop.ch05.worlds import HeldOut
from workshop.shared.evidence import FAMILY_COLOURS, by_arm, colour_of, compare_bars
from workshop.shared.opening import quiet_setup as quiet_setup
from workshop.shared.schematic import chapter_map, schematic

SOLVE_RATES = torch.linspace(0.005, 0.995, 199, dtype=torch.float64)
BLUES = ("#9ecae1", "#6baed6", "#4292c6", "#2171b5", "#08306b")
Exact = Callable[[Callable, Float[Tensor, " P"], int], tuple[Tensor, Tensor]]


# --- what a prompt is worth ----------------------------------------------------------------------


def opening(held: HeldOut, batches: int = 8) -> None:
    """First screen: the critic's error as it learns, its guesses after some batches, the map."""
    _, (left, right) = plt.subplots(1, 2, figsize=(7.6, 3.3), width_ratios=(1.35, 1))
    errors = held.errors
    draw_apprenticeship(
        left, held.seen, errors["critic"], errors["one mean for all"][0],
        errors["eight siblings"][0],
    )  # fmt: skip
    left.set_title(f"The critic needs {held.level:,} answers to\nguess as well as eight siblings")
    draw_worth(right, held.worth, {"ppo": held.critic[batches], "grpo": held.siblings})
    prompts, seen = len(held.problems), held.seen[batches]
    right.set_title(f"{prompts} prompts: the critic\nafter {seen:,} answers")
    plt.show()
    chapter_map({"advantages": "a group, no critic"})
    plt.show()


def against_its_siblings(advantages: Float[Tensor, " 4"]) -> None:
    """The four completions as a group: what each box makes of them, up to the push on a token."""
    counts = 1 / (4 * FOUR.lengths)
    carried = {
        "answers": [f"{n} tokens" for n in FOUR.lengths.tolist()],
        "verdicts": ["right" if reward else "wrong" for reward in FOUR.rewards],
        "rewards": [f"{reward:.0f}" for reward in FOUR.rewards],
        "advantages": [f"{a:+.3f}" for a in advantages],
        "loss": [f"1/{1 / each:.0f}" for each in counts],
        "weights": [f"{push:+.3f}" for push in advantages * counts],
    }
    notes = {"advantages": "siblings, no critic", "loss": "a token counts", "weights": "its push"}
    schematic("Every answer is measured against its siblings", {"advantages"}, carried, notes)
    plt.show()


def draw_apprenticeship(
    ax: Axes, seen: Sequence[int], error: Sequence[float], batch_mean: float, siblings: float
) -> None:
    """Error of a critic's guess at each prompt's worth, against the answers it has learnt from."""
    lines = ax.plot(seen, error, color=colour_of("ppo"), label="critic")
    for height, name, method in (
        (batch_mean, "one mean for all", "reinforce_batch_mean"),
        (siblings, "mean of 8 siblings", "grpo"),
    ):
        ends, line = (0, seen[-1]), (height, height)
        lines += ax.plot(ends, line, color=colour_of(method), ls=(0, (4, 2)), label=name)
    ax.set(xlabel="answers seen", ylabel="error of a prompt's worth", ylim=(0, None))
    ax.set_xlim(0, seen[-1])
    label_lines(ax, lines)


def draw_worth(
    ax: Axes, worth: Float[Tensor, " P"], guesses: Mapping[str, Float[Tensor, " P"]]
) -> None:
    """What each prompt is worth, across, and what is guessed; a cloud per method."""
    ax.plot([0, 1], [0, 1], color=FAINT, lw=1, zorder=0)
    for row, (method, guess) in enumerate(guesses.items()):
        colour = colour_of(method)
        ax.plot(worth, guess, "o", ms=4.5, mew=0, alpha=0.6, color=colour)
        name = {"ppo": "critic", "grpo": "siblings"}.get(method, method)
        ax.text(
            0.04, 0.94 - 0.09 * row, name, color=readable(colour), fontsize=9,
            transform=ax.transAxes, va="top",
        )  # fmt: skip
    ax.set(xlabel="solve rate of the prompt", ylabel="guess", xlim=(-0.03, 1.03), ylim=(-0.1, 1.1))


# --- silence, weight and push --------------------------------------------------------------------


def draw_silence(ax: Axes, sizes: Sequence[int]) -> None:
    """p^G + (1−p)^G against p, a labelled line per group size."""
    heights = torch.linspace(0.62, 0.1, len(sizes))  # of the labels, one below the other
    for size, shade, height in zip(sizes, BLUES, heights, strict=False):
        silent = SOLVE_RATES**size + (1 - SOLVE_RATES) ** size
        ax.plot(SOLVE_RATES, silent, color=shade)
        crossing = int((silent[:100] - height).abs().argmin())
        ax.text(
            SOLVE_RATES[crossing], silent[crossing], f"G = {size}" if size == sizes[0] else size,
            fontsize=9, color=INK, ha="center", va="center",
            bbox={"fc": "white", "ec": "none", "pad": 1},
        )  # fmt: skip
    ax.set(xlabel="solve rate p", ylabel="chance of a silent group", xlim=(0, 1), ylim=(0, 1))


def draw_weights(
    left: Axes, right: Axes, exact: Exact, divided: Callable, centred: Callable
) -> None:
    """Weight against the solve rate on a logarithmic axis, and how hard a rollout pushes."""
    rare = torch.logspace(-3, np.log10(0.5), 120, dtype=torch.float64)
    limit = (rare * (1 - rare)).rsqrt()
    lines = left.plot(rare, limit, color=INK, lw=1, ls=(0, (4, 3)), label="1/σ: G = ∞")
    for size, shade in zip((2, 8, 64), (BLUES[0], BLUES[2], BLUES[4]), strict=True):
        weight, _ = exact(divided, rare, size)
        lines += left.plot(rare, weight, color=shade, label=f"G = {size}")
        _, push = exact(divided, SOLVE_RATES, size)
        right.plot(SOLVE_RATES, push, color=shade)
        mark_top(right, push, f"G = {size}", shade)
    _, push = exact(centred, SOLVE_RATES, 64)
    right.plot(SOLVE_RATES, push, color=MUTED, ls=(0, (4, 3)))
    mark_top(right, push, "G = 64, without σ", MUTED)
    left.set(xscale="log", xlim=(1e-3, 0.5), ylim=(0, 12))
    left.set_xticks([0.001, 0.01, 0.1, 0.5], ["0.001", "0.01", "0.1", "0.5"])
    left.set(xlabel="solve rate p", ylabel="weight w(p, G)")
    right.set(xlabel="solve rate p", ylabel="E|Â| of a rollout", xlim=(0, 1), ylim=(0, 1.12))
    for line in lines[1:]:
        x, y = line.get_data()
        left.annotate(
            str(line.get_label()), (x[0], y[0]), xytext=(4, 5), textcoords="offset points",
            color=readable(line.get_color()), fontsize=9,
        )  # fmt: skip
    left.annotate(
        "1/σ: G = ∞", (0.0105, 9.9), xytext=(4, 2), textcoords="offset points", fontsize=9
    )


def mark_top(ax: Axes, push: Float[Tensor, " P"], name: str, colour: str) -> None:
    """The name of a curve above its middle."""
    ax.annotate(
        name, (0.5, push[len(push) // 2]), xytext=(0, 3), textcoords="offset points",
        ha="center", fontsize=9, color=readable(colour),
    )  # fmt: skip


# --- the KL penalty ------------------------------------------------------------------------------


def draw_coefficients(ax: Axes) -> None:
    """How hard each KL loss pulls a sampled token back, against its log-ratio to the reference."""
    d = torch.linspace(-2.5, 4, 200)
    ax.axhline(0, color=FAINT, lw=1)
    ax.axvline(0, color=FAINT, lw=1)
    ax.plot(d, -d, color=GOOD, label="k2: −d")
    ax.plot(d, (-d).exp() - 1, color=BAD, label="k3, naive: exp(−d) − 1")
    ax.set(
        xlabel=r"$d=\log\pi_\theta-\log\pi_{ref}$ of the sampled token",
        ylabel="push on log π, per β",
    )
    ax.set(xlim=(-2.5, 4), ylim=(-4.4, 11.5))
    label_lines(ax)


# --- memory --------------------------------------------------------------------------------------

MODEL_COLOURS = {"policy": "#0072B2", "critic": "#D55E00", "reference": "#8a8a8a"}


def draw_memory(ax: Axes, bars: Mapping[str, Mapping[str, StateMemory]]) -> None:
    """A bar per method: its models side by side, each as weights, gradients and moments (light)."""
    for row, models in enumerate(bars.values()):
        left = 0.0
        for model, memory in models.items():
            start, parts = left, (memory.weights, memory.gradients, memory.optimizer)
            for size, share in zip(parts, (1, 0.62, 0.36), strict=True):
                colour = np.array(to_rgb(MODEL_COLOURS[model]))
                tinted = 1 - share * (1 - colour)
                ax.barh(row, size / 1e9, left=left, color=tinted, height=0.6, ec="white", lw=0.6)
                left += size / 1e9
            if memory.total / 1e9 > 30:
                middle = (start + left) / 2
                ax.text(middle, row - 0.43, model, ha="center", fontsize=9, color=INK)
        ax.text(left + 3, row, f"{left:.0f} GB", va="center", fontsize=9)
    ax.set_yticks(range(len(bars)), list(bars))
    ax.set(ylim=(len(bars) - 0.5, -0.7), xlabel="GB of training state, without activations")
    ax.grid(axis="y", visible=False)


# --- rules learnt --------------------------------------------------------------------------------


def draw_rules(ax: Axes, run: pd.DataFrame) -> None:
    """Probability of each family's right rule (columns) after every step (rows), logarithmic."""
    for family in run.columns:
        colour = FAMILY_COLOURS[family]
        ax.plot(run.index, run[family], color=colour)
        ax.annotate(
            f"{family} ", (0, run[family].iloc[0]), ha="right", va="center", fontsize=9,
            color=readable(colour), annotation_clip=False,
        )  # fmt: skip
    ax.axhline(0.5, color=FAINT, lw=1, zorder=0)
    ax.set(yscale="log", ylim=(1.5e-3, 1.15), xlim=(0, run.index[-1]), xlabel="training step")
    ax.set_yticks([0.01, 0.1, 0.5, 1], ["0.01", "0.1", "0.5", "1"])
    ax.tick_params(labelleft=False, labelright=True)
    ax.set_ylabel("probability of the right rule", labelpad=72)  # beyond the names


def crowds(rollouts: Sequence[Rollout], n: int, sizes: Sequence[int]) -> pd.DataFrame:
    """Share of prompts for which any of k answers is right, or the most frequent one; a row per k.

    `rollouts` holds n answers of each prompt in turn. "any" is the unbiased pass@k; for "vote" the
    n answers are cut into crowds of k, so k has to divide n.
    """
    solved = np.array([r.correct for r in rollouts]).reshape(-1, n).sum(1)
    rows = {
        k: {
            "any": pass_at_k(n, solved, k).mean(),
            **majority([replace(r, group=i // k) for i, r in enumerate(rollouts)]),
        }
        for k in sizes
    }
    return pd.DataFrame.from_dict(rows, orient="index").rename(columns={"majority": "vote"})


def draw_crowds(ax: Axes, before: pd.DataFrame, after: pd.DataFrame) -> None:
    """`crowds` of the base (grey) and of the trained policy (blue): any of k, and their vote."""
    styles: dict[str, Any] = {"any": "-", "vote": (0, (3, 1.5))}
    for name, table, colour in (("base", before, MUTED), ("trained", after, colour_of("grpo"))):
        for column, style in styles.items():
            ax.plot(
                table.index, table[column], "o", ls=style, ms=4, color=colour,
                label=f"{name}: {column} of k" if column == "any" else f"{name}: vote",
            )  # fmt: skip
    ax.set(xscale="log", ylim=(0, 1), xlabel="answers per prompt, k", ylabel="share of prompts")
    ax.set_xticks(before.index, [str(k) for k in before.index])
    ax.minorticks_off()
    label_lines(ax)


def minds(run: pd.DataFrame, before: pd.DataFrame, after: pd.DataFrame) -> None:
    """Each family's right rule through a run, and any of k and the vote before it and after.

    `run` as `draw_rules` takes it, the others as `crowds` returns them. Raises `ValueError` if
    the base's vote of the largest crowd is no worse than one answer, or training does not mend it.
    """
    k = before.index[-1]
    if not before.vote[k] < before.vote[1] < after.vote[k]:
        raise ValueError(f"a vote of {k}: {before.vote[k]:.2f}, then {after.vote[k]:.2f}")
    _, (left, right) = plt.subplots(1, 2, figsize=(8.6, 3.4), width_ratios=(1.25, 1))
    draw_rules(left, run)
    passed = int((run.iloc[-1] > 0.5).sum())
    left.set_title(f"{passed} of {run.shape[1]} right rules end above one half")
    draw_crowds(right, before, after)
    right.set_title("A vote cannot mend a habit; training can")
    plt.show()


def draw_scales(
    axes: Sequence[Axes], runs: Mapping[str, pd.DataFrame], families: Sequence[str]
) -> None:
    """A panel per family: probability of its right rule under each way to pay and to divide."""
    shades = (colour_of("dr_grpo"), colour_of("remax"), colour_of("grpo"))
    for ax, family in zip(axes, families, strict=True):
        for (name, run), shade, width in zip(runs.items(), shades, (4, 1.9, 1.9), strict=True):
            faint = 0.45 if width == 4 else 1
            ax.plot(run.index, run[family], color=shade, lw=width, alpha=faint, label=name)
        ax.set(xlabel="training step", ylim=(0, 1.03), xlim=(0, None))
    axes[0].set_ylabel("probability of the right rule")
    axes[0].annotate(families[0], (0.5, 0.03), fontsize=9, color=MUTED)
    axes[1].annotate(families[1], (0.5, 0.03), fontsize=9, color=MUTED)
    axes[1].legend(loc="upper left")


def draw_gaps(ax: Axes, gap: pd.DataFrame, interval: pd.DataFrame) -> None:
    """A row per family: the difference of every pair of seeds, its mean and interval."""
    for row, family in enumerate(gap.columns):
        colour = FAMILY_COLOURS[family]
        ax.plot(gap[family], [row] * len(gap), "o", ms=4, mew=0, alpha=0.4, color=colour)
        mean, low, high = interval[family]
        ax.plot([low, high], [row, row], color=colour, lw=2.5)
        ax.plot(mean, row, "o", ms=8, color=colour, mec="white", zorder=3)
    ax.axvline(0, color=INK, lw=1)
    ax.set_yticks(range(len(gap.columns)), gap.columns)
    ax.set(ylim=(len(gap.columns) - 0.5, -0.5), xlabel="GRPO minus RLOO, steps 11 to 30")
    ax.grid(axis="y", visible=False)


# --- evidence ------------------------------------------------------------------------------------


def rare_minus_common(final: pd.DataFrame) -> Interval:
    """How much more GRPO leads RLOO on `power` and `square` than on `bracket` and `double minus`.

    Paired by seed, in pass@1 of `final`, whose rows are runs at one learning rate.
    """
    level = {name: f"pass@1_level_{at}" for at, name in enumerate(FAMILIES, 1)}
    runs = final.set_index(["arm", "seed"])
    rare, common = (runs[[level[one] for one in names]].mean(axis=1)
                    for names in (("power", "square"), ("bracket", "double minus")))  # fmt: skip
    gap = rare - common
    return t_interval((gap["GRPO"] - gap["RLOO"]).to_numpy())


def siblings_or_critic(final: pd.DataFrame) -> pd.DataFrame:
    """Held-out pass@1 of every arm, drawn; and the differences that the section tells of, a table.

    Raises `ValueError` if a critic differs from the siblings, or a mean per answer does not.
    """
    siblings, critics = "PPO's loss, siblings", ["PPO, critic, λ = 1", "PPO, critic, λ = 0.95"]
    pairs = {siblings: [*critics, "batch mean", "GRPO"], "GRPO": ["GRPO, no σ", "GRPO + KL"]}
    table = against(final, pairs)
    lost = table.loc[("GRPO", siblings)]
    found = [arm for arm in critics if table.low[arm, siblings] * table.high[arm, siblings] > 0]
    if found or lost.high >= 0:
        raise ValueError(f"critics that differ: {found}; a mean per answer: {lost['mean']:+.3f}")
    _, ax = plt.subplots(figsize=(7.2, 3))
    compare_bars(final, "pass@1", ax, within=(0, 1))
    ax.set_title(
        "Siblings or critic: no difference found.\n"
        f"A mean per answer loses {-100 * lost['mean']:.1f} points"
    )
    plt.show()
    return table


def against(final: pd.DataFrame, pairs: Mapping[str, Sequence[str]]) -> pd.DataFrame:
    """Held-out pass@1 of arms minus another, a row for each of `pairs` (minus: arms)."""
    runs = by_arm(final, "pass@1")
    found = [
        row | {"minus": minus}
        for minus, arms in pairs.items()
        for row in paired_differences(runs, minus, arms=arms)
    ]
    table = pd.DataFrame(found).set_index(["arm", "minus"])
    return table[["mean", "low", "high", "detectable"]]


# --- what a verifier gets wrong ------------------------------------------------------------------


def draw_audits(ax: Axes, audits: Mapping[str, Audit]) -> None:
    """Of each verifier, to the left what it misses, to the right what it lets pass."""
    names = list(audits)[::-1]
    missed = [100 * audits[name].false_negatives for name in names]
    passed = [100 * audits[name].false_positives for name in names]
    ax.barh(names, [-share for share in missed], color=MUTED, height=0.6)
    ax.barh(names, passed, color=BAD, height=0.6)
    for row, (left, right) in enumerate(zip(missed, passed, strict=True)):
        ax.text(-left - 1.5, row, f"{left:.0f} %", ha="right", va="center", color=INK, fontsize=8)
        ax.text(right + 1.5, row, f"{right:.0f} %", ha="left", va="center", color=INK, fontsize=8)
    ax.axvline(0, color=INK, lw=0.8)
    ax.set(xlim=(-115, 115), xticks=[])
    ax.set_xlabel("right, called wrong   ←   →   wrong, called right")


def draw_kept(ax: Axes, solved: Float[Tensor, " P"], kept: Mapping[str, Tensor]) -> None:
    """Of a prompt's gradient, what a verifier that errs leaves, against its solve rate."""
    for (name, share), colour in zip(kept.items(), (MUTED, BAD), strict=True):
        ax.plot(solved, share, color=colour, label=name)
    ax.set(xlabel="solve rate p", ylabel="share left", xlim=(0, 1), ylim=(0, 1))
    label_lines(ax)
