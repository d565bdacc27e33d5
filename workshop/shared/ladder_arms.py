"""The ladder: every row that trains a policy, on one budget of answers, at its own rate.

20 batches of 128 answers, no KL, the updates that each paper has in mind. Sums ask for care, habits
for rules that the base hardly ever follows: two worlds, because on easy ones the rungs are alike.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from rlbook.objectives import FIELD, METHODS, EMABaseline, Method, RatioClip, group_center
from workshop.shared.design import Arm, Experiment, arm, no_columns, vary
from workshop.shared.evidence import family_rates
from workshop.shared.worlds import HABITS

ANSWERS = 2560
COLUMNS = ("accuracy", "completions", "entropy", "clip_fraction", "grad_norm")
ONE_UPDATE = {"minibatches": 1}, (2e-4, 4e-4, 8e-4, 1.6e-3)
FOUR_UPDATES = {"minibatches": 4}, (1e-4, 2e-4, 4e-4, 8e-4)
SIXTEEN_UPDATES = {"minibatches": 16}, (5e-5, 1e-4, 2e-4, 4e-4)
CRITIC = {"lam": 0.95} | SIXTEEN_UPDATES[0], SIXTEEN_UPDATES[1]
SINGLE = {"prompts": 128, "group_size": 1}
GSPO_WIDTH = 0.03  # the best of `methods`: a copied window is not a setting
NO_SIGMA = replace(METHODS["grpo"], advantage=group_center)

Use = tuple[Mapping[str, Any], tuple[float, ...]]
# Rows that other trainers ship, those of most of them. Not among them: what an exact sampler makes
# another row (corrections, `m2po`), what another table trains (selections in 12, teachers in 14).
BESIDE: Mapping[str, tuple[Method, Use]] = {
    "SAPO": (METHODS["sapo"], SIXTEEN_UPDATES),
    "GLM-5": (FIELD["glm5"], SIXTEEN_UPDATES),
    "DRO": (FIELD["dro"], FOUR_UPDATES),
    "VAPO": (FIELD["vapo"], CRITIC),
}


def rungs(mean: float) -> Mapping[str, tuple[Method, Use]]:
    """Label, row and use of every rung; `mean` is the base's accuracy, where a moving average of
    rewards can start."""
    ema = partial(EMABaseline, value=mean)
    own_width = replace(METHODS["gspo"], trust_region=RatioClip(GSPO_WIDTH, GSPO_WIDTH))
    single = (SINGLE | FOUR_UPDATES[0], FOUR_UPDATES[1])
    stale = ({"minibatches": 1, "sync_every": 4}, ONE_UPDATE[1])
    return {
        "REINFORCE": (METHODS["reinforce"], ONE_UPDATE),
        "REINFORCE, batch mean": (METHODS["reinforce_batch_mean"], ONE_UPDATE),
        "REINFORCE, moving average": (
            replace(METHODS["reinforce_ema"], advantage=ema),
            ONE_UPDATE,
        ),
        "PPO": (METHODS["ppo"], CRITIC),
        "RLOO": (METHODS["rloo"], ONE_UPDATE),
        "ReMax": (METHODS["remax"], ONE_UPDATE),
        "REINFORCE++": (METHODS["reinforce_plus_plus"], single),
        "OPO": (METHODS["opo"], ONE_UPDATE),
        "GRPO": (METHODS["grpo"], FOUR_UPDATES),
        "GRPO, no σ": (NO_SIGMA, FOUR_UPDATES),
        "Dr. GRPO": (METHODS["dr_grpo"], FOUR_UPDATES),
        "DAPO": (METHODS["dapo"], SIXTEEN_UPDATES),
        "CISPO": (METHODS["cispo"], SIXTEEN_UPDATES),
        "GSPO": (own_width, SIXTEEN_UPDATES),
        "MaxRL": (METHODS["maxrl"], ONE_UPDATE),
        "DPPO": (METHODS["dppo"], SIXTEEN_UPDATES),
        "DPPO, KL": (METHODS["dppo_kl"], SIXTEEN_UPDATES),
        "ScaleRL": (METHODS["scalerl"], stale),
        "LitePPO": (METHODS["lite_ppo"], FOUR_UPDATES),
        "GPG": (METHODS["gpg"], ONE_UPDATE),
    }


def cut_otherwise() -> Mapping[str, tuple[Method, Use]]:
    """Two rungs with the other cut of 128 answers into prompts, and nothing else changed."""
    pairs = {"prompts": 16, "group_size": 8} | FOUR_UPDATES[0]
    return {
        "REINFORCE, 128 prompts": (METHODS["reinforce"], (SINGLE | ONE_UPDATE[0], ONE_UPDATE[1])),
        "REINFORCE++, 16 prompts": (METHODS["reinforce_plus_plus"], (pairs, FOUR_UPDATES[1])),
    }


def without_filter_and_ramp() -> Mapping[str, tuple[Method, Use]]:
    """Two recipes of the ladder down to their loss, as DPPO's row has it: 20 batches again."""
    plain: Mapping[str, Any] = {"prompt_filter": None, "reward_shaping": "none"}
    return {
        f"{label}, no filter, no ramp": (replace(METHODS[name], **plain), SIXTEEN_UPDATES)
        for label, name in (("DAPO", "dapo"), ("CISPO", "cispo"))
    }


def ladder(rows: Mapping[str, tuple[Method, Use]], **world: Any) -> Iterator[Arm]:
    for label, (method, (settings, rates)) in rows.items():
        one = arm(label, replace(method, kl=None), steps=20, **settings, **world)
        yield vary(one, lr=rates)


def climbed(
    question: str,
    rows: Mapping[str, tuple[Method, Use]],
    measure=no_columns,
    columns: Sequence[str] = COLUMNS,
    **world: Any,
) -> Experiment:
    return Experiment(
        question,
        tuple(ladder(rows, **world)),
        tuning_seeds=(100, 101),
        measure=measure,
        evaluation={"prompts": 96, "n": 8, "ks": (1, 8)},
        answers=ANSWERS,
        columns=columns,
    )


LADDER: dict[str, Experiment] = {
    "ladder_sums": climbed(
        "What does 2,560 answers' worth of each row teach on sums?", rungs(0.38)
    ),
    "ladder_habits": climbed(
        "... and where the base's favourite rule is wrong?", rungs(0.22), family_rates, **HABITS
    ),
    "cut_sums": climbed(
        "What does the cut of a batch into prompts change, on sums?", cut_otherwise()
    ),
    "cut_habits": climbed(
        "... and where the base's favourite rule is wrong?",
        cut_otherwise(),
        family_rates,
        **HABITS,
    ),
    "recipes_sums": climbed(
        "What are DAPO and CISPO on sums without the filter and the ramp of their recipes?",
        without_filter_and_ramp(),
    ),
    "beside_sums": climbed(
        "And of the rows that other trainers ship beside them, on sums?",
        BESIDE,
        columns=("accuracy",),
    ),
    "beside_habits": climbed(
        "... and of these, where the base's favourite rule is wrong?",
        BESIDE,
        family_rates,
        columns=("accuracy",),
        **HABITS,
    ),
}
