"""How hard a task's problems are for a policy: the share of right answers, problem by problem.

A problem that is always solved, or never, has no advantage to learn from; a group of n answers to
one of pass rate p has right and wrong ones with probability 1 − pⁿ − (1 − p)ⁿ.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlbook.evaluation import right_counts
from rlbook.policy import Sampler
from rlbook.stats import bootstrap_interval, pass_at_k
from rlbook.tasks import Problem, Task
from rlbook.training.collect import Engine, collect_rollouts

CHUNK = 64  # problems that are asked at a time


def pass_rates(
    policy: tuple[PreTrainedModel, PreTrainedTokenizerBase],
    task: Task,
    problems: Sequence[Problem],
    samples: int = 16,
    engine: Engine | None = None,
    **how: Any,
) -> list[dict[str, Any]]:
    """A row per problem: id, level, prompt, answer, `right` of `samples`, `pass_rate`.

    `how` is handed to `collect_rollouts` (`max_new_tokens`, `temperature`, `seed`).
    """
    model, tokenizer = policy
    engine = engine or Sampler(model, tokenizer.eos_token_id)
    rows = []
    for start in range(0, len(problems), CHUNK):
        asked = problems[start : start + CHUNK]
        rollouts = collect_rollouts(
            engine, tokenizer, task, asked, samples, **{"seed": start} | how
        )
        for problem, right in zip(asked, right_counts(rollouts).tolist(), strict=True):
            rows.append(
                {
                    "id": problem.id,
                    "level": problem.level,
                    "prompt": problem.prompt,
                    "answer": problem.answer,
                    "right": right,
                    "samples": samples,
                    "pass_rate": right / samples,
                }
            )
    return rows


def difficulty(rows: Sequence[dict[str, Any]], group_size: int = 8) -> dict[str, Any]:
    """What these problems are to the policy that was asked.

    pass_rate, low, high    mean, with a 95 % bootstrap interval over problems
    never, mixed, always    shares of problems with none, some and all answers right
    mixed_groups            expected share of groups of `group_size` with right and wrong answers,
                            drawn from each problem's own answers without replacement
    """
    right = np.array([row["right"] for row in rows])
    samples = rows[0]["samples"]
    if not 1 <= group_size <= samples:
        raise ValueError(f"group_size {group_size}: from 1 to the {samples} samples of a problem")
    rates = right / samples
    found: dict[str, Any] = {"problems": len(rows), "pass_rate": float(rates.mean())}
    if len(rows) > 1:
        interval = bootstrap_interval(rates)
        found |= {"low": float(interval.low), "high": float(interval.high)}
    some_right = pass_at_k(samples, right, group_size)
    some_wrong = pass_at_k(samples, samples - right, group_size)
    return found | {
        "never": float((right == 0).mean()),
        "mixed": float(((right > 0) & (right < samples)).mean()),
        "always": float((right == samples).mean()),
        "mixed_groups": float(np.mean(some_right + some_wrong - 1)),
    }


def difficulty_table(rows: Sequence[dict[str, Any]], group_size: int = 8) -> str:
    """`difficulty` of every level and of all, as text."""
    levels = sorted({row["level"] for row in rows})
    parts = {str(level): [row for row in rows if row["level"] == level] for level in levels}
    head = f"{'level':<7}{'problems':>9}{'pass rate':>11}{'95 %':>16}{'never':>8}{'mixed':>8}"
    lines = [head + f"{'always':>8}{'mixed groups of ' + str(group_size):>20}"]
    for name, part in {**parts, "all": list(rows)}.items():
        found = difficulty(part, group_size)
        interval = f"[{found['low']:.3f}, {found['high']:.3f}]" if "low" in found else ""
        lines.append(
            f"{name:<7}{found['problems']:>9}{found['pass_rate']:>11.3f}{interval:>16}"
            f"{found['never']:>8.1%}{found['mixed']:>8.1%}{found['always']:>8.1%}"
            f"{found['mixed_groups']:>20.1%}"
        )
    return "\n".join(lines)
