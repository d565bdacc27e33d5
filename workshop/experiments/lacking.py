"""The arms, rates and worlds that claims of the book lack: what their ledger asks for, as data.

Each names what it decides. More seeds of an experiment that is there need no definition:
`python -m workshop experiments lost_answers --seeds 0 1 2 3 4 5 6 7 8 9` goes on from its tables.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from rlbook.objectives import METHODS, CovarianceKL, Method, RatioClip, group_center
from rlbook.rewards import LengthCost
from rlbook.tasks import SumsTask
from rlbook.training import Reward, Rollout, RunConfig, Trainer, VerifierReward
from rlbook.training.metrics import rollout_metrics
from rlbook.training.sft import written_answer
from workshop.experiments.credit import CREDITS, STEPWISE, UNMASKED, WHITENED, unreliable_tool
from workshop.experiments.credit import SEEN as WITH_A_TOOL
from workshop.experiments.credit import SETTINGS as TOOL
from workshop.experiments.credit import arms as credited
from workshop.experiments.design import Arm, Experiment, arm, no_columns, vary
from workshop.experiments.efficiency import fine_tune, worked_examples
from workshop.experiments.levels import each_family, families, rules_by_family
from workshop.experiments.pressing import (
    FEW,
    GRPO,
    ONCE,
    RLOO,
    silent_prompts,
)
from workshop.experiments.settings import (
    HABITS,
    at_two_limits,
    on_plain_sums,
    unsolvable,
)
from workshop.experiments.tricks import (
    ASKED,
    DIALS,
    HIGHER,
    LITE,
    NORMS,
    PER_ANSWER,
    WHOLE_BATCH,
    dialled,
    exchanged,
    from_trained,
    with_room,
)
from workshop.worlds.troubles import tight_limit

PRICE, WAIT = LengthCost(0.02), 12
PRICED = f"{__name__}:PRICE"
EXCHANGES: Mapping[str, Method] = (
    NORMS | {"batch mean": replace(LITE, advantage=WHOLE_BATCH)} | PER_ANSWER | HIGHER
)
STEPS = ("accuracy", "completions", "entropy", "grad_norm")  # what their tables of steps keep
FILTER = {"overlong filter": replace(LITE, reward_shaping="overlong_filter")}


def equal_answers() -> Iterator[Arm]:
    """GRPO with as many answers as dynamic sampling has, and the latter at a rate more."""
    plain, _, refilled = silent_prompts()
    for one, steps in ((plain, 62), (refilled, 30)):
        longer = Arm(one.label, one.config.replace(steps=steps))
        yield vary(longer, lr=(7.5e-5, 1.5e-4, 3e-4, 6e-4))


def head_room() -> Iterator[Arm]:
    """LitePPO and five exchanges from a policy that has more to learn."""
    settings: dict[str, Any] = {"minibatches": 8, "steps": 8, "levels": (5, 6, 7)}
    return exchanged(EXCHANGES, (2.5e-5, 5e-5, 1e-4), **settings)


def base_switches(levels: tuple[int, ...], limit: int) -> Iterator[Arm]:
    """The same exchanges, and the filter, on the base under a limit."""
    settings = {"levels": levels, "max_new_tokens": limit, "minibatches": 8, "steps": 6}
    return exchanged(EXCHANGES | FILTER, (1e-4, 2e-4, 4e-4, 8e-4), **settings)


class Imitation(Trainer):
    """A step imitates 48 worked examples once; the policy's own answers are only logged."""

    def learn(self, rollouts: list[Rollout]) -> dict[str, float]:
        examples = worked_examples(8, self.config.seed)
        answers = [written_answer(self.tokenizer, problem, text) for problem, text in examples]
        fine_tune(self, answers, epochs=1, lr=self.config.optimizer.lr, batch=16)
        self.step += 1
        return {"step": self.step, **rollout_metrics(rollouts, self.version)}


def examples_or_rl(config: RunConfig) -> Trainer:
    return (Imitation if config.method.name == "imitation" else Trainer)(config)


def teacher_null() -> Iterator[Arm]:
    """What 48 examples teach by themselves, and RL at its best: the arms beside distillation."""
    settings: dict[str, Any] = HABITS | {"prompts": 8, "group_size": 8, "minibatches": 1}
    imitation = replace(RLOO, name="imitation")
    yield vary(arm("48 examples", imitation, steps=12, **settings), lr=(3e-4, 1e-3, 3e-3))
    settings |= {"steps": 40}
    yield vary(arm("RL", RLOO, **settings), lr=(3e-4, 4.5e-4, 6e-4))
    max_rl = replace(METHODS["maxrl"], kl=None)
    yield vary(arm("RL, MaxRL", max_rl, **settings), lr=(3e-4, 6e-4, 1.2e-3))


class LatePrice(Trainer):
    """A price per token that is paid from batch `WAIT` on."""

    def collect(self, seed: int | None = None) -> list[Rollout]:
        reward: Reward = PRICE if self.step >= WAIT else VerifierReward()
        self.source.rewards = (reward, *self.source.rewards[1:])
        return super().collect(seed)


def late_price() -> Iterator[Arm]:
    """A price above the worth of a token: never, at once, after twelve batches."""
    settings: dict[str, Any] = {"steps": 24, "minibatches": 1}
    for label, name, reward in (
        ("no price", "rloo", None),
        ("at once", "rloo", PRICED),
        ("after 12 batches", "late", None),
    ):
        one = arm(label, replace(RLOO, name=name), reward=reward, **settings)
        yield vary(one, lr=(1.5e-4, 3e-4))


def priced(config: RunConfig) -> Trainer:
    return (LatePrice if config.method.name == "late" else Trainer)(config)


def habits_sigma() -> Iterator[Arm]:
    """σ alone, and MaxRL's weight alone: one aggregation for each pair."""
    settings: dict[str, Any] = HABITS | {"prompts": 16, "group_size": 16, "minibatches": 1}
    token_mean = {"aggregation": "token_mean"}
    rows = {
        "GRPO": GRPO,
        "GRPO, no σ": replace(GRPO, advantage=group_center),
        "RLOO, mean over tokens": replace(RLOO, **token_mean),
        "MaxRL, mean over tokens": replace(METHODS["maxrl"], kl=None, **token_mean),
    }
    for label, method in rows.items():
        yield vary(arm(label, method, steps=40, **settings), lr=(3e-4, 6e-4, 1.2e-3))


def doses() -> Iterator[Arm]:
    """The dials of entropy at half their dose, in a world where held entropy could pay."""
    halves = {
        "bonus, half": replace(LITE, entropy_bonus=0.1),
        "KL-Cov, half": replace(LITE, selection=CovarianceKL(1e-2)),
    }
    return exchanged(DIALS | halves, (3e-4, 6e-4), minibatches=4, steps=12, **HABITS)


def sound_credit() -> Iterator[Arm]:
    """What an unreliable tool is compared with: the same credit where the tool is always right."""
    outcome = arm("outcome", RLOO, **TOOL, steps=20)
    judge = arm("PRIME", STEPWISE, reward=CREDITS["PRIME"], **TOOL, steps=20)
    for one in (outcome, judge, arm("tool tokens trained", UNMASKED, **TOOL, steps=20)):
        yield vary(one, lr=(3e-4, 6e-4))


def credit_above() -> Iterator[Arm]:
    """Outcomes and verdicts on steps at a rate above the two of `process_rewards`."""
    verdicts = arm("process", STEPWISE, reward=CREDITS["process"], **TOOL, steps=20)
    for one in (arm("outcome", RLOO, **TOOL, steps=20), verdicts):
        yield vary(one, lr=(8.5e-4,))


def whole_and_in_parts() -> Iterator[Arm]:
    """GRPO, DAPO, and DAPO without one of its parts, where each part has its trouble."""
    dapo = METHODS["dapo"]
    rows = {
        "GRPO": GRPO,
        "DAPO": dapo,
        "DAPO, clip 0.2": replace(dapo, trust_region=RatioClip(0.2, 0.2)),
        "DAPO, silent groups kept": replace(dapo, prompt_filter=None),
        "DAPO, mean per answer": replace(dapo, aggregation=GRPO.aggregation),
        "DAPO, no ramp": replace(dapo, reward_shaping="none"),
    }
    for label, method in rows.items():
        one = arm(label, method, steps=32, **ONCE)
        tight = replace(one, config=tight_limit(one.config))
        yield vary(tight, lr=(5e-5, 1e-4, 2e-4))


LACKING: dict[str, Experiment] = {
    "all_troubles": Experiment(
        "What is DAPO worth, whole and without each part, where all of its troubles are?",
        tuple(whole_and_in_parts()),
        columns=("accuracy", "completions", "length", "truncated"),
        tuning_seeds=(100, 101),
        chosen_by="pass@1_limit_32",
        world=unsolvable(0.5),
        measure=partial(at_two_limits, task=SumsTask()),
        evaluation=FEW,
        answers=32 * 128,
    ),
    "prime_whitened": Experiment(
        "Is it the size of PRIME's credit that a policy does not survive?",
        tuple(credited(WHITENED, steps=20)),
        seeds=(0, 1, 2, 3, 4),
        columns=(*STEPS, "truncated"),
        **WITH_A_TOOL,
        world=unreliable_tool(0.5),
    ),
    "equal_answers": Experiment(
        "Is dynamic sampling ahead of GRPO with as many answers?",
        tuple(equal_answers()),
        columns=("accuracy", "completions"),
        tuning_seeds=(100, 101),
        chosen_by="pass@1_solvable",
        world=unsolvable(0.75),
        measure=on_plain_sums,
        evaluation=FEW,
        answers=62 * 128,
    ),
    "head_room": Experiment(
        "Which choice of LitePPO matters to a policy that has learned, and can learn more?",
        tuple(head_room()),
        columns=STEPS,
        tuning_seeds=(100, 101),
        world=partial(from_trained, steps=10),
        measure=no_columns,
        evaluation=ASKED,
    ),
    **{
        f"switches_{name}": Experiment(
            f"Which choice of LitePPO matters to the base on {name} sums under a limit?",
            tuple(base_switches(levels, limit)),
            columns=STEPS,
            tuning_seeds=(100, 101),
            chosen_by="pass@1_room",
            measure=with_room,
            evaluation=FEW,
        )
        for name, levels, limit in (("easy", (2, 3), 24), ("hard", (4, 5, 6), 40))
    },
    "teacher_null": Experiment(
        "What do 48 worked examples teach by themselves, and RL at its best?",
        tuple(teacher_null()),
        columns=STEPS,
        tuning_seeds=(100, 101),
        chosen_by="pass@1_habits",
        world=examples_or_rl,
        measure=each_family,
        evaluation=FEW,
    ),
    "late_price": Experiment(
        "Is a price harmless once the policy has learned, beside no price at all?",
        tuple(late_price()),
        columns=STEPS,
        tuning_seeds=(100, 101),
        world=priced,
        evaluation={"prompts": 96, "n": 8, "ks": (1, 8)},
    ),
    "habits_sigma": Experiment(
        "σ and MaxRL's weight on habits, each without the aggregation that came with it?",
        tuple(habits_sigma()),
        columns=(
            "accuracy",
            "completions",
            "grad_norm",
            *(f"right_rule_level_{k}" for k in range(1, 7)),
        ),
        tuning_seeds=(100, 101),
        measure=rules_by_family,
        watch=families,
        evaluation={"prompts": 96, "n": 8, "ks": (1, 8)},
    ),
    "entropy_doses": Experiment(
        "What do the dials of entropy buy on habits, at two doses?",
        tuple(doses()),
        columns=STEPS,
        chosen_by=None,
        seeds=(0, 1, 2, 3, 4),
        world=dialled,
        measure=no_columns,
        evaluation=ASKED,
    ),
    "sound_credit": Experiment(
        "What do PRIME and a tool's own tokens cost where the tool is always right?",
        tuple(sound_credit()),
        columns=STEPS,
        **WITH_A_TOOL,
        world=unreliable_tool(0.0),
    ),
    "process_rewards_above": Experiment(
        "What does credit for steps buy at a larger rate?",
        tuple(credit_above()),
        columns=STEPS,
        **WITH_A_TOOL,
        world=unreliable_tool(0.5),
    ),
}
