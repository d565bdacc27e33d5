"""One way to measure a policy: held-out problems, n samples each, pass@k with intervals."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlbook.policy import Sampler
from rlbook.stats import bootstrap_interval, pass_at_k_curve
from rlbook.tasks import Task, held_out_problems
from rlbook.tasks.registry import HELD_OUT_SEED
from rlbook.training.batch import Rollout
from rlbook.training.collect import Engine, collect_rollouts, labeller
from rlbook.training.metrics import group_by, mean

RESAMPLES = 2_000  # a hundredth of an interval's width, in a few milliseconds


def evaluate(
    policy: tuple[PreTrainedModel, PreTrainedTokenizerBase],
    task: Task,
    prompts: int = 96,
    n: int = 16,
    ks: Sequence[int] | None = None,
    *,
    levels: Sequence[int] | None = None,
    engine: Engine | None = None,
    **how: Any,
) -> dict[str, Any]:
    """`summary` of `held_out_rollouts`: a policy's pass@k on problems that no run trains on."""
    return summary(held_out_rollouts(policy, task, prompts, n, levels, engine, **how), ks, task)


def held_out_rollouts(
    policy: tuple[PreTrainedModel, PreTrainedTokenizerBase],
    task: Task,
    prompts: int = 96,
    n: int = 16,
    levels: Sequence[int] | None = None,
    engine: Engine | None = None,
    **how: Any,
) -> list[Rollout]:
    """`n` completions of each of `prompts` held-out problems, by the policy or another engine.

    `how` is handed to `collect_rollouts` (`max_new_tokens`, `temperature`, `seed`).
    """
    model, tokenizer = policy
    engine = engine or Sampler(model, tokenizer.eos_token_id)
    problems = held_out_problems(task, prompts, levels)
    return collect_rollouts(engine, tokenizer, task, problems, n, **{"seed": HELD_OUT_SEED} | how)


def summary(
    rollouts: Sequence[Rollout], ks: Iterable[int] | None = None, task: Task | None = None
) -> dict[str, Any]:
    """What rollouts of held-out problems say of a policy.

    pass@k           unbiased, for each k (doubling ones up to the group size if absent)
    pass@1_low/high  95 % bootstrap interval; the problem is the sampling unit, since completions
                     of one problem are drawn together
    format_ok, length, truncated   means over all completions
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
    if task is not None and (label := labeller(task)):
        for name, members in sorted(group_by(rollouts, label).items()):
            row[f"share_{name}"] = len(members) / len(rollouts)
    return row | {"problems": len(groups), "samples": samples}


def right_counts(rollouts: Sequence[Rollout]) -> np.ndarray:
    """Number of right completions of each problem, in the order the problems were asked."""
    groups = group_by(rollouts, lambda r: r.group).values()
    return np.array([sum(r.correct for r in group) for group in groups])


def doubling(largest: int) -> list[int]:
    """1, 2, 4, … up to `largest`."""
    return [2**i for i in range(largest.bit_length()) if 2**i <= largest]
