"""Chapter 11: which tokens a ratio stops and which a divergence stops, and the family of masks."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from rlbook.objectives import (
    DivergenceMask,
    DivergencePenalty,
    NoTrustRegion,
    RatioClip,
    Region,
    SamplerCorrection,
    SequenceGamma,
    SequenceMask,
    SoftGate,
    TaperedWeight,
    Tokens,
    WeightClip,
    weigh,
)
from rlbook.policy import Sampler, load_policy
from rlbook.stats import t_interval
from rlbook.tasks import held_out_problems
from rlbook.training import Trainer, collect_rollouts
from rlbook.viz import LivePlot
from rlbook.viz.style import (
    BAD,
    FAINT,
    GOOD,
    INK,
    METHOD_COLOURS,
    MUTED,
    label_lines,
    readable,
    use_style,
)
from workshop.ch11.mismatch_bandit import Anchor, BanditRun, mismatch_bandit
from workshop.ch11.worlds import Moved
from workshop.shared import texts
from workshop.shared.evidence import ARM_COLOURS, compare_bars, learning_curves
from workshop.shared.explorer import Explorer, choice, slider
from workshop.shared.masks import MASKS, Mask
from workshop.shared.masks import mask_atlas as mask_atlas
from workshop.shared.masks import mask_lab as mask_lab
from workshop.shared.schematic import chapter_map

CLIP, DPPO, BOTH = METHOD_COLOURS["dapo"], METHOD_COLOURS["dppo"], "#8a4b2f"
PROBS, RATIOS = (5e-4, 0.9995), (0.02, 50.0)
PROB_TICKS = (0.001, 0.01, 0.1, 0.5, 0.9, 0.99)


def stopped(
    region: Region,
    logp: Float[Tensor, "..."],
    logp_old: Float[Tensor, "..."],
    advantages: Float[Tensor, "..."],
) -> Bool[Tensor, "..."]:
    """Tokens with an advantage whose gradient `region` takes away."""
    keep = weigh(region, Tokens.of(logp, logp_old, advantages)).keep
    return ~keep & (advantages != 0)


LOW, HIGH, RARE = 0.8, 1.28, 0.1  # DAPO's window, and the tokens that we call rare


def opening(tokens: Mapping[str, Moved]) -> None:
    """First screen: ratios of a fine and of a rough copy before any update, and the map.

    Raises `ValueError` if the rough copy does not send a quarter of its rare tokens outside.
    """
    use_style()
    _, axes = plt.subplots(1, len(tokens), figsize=(8.8, 3.1), sharey=True)
    for ax, (name, (logp, log_mu, _)) in zip(axes, tokens.items(), strict=True):
        mu, ratio = log_mu.exp(), (logp - log_mu).exp()
        outside = (ratio < LOW) | (ratio > HIGH)
        share = outside[mu < RARE].double().mean().item()
        draw_window(ax, mu, ratio, outside)
        ax.set_title(f"{name}: {share:.0%} of the rare tokens outside")
    if share < 0.25:
        raise ValueError(f"{name}: only {share:.0%} of the rare tokens have left the window")
    axes[0].set_ylabel("ratio π/μ")
    axes[1].legend(loc="upper left", handletextpad=0.1)
    chapter_map({"answers": "by a rough copy", "loss": "how far, from where"})
    plt.show()


def draw_window(ax: Axes, mu: Tensor, ratio: Tensor, outside: Tensor) -> None:
    """A dot per token, its probability when sampled against its ratio; the window as a band."""
    ax.axhspan(LOW, HIGH, color=CLIP, alpha=0.12, lw=0)
    for part, colour, name in ((~outside, MUTED, "inside"), (outside, CLIP, "outside")):
        ax.plot(mu[part], ratio[part], "o", ms=3, mew=0, alpha=0.5, color=colour, label=name)
    ax.set(xscale="log", yscale="log", xlabel=r"probability when sampled, $\mu$", ylim=(0.3, 3))
    ax.set_yticks([0.5, LOW, 1, HIGH, 2], ["0.5", f"{LOW:g}", "1", f"{HIGH:g}", "2"])
    ax.minorticks_off()


HELD_COLOURS = {
    "clip at μ": BAD,
    "your mask at μ": METHOD_COLOURS["dppo"],
    "clip at π_old": METHOD_COLOURS["dapo"],
}
AGED_COLOURS = {
    "no region": ARM_COLOURS["no trust region"],
    "CISPO": METHOD_COLOURS["cispo"],
    "clip at μ": BAD,
    "clip at π_old": METHOD_COLOURS["dapo"],
    "DPPO": METHOD_COLOURS["dppo"],
}


def watch(runs: Mapping[str, Trainer]) -> dict[str, list[float]]:
    """Draw accuracy and clip fraction of runs as they go; the accuracies, batch by batch.

    Raises `ValueError` if the clip at μ does not end last.
    """
    live = LivePlot("accuracy", "clip_fraction", colours=HELD_COLOURS, smooth=3)
    live.side_by_side(runs)
    accuracy = {name: [row["accuracy"] for row in rows] for name, rows in live.history.items()}
    ends = {name: late(values) for name, values in accuracy.items()}
    if min(ends, key=lambda name: ends[name]) != "clip at μ":
        raise ValueError(f"the clip at μ does not end last: {ends}")
    live.title = "A rough sampler: the clip at μ ends last"
    live.close()
    return accuracy


def late(accuracy: Sequence[float]) -> float:
    """Mean over a run's last three batches."""
    return sum(accuracy[-3:]) / 3


def before_after(run: Trainer) -> texts.TextPanel:
    """Three answers of the base and of a trained policy to one held-out sum of three operands."""
    base, tokenizer = load_policy("tiny")
    problems = held_out_problems(run.task, 1, levels=(3,))
    was, now = (
        collect_rollouts(
            Sampler(model, tokenizer.eos_token_id), tokenizer, run.task, problems, 3, seed=2
        )
        for model in (base, run.model)
    )
    change = texts.log_prob_change(was, base, run.model)
    name = "change of log π"
    return texts.before_after(problems[0], was, now, change, tokenizer, push_name=name)


def regions(ends: Mapping[str, pd.DataFrame]) -> None:
    """Held-out pass@1 of five trust regions, a panel per world; dots are seeds (`claims.ends`).

    Raises `ValueError` if a rough sampler does not leave the clip at μ last.
    """
    if (means := ends["rough"].mean()).idxmin() != "clip at μ":
        raise ValueError(f"the clip at μ is not last with a rough sampler: {means.to_dict()}")
    fig, axes = plt.subplots(1, len(ends), figsize=(10, 2.4), sharey=True)
    for ax, (world, table) in zip(axes, ends.items(), strict=True):
        runs = table.melt(var_name="arm", value_name="pass@1")
        compare_bars(runs, "pass@1", ax, arms=list(AGED_COLOURS), colours=AGED_COLOURS)
        ax.set(xlim=(0.3, 0.85), xlabel="pass@1")
        ax.set_title(world, fontsize=10)
    title = "A rough sampler breaks a ratio clip that is held to it"
    fig.suptitle(title, x=0.01, ha="left", weight="bold")
    plt.show()


def divergence_explorer(batches: Mapping[str, Moved]) -> Explorer:
    """The clip of DAPO against DPPO's mask, over tokens (log π_θ, log μ, A) of named batches."""
    tokens = choice({name: name for name in batches}, label="tokens")

    def draw(fig: Figure, tokens: str, kind: str, delta: float) -> None:
        divergence_figure(fig, batches[tokens], kind, delta)

    return Explorer(
        draw,
        hint="lower δ until DPPO stops as many tokens as the clip: they are not the same ones. "
        "Then switch to kl, with δ near 0.05.",
        figsize=(7.6, 4.4),
        tokens=tokens,
        kind=choice(["tv", "kl"], label="divergence"),
        delta=slider(0.01, 0.5, 0.15, 0.01, label="δ"),
    )


def divergence_figure(fig: Figure, moved: Moved, kind: str, delta: float) -> None:
    """Probability when sampled against the ratio, one panel per sign of the advantage."""
    fig.set_layout_engine("none")
    clip, mask = RatioClip(0.2, 0.28), DivergenceMask(kind, delta, delta)
    logp, logp_old, advantages = moved
    for left, sign in ((0.085, 1), (0.55, -1)):
        ax = fig.add_axes((left, 0.125, 0.435, 0.68))
        shade(ax, clip, mask, sign)
        chosen = advantages * sign > 0
        here = logp[chosen], logp_old[chosen], advantages[chosen]
        draw_tokens(ax, *here, stopped(clip, *here), stopped(mask, *here))
        ax.set(xscale="logit", yscale="log", xlim=PROBS, ylim=RATIOS, xlabel=r"probability $\mu$")
        ax.set_yticks([0.02, 0.1, 0.5, 1, 2, 10, 50], ["0.02", "0.1", "0.5", "1", "2", "10", "50"])
        ax.set_xticks(PROB_TICKS, [f"{p:g}" for p in PROB_TICKS])
        ax.minorticks_off()
        ax.set_title(f"A {'>' if sign > 0 else '<'} 0, {int(chosen.sum())} tokens", fontsize=10)
        if sign > 0:
            ax.set_ylabel(r"ratio $\pi_\theta/\mu$")
        else:
            ax.tick_params(labelleft=False)
    headline(fig, stopped(clip, *moved), stopped(mask, *moved))


def shade(ax: Axes, clip: Region, mask: Region, sign: int) -> None:
    """Colour the plane by who stops a token there; grey is where π_θ would exceed 1."""
    x = torch.linspace(*torch.tensor(PROBS).logit(), 300).sigmoid().log()
    y = torch.linspace(*torch.tensor(RATIOS).log(), 300)
    y, x = torch.meshgrid(y, x, indexing="ij")
    advantage = torch.full_like(x, float(sign))
    by_clip = stopped(clip, x + y, x, advantage)
    by_mask = stopped(mask, (x + y).clamp(max=0), x, advantage) & (x + y <= 0)
    edges = x.exp().numpy(), y.exp().numpy()
    for part, colour in (
        (by_clip & ~by_mask, CLIP),
        (by_mask & ~by_clip, DPPO),
        (by_clip & by_mask, BOTH),
    ):
        part = part & (x + y <= 0)
        ax.contourf(*edges, part.float().numpy(), levels=[0.5, 1.5], colors=[colour], alpha=0.17)
    impossible = (x + y > 0).float().numpy()
    ax.contourf(*edges, impossible, levels=[0.5, 1.5], colors=["#eeeeee"])
    ax.axhline(1, color=FAINT, lw=1, zorder=1)
    ax.text(0.97, 0.94, "π > 1", transform=ax.transAxes, color=MUTED, fontsize=9, ha="right")


def draw_tokens(ax: Axes, logp, logp_old, advantages, by_clip, by_mask) -> None:
    """A point per token, in the colour of what stops it."""
    ratio = (logp - logp_old).exp().clamp(*RATIOS)
    for part, colour, size in (
        (~by_clip & ~by_mask, MUTED, 6),
        (by_clip & ~by_mask, CLIP, 16),
        (by_clip & by_mask, BOTH, 16),
        (by_mask & ~by_clip, DPPO, 22),
    ):
        x = logp_old[part].exp().clamp(*PROBS)
        ax.scatter(x, ratio[part], s=size, color=colour, alpha=0.6, lw=0, zorder=3)


def headline(fig: Figure, by_clip, by_mask) -> None:
    """Counts, each in its colour."""
    parts = (
        (f"clip only: {int((by_clip & ~by_mask).sum())}", CLIP),
        (f"both: {int((by_clip & by_mask).sum())}", BOTH),
        (f"DPPO only: {int((by_mask & ~by_clip).sum())}", DPPO),
    )
    fig.text(0.085, 0.93, "Stopped by", fontsize=11, weight="bold", color=INK)
    for x, (text, colour) in zip((0.225, 0.40, 0.52), parts, strict=True):
        fig.text(x, 0.93, text, fontsize=11, weight="bold", color=readable(colour))


RELAXED = MappingProxyType(
    {"Relax-low": "#CC79A7", "Relax-high": "#E69F00", "Relax-both": "#a35200"}
)
RARE_COLOURS = MappingProxyType({**ARM_COLOURS, **RELAXED})


def draw_openings(axes: Sequence[Axes], steps: pd.DataFrame) -> None:
    """One panel per learning rate: the probability of the rare opening after each batch."""
    for ax, (lr, rows) in zip(axes, steps.groupby("lr"), strict=True):
        learning_curves(rows, "opens_rarely", ax)
        ax.axhline(0.5, color=FAINT, lw=1, zorder=0)
        ax.set(title=f"learning rate {lr:g}", xlabel="batches", ylabel="", ylim=(0, 1))
    axes[0].set_ylabel('P(opens with "check ")')


PLACES: Sequence[tuple[str, Anchor, Anchor, str, str]] = (
    ("mask and weight at μ", "sampler", "sampler", "#332288", "-"),
    ("mask at μ, weight at π_old", "sampler", "trainer", "#8a7fc7", ":"),
    ("mask at π_old, weight at μ", "trainer", "sampler", "#1a7f5a", "-"),
    ("mask and weight at π_old", "trainer", "trainer", "#c98a1b", "--"),
)
RATES = (0.0625, 0.125, 0.25, 0.5, 1.0, 2.0)


def compare_places(regions: Mapping[str, Region], rates: Sequence[float] = RATES) -> pd.DataFrame:
    """Every place of mask and weight, under an error that is new or lasts: a row per run."""
    rows = []
    for name, region in regions.items():
        for lasting in (False, True):
            for place, mask_at, weight_at, *_ in PLACES:
                for lr in rates:
                    run = mismatch_bandit(region, lr, mask_at, weight_at, lasting=lasting)
                    rows += rows_of(run, region=name, lasting=lasting, place=place, lr=lr)
    return pd.DataFrame(rows)


def rows_of(run: BanditRun, **setting: object) -> Iterator[dict[str, object]]:
    """One row a seed of a run of the bandit, with what was set."""
    shared = {"correlation": run.correlation, "masked": run.masked, "fell": run.fell}
    for seed, best in enumerate(run.best.tolist()):
        yield setting | {"seed": seed, "best": best} | shared


SHARED: Mapping[str, bool] = MappingProxyType({"sharex": True, "sharey": True, "squeeze": False})


def draw_places(runs: pd.DataFrame) -> Figure:
    """Rows: the region. Columns: the sampler's error is drawn anew, or lasts. Mean and interval."""
    regions = list(runs["region"].unique())
    fig, axes = plt.subplots(len(regions), 2, figsize=(7.8, 2.4 * len(regions) + 0.4), **SHARED)
    fig.suptitle(
        "Masks do better at π_old; at large steps DPPO's weight must be at μ", weight="bold"
    )
    for line, region in zip(axes, regions, strict=True):
        for ax, lasting in zip(line, (False, True), strict=True):
            part = runs[(runs["region"] == region) & (runs["lasting"] == lasting)]
            draw_rates(ax, part)
            ax.set_title(f"{region}, {'lasting' if lasting else 'new'} errors", fontsize=10)
        line[0].set_ylabel("P(best arm) at the end")
        label_lines(line[1], gap=13)
    for ax in axes[-1]:
        ax.set_xlabel("learning rate")
    return fig


def draw_rates(ax: Axes, runs: pd.DataFrame) -> None:
    """The best answer's share over the learning rate, with 95 % intervals over seeds."""
    for place, _, _, colour, style in PLACES:
        table = runs[runs["place"] == place].pivot(index="seed", columns="lr", values="best")
        mean, low, high = t_interval(table.to_numpy())
        ax.fill_between(table.columns, low, high, color=colour, alpha=0.15, lw=0)
        ax.plot(table.columns, mean, style, color=colour, label=place)
    rates = sorted(runs["lr"].unique())
    ax.set_xscale("log", base=2)
    ax.set_xticks(rates, [f"{rate:.3g}" for rate in rates])
    ax.set(ylim=(0, 1))


NOISES = (0.03, 0.07, 0.15, 0.3)


def mask_gaps(
    regions: Mapping[str, Region],
    noises: Sequence[float] = NOISES,
    rates: Sequence[float] = (0.125, 0.25, 0.5, 1.0),
) -> pd.DataFrame:
    """P(best arm) with the mask at π_old minus at μ, over how rough the sampler is.

    Errors last, the weight is at μ, each place has its own best rate; the mean over seeds and its
    95 % interval. `correlation` is that of μ and π_old in the run whose mask is at μ.
    """
    rows = []
    for noise in noises:
        for name, region in regions.items():
            at_mu, at_old = (
                max(
                    (
                        mismatch_bandit(region, lr, place, "sampler", noise, lasting=True)
                        for lr in rates
                    ),
                    key=lambda run: run.best.mean().item(),
                )
                for place in ("sampler", "trainer")
            )
            mean, low, high = t_interval((at_old.best - at_mu.best).numpy())
            row = {"rounding": noise, "region": name, "correlation": at_mu.correlation}
            rows.append(row | {"lost at μ": mean, "low": low, "high": high})
    return pd.DataFrame(rows).set_index(["region", "rounding"]).sort_index()


def best_of_each(runs: pd.DataFrame) -> pd.DataFrame:
    """Every place at its own best learning rate: P(best arm), and the rate in brackets."""
    means = runs.groupby(["region", "lasting", "place", "lr"], sort=False)["best"].mean()
    table = means.reset_index()
    best = table.loc[table.groupby(["region", "lasting", "place"], sort=False)["best"].idxmax()]
    text = [f"{row.best:.2f} ({row.lr:.3g})" for row in best.itertuples()]
    error = best["lasting"].map({False: "error new each batch", True: "error lasts"})
    return best.assign(text=text, error=error).pivot(
        index=["region", "place"], columns="error", values="text"
    )


DPPO_TV = DivergenceMask("tv", 0.15, 0.15)
# name, region, what its ratio is the ratio of
FAMILY: Sequence[tuple[str, Region, str]] = (
    ("no mask", NoTrustRegion(), "token"),
    ("PPO", RatioClip(0.2, 0.2), "token"),
    ("dual clip", RatioClip(0.2, 0.2, dual=3.0), "token"),
    ("DAPO", RatioClip(0.2, 0.28), "token"),
    ("CISPO", WeightClip(max=5.0), "token"),
    ("TOPR", TaperedWeight(), "token or answer"),
    ("SAPO", SoftGate(), "token"),
    ("DPPO-TV", DPPO_TV, "token"),
    ("DPPO-KL", DivergenceMask("kl", 0.05, 0.05), "token"),
    ("DRPO", DivergencePenalty(0.15), "token"),
    ("GSPO", RatioClip(3e-4, 4e-4), "answer, mean"),
    ("DeepSeek-V3.2", SequenceMask(0.1), "answer, mean"),
    ("VESPO", SequenceGamma(), "answer, product"),
)
SHOWN_MU = ((0.5, "-"), (0.02, ":"))  # a common and a rare token


def draw_family() -> Figure:
    """The weight of a token's gradient against its ratio, for every member of the family.

    Blue: its answer is good, orange: bad. Solid: a token that had probability ½, dotted: one in
    fifty. Where the two differ, the wall depends on how likely the token was.
    """
    fig, axes = plt.subplots(4, 4, figsize=(8.2, 7.2), sharex=True, sharey=True)
    fig.suptitle("Walls, caps and slopes: what a token's gradient is multiplied by", weight="bold")
    panels = axes.ravel()
    for ax, (name, region, of) in zip(panels, FAMILY, strict=False):
        draw_weight(ax, region, SHOWN_MU if "token" in of else ((0.02, "-"),))
        ax.set_title(name, fontsize=10, pad=4)
        ax.text(0.03, 0.9, f"ratio of the {of}", transform=ax.transAxes, fontsize=7.5, color=MUTED)
    for ax, (name, draw) in zip(panels[len(FAMILY) :], CORRECTIONS.items(), strict=False):
        draw(ax)
        ax.set_title(name, fontsize=10, pad=4)
        ax.text(0.03, 0.9, "π_old/μ", transform=ax.transAxes, fontsize=7.5, color=MUTED)
    draw_key(panels[-1])
    for ax in axes[:, 0]:
        ax.set_ylabel("weight", fontsize=8.5)
    for ax in axes[-1]:
        ax.set_xlabel("ratio", fontsize=8.5)
    return fig


def draw_weight(ax: Axes, region: Region, shown: Sequence[tuple[float, str]]) -> None:
    """A region's weight of a token over its ratio, for good and bad answers and several μ."""
    ratio = torch.linspace(np.log(0.1), np.log(8), 900, dtype=torch.float64).exp()
    for sign, colour, width in ((1, GOOD, 3.0), (-1, BAD, 1.5)):  # where they agree, both are seen
        for mu, style in shown:
            possible = ratio[ratio * mu < 1][None]
            old = torch.full_like(possible, mu).log()
            advantage = torch.full_like(possible, float(sign))
            tokens = Tokens.of(old + possible.log(), old, advantage)
            weight = weigh(region, tokens).weight[0]
            ax.plot(possible[0], weight, style, color=colour, lw=width)
    frame(ax)


def frame(ax: Axes) -> None:
    """The axes that all small panels of weights share."""
    ax.axhline(0, color=FAINT, lw=0.8, zorder=0)
    ax.axvline(1, color=FAINT, lw=0.8, zorder=0)
    ax.set(xscale="log", xlim=(0.1, 8), ylim=(-1.4, 5.6))
    ax.set_xticks([0.2, 1, 5], ["0.2", "1", "5"])
    ax.minorticks_off()
    ax.tick_params(labelsize=8)
    ax.grid(False)


def draw_correction(ax: Axes, mode: str, low: float, cap: float) -> None:
    """The weight of a correction over the ratio of the two policies."""
    ratio = torch.linspace(np.log(0.1), np.log(8), 900, dtype=torch.float64).exp()[None]
    everywhere = torch.ones_like(ratio, dtype=torch.bool)
    weight = SamplerCorrection(cap, mode, low=low)(ratio.log(), 0 * ratio, everywhere)
    ax.plot(ratio[0], weight[0], color=INK, lw=2)
    frame(ax)


CORRECTIONS = {
    "TIS": lambda ax: draw_correction(ax, "truncate", 0.0, 2.0),
    "IcePop": lambda ax: draw_correction(ax, "drop", 0.5, 5.0),
}


def draw_key(ax: Axes) -> None:
    """The key to colours and strokes, in a panel of its own."""
    ax.axis("off")
    lines = (
        ("good answer, Â > 0", GOOD, "-"),
        ("bad answer, Â < 0", BAD, "-"),
        ("μ = 0.5", INK, "-"),
        ("μ = 0.02", INK, ":"),
    )
    for row, (text, colour, style) in enumerate(lines):
        y = 0.85 - 0.2 * row
        ax.plot([0.0, 0.16], [y, y], style, color=colour, lw=2, transform=ax.transAxes)
        ax.text(0.22, y, text, transform=ax.transAxes, va="center", fontsize=8.5, color=INK)


ATLAS = MappingProxyType(
    {
        **MASKS,
        "sapo": Mask("SAPO", SoftGate(), "#7f9a00"),
        "drpo": Mask("DRPO", DivergencePenalty(0.15), "#0e7490"),
    }
)
