"""Figures of the appendix on operations: what a plan needs, beside what published runs needed."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rlbook.scale.plan.budget import GB, Budget
from rlbook.viz.style import BAD, CYCLE, GOOD, INK, MUTED
from workshop.appendices.published import Published

FAR = 0.65  # planned / published below which a dot is named


def draw_budget(fig: Figure, budget: Budget) -> None:
    """Memory of a trainer and of a generator, and who waits for whom."""
    memory, idle = fig.subplots(1, 2, width_ratios=(2, 1))
    capacity = budget.config.budget.gpu_memory_gb
    memory.set_xlim(0, 1.25 * capacity)
    draw_stack(memory, 1, budget.trainer_memory)
    draw_stack(memory, 0, budget.generator_memory)
    memory.axvline(capacity, color=BAD, lw=1.2)
    memory.set(yticks=(0, 1), yticklabels=("generator", "trainer"), ylim=(-0.5, 1.75))
    memory.set_xlabel(f"GB on one GPU of {capacity:g}")
    memory.grid(False)
    run = budget.simulation
    shares = (run.generator_idle, run.trainer_idle)
    idle.barh((0, 1), shares, color=[BAD if share > 0.3 else GOOD for share in shares], height=0.5)
    for row, share in enumerate(shares):
        idle.text(share + 0.03, row, f"{share:.0%}", va="center", fontsize=9)
    idle.set(
        xlim=(0, 1.2), ylim=(-0.5, 1.75), yticks=(), xticks=(), xlabel="share of the time idle"
    )
    idle.grid(False)
    fig.suptitle(budget_line(budget), x=0.01, ha="left", fontsize=10.5, fontweight="bold")


def draw_stack(ax: Axes, row: int, parts: Mapping[str, float]) -> None:
    """One stacked bar in GB; a part is named above it where its name fits."""
    left, letter = 0.0, 0.0125 * ax.get_xlim()[1]
    for (name, size), colour in zip(parts.items(), CYCLE, strict=False):
        size /= GB
        ax.barh(row, size, left=left, height=0.5, color=colour, alpha=0.8)
        if size > letter * len(name):
            ax.text(left + size / 2, row + 0.3, name, ha="center", va="bottom", fontsize=8)
        left += size
    ax.text(left + letter, row, f"{left:.0f}", va="center", fontsize=9)


def budget_line(budget: Budget) -> str:
    """The whole run in one line."""
    run = budget.simulation
    return (
        f"{budget.ranks} trainers, {budget.config.generate.count} generators: "
        f"{budget.step_seconds:.0f} s an update, {budget.gpu_hours:,.0f} GPU-hours, "
        f"mean staleness {run.mean_staleness:.1f}"
    )


def draw_published(ax: Axes, runs: Sequence[Published]) -> None:
    """Predicted over published: a row per quantity, a dot per measurement, the far ones named."""
    quantities = list(dict.fromkeys(run.quantity for run in runs))
    for row, quantity in enumerate(quantities):
        same = sorted((run for run in runs if run.quantity == quantity), key=lambda run: run.ratio)
        ax.plot([run.ratio for run in same], [row] * len(same), "o", color=GOOD, ms=6, alpha=0.6)
        for level, run in enumerate(run for run in same if run.ratio < FAR):
            name = ", ".join(run.name.split(", ")[:2])
            ax.annotate(
                name,
                (run.ratio, row),
                (0, -14 if level % 2 else 9),
                textcoords="offset points",
                ha="center",
                fontsize=8,
                color=MUTED,
            )
    names = [quantity.replace("_", " ") for quantity in quantities]
    ax.set_yticks(range(len(quantities)), names)
    ax.set(xscale="log", xlim=(0.06, 2.2), ylim=(len(quantities) - 0.4, -0.6))
    ticks = (0.1, 0.25, 0.5, 1, 2)
    ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.minorticks_off()
    ax.axvline(1, color=INK, lw=1)
    ax.set_xlabel("planned / published")
