"""The README's picture, drawn from the reference experiment `reuse`.

`python -m rlbook.viz.readme` writes `data/results/reuse.png`.
"""

from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from rlbook.paths import data_dir
from rlbook.viz.curves import learning_curves, load_results
from rlbook.viz.style import BAD, GOOD, MUTED, use_style

COLOURS = {"one update per batch": MUTED, "no trust region": BAD, "clip 0.2": GOOD}


def reuse_figure() -> Figure:
    """Accuracy over rollout batches with 16 updates each, with and without PPO's clip."""
    use_style()
    figure, ax = plt.subplots(figsize=(8, 3.6))
    table = load_results("reuse")
    learning_curves(table, "accuracy", ax, arms=list(COLOURS), colours=COLOURS, smooth=3)
    seeds = table["seed"].nunique()
    ax.set_title("Sixteen updates on every batch: the clip keeps what the ratio alone destroys")
    ax.set_xlabel(f"batches of 128 rollouts (mean and 95 % interval of {seeds} seeds)")
    ax.set_ylabel("share of right answers")
    ax.set_ylim(0, 1)
    return figure


def main() -> Path:
    path = data_dir() / "results" / "reuse.png"
    reuse_figure().savefig(path, dpi=120, metadata={"Software": None})
    return path


if __name__ == "__main__":
    print(f"wrote {main()}")
