"""Measure a base model: the figures of `data/README.md`, written to `card.json`."""

import json
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlbook.evaluation import ask, mixed_share, right_counts
from rlbook.grouping import group_by, mean
from rlbook.manifest import manifest
from rlbook.policy import load_policy
from rlbook.stats import pass_at_k
from rlbook.tasks import SumsTask, corrects_itself, is_lost
from rlbook.training.batch import Rollout
from rlbook.training.judge import labeller
from rlbook.verbs import configured
from workshop.bases.decisions import decisions
from workshop.bases.levels import level_groups

_STEP = re.compile(r"([0-9]{1,3})([+-][0-9])=([0-9]{1,3}|\?);(wait |hmm |)")
REACTIONS = {"wait ": "tries_again", "hmm ": "lost", "": "goes_on"}
SHARES = {"0": 0.0, "(0,.25)": 0.25, "[.25,.5)": 0.5, "[.5,.75)": 0.75, "[.75,1)": 1.0, "1": 2.0}


@dataclass(frozen=True)
class CardConfig:
    """Which model, on how many problems of each level, with how many samples each."""

    model: Path = Path("data/tiny-sums")
    per_level: int = 64
    samples: int = 16
    max_new_tokens: int = 80
    temperature: float = 1.0
    seed: int = 2024
    threads: int = 1

    def __post_init__(self):
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int) and field.name != "seed" and value < 1:
                raise ValueError(f"{field.name} must be at least 1, got {value}")


def measure(config: CardConfig) -> dict:
    """Sample, judge and summarise; a pure function of the config on one thread."""
    torch.set_num_threads(config.threads)
    policy = load_policy(str(config.model.resolve()))
    start = time.perf_counter()
    rollouts = sample(policy, config)
    seconds = time.perf_counter() - start
    counts, total = right_counts(rollouts), len(rollouts)
    strategies = group_by(rollouts, labeller(SumsTask()))
    parts = {
        "all": rollouts,
        "right": [r for r in rollouts if r.correct],
        "wrong": [r for r in rollouts if not r.correct],
        "self_correcting": [r for r in rollouts if corrects_itself(r.text)],
        "lost": [r for r in rollouts if is_lost(r.text)],
    }
    return {
        "settings": json.loads(json.dumps(asdict(config), default=str)),
        "pass_at_k": pass_at_ks(rollouts),
        "by_level": {level: pass_at_ks(part) for level, part in level_groups(rollouts).items()},
        "per_prompt_pass_rate": pass_rate_histogram(counts / config.samples),
        "mixed_groups_of_8": round(mixed_share(config.samples, counts, 8), 4),
        "strategies": {
            name: figures_of(part, total)
            for name, part in sorted(strategies.items(), key=lambda item: -len(item[1]))
        },
        **{name: figures_of(part, total) for name, part in parts.items()},
        "steps": step_statistics(r.text for r in rollouts),
        "decisions": {k: round(p, 4) for k, p in decisions(*policy).items()},
        "seconds": round(seconds, 1),
    }


def sample(
    policy: tuple[PreTrainedModel, PreTrainedTokenizerBase], config: CardConfig
) -> list[Rollout]:
    """Judged completions of as many problems of every level."""
    task = SumsTask()
    return ask(
        policy,
        task,
        [p for level in task.levels for p in task.sample(config.seed, config.per_level, [level])],
        config.samples,
        max_new_tokens=config.max_new_tokens,
        temperature=config.temperature,
        seed=config.seed,
    )


def pass_at_ks(rollouts: Sequence[Rollout], ks: Iterable[int] = (1, 8, 16)) -> dict[str, float]:
    """Mean pass@k and its standard error, the problem being the sampling unit."""
    counts, rates = right_counts(rollouts), {}
    samples = len(rollouts) // len(counts)
    for k in (k for k in ks if k <= samples):
        values = pass_at_k(samples, counts, k)
        rates[f"pass@{k}"] = round(float(values.mean()), 4)
        rates[f"pass@{k}_se"] = round(float(values.std(ddof=1) / len(values) ** 0.5), 4)
    return rates


def pass_rate_histogram(rates: np.ndarray) -> dict[str, int]:
    """Number of problems by their share of right completions."""
    never, *edges = SHARES.values()
    bins = np.where(rates == never, 0, 1 + np.searchsorted(edges, rates, side="right"))
    return dict(zip(SHARES, np.bincount(bins, minlength=len(SHARES)).tolist(), strict=True))


def figures_of(rollouts: Sequence[Rollout], total: int) -> dict:
    """Share, accuracy (overall and by level) and mean length of some of the rollouts."""
    if not rollouts:
        return {"share": 0.0}
    levels = level_groups(rollouts).items()
    return {
        "share": round(len(rollouts) / total, 4),
        "accuracy": round(mean(r.correct for r in rollouts), 4),
        "length": round(mean(r.length for r in rollouts), 1),
        "truncated": round(mean(r.truncated for r in rollouts), 4),
        "accuracy_by_level": {k: round(mean(r.correct for r in part), 3) for k, part in levels},
        "length_by_level": {k: round(mean(r.length for r in part), 1) for k, part in levels},
    }


def step_statistics(texts: Iterable[str]) -> dict:
    """How often a written step is wrong or stuck, and what the policy does right after it."""
    reactions = {kind: Counter() for kind in ("right", "wrong", "stuck")}
    for text in texts:
        for left, term, result, reaction in _STEP.findall(text):
            reactions[kind_of_step(left, term, result)][REACTIONS[reaction]] += 1
    total = sum(counts.total() for counts in reactions.values())
    return {
        kind: {
            "share": round(counts.total() / max(total, 1), 4),
            **{
                f"then_{name}": round(counts[name] / max(counts.total(), 1), 4)
                for name in REACTIONS.values()
            },
        }
        for kind, counts in reactions.items()
    }


def kind_of_step(left: str, term: str, result: str) -> str:
    """ "right", "wrong" or "stuck" for one step `left term = result`."""
    if result == "?":
        return "stuck"
    return "right" if int(left) + int(term) == int(result) else "wrong"


def markdown(card: dict) -> str:
    """The card's tables, as `data/README.md` shows them."""
    rates = card["per_prompt_pass_rate"]
    prompts = _table(["pass rate of a prompt", *rates], [["prompts", *map(str, rates.values())]])
    kinds = [[kind, *(f"{v:.1%}" for v in part.values())] for kind, part in card["steps"].items()]
    columns = [name.replace("_", " ") for name in card["steps"]["stuck"]]
    steps = _table(["written step", *columns], kinds)
    names = [name.replace("_", " ") for name in card["decisions"]]
    probabilities = [f"{p:.3f}" for p in card["decisions"].values()]
    decided = _table(["decision", *names], [["probability", *probabilities]])
    tables = _pass_table(card), _answers_table(card), _length_table(card), prompts, steps, decided
    return "\n\n".join(tables)


def _pass_table(card: dict) -> str:
    overall, by_level = card["pass_at_k"], card["by_level"]
    rows = [
        [
            k,
            f"{overall[k]:.3f} ± {overall[f'{k}_se']:.3f}",
            *(f"{rates[k]:.2f}" for rates in by_level.values()),
        ]
        for k in overall
        if not k.endswith("_se")
    ]
    return _table(["", "all", *(f"{level} operands" for level in by_level)], rows)


def _answers_table(card: dict) -> str:
    parts = {f"strategy: {name}": part for name, part in card["strategies"].items()}
    parts |= {name.replace("_", "-"): card[name] for name in ("all", "self_correcting", "lost")}
    rows = []
    for name, part in parts.items():
        if part["share"]:
            figures = f"{part['share']:.1%}", f"{part['accuracy']:.2f}", f"{part['length']:.1f}"
            rows.append([name, *figures, *_by_level(card, part["accuracy_by_level"], ".2f")])
    return _table(["answers", "share", "accuracy", "tokens", *map(str, card["by_level"])], rows)


def _length_table(card: dict) -> str:
    rows = [
        [name, f"{part['length']:.1f}", *_by_level(card, part["length_by_level"], ".1f")]
        for name, part in (("right", card["right"]), ("wrong", card["wrong"]))
    ]
    return _table(["tokens of answers", "all", *map(str, card["by_level"])], rows)


def _by_level(card: dict, values: dict, form: str) -> list[str]:
    """One cell per level of the card, empty where there was no answer."""
    named = {str(level): format(value, form) for level, value in values.items()}
    return [named.get(str(level), "") for level in card["by_level"]]


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> None:
    """`python -m workshop.bases.card model=data/tiny-sums`."""
    config = configured(CardConfig, sys.argv[1:])
    command = f"python -m workshop.bases.card model={config.model}"
    facts = manifest(command=command)
    card = measure(config) | {"manifest": facts}
    (config.model / "card.json").write_text(json.dumps(card, indent=1) + "\n")
    print(markdown(card))


if __name__ == "__main__":
    main()
