"""What a training step reports. Every name is defined here and nowhere else.

From the rollouts of a step (`rollout_metrics`)
    reward              mean of the summed reward parts
    accuracy            share of completions the verifier calls correct
    accuracy_level_<l>  the same on prompts of level l
    format_ok           share in the required format
    length              mean completion length in tokens, EOS included
    length_right/wrong  the same over correct / other completions
    truncated           share stopped by the token limit
    zero_variance       share of groups whose rewards are all equal
    share_<strategy>    share of completions the task labels with that strategy
    staleness           mean number of optimizer steps since a token's behaviour policy
    completions, tokens how many were sampled, those a prompt filter dropped included

From its updates (`update_metrics`, means over the step's optimizer updates unless said)
    loss                value of the minimised surrogate; not a measure of progress
    entropy             mean entropy of the next-token distribution over trained tokens
    kl                  k3 estimate of KL(π_old ‖ π_θ) over trained tokens
    clip_fraction       share of trained tokens with A ≠ 0 whose policy gradient is masked
    mean_weight         mean coefficient of A·∇log π over trained tokens
    ratio_min/max       extremes of π_θ/π_old over the step
    grad_norm           before clipping
    skipped_updates     number of updates dropped for a non-finite gradient
    explained_variance  of the completion's reward, by the critic's values at rollout time; not of
                        λ-returns, which contain those values (critic methods)
    value_loss          of the critic (critic methods)
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from math import nan
from statistics import fmean

from rlbook.training.rollouts import Rollout


def rollout_metrics(
    rollouts: Sequence[Rollout],
    version: int,
    label: Callable[[Rollout], str] | None = None,
) -> dict[str, float]:
    """Metrics of one batch of rollouts, sampled for the policy that has taken `version` updates."""
    right = [r for r in rollouts if r.correct]
    wrong = [r for r in rollouts if not r.correct]
    metrics = {
        "reward": mean(r.reward for r in rollouts),
        "accuracy": mean(r.correct for r in rollouts),
        "format_ok": mean(r.format_ok for r in rollouts),
        "length": mean(r.length for r in rollouts),
        "length_right": mean(r.length for r in right),
        "length_wrong": mean(r.length for r in wrong),
        "truncated": mean(r.truncated for r in rollouts),
        "zero_variance": zero_variance_share(rollouts),
        "staleness": mean(version - v for r in rollouts for v in r.versions),
        "completions": len(rollouts),
        "tokens": sum(r.length for r in rollouts),
    }
    for level, members in sorted(group_by(rollouts, lambda r: r.problem.level).items()):
        metrics[f"accuracy_level_{level}"] = mean(r.correct for r in members)
    if label is not None:
        for name, members in sorted(group_by(rollouts, label).items()):
            metrics[f"share_{name}"] = len(members) / len(rollouts)
    return metrics


def zero_variance_share(rollouts: Sequence[Rollout]) -> float:
    """Share of groups in which every completion earned the same reward."""
    groups = group_by(rollouts, lambda r: r.group).values()
    return mean(len({r.reward for r in group}) == 1 for group in groups)


def update_metrics(updates: Sequence[dict[str, float]]) -> dict[str, float]:
    """Combine the reports of a step's optimizer updates: extremes, counts, otherwise means."""
    combine = {"ratio_min": min, "ratio_max": max, "skipped_updates": sum}
    columns = defaultdict(list)
    for update in updates:
        for name, value in update.items():
            columns[name].append(value)
    return {name: combine.get(name, mean)(values) for name, values in columns.items()}


def group_by(items: Iterable, key: Callable) -> dict:
    groups = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return dict(groups)


def mean(values: Iterable[float]) -> float:
    """Arithmetic mean of the values that are numbers; NaN when there are none."""
    values = [value for value in values if value == value]
    return fmean(values) if values else nan
