"""Chapter 08: how far a rare token may go, and whom a length limit blames."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlbook.evaluation import held_out_rollouts
from rlbook.exact import FOUR
from rlbook.objectives import (
    NoTrustRegion,
    RatioClip,
    Tokens,
    group_normalize,
    weigh,
)
from rlbook.objectives import overlong_penalty as ramp
from rlbook.stats import t_interval
from rlbook.tasks import SumsTask
from rlbook.viz import LivePlot
from rlbook.viz.style import BAD, FAINT, GOOD, INK, MUTED, label_lines
from workshop.shared.evidence import ARM_COLOURS
from workshop.shared.evidence import draw_openings as draw_openings
from workshop.shared.explorer import Explorer, choice, slider
from workshop.shared.schematic import chapter_map as chapter_map
from workshop.shared.schematic import schematic
from workshop.shared.worlds.batch_reuse import ReuseRun, rare_token_world, reuse_batches
from workshop.shared.worlds.in_turn import token_frame as token_frame
from workshop.shared.worlds.in_turn import tokens_in_turn as tokens_in_turn

CLIPS = {
    "no clip": ARM_COLOURS["no trust region"],
    "0.2": ARM_COLOURS["clip 0.2"],
    "0.25": "#E69F00",
    "0.28": ARM_COLOURS["clip-higher 0.28"],
    "0.4": "#56B4E9",
}
BATCHES = 30
SHOWN = 4  # runs drawn in a fan


REGIONS = {"no trust region": "no clip", "clip-higher 0.28": "0.28", "clip 0.2": "0.2"}
PAID = {"GRPO": "GRPO", "GRPO, twice the batches": "twice the batches"}
PAID |= {"+ dynamic sampling": "dynamic sampling"}


def opening(runs: Mapping[str, ReuseRun], world: tuple[Tensor, Tensor], clip: RatioClip) -> None:
    """The first screen: a good, rare token with a clip and without, and where its edges are.

    Left the probability of the good token, batch after batch; right the first batch under `clip`.
    """
    _, (left, right) = plt.subplots(1, 2, figsize=(8.8, 3.2), width_ratios=(1, 1.4))
    until = {name: runs[name].batches_until(0) for name in ("0.2", "no clip")}
    for name in until:
        left.plot(runs[name].probs[:, 0], color=CLIPS[name], label=name)
    left.set(title=f"{until['0.2']} batches instead of {until['no clip']}")
    left.set(xlabel="batches of 16 updates", ylabel="probability of the good token")
    label_lines(left)
    draw_positions(right, world, clip, {"good, rare": 0, "dominant": 1, "any other": 2})
    masked = runs["0.2"].masked[0]
    if masked[0] < 0.5 or masked[1:].any():
        raise ValueError(f"not only the good token is masked: {masked.tolist()}")
    right.set_title("Only the good token meets an edge")
    plt.show()


History = Mapping[str, Sequence[Mapping[str, float]]]  # metrics of each run, step by step


def watch(
    runs: Mapping[str, Any],
    finding: Callable[[History], str],
    *metrics: str,
    total: int | None = None,
) -> History:
    """Draw metrics of several runs as they go, and return all of them.

    `finding` gives the title when all have ended, or raises where the runs say something else.
    """
    live = LivePlot(*metrics, colours=ARM_COLOURS | CLIPS, smooth=1 if total else 2)
    live.side_by_side(runs, total=total)
    live.title = finding(live.history)
    live.close()
    return live.history


def in_order(history: History) -> str:
    """A finding: the wider the window, the higher the mean reward over all batches."""
    mean = {name: sum(row["mean reward"] for row in rows) for name, rows in history.items()}
    if not mean["no clip"] > mean["0.28"] > mean["0.2"]:
        raise ValueError(f"the runs are not in the order of their windows: {mean}")
    return "The wider the window, the sooner the rare opening is common"


def only_the_ramp(history: History) -> str:
    """A finding: under the ramp most answers come at once, under cliff and filter they do not."""
    ends = {rule: rows[-1].get("share_direct", 0.0) for rule, rows in history.items()}
    if not ends["ramp"] > 0.5 > max(ends["cliff"], ends["filter"]):
        raise ValueError(f"not the ramp alone answers at once: {ends}")
    return "Under the ramp the policy answers at once; without it it goes on working"


def by_hand(penalty: Tensor, advantages: Tensor) -> None:
    """The four completions through all of DAPO, in the seven boxes of a training step."""
    shaped = zip(FOUR.rewards, penalty, strict=True)
    pairs = zip(FOUR.lengths, advantages, strict=True)
    columns = {
        "answers": [f"{n} tokens" for n in FOUR.lengths],
        "verdicts": ["right" if r else "wrong" for r in FOUR.rewards],
        "rewards": [f"{2 * r - 1:+g} {p + 0.0:+g}" for r, p in shaped],
        "advantages": [f"{a:+.2f}" for a in advantages],
        "loss": [f"{n}/16 × {a:+.2f}" for n, a in pairs],
    }
    notes = {"verdicts": "group filter", "rewards": "±1, ramp", "loss": "window, token mean"}
    title = "Four repairs; and because C is long, D is blamed less"
    schematic(title, {*notes}, columns, notes)
    plt.show()


def push_on_care(
    policy: tuple[PreTrainedModel, PreTrainedTokenizerBase],
    limit: int,
    levels: Sequence[int] = (4, 5, 6, 7),
    prompts: int = 96,
    n: int = 16,
) -> pd.DataFrame:
    """Push on the choice to think at all, under cliff, ramp and filter, before any training.

    E[m Â (1{thinks} − π(thinks))] per prompt, with GRPO's Â in groups of n answers of at most
    `limit` tokens; m is 0 for what the filter leaves out. A row per rule, its mean over prompts
    with Student's t interval.
    """
    asked = held_out_rollouts(policy, SumsTask(), prompts, n, levels, max_new_tokens=limit)
    thinks = torch.tensor([not r.text.startswith("<think></think>") for r in asked]).double()
    arrived = torch.tensor([not r.truncated for r in asked])
    verdict = torch.tensor([2.0 * r.correct - 1 for r in asked]).double()
    punished = verdict + ramp(torch.tensor([r.length for r in asked]), limit, limit // 5)
    groups = torch.arange(prompts).repeat_interleave(n)
    care = thinks - thinks.reshape(prompts, n).mean(1)[groups]  # ∇ log π of that decision
    rules = {"cliff": (verdict, 1), "ramp": (punished, 1), "filter": (verdict, arrived)}
    rows = {}
    for name, (rewards, trained) in rules.items():
        push = trained * group_normalize(rewards, groups) * care
        rows[name] = t_interval(push.reshape(prompts, n).mean(1).numpy())
    return pd.DataFrame(rows, index=["push", "low", "high"]).T


def named(runs: pd.DataFrame, names: Mapping[str, str]) -> pd.DataFrame:
    """The runs of some arms, in that order and by those names."""
    return pd.concat([runs[runs["arm"] == arm].assign(arm=name) for arm, name in names.items()])


def rare_explorer(rare: float = 0.01, eps_high: float = 0.28, updates: int = 16) -> Explorer:
    """The world of section 1: one batch from the inside, then batch after batch."""
    return Explorer(
        rare_figure,
        hint="4 updates: nothing is clipped. Then 32, then 8 with ε_high above ½.",
        figsize=(7.6, 3.5),
        rare=choice({"0.1 %": 0.001, "1 %": 0.01, "5 %": 0.05}, rare, label="good token at"),
        eps_high=slider(0.05, 1.0, eps_high, 0.01, label="ε_high"),
        updates=slider(1, 32, updates, 1, label="updates per batch"),
    )


def rare_figure(fig: Figure, rare: float, eps_high: float, updates: int) -> None:
    """Ratio of the rare token within the first batch (left), its probability per batch (right)."""
    world = rare_token_world(rare)
    regions = {
        "no clip": NoTrustRegion(),
        "0.2": RatioClip(0.2, 0.2),
        "yours": RatioClip(0.2, eps_high),
    }
    colours = CLIPS | {"yours": ARM_COLOURS["DAPO"]}
    batches = min(4 * BATCHES, max(BATCHES, 480 // updates))  # enough for the good token to win
    left, right = fig.subplots(1, 2)
    for name, region in regions.items():
        inside = [
            reuse_batches(*world, region, 1, updates=k).probs[-1, 0] for k in range(updates + 1)
        ]
        left.plot([p / rare for p in inside], "o-", ms=3, color=colours[name], label=name)
        run = reuse_batches(*world, region, batches, updates)
        right.plot(run.probs[: BATCHES + 1, 0], color=colours[name], label=name)
    for eps, name in ((0.2, "0.2"), (eps_high, "yours")):
        left.axhline(1 + eps, color=colours[name], lw=0.9, ls=(0, (4, 3)))
    left.set(xlabel="updates on the first batch", ylabel="ratio of the good token")
    left.set(yscale="log", xlim=(0, max(updates, 4) * 1.02), ylim=(0.93, 7))
    left.set_yticks((1, 1.2, 1.5, 2, 3, 5), (1, 1.2, 1.5, 2, 3, 5))
    left.set_yticks([], minor=True)
    left.xaxis.get_major_locator().set_params(integer=True)
    label_lines(left)
    masked, grown = run.masked[0, 0].item(), inside[-1] / rare  # the last region is yours
    left.set_title(f"ε_high {eps_high:.2f}: grows ×{grown:.2f}, {masked:.0%} masked")
    right.set(xlabel="batches", ylabel="probability of the good token", ylim=(-0.02, 1.02))
    half = run.batches_until(0)
    right.set_title(f"Past ½ after {half} batches" if half else f"Not past ½ in {batches} batches")
    right.axhline(0.5, color=FAINT, lw=1, zorder=0)


def draw_positions(
    ax: Axes,
    world: tuple[Float[Tensor, " K"], Float[Tensor, " K"]],
    region: RatioClip,
    names: Mapping[str, int],
    updates: int = 16,
) -> None:
    """Where named tokens stand after each update of one batch, over the window each may move in.

    Across: π_θ / π_old. Hollow dots have lost their gradient; hatched is what no probability can
    reach.
    """
    probs, rewards = world
    walked = torch.stack(
        [reuse_batches(probs, rewards, region, 1, updates=k).probs[-1] for k in range(updates + 1)]
    )
    advantages = (rewards - probs @ rewards).expand_as(walked)
    ratio, old = walked / probs, probs.log().expand_as(walked)
    keep = weigh(region, Tokens.of(walked.log(), old, advantages)).keep
    low, high = 1 - region.low, 1 + region.high
    for row, token in enumerate(names.values()):
        p, colour = float(probs[token]), (GOOD if advantages[0, token] > 0 else BAD)
        end = min(high, 1 / p)
        ax.plot([low, end], [row, row], color=FAINT, lw=15, solid_capstyle="butt", zorder=0)
        if end < high:
            ax.fill_betweenx(
                [row - 0.26, row + 0.26], end, 1.36, fc="white", ec="#b9b9b9", hatch="////", lw=0
            )
        for step in range(updates + 1):
            face = colour if keep[step, token] else "white"
            ax.plot(float(ratio[step, token]), row, "o", ms=5, mfc=face, mec=colour, zorder=4)
        edges = [(low, f"{low * p:.2g}"), (1.0, f"{p:.2g}"), (end, f"{end * p:.2g}")]
        for x, text in edges:
            ax.text(x, row + 0.33, text, fontsize=8, color=MUTED, ha="center", va="top")
    ax.set_yticks(range(len(names)), list(names))
    ax.set(ylim=(len(names) - 0.3, -0.5), xlim=(low - 0.04, 1.36))
    ax.set_xlabel(r"$\pi_\theta$ over $\pi_{old}$, below each bar $\pi_\theta$ itself")
    ax.grid(axis="y", visible=False)


def draw_fans(
    axes: Sequence[Axes], entropies: Mapping[str, Float[Tensor, "B1 R"]], start: float
) -> None:
    """A panel per arm: the mean as a thick line, some runs as thin ones, four in five as a band."""
    for ax, (name, runs) in zip(axes, entropies.items(), strict=True):
        ax.axhline(start, color=INK, lw=0.9, ls=(0, (4, 3)))
        low, high = runs.quantile(torch.tensor([0.1, 0.9], dtype=runs.dtype), dim=1)
        ax.fill_between(range(len(runs)), low, high, color=CLIPS[name], alpha=0.16, lw=0)
        ax.plot(runs[:, :SHOWN], color=CLIPS[name], lw=0.6, alpha=0.4)
        ax.plot(runs.mean(1), color=CLIPS[name], lw=2.6)
        ax.set(xlabel="batches", ylim=(0, 2.35), xlim=(0, len(runs) - 1))
        ax.set_title(f"{name}: ends at {runs[-1].mean():.2f}", fontsize=10)
    axes[0].set_ylabel("entropy, nats")


def draw_pushes(
    axes: Sequence[Axes], cut: Sequence[float], pushes: Mapping[str, torch.Tensor]
) -> None:
    """Push on the choice of the careful way, and on stopping there, against the share cut off.

    `pushes` holds a (len(cut), 2) tensor per rule.
    """
    titles = ("Take the careful way?", "Stop earlier there?")
    for column, (ax, title) in enumerate(zip(axes, titles, strict=True)):
        ax.axhline(0, color=INK, lw=0.9)
        for name, values in pushes.items():
            ax.plot(cut, values[:, column], color=ARM_COLOURS[name], label=name)
        ax.set(title=title, xlabel="share of careful answers cut off", xlim=(0, 1))
        label_lines(ax)
    axes[0].set_ylabel("expected push on the logit")
