"""Chapter 02: what a baseline does to the noise of the policy gradient."""

import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from rlbook.exact import constant_baselines, relative_noise, rollouts_needed
from rlbook.viz.style import BAD, FAINT, GOOD, INK, MUTED, label_lines
from rlbook.viz.widgets import Explorer, slider

COLOURS = {"none": MUTED, "mean": BAD, "optimal": GOOD}
SOLVE_RATES = tuple(i / 26 for i in range(1, 26))
FEWEST, MOST = 0.05, 3000  # rollouts, edges of the logarithmic axis


def baseline_explorer(p: float = 0.8, shift: float = 0.0, fillers: int = 0) -> Explorer:
    """Noise of REINFORCE against the baseline and against the solve rate, exact."""
    return Explorer(
        baseline_figure,
        hint="add 1 to all rewards; then p = 0.9 with shift 0 and 0 other tokens; then 8.",
        figsize=(7.6, 3.5),
        p=slider(0.05, 0.95, p, label="solve rate p"),
        shift=slider(-1.0, 1.0, shift, 0.1, label="added to rewards"),
        fillers=slider(0, 8, fillers, 1, label="other tokens"),
    )


def baseline_figure(fig: Figure, p: float, shift: float, fillers: int) -> None:
    """Left: rollouts needed against b at one solve rate. Right: against p, for three baselines."""
    left, right = fig.subplots(1, 2, width_ratios=(1.1, 1))
    here = constant_baselines(p, shift, fillers)
    grid = torch.linspace(-1.25, 2.25, 71).tolist()
    left.plot(grid, [rollouts_needed(p, shift, fillers, b) for b in grid], color=INK, zorder=2)
    needed = {name: rollouts_needed(p, shift, fillers, b) for name, b in here.items()}
    for name, b in here.items():
        left.plot([b, b], [0, needed[name]], color=COLOURS[name], lw=1.2, ls=(0, (4, 3)))
        left.plot(b, needed[name], "o", color=COLOURS[name], ms=7, zorder=3)
    top = max(needed.values())
    left.set(xlabel="baseline b", xlim=(-1.25, 2.25), ylim=(-0.03 * top, 1.6 * top + 0.2))
    left.set_ylabel("rollouts until noise = signal")
    left.set_title(", ".join(f"{name} {count:.2g}" for name, count in needed.items()))
    for name in here:
        curve = [
            rollouts_needed(q, shift, fillers, constant_baselines(q, shift, fillers)[name])
            for q in SOLVE_RATES
        ]
        shown = [min(max(y, FEWEST), MOST) for y in curve]
        right.plot(SOLVE_RATES, shown, color=COLOURS[name], label=name)
    right.axvline(p, color=FAINT, lw=1, zorder=0)
    right.set(xlabel="solve rate p", yscale="log", ylim=(FEWEST / 2, MOST), xlim=(0, 1))
    right.set_title("and at every solve rate")
    label_lines(right)


def draw_parabola(
    ax: Axes, rewards: Float[Tensor, " N"], pulls: Float[Tensor, " N"], colour: str, label: str
) -> None:
    """Mean of (r − b)²‖∇log π‖² of measured rollouts against b, relative to b = 0, with marks."""
    grid = torch.linspace(-1.1, 1.1, 111, dtype=torch.float64)
    ax.plot(grid, relative_noise(rewards, pulls, grid), color=colour, label=label, zorder=2)
    best = (pulls @ rewards / pulls.sum()).item()
    for b, marker in ((best, "D"), (rewards.mean().item(), "o")):
        height = relative_noise(rewards, pulls, torch.tensor([b], dtype=torch.float64))
        ax.plot(b, height, marker, color=colour, ms=7, mec="white", zorder=3)
