"""What a baseline costs in rollouts: exact variances of the gradient of one prompt."""

from functools import cache

from jaxtyping import Float
from torch import Tensor

from rlbook.exact.estimators import baseline_moments, expected_gradient, optimal_baseline
from rlbook.exact.policies import FillerPolicy
from rlbook.objectives import leave_one_out


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
