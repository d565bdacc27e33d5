"""Chapter 08: what is trained and measured there."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from rlbook.evaluation import held_out_rollouts, right_counts
from rlbook.grouping import group_by
from rlbook.objectives import Region
from rlbook.stats import pass_at_k
from rlbook.tasks import SumsTask
from rlbook.training import Rollout
from workshop.shared.worlds.batch_reuse import ReuseRun, reuse_batches
from workshop.shared.worlds.in_turn import batches as batches
from workshop.shared.worlds.in_turn import shuffle as shuffle

UPDATES = (1, 2, 4, 8, 16, 32)  # a batch
LENGTHS = (0.06, 0.12, 0.18, 0.24, 0.48)  # of an update, in log-probability of the good token
ASKED = 16  # prompts of each level, answers to each


def progress(runs: Mapping[str, ReuseRun]) -> pd.DataFrame:
    """Of each clip: batches until the good token has ½, its growth in the first, updates masked."""
    rows = {}
    for name, run in runs.items():
        growth = (run.probs[1, 0] / run.probs[0, 0]).item()
        rows[name] = [run.batches_until(token=0), growth, run.masked[0, 0].item()]
    columns = ["batches until p > ½", "growth in batch 1", "its updates masked"]
    return pd.DataFrame(rows, index=columns).T


def batches_needed(
    world: tuple[Tensor, Tensor], clips: Mapping[str, Region]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Batches until the good token has ½, a column per clip: by updates a batch, by their length.

    `world` has probabilities and rewards. The second table's updates are 16 a batch; their length
    is how far one moves the good token's log-probability.
    """

    def needed(**how: Any) -> dict[str, int | None]:
        runs = {name: reuse_batches(*world, clip, 80, **how) for name, clip in clips.items()}
        return {name: run.batches_until(0) for name, run in runs.items()}

    by_updates = pd.DataFrame({n: needed(updates=n) for n in UPDATES}).T
    by_length = pd.DataFrame({far: needed(lr=far / 0.6) for far in LENGTHS}).T
    by_length = by_length.rename_axis("step in log π (16 updates)")
    return by_updates.rename_axis("updates per batch"), by_length


def ask_levels(policy: tuple, n: int) -> tuple[list[list[Rollout]], pd.DataFrame]:
    """Sixteen answers to sixteen sums of every level, and a row per prompt.

    "silent" is the chance that n answers to it are all right or all wrong, without bias: the share
    of the groups of n that can be formed of its sixteen answers.
    """
    levels = SumsTask().levels
    asked = [held_out_rollouts(policy, SumsTask(), ASKED, ASKED, [k], seed=k) for k in levels]
    right = np.concatenate([right_counts(rollouts) for rollouts in asked])
    prompts = pd.DataFrame({"level": np.repeat(levels, ASKED), "solve rate": right / ASKED})
    prompts["silent"] = 2 - pass_at_k(ASKED, right, n) - pass_at_k(ASKED, ASKED - right, n)
    return asked, prompts


def by_level(prompts: pd.DataFrame, n: int) -> pd.DataFrame:
    """Means of each level, and what a batch of 16 groups of n costs that all have an advantage."""
    levels = prompts.groupby("level").mean()
    levels["prompts per useful one"] = 1 / (1 - levels.silent)
    levels["answers for 16 groups"] = (16 * n * levels["prompts per useful one"]).round()
    return levels


def groups_of(rollouts: list[Rollout]) -> list[list[Rollout]]:
    """The rollouts of each prompt, in the order of their groups."""
    return list(group_by(rollouts, lambda r: r.group).values())
