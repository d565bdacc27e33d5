"""Measure the second base model, family by family: `card.json` and its tables."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from rlbook.manifest import manifest
from rlbook.policy import load_policy
from rlbook.rewards.label_free import vote_metrics
from rlbook.tasks.habits import FAMILIES, HabitsTask
from rlbook.training.batch import Rollout
from rlbook.verbs import configured
from workshop.bases.habits import SHARES
from workshop.bases.levels import evaluate_levels

KS = (1, 8, 32, 128)


@dataclass(frozen=True)
class HabitsCardConfig:
    """Which model, on how many held-out problems of each family, with how many samples each."""

    model: Path = Path("data/tiny-habits")
    per_family: int = 128
    samples: int = 128
    max_new_tokens: int = 64
    threads: int = 1


def measure(config: HabitsCardConfig) -> dict[str, Any]:
    """A pure function of the config on one thread."""
    torch.set_num_threads(config.threads)
    policy, task = load_policy(str(config.model.resolve())), HabitsTask()
    ks = [k for k in KS if k <= config.samples]
    rows = evaluate_levels(
        policy,
        task,
        config.per_family,
        config.samples,
        ks,
        greedy=True,
        also=majority,
        max_new_tokens=config.max_new_tokens,
    )
    families = {
        name: {"taught": SHARES[name], **{key: round(value, 4) for key, value in row.items()}}
        for name, row in zip(FAMILIES, rows.values(), strict=True)
    }
    settings = json.loads(json.dumps(asdict(config), default=str))
    return {"settings": settings, "families": families}


def majority(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Share of problems whose most frequent answer is right; unreadable ones have no vote."""
    return {"majority": vote_metrics(rollouts)["label_accuracy"]}


def markdown(card: dict[str, Any]) -> str:
    """The card as a table, as `data/README.md` shows it."""
    columns = {
        "taught": "taught right",
        "share_right": "right rule",
        **{f"pass@{k}": f"pass@{k}" for k in KS},
        "majority": "majority",
        "greedy": "greedy",
        "length": "tokens",
    }
    lines = [["family", *columns.values()], ["---"] * (len(columns) + 1)]
    for name, row in card["families"].items():
        cells = [f"{row.get(key, 0.0):.3g}" for key in columns]
        lines.append([name, *cells])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> None:
    """`python -m workshop.bases.habits_card`."""
    config = configured(HabitsCardConfig, sys.argv[1:])
    command = f"python -m workshop.bases.habits_card model={config.model}"
    card = measure(config) | {"manifest": manifest(command=command)}
    (config.model / "card.json").write_text(json.dumps(card, indent=1) + "\n")
    print(markdown(card))


if __name__ == "__main__":
    main()
