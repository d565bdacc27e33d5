"""What a training step reports. Every name is defined here and nowhere else.

From the rollouts of a step (`rollout_metrics`): the means of `COMPLETIONS` and `GROUPS`, and
    accuracy_level_<l>  accuracy on prompts of level l
    verify_timeouts     completions counted as wrong because the verifier was late; verify_errors:
                        because it failed, or could not read the reference. `rlbook.scale` asks
                        twice, and counts an attempt without a verdict as well
    rewards/<part>/mean, …/std  of each part of the reward, summed over tokens where it is dense
    reward_by_length    correlation of reward and length over the wrong ones that ended, 0 if none
    reward_by_correct   correlation of reward and verdict; without rewards of single tokens
    share_<strategy>    share of completions the task labels with that strategy
    accuracy_<task>, reward_<task>   of a mixture's problems, task by task
    entropy_level_<l>   mean of −log μ over sampled tokens of level l: its entropy, by sampling
    staleness           mean number of optimizer steps since a token's behaviour policy
    turns               mean number of turns of an episode with an environment
    world_tokens        tokens that the world said, per token that the policy wrote
    ended_by_world      share of episodes that the world ended; a limit ended the others
    world_seconds       mean seconds that the world took for an episode
    places              distinct places where turns began; none where the world does not say
    company             share of later turns that began where a sibling's did, by whatever road
    completions, tokens how many were sampled, those a prompt filter dropped included
    groups              prompts that these belong to

From the steps of `Trainer`
    asked_again         share of a step's problems that the step before asked too
    heldout             pass@1 of held-out problems, where they were measured
    heldout_asked       share of the problems trained on (the pool, or this step's) that are among
                        these

From rollouts and the batch made of them (`batch_metrics`)
    advantage_by_reward correlation of a completion's mean advantage with its reward
    untrained           sampled tokens per ended completion that the mask leaves out

From the first of its updates, before a weight has changed: how the sampler differs from the trainer
    mismatch, mismatch_max  mean and maximum of |log π − log μ|, μ as the sampler reported itself
    mismatch_kl         k3 estimate of KL(μ ‖ π), nats a token
    mismatch_correlation  Pearson's, of the probabilities π and μ over tokens
    surprise            mean of −log π − H(π): 0 if the tokens are samples of π, whatever μ says
    surprise_z          the same over its standard error
    kl_ref              k3 estimate of KL(π ‖ π_ref) where there is a reference: 0 before training

From its updates (`update_metrics`, means over the step's optimizer updates unless said; NaN in a
step that makes none)
    loss                value of the minimised surrogate; not a measure of progress
    entropy             mean entropy of the next-token distribution over trained tokens
    kl                  k3 estimate of KL(π_old ‖ π_θ) over trained tokens
    clip_fraction       share of trained tokens with A ≠ 0 whose policy gradient is masked
    mean_weight         mean coefficient of A·∇log π over trained tokens
    ratio_min/max       extremes of π_θ/π_old over the step
    grad_norm           before clipping
    updates             how many there were
    learning_rate       of the last of them, warm-up included
    skipped_updates     number of updates dropped for a non-finite gradient
    explained_variance  of the completion's reward, by the critic's values at rollout time; not of
                        λ-returns, which contain those values (critic methods)
    value_loss          of the critic (critic methods)

From updates on rollouts of several policy versions (`rlbook.scale`)
    staleness_min/mean/max  versions, one a step, between a trained token's sampling and training
    mismatch_fresh      mean |log π_θ − log μ| of trained tokens with staleness 0, μ being the
                        sampler as it reported itself: what its arithmetic does differently
    mismatch_stale      the same of stale tokens: the updates since they were sampled, too

From the full-scale trainer
    tokens_per_second   completion tokens of the batch / seconds since the update before
    trainer_idle        share of these seconds spent waiting for a batch
    train_seconds       seconds of the update: reading the batch, forward and backward passes
    push_seconds        seconds spent sending weights to generators
    mfu                 operations of the update / (its seconds · peak of the GPUs it ran on)
    checkpoint_failures checkpoints that could not be written since the process started

From the orchestrator of a full-scale run, for everything since its last batch
    batch_seconds       since that batch
    group_seconds       mean time from asking for a group of this batch to its verdicts
    queue_seconds       mean time from then to the batch
    groups_in_flight    mean over time, held-out problems included
    generator_idle      share of the generators' time without a request: n requests keep n busy
    rejected            groups that the prompt filter kept from training
    late                groups that had become too old for the bound on staleness
    failed_requests     asked again; refused_requests: left out
    interrupted         share of completions whose thought was ended by force
    retired             problems of the pool that are not asked again

Others call them: TRL `sampling/sampling_logp_difference/mean|max`, `frac_reward_zero_std`, verl
`rollout_corr/k3_kl`, `training/rollout_actor_probs_pearson_corr`; see `rlbook.doctor`.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from operator import attrgetter
from statistics import StatisticsError, correlation
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rlbook.grouping import group_by, mean
from rlbook.objectives import Loss, kl_estimate, summarize
from rlbook.objectives.shapes import expand_to_tokens
from rlbook.policy import TokenStats
from rlbook.training.batch import Rollout, TrainBatch

UPDATES = ("loss", "entropy", "kl", "clip_fraction", "mean_weight", "ratio_min", "ratio_max")
BY_METHOD = {"reference": ("kl_ref",), "critic": ("value_loss", "explained_variance")}
UNJUDGED = {"verify_timeouts": ("timeout",), "verify_errors": ("error", "bad_reference")}
GAPS = "mismatch", "mismatch_max", "mismatch_kl", "mismatch_correlation"
BEFORE_UPDATES = (*GAPS, "surprise", "surprise_z", "kl_ref")


class Metric(NamedTuple):
    """A mean of `value` over those completions, or groups of them, that `among` names."""

    meaning: str
    value: Callable[[Any], float]
    among: Callable[[Any], bool] = lambda one: True


def means(metrics: Mapping[str, Metric], items: Collection[Any]) -> dict[str, float]:
    """The metrics of completions, or of groups."""
    return {
        name: mean([metric.value(one) for one in items if metric.among(one)])
        for name, metric in metrics.items()
    }


RIGHT, WRONG = attrgetter("correct"), lambda r: not r.correct
COMPLETIONS = {
    "reward": Metric("mean of the summed reward parts", attrgetter("reward")),
    "accuracy": Metric("share that the verifier calls correct", RIGHT),
    "format_ok": Metric("share in the required format", attrgetter("format_ok")),
    "length": Metric("mean length in tokens, EOS included", attrgetter("length")),
    "length_right": Metric("the same of correct ones", attrgetter("length"), RIGHT),
    "length_wrong": Metric("the same of all others", attrgetter("length"), WRONG),
    "truncated": Metric("share stopped by the token limit", attrgetter("truncated")),
    "truncated_right": Metric("the same of correct ones", attrgetter("truncated"), RIGHT),
    "truncated_wrong": Metric("the same of all others", attrgetter("truncated"), WRONG),
    "answered": Metric(
        "share in which the verifier found an answer", lambda r: r.answer is not None
    ),
    "right_unread": Metric("share without, of correct ones", lambda r: r.answer is None, RIGHT),
    "reward_wrong": Metric(
        "mean reward of wrong ones that ended",
        attrgetter("reward"),
        lambda r: not (r.correct or r.truncated),
    ),
    "reward_cut": Metric(
        "mean reward of wrong ones that were cut off",
        attrgetter("reward"),
        lambda r: r.truncated and not r.correct,
    ),
}
GROUPS = {
    "mixed_groups": Metric(
        "share that hold answers to different problems",
        lambda group: len({r.problem.id for r in group}) > 1,
    ),
    "equal_rewards": Metric(
        "share whose completions all earned the same reward",
        lambda group: len({r.reward for r in group}) == 1,
    ),
    "all_right_or_wrong": Metric(
        "share whose completions are all right or all wrong",
        lambda group: len({r.correct for r in group}) == 1,
    ),
}


def rollout_metrics(
    rollouts: Sequence[Rollout],
    version: int,
    label: Callable[[Rollout], str] | None = None,
) -> dict[str, float]:
    """Metrics of one batch of rollouts, learned by the weights of number `version`."""
    groups = group_by(rollouts, attrgetter("group")).values()
    ended = [r for r in rollouts if not (r.correct or r.truncated)]
    metrics = {
        **means(COMPLETIONS, rollouts),
        **means(GROUPS, groups),
        **{name: sum(r.reason in reasons for r in rollouts) for name, reasons in UNJUDGED.items()},
        "reward_by_length": correlated([r.reward for r in ended], [r.length for r in ended]),
        "staleness": mean([version - v for r in rollouts for v in r.versions]),
        "completions": len(rollouts),
        "tokens": sum(r.length for r in rollouts),
        "groups": len(groups),
    }
    if not any(r.token_rewards for r in rollouts):
        verdicts = [float(r.correct) for r in rollouts]
        metrics["reward_by_correct"] = correlated([r.reward for r in rollouts], verdicts)
    for part in dict.fromkeys(name for r in rollouts for name in r.rewards | r.token_rewards):
        earned = [r.rewards.get(part, 0.0) + sum(r.token_rewards.get(part, ())) for r in rollouts]
        metrics[f"rewards/{part}/mean"] = middle = mean(earned)
        metrics[f"rewards/{part}/std"] = mean((value - middle) ** 2 for value in earned) ** 0.5
    for level, members in sorted(group_by(rollouts, lambda r: r.problem.level).items()):
        metrics[f"accuracy_level_{level}"] = mean(r.correct for r in members)
        tokens = [t for r in members for t in zip(r.logps, r.forced or [0] * r.length, strict=True)]
        metrics[f"entropy_level_{level}"] = mean([-logp for logp, forced in tokens if not forced])
    if episodes := [r for r in rollouts if r.turn_of]:
        metrics |= episode_metrics(episodes)
    mixed = [r for r in rollouts if "mixture" in r.problem.meta]
    for task, members in sorted(group_by(mixed, lambda r: str(r.problem.meta["mixture"])).items()):
        metrics[f"accuracy_{task}"] = mean(r.correct for r in members)
        metrics[f"reward_{task}"] = mean(r.reward for r in members)
    if label is not None:
        for name, members in sorted(group_by(rollouts, label).items()):
            metrics[f"share_{name}"] = len(members) / len(rollouts)
    return metrics


def episode_metrics(episodes: Sequence[Rollout]) -> dict[str, float]:
    """Metrics of answers in turns."""
    put_in = sum(sum(r.forced or ()) for r in episodes)
    places = [
        (r.group, turn, place)
        for r in episodes
        for turn, place in enumerate((r.places or [])[:-1])
        if place is not None
    ]
    standing = Counter((group, place) for group, _, place in places)
    return {
        "turns": mean(r.turn_count for r in episodes),
        "world_tokens": put_in / (sum(r.length for r in episodes) - put_in),
        "ended_by_world": mean(not r.truncated for r in episodes),
        "world_seconds": mean(r.world_seconds for r in episodes),
        "places": len({place for *_, place in places}),
        "company": mean(standing[group, place] > 1 for group, turn, place in places if turn),
    }


def batch_metrics(rollouts: Sequence[Rollout], batch: TrainBatch) -> dict[str, float]:
    """What the trainer makes of rollouts, row by row those of its batch, before an update."""
    lengths = batch.mask.sum(1)
    advantages = (expand_to_tokens(batch.advantages, batch.mask) * batch.mask).sum(1) / lengths
    learned = advantages.nan_to_num().tolist(), batch.total_rewards.tolist()
    pairs = zip(rollouts, lengths.tolist(), strict=True)
    left_out = [r.length - sum(r.forced or ()) - n for r, n in pairs if not r.truncated]
    return {"advantage_by_reward": correlated(*learned), "untrained": mean(left_out)}


@torch.no_grad()
def step_sums(loss: Loss, stats: TokenStats, micro: TrainBatch) -> dict[str, Tensor]:
    """What one micro-batch adds to the metrics of its update: sums, counts and extremes."""
    mask, one, other = micro.mask, stats.logp.double(), micro.logp_sampler.double()
    sums = {"loss": loss.loss.detach(), "entropy_sum": stats.entropy.detach().sum(), **loss.sums}
    gap, surprise, (p, q) = (one - other).abs(), -one - stats.entropy, (one.exp(), other.exp())
    terms = {"gap": gap, "gap_kl": kl_estimate(other, one, "k3")}
    terms |= {"p": p, "q": q, "pp": p * p, "qq": q * q, "pq": p * q}
    terms |= {"surprise": surprise, "surprise_2": surprise.square()}
    if micro.logp_ref is not None:
        terms["kl_ref"] = kl_estimate(one, micro.logp_ref.double(), "k3")
    sums |= {f"{name}_sum": torch.where(mask, t, 0.0).sum() for name, t in terms.items()}
    sums["gap_max"] = torch.where(mask, gap, 0.0).max()
    if micro.staleness is None:
        return sums
    staleness = micro.staleness.double()
    for name, chosen in {
        "fresh": mask & (staleness == 0),
        "stale": mask & (staleness > 0),
    }.items():
        sums |= {f"{name}_tokens": chosen.sum(), f"{name}_gap": gap[chosen].sum()}
    return sums | {
        "staleness_sum": staleness[mask].sum(),
        "staleness_min": torch.where(mask, staleness, torch.inf).min(),
        "staleness_max": torch.where(mask, staleness, -torch.inf).max(),
    }


def step_metrics(parts: Sequence[dict[str, Tensor]]) -> dict[str, float]:
    """Metrics of an update from the `step_sums` of all its micro-batches."""
    total: dict[str, Any] = {name: sum(part[name] for part in parts) for name in parts[0]}
    n = total["tokens"]
    per_token = {k[:-4]: v / n for k, v in total.items() if k.endswith("_sum")}
    p, q, surprise = (per_token[k] for k in ("p", "q", "surprise"))
    spread = ((per_token["pp"] - p * p) * (per_token["qq"] - q * q)).clamp(min=0).sqrt()
    deviation = (per_token["surprise_2"] - surprise.square()).clamp(min=0).sqrt()
    metrics = {
        "loss": total["loss"],
        "entropy": per_token["entropy"],
        "mismatch": per_token["gap"],
        "mismatch_max": max(part["gap_max"] for part in parts),
        "mismatch_kl": per_token["gap_kl"],
        "mismatch_correlation": (per_token["pq"] - p * q) / spread,
        "surprise": surprise,
        "surprise_z": surprise * n**0.5 / deviation,
        **summarize(*parts),
    }
    if "kl_ref" in per_token:
        metrics["kl_ref"] = per_token["kl_ref"]
    if "staleness_sum" in total:
        metrics |= {
            "staleness_min": min(part["staleness_min"] for part in parts),
            "staleness_mean": total["staleness_sum"] / total["tokens"],
            "staleness_max": max(part["staleness_max"] for part in parts),
            "mismatch_fresh": total["fresh_gap"] / total["fresh_tokens"],
            "mismatch_stale": total["stale_gap"] / total["stale_tokens"],
        }
    return {name: float(value) for name, value in metrics.items()}


def update_metrics(updates: Sequence[dict[str, float]]) -> dict[str, float]:
    """Combine the reports of a step's optimizer updates: firsts, extremes, counts, else means."""
    combine: dict[str, Callable[[Iterable[float]], float]] = {
        "ratio_min": min,
        "ratio_max": max,
        "skipped_updates": sum,
        **dict.fromkeys(BEFORE_UPDATES, lambda values: next(iter(values))),
    }
    columns = defaultdict(list)
    for update in updates:
        for name, value in update.items():
            columns[name].append(value)
    return {name: combine.get(name, mean)(values) for name, values in columns.items()}


def silent_metrics(needs: Collection[str]) -> dict[str, float]:
    """The columns of a step that makes no update, by a method with these requirements."""
    names = ["advantage_by_reward", "untrained", *UPDATES, *GAPS, "surprise", "surprise_z"]
    names += ["grad_norm", "learning_rate"]
    names += [name for need in BY_METHOD.keys() & needs for name in BY_METHOD[need]]
    return dict.fromkeys(names, float("nan")) | {"updates": 0, "skipped_updates": 0}


def correlated(one: Sequence[float], other: Sequence[float]) -> float:
    """Pearson's correlation; 0 where one of them does not vary."""
    try:
        return correlation(one, other)
    except StatisticsError:
        return 0.0
