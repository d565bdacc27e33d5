"""Age × roughness × mask: one sampler, whose weights are batches old, rounded, both, or neither.

Which trust region for which trouble? Chapter 09 asks it of a rough sampler, chapter 17 of old
tokens, chapter 11 of both, and all three read these four tables. There is no queue: every batch is
sampled with the weights of `age` batches ago, so age is a dial and not a load. Two updates a batch:
with one, a ratio to the trainer's own π_old is 1 and nothing that is held to it can act.

Expected, and written down before the first run:
* old tokens, exact sampler: the clip at μ above DPPO, DPPO above CISPO at 4e-4; level at 1e-4
* new tokens, rough sampler: CISPO, DPPO and the clip at π_old level, the clip at μ below them
* new tokens, exact sampler: all level, and the two clips the same to the last bits
* old tokens, rough sampler: open
"""

from collections import deque
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlbook.objectives import (
    METHODS,
    DivergenceMask,
    NoTrustRegion,
    RatioClip,
    SamplerCorrection,
    WeightClip,
)
from rlbook.policy import Completion, Sampler, load_policy
from rlbook.training import RunConfig, Trainer
from workshop.shared.design import Arm, Experiment, World, arm, no_columns, vary
from workshop.shared.worlds import rounded

AGE = 4  # batches of two updates each: 8 updates
BITS = 4  # of a rough sampler's weights, as in chapters 11 and 17
ROW = METHODS["scalerl"]
CLIP = RatioClip(0.2, 0.28)
MASKS = {
    "no region": replace(ROW, trust_region=NoTrustRegion()),
    "CISPO": replace(ROW, trust_region=WeightClip(max=5.0)),
    "clip at μ": replace(ROW, trust_region=CLIP),
    "clip at π_old": replace(
        ROW,
        trust_region=CLIP,
        old_logprobs="recomputed",
        sampler_correction=SamplerCorrection(cap=2.0),
    ),
    "DPPO": replace(ROW, trust_region=DivergenceMask("tv", 0.15, 0.15)),
}


class AgedSampler:
    """Samples with the weights of `age` syncs ago, rounded to `bits`; None: as they were.

    Until so many syncs have been, it samples with the first.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, age: int, bits: int | None):
        self.eos_id, self.bits = tokenizer.eos_token_id, bits
        self.kept: deque[Sampler] = deque(maxlen=age + 1)

    def load_weights(self, model: PreTrainedModel) -> None:
        """Remember these weights; the oldest of those remembered sample."""
        copy = rounded(model, self.bits) if self.bits else deepcopy(model)
        self.kept.append(Sampler(copy, self.eos_id))

    def generate(self, prompts: Sequence[Sequence[int]], **settings: Any) -> list[Completion]:
        return self.kept[0].generate(prompts, **settings)


def aged(age: int, bits: int | None) -> World:
    """A trainer whose answers are written by the policy of `age` batches ago, rounded."""
    return partial(_with_aged_sampler, age, bits)


def _with_aged_sampler(age: int, bits: int | None, config: RunConfig) -> Trainer:
    policy = load_policy(config.model.policy)
    return Trainer(config, policy, engine=AgedSampler(policy[1], age, bits))


def masks() -> Iterator[Arm]:
    """ScaleRL's row under five regions, 128 answers a batch in two updates."""
    settings: dict[str, Any] = {"minibatches": 2, "steps": 30, "pool": 256, "retire_at": 0.9}
    for label, method in MASKS.items():
        yield vary(arm(label, method, **settings), lr=(1e-4, 2e-4, 4e-4))


def masked(question: str, age: int, bits: int | None) -> Experiment:
    return Experiment(
        question,
        tuple(masks()),
        tuning_seeds=(100, 101),
        world=aged(age, bits),
        measure=no_columns,
        evaluation={"prompts": 96, "n": 8, "ks": (1, 8)},
        columns=("accuracy", "completions", "clip_fraction", "kl", "mean_weight", "ratio_max"),
    )


MASK_AND_AGE: dict[str, Experiment] = {
    "mask_old": masked("Which mask for tokens that are 8 updates old?", AGE, None),
    "mask_rough": masked("... and for new tokens of a sampler with 4 bits a weight?", 0, BITS),
    "mask_new": masked("... and where the sampler is the policy itself?", 0, None),
    "mask_old_rough": masked("... and where tokens are old and the sampler rough?", AGE, BITS),
}
