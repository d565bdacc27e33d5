"""The group lab: which answers are right, how long each is, and what a method makes of that."""

from collections.abc import Sequence

import torch
from matplotlib.figure import Figure
from torch import Tensor

from rlbook.objectives import METHODS, token_weights
from rlbook.viz.style import BAD, GOOD
from workshop.shared.live import LiveFigure

LONGEST = 80
LABELS = {
    "reinforce": "REINFORCE",
    "rloo": "RLOO",
    "opo": "OPO",
    "grpo": "GRPO",
    "dr_grpo": "Dr. GRPO",
    "dapo": "DAPO",
    "maxrl": "MaxRL",
}
REWARDS, LENGTHS = (1, 1, 0, 0, 0, 0, 0, 0), (40, 10, 20, 20, 30, 40, 60, 80)


def group_lab(
    method: str = "grpo",
    rewards: Sequence[int] = REWARDS,
    lengths: Sequence[int] = LENGTHS,
    hint: str = "make A wrong, then B too. Draw out the longest wrong answer under GRPO, then "
    "under DAPO and Dr. GRPO.",
) -> LiveFigure:
    """Advantages and the push on each token of a group of answers; click answers, drag lengths."""
    return LiveFigure(
        "group",
        group_figure,
        {"method": method, "rewards": list(rewards), "lengths": list(lengths)},
        hint,
        figsize=(7.6, 3.2),
        longest=LONGEST,
        methods=methods_as_data(),
    )


def methods_as_data() -> list[dict[str, str]]:
    """The methods of the lab as its script takes them: two names of functions each."""
    return [
        {
            "key": key,
            "label": label,
            "advantage": METHODS[key].advantage.__name__,
            "aggregation": METHODS[key].aggregation,
        }
        for key, label in LABELS.items()
    ]


def pushes(method: str, rewards: Sequence[float], lengths: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Advantage (N,) and push on each token A · w (N,) of one group."""
    row, n = METHODS[method], len(rewards)
    groups = torch.zeros(n, dtype=torch.long)
    given = {"lengths": torch.tensor(lengths)} if method == "opo" else {}
    advantages = row.advantage(torch.tensor(rewards, dtype=torch.float64), groups, **given)
    mask = torch.arange(LONGEST) < torch.tensor(lengths)[:, None]
    weights = token_weights(mask, row.aggregation, groups, LONGEST)
    return advantages, advantages * weights[:, 0]


def group_figure(
    fig: Figure, method: str, rewards: Sequence[float], lengths: Sequence[int]
) -> None:
    """Lengths (left), advantages, and pushes on each token (right) of the answers, from above."""
    advantages, push = pushes(method, rewards, lengths)
    names = [f"{chr(65 + i)} {'✓' if reward else '✗'}" for i, reward in enumerate(rewards)]
    colours = [GOOD if reward else BAD for reward in rewards]
    name = f"Advantage, {LABELS[method]}"
    columns = {"Length": lengths, name: advantages, "Push per token": push}
    axes = fig.subplots(1, 3, sharey=True)
    for ax, (title, values) in zip(axes, columns.items(), strict=True):
        ax.barh(names, values, color=colours)
        ax.set_title(title)
    axes[0].invert_yaxis()
