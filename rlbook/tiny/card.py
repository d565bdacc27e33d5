"""Measure a base model: the figures of `data/README.md`, written to `card.json`."""

import json
import math
import re
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch

from rlbook.manifest import manifest
from rlbook.policy import Sampler, load_policy
from rlbook.tasks import Problem, SumsTask, corrects_itself, is_lost, strategy_of
from rlbook.tiny.decisions import decisions

_STEP = re.compile(r"([0-9]{1,3})([+-][0-9])=([0-9]{1,3}|\?);(wait |hmm |)")
REACTIONS = {"wait ": "tries_again", "hmm ": "lost", "": "goes_on"}


@dataclass(frozen=True)
class EvaluateConfig:
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


@dataclass(frozen=True)
class Answer:
    """One judged completion; `length` is in tokens, EOS included."""

    problem: Problem
    text: str
    finished: bool
    length: int
    correct: bool
    strategy: str


def evaluate(config: EvaluateConfig) -> dict:
    """Sample, judge and summarise; a pure function of the config on one thread."""
    torch.set_num_threads(config.threads)
    model, tokenizer = load_policy(str(config.model.resolve()))
    start = time.perf_counter()
    groups = sample_answers(model, tokenizer, config)
    seconds = time.perf_counter() - start
    answers = [answer for group in groups for answer in group]
    return {
        "settings": json.loads(json.dumps(asdict(config), default=str)),
        "pass_at_k": pass_rates(groups),
        "by_level": {
            level: pass_rates([g for g in groups if g[0].problem.level == level])
            for level in SumsTask.levels
        },
        "per_prompt_pass_rate": pass_rate_histogram(groups),
        "mixed_groups_of_8": mixed_share(groups, 8),
        "strategies": {
            name: summary(chosen, len(answers)) for name, chosen in by_strategy(answers).items()
        },
        "all": summary(answers, len(answers)),
        "right": summary([a for a in answers if a.correct], len(answers)),
        "wrong": summary([a for a in answers if not a.correct], len(answers)),
        "self_correcting": summary([a for a in answers if corrects_itself(a.text)], len(answers)),
        "lost": summary([a for a in answers if is_lost(a.text)], len(answers)),
        "steps": step_statistics(answers),
        "decisions": {k: round(p, 4) for k, p in decisions(model, tokenizer).items()},
        "seconds": round(seconds, 1),
    }


def sample_answers(model, tokenizer, config: EvaluateConfig) -> list[list[Answer]]:
    """A group of judged completions for every problem."""
    task = SumsTask()
    problems = [
        problem
        for level in task.levels
        for problem in task.sample(config.seed, config.per_level, levels=[level])
    ]
    completions = Sampler(model, tokenizer.eos_token_id).generate(
        [tokenizer(problem.prompt).input_ids for problem in problems],
        n=config.samples,
        max_new_tokens=config.max_new_tokens,
        temperature=config.temperature,
        seed=config.seed,
    )
    groups = []
    for i, problem in enumerate(problems):
        group = []
        for completion in completions[i * config.samples : (i + 1) * config.samples]:
            finished = completion.finish_reason == "stop"
            ids = completion.token_ids[: len(completion.token_ids) - finished]
            text = tokenizer.decode(ids)
            correct = task.verify(problem, text, finished).correct
            name, length = strategy_of(text, finished), len(completion.token_ids)
            group.append(Answer(problem, text, finished, length, correct, name))
        groups.append(group)
    return groups


def pass_rates(groups: Sequence[Sequence[Answer]], ks: Iterable[int] = (1, 8, 16)) -> dict:
    """Mean over prompts of the unbiased pass@k, 1 - C(n-c, k) / C(n, k), and its standard error.

    n samples, c of them correct (Chen et al., arXiv:2107.03374, eq. 1). The error counts prompts
    as the sampling unit.
    """
    rates = {}
    for k in ks:
        values = [
            1 - math.comb(len(g) - sum(a.correct for a in g), k) / math.comb(len(g), k)
            for g in groups
            if len(g) >= k
        ]
        if values:
            rates[f"pass@{k}"] = round(_mean(values), 4)
            rates[f"pass@{k}_se"] = round(_standard_error(values), 4)
    return rates


def pass_rate_histogram(groups: Sequence[Sequence[Answer]]) -> dict[str, int]:
    """Number of prompts by share of correct samples."""
    edges = {"0": 0.0, "(0,.25)": 0.25, "[.25,.5)": 0.5, "[.5,.75)": 0.75, "[.75,1)": 1.0}
    counts = dict.fromkeys([*edges, "1"], 0)
    for group in groups:
        rate = _mean([a.correct for a in group])
        name = "0" if rate == 0 else next((n for n, e in edges.items() if rate < e), "1")
        counts[name] += 1
    return counts


def mixed_share(groups: Sequence[Sequence[Answer]], size: int) -> float:
    """Expected share of groups of `size` that hold both right and wrong answers."""
    shares = []
    for group in groups:
        n, c = len(group), sum(a.correct for a in group)
        uniform = math.comb(c, size) + math.comb(n - c, size)
        shares.append(1 - uniform / math.comb(n, size) if n >= size else float("nan"))
    return round(_mean(shares), 4)


def by_strategy(answers: Iterable[Answer]) -> dict[str, list[Answer]]:
    """Answers of each strategy, the most frequent first."""
    chosen: dict[str, list[Answer]] = {}
    for answer in answers:
        chosen.setdefault(answer.strategy, []).append(answer)
    return dict(sorted(chosen.items(), key=lambda item: -len(item[1])))


def summary(answers: Sequence[Answer], total: int) -> dict:
    """Share, accuracy (overall and by level) and mean length of some of the answers."""
    if not answers:
        return {"share": 0.0}
    levels: dict[int, list[Answer]] = {level: [] for level in SumsTask.levels}
    for answer in answers:
        levels[answer.problem.level].append(answer)
    return {
        "share": round(len(answers) / total, 4),
        "accuracy": round(_mean([a.correct for a in answers]), 4),
        "length": round(_mean([a.length for a in answers]), 1),
        "truncated": round(_mean([not a.finished for a in answers]), 4),
        "accuracy_by_level": {
            level: round(_mean([a.correct for a in part]), 3)
            for level, part in levels.items()
            if part
        },
        "length_by_level": {
            level: round(_mean([a.length for a in part]), 1)
            for level, part in levels.items()
            if part
        },
    }


def step_statistics(answers: Iterable[Answer]) -> dict:
    """How often a written step is wrong or stuck, and what the policy does right after it."""
    reactions = {kind: Counter() for kind in ("right", "wrong", "stuck")}
    for answer in answers:
        for left, term, result, reaction in _STEP.findall(answer.text):
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


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _standard_error(values: Sequence[float]) -> float:
    mean, n = _mean(values), len(values)
    return math.sqrt(sum((v - mean) ** 2 for v in values) / max(n - 1, 1) / n)


def main() -> None:
    """`python -m rlbook.tiny.card --model data/tiny-sums`."""
    import tyro

    config = tyro.cli(EvaluateConfig, description=__doc__)
    command = f"python -m rlbook.tiny.card --model {config.model}"
    card = evaluate(config) | {"manifest": manifest(command=command)}
    (config.model / "card.json").write_text(json.dumps(card, indent=1) + "\n")
    print(markdown(card))


if __name__ == "__main__":
    main()
