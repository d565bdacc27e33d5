"""Measure the second base model, family by family: `card.json` and its tables."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from rlbook.evaluation import held_out_rollouts, summary
from rlbook.manifest import manifest
from rlbook.policy import load_policy
from rlbook.tasks.habits import FAMILIES, HabitsTask
from rlbook.tiny.habits import SHARES
from rlbook.training.batch import Rollout
from rlbook.training.metrics import group_by, mean

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
    families = {}
    for level, name in enumerate(FAMILIES, start=1):
        how = {"levels": (level,), "max_new_tokens": config.max_new_tokens}
        asked = held_out_rollouts(policy, task, config.per_family, config.samples, **how)
        greedy = held_out_rollouts(policy, task, config.per_family, 1, temperature=0, **how)
        row = summary(asked, [k for k in KS if k <= config.samples], task)
        families[name] = {
            "taught": SHARES[name],
            **{key: round(value, 4) for key, value in row.items()},
            "majority": round(majority_accuracy(asked), 4),
            "greedy": round(mean(r.correct for r in greedy), 4),
        }
    settings = json.loads(json.dumps(asdict(config), default=str))
    return {"settings": settings, "families": families}


def majority_accuracy(rollouts: Sequence[Rollout]) -> float:
    """Share of problems whose most frequent answer is right; unreadable ones have no vote."""
    right = []
    for group in group_by(rollouts, lambda r: r.group).values():
        votes = Counter(answer for r in group if (answer := answer_of(r)) is not None)
        right.append(bool(votes) and votes.most_common(1)[0][0] == group[0].problem.answer)
    return mean(right)


def answer_of(rollout: Rollout) -> str | None:
    """The answer that the verifier read, right or wrong."""
    return HabitsTask().verify(rollout.problem, rollout.text, not rollout.truncated).answer


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
    """`python -m rlbook.tiny.habits_card`."""
    import tyro

    config = tyro.cli(HabitsCardConfig, description=__doc__)
    command = f"python -m rlbook.tiny.habits_card --model {config.model}"
    card = measure(config) | {"manifest": manifest(command=command)}
    (config.model / "card.json").write_text(json.dumps(card, indent=1) + "\n")
    print(markdown(card))


if __name__ == "__main__":
    main()
