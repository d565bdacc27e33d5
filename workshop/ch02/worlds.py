"""Chapter 02: two runs that differ by a point, answers needed, models before and after."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pandas as pd
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlbook.exact import FillerPolicy
from rlbook.grouping import mean
from rlbook.objectives import METHODS
from rlbook.policy import Sampler
from rlbook.tasks import Problem, Task
from rlbook.training import Rollout, RunConfig, Trainer, collect_rollouts
from workshop.shared.texts import TextPanel, before_after, log_prob_change
from workshop.shared.worlds import bias_variance_table

Policy = tuple[PreTrainedModel, PreTrainedTokenizerBase]
Case = tuple[Policy, Policy, Task, Sequence[Problem]]

BATCHES = {"minibatches": 1, "lr": 4e-4, "steps": 16}
PLAIN = METHODS["reinforce"]
CONFIGS = {
    "rewards 0 and 1": RunConfig(method=PLAIN, **BATCHES),
    "rewards 1 and 2": RunConfig(method=replace(PLAIN, reward_values=(1, 2)), **BATCHES),
}


def two_rewards() -> dict[str, Trainer]:
    """The base for sums, about to be trained with either pair of rewards."""
    return {name: Trainer(config) for name, config in CONFIGS.items()}


def answers_needed(solve_rates: Sequence[float], n: int = 8) -> pd.DataFrame:
    """How many of two answers, one right, make noise and signal equal; exact, a row per solve rate.

    n · Var(g) / ‖E[g]‖² for the gradient g of a batch of n; no baseline, and the batch's mean.
    """
    rows = {}
    for rate in solve_rates:
        world = FillerPolicy.of(rate, fillers=0)
        table = pd.DataFrame(bias_variance_table(world, world.rewards, n=n)).set_index("baseline")
        needed = n * table["noise_to_signal"] ** 2
        rows[rate] = {"none": needed["none"], "mean": needed["batch mean"]}
    return pd.DataFrame(rows).T.rename_axis("solve rate")


def asked(
    policy: Policy, task: Task, problems: Sequence[Problem], n: int, temperature: float
) -> list[Rollout]:
    """n answers of a policy to each problem."""
    engine = Sampler(policy[0], policy[1].eos_token_id)
    return collect_rollouts(engine, policy[1], task, problems, n, temperature=temperature)


def shares_right(cases: Mapping[str, Case]) -> pd.DataFrame:
    """Share of right answers of a policy before and after training, eight sampled and greedy."""
    rows = {
        name: {
            f"{how}, {when}": mean(r.correct for r in asked(policy, task, problems, n, temperature))
            for how, n, temperature in (("sampled", 8, 1.0), ("greedy", 1, 0.0))
            for when, policy in (("before", was), ("after", now))
        }
        for name, (was, now, task, problems) in cases.items()
    }
    return pd.DataFrame(rows).T


def changed_answer(was: Policy, now: Policy, task: Task, problem: Problem) -> TextPanel:
    """The greedy answer to a problem before and after, the former tinted by the change of log π."""
    first, second = (asked(policy, task, [problem], 1, 0.0) for policy in (was, now))
    change = log_prob_change(first, was[0], now[0])
    return before_after(problem, first, second, change, was[1], push_name="change of log π")
