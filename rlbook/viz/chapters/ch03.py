"""Chapter 03: the clip over the tokens of a real batch, and what a critic sees in a completion."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from rlbook.objectives import RatioClip, Surrogate, token_ratio
from rlbook.training import Batch, Rollout, Trainer
from rlbook.viz.style import BAD, FAINT, GOOD, INK, MUTED, readable
from rlbook.viz.widgets import Explorer, slider

ROW_CHARACTERS = 68
OUTSIDE = "#fbe3b5"


@dataclass(frozen=True)
class ReuseTrace:
    """One batch of rollouts, its log-probabilities as training goes on, and the held-out accuracy.

    `logps[k]` (N, T) and `accuracy[k]` belong to the policy after k passes over the batch.
    """

    rollouts: list[Rollout]
    tokens: list[list[str]]
    batch: Batch
    logps: list[Float[Tensor, "N T"]] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)

    @classmethod
    def of(cls, trainer: Trainer) -> "ReuseTrace":
        """A fresh batch of the trainer, before any update."""
        rollouts = trainer.collect()
        tokens = [[trainer.tokenizer.decode([i]) for i in r.token_ids] for r in rollouts]
        return cls(rollouts, tokens, trainer.prepare(rollouts))

    @property
    def advantages(self) -> Float[Tensor, "N T"]:
        a = self.batch.advantages
        return (a if a.ndim == 2 else a[:, None]).expand(self.batch.mask.shape)

    def ratio(self, passes: int) -> Float[Tensor, "N T"]:
        return token_ratio(self.logps[passes], self.batch.logp_old)

    def surrogate(self, passes: int, region: RatioClip) -> Surrogate:
        """What `region` does to every token of the batch after some passes."""
        ratio = self.ratio(passes)
        return region(self.logps[passes], self.batch.logp_old, ratio, self.advantages)

    def gain(self, passes: int) -> float:
        """Rise of the importance-weighted objective E_t[ρA] on this batch since the first pass."""
        moved = (self.ratio(passes) - 1) * self.advantages
        return float(moved[self.batch.mask].mean())

    def examples(self, each: int = 2) -> list[int]:
        """Rows of `each` right and as many wrong completions that fit a line and moved most."""
        moved = ((self.ratio(-1).log().abs() > 0.3) & self.batch.mask).sum(1)
        fits = [i for i, t in enumerate(self.tokens) if 12 < len("".join(t)) <= ROW_CHARACTERS]
        fits.sort(key=lambda row: -int(moved[row]))
        right = [i for i in fits if self.rollouts[i].correct][:each]
        return right + [i for i in fits if not self.rollouts[i].correct][:each]


def token_explorer(trace: ReuseTrace, passes: int = 4) -> Explorer:
    """The clip over a real batch: which tokens still get a gradient after k passes?"""
    rows = trace.examples()

    def draw(fig: Figure, passes: int, eps_low: float, eps_high: float) -> None:
        token_figure(fig, trace, rows, passes, eps_low, eps_high)

    return Explorer(
        draw,
        hint="0 passes: nothing has moved, nothing is masked. Add passes, then widen ε_high.",
        figsize=(7.6, 4.9),
        passes=slider(0, len(trace.logps) - 1, passes, 1, label="passes over the batch"),
        eps_low=slider(0.0, 0.5, 0.2, label="ε_low"),
        eps_high=slider(0.0, 0.5, 0.2, label="ε_high"),
    )


def token_figure(
    fig: Figure, trace: ReuseTrace, rows: Sequence[int], passes: int, low: float, high: float
) -> None:
    """Tokens of some completions, and all tokens of the batch: π_old against the ratio."""
    keep = trace.surrogate(passes, RatioClip(low, high)).keep
    mask, ratio = trace.batch.mask, trace.ratio(passes)
    outside = (ratio < 1 - low) | (ratio > 1 + high)
    fig.set_layout_engine("none")
    text = fig.add_axes((0.02, 0.66, 0.97, 0.25))
    draw_tokens(text, trace, rows, keep, outside)
    share, beyond = (~keep)[mask].float().mean(), outside[mask].float().mean()
    text.set_title(
        f"After {passes} passes: {share:.1%} of gradients masked, {beyond:.1%} of ratios outside",
        x=0.01,
    )
    for left, sign in ((0.085, 1), (0.55, -1)):
        ax = fig.add_axes((left, 0.105, 0.44, 0.46))
        chosen = mask & (trace.advantages * sign > 0)
        draw_ratios(ax, trace.batch.logp_old.exp(), ratio, keep, chosen)
        for edge in (1 - low, 1 + high):
            ax.axhline(edge, color=MUTED, lw=1, ls=(0, (4, 3)))
        ax.set_title(f"A {'>' if sign > 0 else '<'} 0", fontsize=10)
        if sign > 0:
            ax.set_ylabel(r"ratio $\rho$")
        else:
            ax.tick_params(labelleft=False)


def draw_tokens(ax: Axes, trace: ReuseTrace, rows: Sequence[int], keep, outside) -> None:
    """One line of text per completion, one box per token."""
    ax.set(xlim=(-9, ROW_CHARACTERS), ylim=(len(rows) - 0.35, -0.6))
    ax.axis("off")
    for line, row in enumerate(rows):
        start = int(trace.batch.mask[row].float().argmax())
        verdict = "right" if trace.rollouts[row].correct else "wrong"
        colour = GOOD if trace.rollouts[row].correct else BAD
        ax.text(-8.6, line, verdict, color=readable(colour), fontsize=9, va="center")
        x = 0
        for t, token in enumerate(trace.tokens[row], start):
            face, ink = token_colours(bool(keep[row, t]), bool(outside[row, t]))
            ax.fill_between([x + 0.04, x + len(token) - 0.04], line - 0.38, line + 0.38, color=face)
            style = {"family": "monospace", "fontsize": 7.4, "ha": "center", "va": "center"}
            for offset, character in enumerate(token):
                ax.text(x + offset + 0.5, line, character, color=ink, **style)
            x += len(token)


def token_colours(kept: bool, outside: bool) -> tuple[str, str]:
    """Background and ink of a token: masked, outside the window but kept, inside."""
    if not kept:
        return BAD, "white"
    return (OUTSIDE if outside else "#eef1f4"), INK


def draw_ratios(ax: Axes, prob, ratio, keep, chosen) -> None:
    """A point per token, π_old against the ratio, masked ones in colour and on top."""
    ax.axhline(1, color=FAINT, lw=1, zorder=0)
    for part, colour, size in ((keep & chosen, MUTED, 7), (~keep & chosen, BAD, 11)):
        y = ratio[part].clamp(0.02, 50)
        ax.scatter(prob[part].clamp(min=1e-4), y, s=size, color=colour, alpha=0.55, lw=0)
    ax.set(xscale="log", yscale="log", xlim=(2e-4, 1.3), ylim=(0.017, 60))
    ax.set_yticks([0.02, 0.1, 0.5, 1, 2, 10, 50], ["0.02", "0.1", "0.5", "1", "2", "10", "50"])
    ax.minorticks_off()
    ax.set_xlabel(r"probability when sampled, $\pi_{old}$")
    count = int(chosen.sum())
    stopped = int((~keep & chosen).sum())
    ax.text(
        0.03, 0.04, f"{stopped} of {count} masked", transform=ax.transAxes,
        color=readable(BAD) if stopped else MUTED, fontsize=9,
    )  # fmt: skip


def draw_values(
    ax: Axes, tokens: Sequence[str], values: Float[Tensor, " T"], reward: float
) -> None:
    """The critic's value before each token of one completion, as a staircase under the text."""
    x = range(len(tokens))
    colour = GOOD if reward else BAD
    ax.step(x, values, where="mid", color=colour)
    ax.axhline(reward, color=colour, lw=1, ls=(0, (4, 3)))
    labels = [{"<think>": "‹t›", "</think>": "‹/t›"}.get(t, t) for t in tokens]
    labels = [t.replace("<answer>", "‹a›").replace("</answer>", "‹/a›") for t in labels]
    ax.set_xticks(x, [t.replace("<eos>", "■") for t in labels], fontsize=7.5, family="monospace")
    for label in ax.get_xticklabels():
        label.set_rotation(90 if len(label.get_text()) > 1 else 0)
    ax.set(ylim=(-0.08, 1.08), yticks=(0, 0.5, 1), xlim=(-0.7, len(tokens) - 0.3))
    ax.grid(axis="x", visible=False)


def typical_pair(rollouts: Sequence[Rollout], shortest: int = 24, longest: int = 44) -> list[int]:
    """A right and a wrong completion of one prompt, both of readable length.

    Raises `ValueError` if no prompt has such a pair.
    """
    fits = [i for i, r in enumerate(rollouts) if shortest <= r.length <= longest]
    for i in fits:
        for j in fits:
            same = rollouts[i].group == rollouts[j].group
            if same and rollouts[i].correct and not rollouts[j].correct:
                return [i, j]
    raise ValueError("no prompt with a right and a wrong completion of this length: sample more")
