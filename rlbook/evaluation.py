"""One way to measure a policy: how often is it right, on which problems, with which intervals?

`evaluate` asks held-out problems; `difficulty` says what a task's training problems are to a
policy, `pass_rates` what rollouts at hand say, problem by problem or by any other key.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Unpack

import numpy as np
from jaxtyping import Int
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlbook.grouping import group_by, mean
from rlbook.policy import Sampler, end_ids
from rlbook.stats import bootstrap_interval, pass_at_k, pass_at_k_curve
from rlbook.tasks import AnyTask, Problem, held_out_problems
from rlbook.tasks.base import task_name
from rlbook.tasks.registry import HELD_OUT_SEED, checked
from rlbook.training.batch import Rollout
from rlbook.training.engine import Engine
from rlbook.training.judge import labeller, stop_of
from rlbook.training.rollouts import Sampling, collect_rollouts, sampling_of
from rlbook.training.seams import check_asked
from rlbook.training.trainer import Trainer

RESAMPLES = 2_000  # a hundredth of an interval's width, in a few milliseconds
CHUNK = 64  # training problems that are asked at a time


def evaluate(
    policy: tuple[PreTrainedModel, PreTrainedTokenizerBase],
    task: AnyTask,
    prompts: int = 96,
    n: int = 16,
    ks: Sequence[int] | None = None,
    *,
    levels: Sequence[int] | None = None,
    engine: Engine | None = None,
    **sampling: Unpack[Sampling],
) -> dict[str, Any]:
    """`summary` of `held_out_rollouts`: a policy's pass@k on problems that no run trains on."""
    rollouts = held_out_rollouts(policy, task, prompts, n, levels, engine, **sampling)
    return summary(rollouts, ks, task)


class Evaluation(Sampling, total=False):
    """The options of `evaluate`."""

    prompts: int
    n: int
    ks: Sequence[int] | None
    levels: Sequence[int] | None
    engine: Engine | None


def evaluate_run(trainer: Trainer, **changes: Unpack[Evaluation]) -> dict[str, Any]:
    """`evaluate` of a trainer's policy as it is now, asked as its run asks but for `changes`."""
    config = trainer.config
    settings: dict[str, Any] = {
        "prompts": config.evaluation.prompts,
        "n": config.evaluation.samples,
        "levels": config.data.levels,
        **sampling_of(config),
    }
    return evaluate((trainer.model, trainer.tokenizer), trainer.task, **{**settings, **changes})


def held_out_rollouts(
    policy: tuple[PreTrainedModel, PreTrainedTokenizerBase],
    task: AnyTask,
    prompts: int = 96,
    n: int = 16,
    levels: Sequence[int] | None = None,
    engine: Engine | None = None,
    **sampling: Unpack[Sampling],
) -> list[Rollout]:
    """`n` completions of each of `prompts` held-out problems, by the policy or another engine."""
    problems = held_out_problems(checked(task_name(task), task), prompts, levels)
    return ask(policy, task, problems, n, engine, **(Sampling(seed=HELD_OUT_SEED) | sampling))


def ask(
    policy: tuple[PreTrainedModel, PreTrainedTokenizerBase],
    task: AnyTask,
    problems: Sequence[Problem],
    n: int,
    engine: Engine | None = None,
    **sampling: Unpack[Sampling],
) -> list[Rollout]:
    """`n` judged completions of each problem; a policy that is no engine's samples by itself.

    Texts in `stop`, by default the task's, end a completion. Raises `ValueError` for an object that
    is not what it stands for.
    """
    check_asked(policy, task, engine)
    model, tokenizer = policy
    if engine is None:
        stop = stop_of(tokenizer, task, sampling.get("stop"))
        engine = Sampler(model, end_ids(model, tokenizer), stop)
    return collect_rollouts(engine, tokenizer, task, problems, n, **sampling)


def summary(
    rollouts: Sequence[Rollout], ks: Iterable[int] | None = None, task: AnyTask | None = None
) -> dict[str, Any]:
    """What rollouts of held-out problems say of a policy.

    pass@k           unbiased, for each k (doubling ones up to the group size if absent)
    pass@1_low/high  95 % bootstrap interval; the problem is the sampling unit, since completions
                     of one problem are drawn together
    format_ok, length, truncated   means over all completions
    pass@1_<task>    of each task of a mixture
    share_<label>    share of completions to which the task gives that label, if it has labels
    problems, samples              how many problems, and completions of each

    Raises `ValueError` for no rollouts, groups of unequal size, or a k above it.
    """
    groups = list(group_by(rollouts, lambda r: r.group).values())
    sizes = {len(group) for group in groups}
    if len(sizes) != 1:
        raise ValueError(f"pass@k needs groups of one size, got sizes {sorted(sizes)}")
    (samples,), right = sizes, right_counts(rollouts)
    ks = doubling(samples) if ks is None else list(ks)
    if any(not 1 <= k <= samples for k in ks):
        raise ValueError(f"pass@k of {samples} completions a problem needs k from 1 to {samples}")
    curve = pass_at_k_curve(samples, right, ks)
    row = {f"pass@{k}": float(v) for k, v in zip(ks, curve, strict=True)}
    if len(groups) > 1:
        interval = bootstrap_interval(right / samples, resamples=RESAMPLES)
        row |= {"pass@1_low": float(interval.low), "pass@1_high": float(interval.high)}
    row |= {
        "format_ok": mean(r.format_ok for r in rollouts),
        "length": mean(r.length for r in rollouts),
        "truncated": mean(r.truncated for r in rollouts),
    }
    if len(mixed := {r.problem.meta.get("mixture") for r in rollouts}) > 1 or None not in mixed:
        rates = pass_rates(rollouts, lambda r: r.problem.meta.get("mixture"))
        row |= {f"pass@1_{name}": rate for name, rate in sorted(rates.items())}
    if task is not None and (label := labeller(task)):
        for name, members in sorted(group_by(rollouts, label).items()):
            row[f"share_{name}"] = len(members) / len(rollouts)
    return row | {"problems": len(groups), "samples": samples}


def pass_rates(
    rollouts: Iterable[Rollout], by: Callable[[Rollout], Hashable] = lambda r: r.problem.id
) -> dict[Any, float]:
    """Share of right completions of every problem, or level, or whatever else `by` says."""
    return {key: mean(r.correct for r in some) for key, some in group_by(rollouts, by).items()}


def right_counts(rollouts: Sequence[Rollout]) -> np.ndarray:
    """Number of right completions of each problem, in the order the problems were asked."""
    groups = group_by(rollouts, lambda r: r.group).values()
    return np.array([sum(r.correct for r in group) for group in groups])


def doubling(largest: int) -> list[int]:
    """1, 2, 4, … up to `largest`."""
    return [2**i for i in range(largest.bit_length()) if 2**i <= largest]


def difficulty_rows(
    policy: tuple[PreTrainedModel, PreTrainedTokenizerBase],
    task: AnyTask,
    problems: Sequence[Problem],
    samples: int = 16,
    engine: Engine | None = None,
    **sampling: Unpack[Sampling],
) -> list[dict[str, Any]]:
    """A row per problem: id, level, prompt, answer, `right` of `samples`, `pass_rate`.

    Asked in chunks, of which only the counts are kept: of thousands of problems too.
    """
    right: list[int] = []
    for start in range(0, len(problems), CHUNK):
        asked = problems[start : start + CHUNK]
        rollouts = ask(policy, task, asked, samples, engine, **(Sampling(seed=start) | sampling))
        right += right_counts(rollouts).tolist()
    return [
        {
            "id": problem.id,
            "level": problem.level,
            "prompt": problem.prompt,
            "answer": problem.answer,
            "right": count,
            "samples": samples,
            "pass_rate": count / samples,
        }
        for problem, count in zip(problems, right, strict=True)
    ]


def mixed_share(samples: int, right: Int[np.ndarray, " problems"], size: int) -> float:
    """Expected share of groups of `size` that hold both right and wrong answers.

    Groups are drawn from each problem's own answers without replacement; all right or all wrong,
    a group has no advantage to learn from. Raises `ValueError` unless 1 ≤ size ≤ samples.
    """
    if not 1 <= size <= samples:
        raise ValueError(f"group_size {size}: from 1 to the {samples} samples of a problem")
    some_right, some_wrong = (pass_at_k(samples, c, size) for c in (right, samples - right))
    return float(np.mean(some_right + some_wrong - 1))


def difficulty(rows: Sequence[dict[str, Any]], group_size: int = 8) -> dict[str, Any]:
    """What the problems of these rows are to the policy that was asked.

    pass_rate, low, high    mean, with a 95 % bootstrap interval over problems
    never, mixed, always    shares of problems with none, some and all answers right
    mixed_groups            `mixed_share` of groups of `group_size`
    """
    right, samples = np.array([row["right"] for row in rows]), rows[0]["samples"]
    found: dict[str, Any] = {"problems": len(rows), "pass_rate": float(right.mean() / samples)}
    if len(rows) > 1:
        interval = bootstrap_interval(right / samples)
        found |= {"low": float(interval.low), "high": float(interval.high)}
    return found | {
        "never": float((right == 0).mean()),
        "mixed": float(((right > 0) & (right < samples)).mean()),
        "always": float((right == samples).mean()),
        "mixed_groups": mixed_share(samples, right, group_size),
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
