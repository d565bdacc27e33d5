"""Chapter 03: a batch used again, the clip over its tokens, walks, what a critic sees, claims."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, permutations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from jaxtyping import Bool, Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from rlbook.exact import FOUR
from rlbook.objectives import RatioClip, Tokens, Weights, token_ratio, weigh
from rlbook.stats.differences import paired_differences
from rlbook.tasks import SumsTask
from rlbook.training import Rollout, TrainBatch
from rlbook.viz import LivePlot
from rlbook.viz.style import BAD, FAINT, GOOD, INK, MUTED, label_lines, readable
from workshop.ch03.worlds import SLOW, Reused
from workshop.shared.evidence import WORTH, by_arm, colour_of
from workshop.shared.opening import quiet_setup as quiet_setup
from workshop.shared.schematic import chapter_map
from workshop.shared.texts import tint, token_texts
from workshop.shared.worlds.gae_walk import Walk, gae_table

ROW_CHARACTERS = 68
STEP = re.compile(r"(\d+)([+-]\d+)=(\d+)")
RUNS = {
    "plain": "reinforce",
    "weighted": "no trust region",
    "clipped": "clip 0.2",
    SLOW: "no trust region",
}
USES = ("4 passes of 4", "16 minibatches")


def opening(runs: Mapping[str, Reused], fresh: pd.DataFrame) -> None:
    """First screen: what updates on one batch raise, pass by pass, and accuracy on fresh answers.

    `fresh` has a column per run, passes as index. Raises `ValueError` where a title is not true.
    """
    _, (left, right) = plt.subplots(1, 2, figsize=(8.2, 3.2))
    for name, arm in RUNS.items():
        style, colour = ("--" if "tenth" in name else "-"), colour_of(arm)
        gains = runs[name].gains
        if min(gains[-1], gains[-1] - gains[1]) <= 0:
            raise ValueError(f"{name} has not gained on its own batch")
        left.plot(range(len(gains)), gains, style, color=colour)
        label = name.replace("weighted, a", "a")
        right.plot(fresh.index, fresh[name], "o" + style, color=colour, label=label)
    ends = fresh.iloc[-1] - fresh.iloc[0]
    if not ends["plain"] < ends["weighted"] < -0.1 < ends["clipped"] < 0.05 < ends[SLOW]:
        raise ValueError("fresh answers do not fall for two runs and rise for small steps alone")
    left.set(title="On its own batch every run gains", ylabel="mean of (ρ − 1) Â over its tokens")
    right.set(title="Fresh answers: in the end only small steps gain", ylabel="share right")
    right.set_ylim(0, 0.5)
    for ax in (left, right):
        ax.set_xlabel("passes over the same 64 answers")
    label_lines(right)
    plt.show()
    chapter_map({"advantages": "a critic's", "loss": "ratio · clip"})
    plt.show()


def sixteen_tokens(tokens: Tokens) -> pd.DataFrame:
    """The tokens A1 … D2 of the four completions: probability then and now, ratio, advantage."""
    names = [f"{name[0]}{t + 1}" for name, n in zip(FOUR.names, FOUR.lengths.tolist(), strict=True)
             for t in range(n)]  # fmt: skip
    on = FOUR.mask
    columns = {
        "π_old": FOUR.logp_old[on].exp(),
        "π_θ": FOUR.logp[on].exp(),
        "ratio": tokens.ratio[on],
        "Â": tokens.advantages[on],
    }
    return pd.DataFrame({name: column.numpy() for name, column in columns.items()}, names)


def watch(
    runs: Mapping[str, Iterator[Mapping[str, float]]],
    models: Mapping[str, object],
    total: int,
    title: str = "At 1.5e-4 the clip keeps the run alive",
) -> dict[str, list[Mapping[str, float]]]:
    """Make two runs side by side, accuracy and drift drawn as they go; the rows of each.

    Raises `ValueError` if the clip does not keep the run alive.
    """
    shades = {"with your clip": colour_of("clip 0.2"), "without": colour_of("no trust region")}
    limits = {"accuracy": (0, 0.8), "drift": (0, 0.25)}
    live = LivePlot("accuracy", "drift", title=title, colours=shades, smooth=3, limits=limits)
    live.side_by_side(runs, models, total=total)
    ends = last_three({"": live.history})["accuracy"]
    if ends["", "with your clip"] < ends["", "without"] + 0.1:
        raise ValueError("the run with a clip does not end above the one without")
    return {name: list(rows) for name, rows in live.history.items()}


def last_three(rates: Mapping[str, Mapping[str, Sequence[Mapping[str, float]]]]) -> pd.DataFrame:
    """Means over the last three batches of every run, a row per rate and run."""
    ends = {
        (rate, name): pd.DataFrame(rows).tail(3)[["accuracy", "drift", "clip fraction"]].mean()
        for rate, runs in rates.items()
        for name, rows in runs.items()
    }
    return pd.DataFrame(ends).T


@dataclass(frozen=True)
class ReuseTrace:
    """One batch and its log-probabilities as training goes on.

    `logps[k]` (N, T) belong to the policy after k passes over the batch.
    """

    batch: TrainBatch
    logps: list[Float[Tensor, "N T"]]

    @property
    def advantages(self) -> Float[Tensor, "N T"]:
        """Â of every token, (N, T)."""
        a = self.batch.advantages
        return (a if a.ndim == 2 else a[:, None]).expand(self.batch.mask.shape)

    def ratio(self, passes: int) -> Float[Tensor, "N T"]:
        """ρ of every token after so many passes, (N, T)."""
        return token_ratio(self.logps[passes], self.batch.logp_old)

    def weights(self, passes: int, region: RatioClip) -> Weights:
        """What `region` does to every token of the batch after some passes."""
        logp, batch = self.logps[passes], self.batch
        return weigh(region, Tokens.of(logp, batch.logp_old, self.advantages))


def masked_by_probability(
    trace: ReuseTrace, passes: int, edges: Sequence[float] = (0, 0.1, 0.5, 0.9, 1)
) -> pd.DataFrame:
    """Tokens whose gradient PPO's clip masks, counted by their probability when sampled.

    A column per interval of π_old: the tokens, those masked above the window and below it, and the
    extreme ratios.
    """
    batch, ratio = trace.batch, trace.ratio(passes)
    masked = ~trace.weights(passes, RatioClip(0.2, 0.2)).keep & batch.mask
    columns = {}
    for low, high in pairwise(edges):
        prob = batch.logp_old.exp()
        here = batch.mask & (prob >= low) & ((prob < high) | (high == 1))
        columns[f"{low:g} to {high:g}"] = {
            "tokens": int(here.sum()),
            "good, masked above": int((here & masked & (trace.advantages > 0)).sum()),
            "bad, masked below": int((here & masked & (trace.advantages < 0)).sum()),
            "largest ratio": f"{ratio[here].max():.2g}",
            "smallest ratio": f"{ratio[here].min():.1g}",
        }
    return pd.DataFrame(columns).rename_axis(columns="probability when sampled")


# --- walks ---------------------------------------------------------------------------------------


def draw_walk(ax: Axes, walk: Walk, seed: int = 0) -> None:
    """Every state of a walk, coloured by its value and as large as it is likely; one episode."""
    t, x = np.nonzero(walk.visits > 1e-3)
    size = 4 + 60 * walk.visits[t, x] ** 0.7
    value = walk.values[t, x]
    ax.scatter(t, x - walk.steps, s=size, c=value, cmap=WORTH, vmin=0, vmax=1, ec=MUTED, lw=0.3)
    taken = walk.episodes(1, seed)[0]
    moves = [step if walk.moves(t) else 0 for t, step in enumerate(taken)]
    ax.plot(range(walk.steps + 1), np.cumsum([0, *moves]), color=INK, lw=1.3, zorder=0)
    ax.axhline(
        walk.goal - (0.5 if walk.decisive is not None else 1), color=GOOD, lw=1, ls=(0, (4, 3))
    )
    ax.set(xlabel="step", xlim=(-0.8, walk.steps + 0.8))
    ax.grid(visible=False)


def draw_lambda(ax: Axes, walk: Walk, column: str = "shared_rmse", points: int = 51) -> pd.Series:
    """The error of a 64-episode gradient over λ, a line per critic V; the best λ, as a dot."""
    table = pd.DataFrame(gae_table(walk, lambdas=tuple(np.linspace(0, 1, points))))
    shades = dict(zip(table.critic.unique(), (GOOD, "#56B4E9", "#E69F00", MUTED), strict=True))
    best_of = {}
    for name, rows in table.groupby("critic", sort=False):
        ax.plot(rows["lambda"], rows[column], color=shades[name])
        x = 0.45 if name == "exact" else 0.03  # two lines may begin side by side
        height = np.interp(x, rows["lambda"], rows[column]) + 0.035
        ax.text(x, height, f"{name} V", color=readable(shades[name]), fontsize=9)
        best = rows.loc[rows[column].idxmin()]
        ax.plot(best["lambda"], best[column], "o", color=shades[name], ms=6, zorder=4)
        best_of[name] = best["lambda"]
    ax.set(xlabel="λ", ylim=(0, 1.1), xlim=(-0.02, 1.02))
    return pd.Series(best_of)


def walks_figure(every: Walk, one: Walk) -> Figure:
    """Two walks drawn above the error of their gradients, with one logit for all steps.

    Raises `ValueError` unless λ near 1 is best for every V in the first, and not for a good one in
    the second.
    """
    fig, axes = plt.subplots(2, 2, figsize=(7.2, 4.5), height_ratios=(1, 1.3))
    best = []
    for (above, below), walk in zip(axes.T, (every, one), strict=True):
        draw_walk(above, walk)
        best.append(draw_lambda(below, walk))
    if best[0].min() < 0.9 or best[1]["exact"] > 0.1:
        raise ValueError(f"the titles do not hold: {[table.to_dict() for table in best]}")
    axes[0, 0].set(ylabel="position", ylim=(-9.5, 12.5), title="Every step counts the same")
    axes[0, 1].set(ylim=(-4, 4), yticks=(-1, 0, 1), title=f"Step {one.decisive + 1} alone decides")
    axes[1, 0].set(ylabel="error of the gradient (RMSE)", title="λ near 1 is best for every V")
    axes[1, 1].set_title("λ near 1 wastes a good V")
    return fig


# --- what a critic sees --------------------------------------------------------------------------


def slip_of(text: str) -> tuple[int, int] | None:
    """Where in a worked sum the first wrong result stands, as (start, end); None without one."""
    for step in STEP.finditer(text):
        if int(step[1]) + int(step[2]) != int(step[3]):
            return step.span(3)
    return None


def tokens_between(texts: Sequence[str], span: tuple[int, int]) -> list[int]:
    """Indices of the tokens that begin inside a span of characters."""
    starts = np.cumsum([0, *map(len, texts)])[:-1]
    return [i for i, start in enumerate(starts) if span[0] <= start < span[1]]


def changes_of_v(
    rollout: Rollout, values: Sequence[float], tokenizer
) -> Iterator[tuple[bool, float]]:
    """Of every result in the working: whether it is right, and how V changes over its digits."""
    texts = token_texts(tokenizer, rollout)
    for step in STEP.finditer("".join(texts)):
        digits = tokens_between(texts, step.span(3))
        if digits and digits[-1] + 1 < len(values):
            change = values[digits[-1] + 1] - values[digits[0]]
            yield int(step[1]) + int(step[2]) == int(step[3]), change


def change_at_results(
    rollouts: Sequence[Rollout], judged: TrainBatch, tokenizer: PreTrainedTokenizerBase
) -> pd.DataFrame:
    """How V changes over the digits of right results and of wrong ones, and their numbers."""
    changes: list[tuple[bool, float]] = []
    for rollout, v, own in zip(rollouts, judged.values_old, judged.mask, strict=True):
        changes += changes_of_v(rollout, v[own].tolist(), tokenizer)
    by = pd.DataFrame(changes, columns=["right", "change"]).groupby("right")["change"]
    table = pd.DataFrame({"results": by.size(), "mean change of V": by.mean()})
    return table.rename({True: "right", False: "wrong"}).rename_axis("result in the working")


def explained_by(rollouts: Sequence[Rollout], task: SumsTask) -> pd.Series:
    """Share of the reward's variance that simple facts explain: the mean of those that share them.

    Every rollout is predicted from the others like it, one that has none by the mean. The facts:
    how many operands the prompt has, the strategy of the answer, and whether a result in its
    working is wrong.
    """
    rows = [
        {
            "operands": r.problem.level,
            "strategy": task.label(r.problem, r.text, not r.truncated),
            "slip": slip_of(r.text) is not None,
            "reward": r.reward,
        }
        for r in rollouts
    ]
    table, explained = pd.DataFrame(rows), {}
    for facts in (["operands"], ["operands", "strategy"], ["operands", "strategy", "slip"]):
        alike = table.groupby(facts)["reward"]
        others = (alike.transform("sum") - table.reward) / (alike.transform("size") - 1)
        error = (table.reward - others.fillna(table.reward.mean())).var(ddof=0)
        explained[", ".join(facts)] = 1 - error / table.reward.var(ddof=0)
    return pd.Series(explained)


def draw_values(ax: Axes, texts: Sequence[str], values: Sequence[float], reward: float) -> None:
    """An answer, each token in the colour of V once it is read; above it δ, V's change, as a bar.

    `values`: V before each token. The first wrong result is framed.
    """
    starts = np.cumsum([0, *map(len, texts)])
    after = [*values[1:], reward]
    ax.text(-1, 0, f"V = {values[0]:.2f}", ha="right", va="center", fontsize=8.5)
    ax.text(-1, 1.1, "δ", ha="right", va="center", fontsize=8.5)
    ax.plot([0, starts[-1]], [1.1, 1.1], color=MUTED, lw=0.6, zorder=0)
    for x, text, before, now in zip(starts, texts, values, after, strict=False):
        box = {"fc": tint(2 * now - 1) or "white", "ec": FAINT, "lw": 0.5}
        ax.add_patch(Rectangle((x + 0.06, -0.42), len(text) - 0.12, 0.84, **box))
        for offset, character in enumerate(text):
            style = {"family": "monospace", "fontsize": 7.2, "ha": "center", "va": "center"}
            ax.text(x + offset + 0.5, 0, character, **style)
        colour, rise = (GOOD if now > before else BAD), 0.6 * (now - before)
        ax.add_patch(Rectangle((x + 0.2, 1.1), len(text) - 0.4, rise, color=colour))
    if span := slip_of("".join(texts)):
        slip = tokens_between(texts, span)
        left, right = starts[slip[0]], starts[slip[-1] + 1]
        frame = {"fill": False, "ec": INK, "lw": 1.6}
        ax.add_patch(Rectangle((left - 0.1, -0.55), right - left + 0.2, 1.1, **frame))
    ax.set(xlim=(-9, max(starts[-1], ROW_CHARACTERS) + 0.5), ylim=(-0.7, 1.8))
    ax.axis("off")


def values_figure(
    rollouts: Sequence[Rollout], values: Float[Tensor, "N T"], mask: Bool[Tensor, "N T"], tokenizer
) -> Figure:
    """A right answer and one with a slip, to one prompt, as a critic sees them."""
    fig, axes = plt.subplots(2, 1, figsize=(8.2, 2.6))
    for ax, row in zip(axes, typical_pair(rollouts), strict=True):
        rollout = rollouts[row]
        texts = token_texts(tokenizer, rollout)
        draw_values(ax, texts, values[row][mask[row]].tolist(), rollout.reward)
        verdict = "right" if rollout.correct else "wrong"
        ax.set_title(f"{rollout.problem.prompt}  {verdict}", fontsize=9.5, pad=2)
    return fig


def typical_pair(rollouts: Sequence[Rollout], longest: int = ROW_CHARACTERS) -> list[int]:
    """A right answer and one with a slip, to one prompt and as long as fits a line.

    Raises `ValueError` if no prompt has such a pair.
    """
    fits = [i for i, r in enumerate(rollouts) if len(r.text) <= longest and STEP.search(r.text)]
    pairs = [
        (i, j)
        for i, j in permutations(fits, 2)
        if rollouts[i].group == rollouts[j].group
        and rollouts[i].correct
        and slip_of(rollouts[j].text)
        and not rollouts[j].correct
    ]
    if not pairs:
        raise ValueError("no prompt with a right answer and one with a slip: sample more")
    return list(max(pairs, key=lambda pair: len(rollouts[pair[1]].text)))


# --- claims --------------------------------------------------------------------------------------


def reuse_differences(final: pd.DataFrame) -> pd.DataFrame:
    """Arms of `reuse` beside one update, without a clip beside with it, minibatches beside passes:
    paired by seed, with the interval and the difference that would have been found."""
    runs = by_arm(final, "pass@1")
    against = {"one update": [arm for arm in runs if arm != "one update"]}
    against |= {f"{use}, no trust region": [f"{use}, clip 0.2"] for use in USES}
    against[f"{USES[1]}, clip 0.2"] = [f"{USES[0]}, clip 0.2"]
    rows = [
        row | {"minus": minus}
        for minus, arms in against.items()
        for row in paired_differences(runs, minus, arms=arms)
    ]
    table = pd.DataFrame(rows).set_index(["arm", "minus"])
    return table[["mean", "low", "high", "detectable"]]
