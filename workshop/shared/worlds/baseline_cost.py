"""What a baseline costs in rollouts: exact variances of the gradient of one prompt."""

from collections.abc import Mapping
from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor

from rlbook.exact.estimators import (
    Advantage,
    GradientMoments,
    expected_gradient,
    optimal_baseline,
)
from rlbook.exact.policies import EnumerablePolicy, FillerPolicy
from rlbook.objectives import leave_one_out

__all__ = ["bias_variance_table", "cost", "relative_noise"]


def baseline_moments(
    policy: EnumerablePolicy,
    rewards: Float[Tensor, " K"],
    n: int,
    baseline: float,
    baseline_variance: float = 0.0,
) -> GradientMoments:
    """Moments of g = 1/n Σ_i (r_i - b) ∇log π(y_i) for a baseline b independent of the samples.

    Always unbiased. A b that varies from batch to batch costs Var(b) E[∇log π ∇log πᵀ] / n.
    """
    pull = policy.scores * (policy.probs.sqrt() * (rewards - baseline))[:, None]
    fisher = policy.scores * policy.probs.sqrt()[:, None]
    mean = policy.scores.T @ (policy.probs * (rewards - baseline))
    single = pull.T @ pull + baseline_variance * fisher.T @ fisher - torch.outer(mean, mean)
    return GradientMoments(mean, single / n, policy.true_gradient(rewards), n)


def ema_variance(
    policy: EnumerablePolicy, rewards: Float[Tensor, " K"], n: int, decay: float = 0.9
) -> float:
    """Variance of b ← decay · b + (1 - decay) · mean(r) in the long run under a fixed policy.

    Var(b) = (1 - decay) / (1 + decay) · Var(r) / n
    """
    spread = policy.probs @ (rewards - policy.expected_reward(rewards)).square()
    return ((1 - decay) / (1 + decay) * spread / n).item()


def bias_variance_table(
    policy: EnumerablePolicy,
    rewards: Float[Tensor, " K"],
    n: int = 8,
    shift: float = 1.0,
    extra: Mapping[str, Advantage] | None = None,
) -> list[dict[str, str | float | None]]:
    """One row per baseline, all exact; `extra` adds exchangeable estimators by name.

    Columns: `value` of the baseline (its mean; None where the batch decides; shifting all rewards
    is a baseline of minus the shift), `factor` and `bias` of the expected gradient, `variance` of
    one batch of n, and `noise_to_signal`. The rows are none, none with `shift` added to every
    reward, EMA (decay 0.9, long run), batch mean, leave-one-out, greedy (reward of the likeliest
    outcome, the first of several) and optimal. Chapter 02.
    """
    if n < 2:
        raise ValueError(f"leave-one-out needs n ≥ 2 samples, got {n}")
    mean = policy.expected_reward(rewards).item()
    greedy = rewards[policy.probs.argmax()].item()
    best = optimal_baseline(policy, rewards)
    fixed = {
        "none": (0.0, 0.0),
        f"none, rewards {shift:+g}": (-shift, 0.0),
        "EMA": (mean, ema_variance(policy, rewards, n)),
        "greedy": (greedy, 0.0),
        "optimal": (best, 0.0),
    }
    sampled = {
        "batch mean": lambda r, groups: r - r.mean(),
        "leave-one-out": lambda r, groups: (r - r.mean()) * n / (n - 1),
        **(extra or {}),
    }
    moments = {name: baseline_moments(policy, rewards, n, *b) for name, b in fixed.items()}
    moments |= {
        name: expected_gradient(advantage, policy, rewards, n, exchangeable=True)
        for name, advantage in sampled.items()
    }
    order = [*list(fixed)[:3], *list(sampled)[:2], *list(fixed)[3:], *list(sampled)[2:]]
    return [
        {
            "baseline": name,
            "value": fixed[name][0] if name in fixed else None,
            "factor": moments[name].factor,
            "bias": moments[name].bias,
            "variance": moments[name].variance,
            "noise_to_signal": moments[name].noise_to_signal,
        }
        for name in order
    ]


@cache
def filler_world(p: float, fillers: int) -> FillerPolicy:
    """A prompt of solve rate p whose answers carry up to `fillers` tokens that change nothing."""
    return FillerPolicy.of(p, fillers=fillers)


@cache
def constant_baselines(p: float, shift: float, fillers: int) -> dict[str, float]:
    """No baseline, the mean reward and the optimal constant, for rewards moved by `shift`."""
    policy = filler_world(p, fillers)
    best = optimal_baseline(policy, policy.rewards + shift)
    return {"none": 0.0, "mean": p + shift, "optimal": best}


@cache
def rollouts_needed(p: float, shift: float, fillers: int, baseline: float) -> float:
    """Rollouts at which the variance of the gradient has fallen to its squared length."""
    policy = filler_world(p, fillers)
    return baseline_moments(policy, policy.rewards + shift, 1, baseline).noise_to_signal ** 2


@cache
def cost(
    name: str, p: float, n: int, shift: float = 0.0, fillers: int = 6, free: bool = False
) -> float:
    """Exact variance of the gradient of one prompt relative to that of the best constant.

    `name` is "none", "siblings" (leave-one-out) or "greedy". `n` counts the *generated* completions
    of the prompt, so a greedy baseline leaves n − 1 to learn from unless it is `free`. `shift` is
    added to rewards of 0 and 1.
    """
    if name == "siblings" and (shift, free) != (0.0, False):
        return cost(name, p, n, 0.0, fillers)  # blind to the zero of the rewards
    policy = filler_world(p, fillers)
    rewards = policy.rewards
    greedy = rewards[policy.probs.argmax()].item() + shift
    if name == "siblings":
        moments = expected_gradient(leave_one_out, policy, rewards, n, exchangeable=True)
    else:
        b, samples = (greedy, n if free else n - 1) if name == "greedy" else (0.0, n)
        moments = baseline_moments(policy, rewards + shift, samples, b)
    best = baseline_moments(policy, rewards, n, optimal_baseline(policy, rewards))
    return moments.variance / max(best.variance, 1e-12)


def relative_noise(
    rewards: Float[Tensor, " N"], pulls: Float[Tensor, " N"], baselines: Float[Tensor, " B"]
) -> Float[Tensor, " B"]:
    """E[(r − b)²‖∇log π‖²] / E[r²‖∇log π‖²]: how many times the rollouts b costs or saves."""
    noise = ((rewards - baselines[:, None]).square() * pulls).mean(1)
    return noise / (rewards.square() * pulls).mean()
