"""Chapter 07: the world in which half of every group starts lost, and what is measured there."""

from collections.abc import Iterable, Iterator, Mapping

import pandas as pd
from transformers import PreTrainedModel

from rlbook.grouping import mean
from rlbook.objectives import Method
from rlbook.policy import load_policy
from rlbook.training import Rollout, RunConfig, Trainer, collect_rollouts
from workshop.bases.decisions import decisions
from workshop.shared.worlds import LostIsWrong, StartsLost

TASK = LostIsWrong()
SETTINGS = RunConfig(levels=(2, 3), steps=12)
ASKED = ["answers_at_once", "gets_stuck", "gives_up", "stops_when_lost"]


def in_lost_world(method: Method, **changed: object) -> Trainer:
    """Twelve batches of 16 prompts with 8 answers, of which half start lost."""
    policy = load_policy("tiny")
    config = SETTINGS.replace(method=method, **changed)
    return Trainer(config, policy, task=TASK, engine=StartsLost(*policy))


def when_lost(rollouts: Iterable[Rollout]) -> dict[str, float]:
    """Mean length of the answers that started lost, and the share that ran into the limit."""
    lost = [r for r in rollouts if r.forced]
    return {
        "length when lost": mean(r.length for r in lost),
        "cut off when lost": mean(r.truncated for r in lost),
    }


def with_lost_lengths(run: Trainer) -> Iterator[dict[str, float]]:
    """Train, and add to each step's metrics what `when_lost` measures."""
    while run.step < run.config.steps:
        rollouts = run.collect()
        yield run.learn(rollouts) | when_lost(rollouts)


def group_of(model: PreTrainedModel, n: int = 8, seed: int = 0) -> list[Rollout]:
    """n answers to one problem of the world, of which half start lost."""
    words = load_policy("tiny")[1]
    problems = TASK.sample(3, 1, levels=(2,))
    return collect_rollouts(StartsLost(model, words), words, TASK, problems, n=n, seed=seed,
                            max_new_tokens=80)  # fmt: skip


def lost_answers(model: PreTrainedModel) -> list[Rollout]:
    """Three answers to that problem that started lost."""
    return [r for r in group_of(model, n=6, seed=1) if r.forced]


def decided(models: Mapping[str, PreTrainedModel]) -> pd.DataFrame:
    """Exact probabilities of single decisions, averaged over 32 problems: a row per model.

    To answer at once, to get stuck in the first step, to give up then, and to stop after the fifth
    `hmm `. No sampling blurs them.
    """
    words = load_policy("tiny")[1]
    found = {name: decisions(model, words) for name, model in models.items()}
    return pd.DataFrame(found).T[ASKED]
