"""Chapter 09: what several trust regions do to the same tokens."""

from collections.abc import Mapping
from dataclasses import replace
from math import log1p

import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from rlbook.objectives import Method, RatioClip, Surrogate, WeightClip, importance_ratio
from rlbook.viz.chapters.ch03 import ReuseTrace, draw_tokens
from rlbook.viz.style import BAD, GOOD, INK, colour_of, label_lines, readable
from rlbook.viz.widgets import Explorer, choice, slider

BANDS = {0.03: "< .03", 0.1: ".03–.1", 0.3: ".1–.3", 0.5: ".3–.5", 0.9: ".5–.9", 1.01: "> .9"}
WINDOWS = {"3e-4 / 4e-4": (3e-4, 4e-4), "4e-3 / 5e-3": (4e-3, 5e-3), "0.2 / 0.28": (0.2, 0.28)}

REGION_COLOURS = {
    "none": colour_of("reinforce"),
    "clip": colour_of("ppo"),
    **{name: colour_of(name.lower()) for name in ("CISPO", "GSPO", "DPPO")},
}


def surrogate_of(trace: ReuseTrace, passes: int, method: Method) -> Surrogate:
    """What the method's ratio and trust region do to every token after some passes."""
    logp, batch = trace.logps[passes], trace.batch
    ratio = importance_ratio(method.ratio, logp, batch.logp_old, batch.mask)
    return method.trust_region(logp, batch.logp_old, ratio, trace.advantages)


def token_frame(trace: ReuseTrace, passes: int, methods: Mapping[str, Method]) -> pd.DataFrame:
    """One row per token with an advantage; a column per method holds its weight, 0 if masked."""
    live = trace.batch.mask & (trace.advantages != 0)
    start = trace.batch.mask.float().argmax(1).tolist()
    places = live.nonzero().tolist()
    frame = pd.DataFrame(
        {
            "answer": [row for row, _ in places],
            "token": [trace.tokens[row][t - start[row]] for row, t in places],
            "advantage": trace.advantages[live],
            "pi_old": trace.batch.logp_old.exp()[live],
            "ratio": trace.ratio(passes)[live],
        }
    )
    frame["band"] = pd.cut(frame.pi_old, [0, *BANDS], labels=list(BANDS.values()), right=False)
    for name, method in methods.items():
        frame[name] = surrogate_of(trace, passes, method).weight[live]
    return frame


def typical_rows(trace: ReuseTrace, shortest: int = 40) -> list[int]:
    """A right and a wrong answer with an advantage, a line long, among those that moved most."""
    long = [row for row in trace.examples(each=99) if len("".join(trace.tokens[row])) >= shortest]
    live = [row for row in long if trace.advantages[row].any()]
    verdicts = [trace.rollouts[row].correct for row in live]
    return [live[verdicts.index(True)], live[verdicts.index(False)]]


def draw_masked_by_band(ax: Axes, shares: pd.DataFrame) -> None:
    """Masked share over the probability a token had when sampled, common ones first."""
    shares = shares.iloc[::-1]
    for name in shares.columns:
        colour = colour_of(name.lower(), INK)
        ax.plot(range(len(shares)), shares[name], "o-", ms=4, color=colour, label=name)
    ax.set_xticks(range(len(shares)), list(shares.index))
    ax.set(ylim=(-0.2, 1.15), xlim=(-0.2, len(shares) - 0.8))
    ax.set_yticks([0, 0.5, 1], ["0", "50 %", "100 %"])
    ax.set_xlabel(r"probability when sampled, $\pi_{old}$")
    label_lines(ax)


def trust_region_explorer(
    trace: ReuseTrace, methods: Mapping[str, Method], passes: int = 2
) -> Explorer:
    """The same two completions under every method: which tokens learn after k passes?

    The slider and the list replace the trust regions of `methods["CISPO"]` and `methods["GSPO"]`.
    """
    rows = typical_rows(trace)

    def draw(fig: Figure, passes: int, cap: float, window: tuple[float, float]) -> None:
        changed = {"CISPO": WeightClip(max=cap), "GSPO": RatioClip(*window)}
        chosen = {
            name: replace(method, trust_region=changed.get(name, method.trust_region))
            for name, method in methods.items()
        }
        trust_region_figure(fig, trace, rows, passes, chosen)

    return Explorer(
        draw,
        hint="0 passes, then 1. Then the widest window of GSPO, and a cap of 1.",
        figsize=(7.6, 5.9),
        passes=slider(0, len(trace.logps) - 1, passes, 1, label="passes over the batch"),
        cap=slider(1.0, 8.0, 5.0, 0.1, label="CISPO's cap"),
        window=choice(WINDOWS, label="GSPO's window"),
    )


def trust_region_figure(
    fig: Figure, trace: ReuseTrace, rows: list[int], passes: int, methods: Mapping[str, Method]
) -> None:
    """A block of tokens per method, and below, the masked share of the whole batch."""
    fig.set_layout_engine("none")
    frame = token_frame(trace, passes, methods)
    height = 0.66 / len(methods)
    for block, (name, method) in enumerate(methods.items()):
        ax = fig.add_axes((0.02, 0.985 - height * (block + 1), 0.97, height - 0.04))
        surrogate = surrogate_of(trace, passes, method)
        draw_tokens(ax, trace, rows, surrogate.keep, beyond(trace, passes, method))
        masked = (frame[name] == 0).mean()
        ax.set_title(
            f"{name}: {masked:.1%} of gradients masked, largest weight {frame[name].max():.2f}",
            x=0.01, fontsize=9, pad=2, color=readable(BAD if masked else GOOD),
        )  # fmt: skip
    ax = fig.add_axes((0.09, 0.085, 0.8, 0.185))
    shares = frame.groupby("band", observed=False)[list(methods)].agg(lambda w: (w == 0).mean())
    draw_masked_by_band(ax, shares)
    ax.set_title("Masked share of the batch, from common to rare tokens", fontsize=10, pad=5)


def beyond(trace: ReuseTrace, passes: int, method: Method) -> Bool[Tensor, "N T"]:
    """Tokens the region would mask for one sign of the advantage, or whose weight it caps."""
    logp, batch = trace.logps[passes], trace.batch
    ratio = importance_ratio(method.ratio, logp, batch.logp_old, batch.mask)
    up, down = (
        method.trust_region(logp, batch.logp_old, ratio, torch.full_like(logp, sign))
        for sign in (1.0, -1.0)
    )
    return ~up.keep | ~down.keep | (up.keep & (up.weight < ratio))


def draw_answers(
    ax: Axes,
    length: Int[Tensor, " N"],
    log_ratio: Float[Tensor, " N"],
    good: Bool[Tensor, " N"],
    window: tuple[float, float] | None = None,
) -> None:
    """A dot per answer, its length against its log-ratio; the window (low, high) as a band."""
    if window:
        ax.axhspan(log1p(-window[0]), log1p(window[1]), color=colour_of("gspo"), lw=0.8)
    for part, colour, name in ((good, GOOD, "good answers"), (~good, BAD, "bad answers")):
        ax.scatter(length[part], log_ratio[part], s=13, color=colour, alpha=0.6, lw=0, label=name)
    ax.set_xlabel("tokens in the answer")
    if window:
        ax.legend(loc="lower right", handletextpad=0.1)
