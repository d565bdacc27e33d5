"""Chapter 13: what its two worlds and its recorded experiments say, a table each."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlbook.evaluation import held_out_rollouts, right_counts
from rlbook.policy import load_policy
from rlbook.stats import pass_at_k, t_interval
from rlbook.tasks import get_task
from rlbook.training import Rollout
from workshop.ch13.figures import NAMES, TRIES, counts_of

Policy = tuple[PreTrainedModel, PreTrainedTokenizerBase]
ByLevel = Mapping[int, float]


def tries(policy: Policy, world: str, n: int = TRIES) -> dict[int, list[Rollout]]:
    """n answers to each of twelve held-out problems, by level."""
    return {
        level: held_out_rollouts(policy, get_task(world), 12, n, levels=(level,))
        for level in NAMES[world]
    }


def share_right(policy: Policy, world: str, n: int = 32) -> dict[int, float]:
    """The share right of n answers to each of twelve held-out problems, by level."""
    given = tries(policy, world, n)
    return {level: float(right_counts(r).mean() / n) for level, r in given.items()}


def answered_at(policy: str, world: str, temperature: float) -> dict[str, float]:
    """The share right of 24 held-out problems of each kind, asked 16 times; at 0 once, greedily."""
    how = {"n": 16 if temperature else 1, "temperature": temperature}
    asked = {
        name: held_out_rollouts(load_policy(policy), get_task(world), 24, levels=(level,), **how)
        for level, name in NAMES[world].items()
    }
    return {name: float(np.mean([r.correct for r in rollouts])) for name, rollouts in asked.items()}


def by_kind(**shares: Mapping[str, ByLevel]) -> pd.DataFrame:
    """A row per kind of both worlds, a column per argument: a share by world and level."""
    return pd.DataFrame(
        {
            column: {
                (world, NAMES[world][level]): share
                for world, by_level in worlds.items()
                for level, share in by_level.items()
            }
            for column, worlds in shares.items()
        }
    )


def minus_the_cold(
    runs: Mapping[str, pd.DataFrame], cold: pd.DataFrame, temperature: str = "T = 0.3"
) -> pd.DataFrame:
    """Every arm minus the untrained base at a temperature, right at one try, mean over kinds.

    Seed by seed, with the 95 % interval over seeds; a row per world and arm. `runs` has an
    evaluation per arm and seed by world; `cold` is `cold_eval`, ten draws.
    """
    rows = {}
    for world, table in runs.items():
        levels = [f"pass@1_level_{level}" for level in NAMES[world]]
        null = cold[cold["arm"] == f"{temperature}, {world}"].set_index("seed")[levels].mean(axis=1)
        for arm, own in table.groupby("arm", sort=False):
            gap = own.set_index("seed")[levels].mean(axis=1) - null
            rows[world, arm] = t_interval(gap.dropna())._asdict()
    return pd.DataFrame(rows).T[["mean", "low", "high"]]


def tries_bought(base: Mapping[int, Sequence[int]], runs: pd.DataFrame) -> pd.DataFrame:
    """What RL with a verifier added to `habits`, in tries; a row per kind.

    Right at one try and within 256 of the base and of RL, mean over runs. How many tries of the
    base solve as many problems as two of a run: mean, least and most over the runs whose two tries
    the base's 256 can match, and how many runs it cannot. `base` has right answers of 256 by level
    and problem, `runs` the same by seed.
    """
    rows = {}
    for level, name in NAMES["habits"].items():
        found = counts_of(runs, "verifier", level)
        of_base = np.array([pass_at_k(TRIES, base[level], k).mean() for k in range(1, TRIES + 1)])
        of_runs = {k: pass_at_k(TRIES, found, k).mean(axis=1) for k in (1, 2, TRIES)}
        worth = [1 + np.argmax(of_base >= two) for two in of_runs[2] if of_base[-1] >= two]
        rows[name] = {"base, one try": of_base[0], "RL, one try": of_runs[1].mean()}
        rows[name] |= {"base, 256": of_base[-1], "RL, 256": of_runs[TRIES].mean()}
        rows[name] |= {"two are worth": np.mean(worth), "least": min(worth), "most": max(worth)}
        rows[name]["beyond the base"] = len(found) - len(worth)
    return pd.DataFrame(rows).T
