"""Chapter 08: its questions, each with what is run, claimed, printed and asked of it."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pandas as pd

from rlbook.evaluation import held_out_rollouts
from rlbook.grouping import mean
from rlbook.objectives import METHODS, Method, PromptFilter, RatioClip
from rlbook.tasks import SumsTask, Task
from rlbook.training import RunConfig, Trainer
from workshop.ch08.figures import CLIPS, PAID, REGIONS, named
from workshop.shared.design import Arm, Experiment, World, arm, sums_decisions, vary
from workshop.shared.evidence import ARM_COLOURS, batches_until, load_results
from workshop.shared.experiments import FEW, GRPO, ONCE
from workshop.shared.question import Asked, Panel, Question
from workshop.shared.runs import Column
from workshop.shared.scorecard import Questions, ledger
from workshop.shared.told import (
    NOT_NAMED,
    OWN,
    SUMS,
    Told,
    clip_where_nothing_is_rare,
    pretrained,
    rare,
    recorded,
    rung,
    there,
    told_pretrained,
)
from workshop.shared.verdict import Claim
from workshop.shared.worlds import Unsolvable, tight_limit

TIGHT, SOLVABLE = "limit of 32 tokens, own rates", "3 of 4 prompts unsolvable, own rates"
TROUBLED = "all of DAPO's troubles, asked with room, own rates"
ON_SUMS, RARE = "plain sums, own rates", "clip-higher frees a rare token | rare opening"


def overlong() -> dict[str, Method]:
    """What a truncated answer may be worth: nothing, less and less, or no vote at all."""
    token_mean = replace(GRPO, aggregation="token_mean")
    return {
        "cliff": token_mean,
        "ramp": replace(token_mean, reward_shaping="overlong", reward_values=(-1.0, 1.0)),
        "filter": replace(token_mean, reward_shaping="overlong_filter"),
    }


def limited() -> Iterator[Arm]:
    """Cliff, ramp and filter where half of the answers are cut off, and where none is."""
    for name, method in overlong().items():
        one = arm(name, method, steps=14)
        tight = replace(one, config=tight_limit(one.config))
        yield vary(tight, lr=(1e-4, 2e-4, 4e-4))


def unlimited() -> Iterator[Arm]:
    """The control: the same long sums, with room to write."""
    for name, method in overlong().items():
        one = arm(name, method, steps=14, levels=(4, 5, 6, 7))
        yield vary(one, lr=(1e-4, 2e-4, 4e-4))


def silent_prompts(**settings: Any) -> Iterator[Arm]:
    """Prompts that teach nothing: kept, replaced by others, or kept for twice as long."""
    token_mean = replace(GRPO, aggregation="token_mean")
    refilled = replace(token_mean, prompt_filter=PromptFilter("correct", resample=True))
    arms = (
        arm("GRPO", token_mean, steps=12, **settings),
        arm("GRPO, twice the batches", token_mean, steps=24, **settings),
        arm("+ dynamic sampling", refilled, steps=12, **settings),
    )
    for one in arms:
        yield vary(one, lr=(7.5e-5, 1.5e-4, 3e-4))


def unsolvable(share: float) -> World:
    """A share of the problems has no right answer."""
    return partial(_with_task, Unsolvable(share))


def _with_task(task: SumsTask, config: RunConfig) -> Trainer:
    return Trainer(config, task=task)


def on_plain_sums(trainer: Trainer) -> dict[str, float]:
    """pass@1 on sums that all have an answer."""
    policy = trainer.model, trainer.tokenizer
    rollouts = held_out_rollouts(policy, SumsTask(), prompts=96, n=8)
    return {"pass@1_solvable": mean(r.correct for r in rollouts)}


def at_two_limits(trainer: Trainer, task: Task | None = None) -> dict[str, float]:
    """Accuracy under the limit of training and when 80 tokens are allowed, and what was decided.

    On problems of the run's task, or of another.
    """
    policy, levels = (trainer.model, trainer.tokenizer), trainer.config.data.levels
    row = sums_decisions(trainer)
    for limit in (32, 80):
        rollouts = held_out_rollouts(
            policy, task or trainer.task, prompts=96, n=8, levels=levels, max_new_tokens=limit
        )
        row[f"pass@1_limit_{limit}"] = mean(r.correct for r in rollouts)
        row[f"truncated_limit_{limit}"] = mean(r.truncated for r in rollouts)
    return row


def equal_answers() -> Iterator[Arm]:
    """GRPO with as many answers as dynamic sampling has, and the latter at a rate more."""
    plain, _, refilled = silent_prompts()
    for one, steps in ((plain, 62), (refilled, 30)):
        longer = Arm(one.label, one.config.replace(steps=steps))
        yield vary(longer, lr=(7.5e-5, 1.5e-4, 3e-4, 6e-4))


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


def parts_of_dapo(told: Told) -> Iterator[Claim]:
    """DAPO for GRPO, and DAPO for DAPO without a part, where each part has its trouble."""
    rivals = {
        "all of DAPO, for GRPO": "GRPO",
        "DAPO's window, in its company": "DAPO, clip 0.2",
        "dynamic sampling, in its company": "DAPO, silent groups kept",
        "the token mean, in its company": "DAPO, mean per answer",
        "the ramp, in its company": "DAPO, no ramp",
    }
    for limit, where in ((32, "under its limit"), (80, "with room")):
        world = f"all of DAPO's troubles, asked {where}, own rates"
        for text, against in rivals.items():
            yield told(text, world, "all_troubles", "DAPO", against,
                       Column(f"pass@1_limit_{limit}"), family="all of DAPO", unit="pass@1",
                       null=None if against == "GRPO" else NOT_NAMED, collapse=True,
                       headline=True)  # fmt: skip


ON_SMOLLM2 = "a wider clip from a pretrained model"


def clip_higher(told: Told) -> Iterator[Claim]:
    higher = ("clip-higher 0.28", "clip 0.2")
    yield from clip_where_nothing_is_rare(told, "clip-higher", *higher)
    yield from rare(told, "clip-higher frees a rare token", "clip-higher on a rare rule", *higher)
    yield from pretrained(told, ON_SMOLLM2, "real_off_policy", *higher)


LIMITED = ("limit of 32 tokens, own rates", "tight_limit")
WITH_ROOM = Column("pass@1_limit_80")
LOOSE = {"control": "tight_limit_control"}


def the_ramp(told: Told) -> Iterator[Claim]:
    at_once = Column("answers_at_once", learned=WITH_ROOM)
    yield told("the ramp gives up thinking", *LIMITED, "ramp", "cliff", at_once, unit="share",
               collapse=True, **LOOSE)  # fmt: skip
    yield told("what that costs when there is room", *LIMITED, "ramp", "cliff", WITH_ROOM,
               collapse=True, headline=True, unit="pass@1", **LOOSE)  # fmt: skip


def the_filter(told: Told) -> Iterator[Claim]:
    how = (*LIMITED, "filter", "cliff", WITH_ROOM)
    yield told("the filter keeps it", *how, unit="pass@1", **LOOSE)


def dynamic_sampling(told: Told) -> Iterator[Claim]:
    solvable, world = Column("pass@1_solvable"), "3 of 4 prompts unsolvable, own rates"
    if there(told.load, "equal_answers"):
        equal = ("equal_answers", "+ dynamic sampling", "GRPO", solvable)
        text = "dynamic sampling, at equal answers"
        yield told(text, world, *equal, unit="pass@1", headline=True)
    hard = (world, "unsolvable", "+ dynamic sampling")
    yield told("dynamic sampling, at equal updates", *hard, "GRPO", solvable, unit="pass@1")
    twice = "GRPO, twice the batches"
    yield told("... against twice the updates", *hard, twice, solvable, unit="pass@1")


def all_together(told: Told) -> Iterator[Claim]:
    yield from rung(told, "DAPO for GRPO", "DAPO", "GRPO", null=None)
    yield told("all of it together", SUMS + OWN, "methods", "dapo", "grpo", null=None)
    if recorded(told.load, "all_troubles", arms=6, least=5):
        yield from parts_of_dapo(told)


def rare_panels() -> Iterator[Panel]:
    steps, start = load_results("rare_opening"), load_results("rare_opening_start")
    half = batches_until(steps, "opens_rarely", start=start.opens_careful.iloc[0])
    early = named(half.reset_index().query("lr == 1e-4"), REGIONS)
    plain = named(load_results("regions_minibatches_eval"), REGIONS)
    yield Panel("A rare opening: a little sooner", early, "batches",
                "batches until the opening has ½", CLIPS, (0.0, 3.7), a_little_sooner)  # fmt: skip
    yield Panel("Nothing rare: no gain", plain, "pass@1", "accuracy", CLIPS,
                holds=lambda mean: abs(mean["0.28"] - mean["0.2"]) < 0.02)  # fmt: skip


def a_little_sooner(batches: pd.Series) -> bool:
    """Whether 0.28 is sooner than 0.2, by less than half of what no clip would save."""
    return 0 < batches["0.2"] - batches["0.28"] < (batches["0.2"] - batches["no clip"]) / 2


def limit_panels() -> Iterator[Panel]:
    colours = {name: ARM_COLOURS[name] for name in overlong()}
    for title, name, gives_up in (
        ("Half cut off: the ramp gives up", "tight_limit", True),
        ("Few cut off: it does not", "tight_limit_control", False),
    ):
        runs = named(load_results(f"{name}_eval"), {arm: arm for arm in colours})
        yield Panel(title, runs, WITH_ROOM.name, "accuracy with 80 tokens", colours,
                    holds=lambda mean, gives_up=gives_up:
                    (mean["ramp"] < mean["cliff"] / 2) == gives_up)  # fmt: skip


def silent_panels() -> Iterator[Panel]:
    ends, steps = load_results("unsolvable_eval"), load_results("unsolvable")
    drawn = steps.groupby(["arm", "seed"]).completions.sum().reset_index()
    colours = {short: ARM_COLOURS[long] for long, short in PAID.items()}
    yield Panel("Most silent: more per update ...", named(ends, PAID), "pass@1_solvable",
                "accuracy on solvable sums", colours,
                holds=lambda mean: mean["dynamic sampling"] > mean["GRPO"] + 0.1)  # fmt: skip
    yield Panel("... and far more answers", named(drawn, PAID), "completions", "answers drawn",
                colours, (0.0, 9000.0),
                holds=lambda mean: mean["dynamic sampling"] > 3 * mean["GRPO"])  # fmt: skip


QUESTIONS = Questions(
    Question(
        claim="ε_high lets a rare good token grow faster",
        row={
            "exact": "{clip} batches become {higher}; up to four updates nothing",
            "pressing": f"half time of a rare opening {{{RARE}, lr 1e-4}}, {{{RARE}, lr 2e-4}}; "
            "a rare rule {clip-higher on a rare rule | habits, 16 minibatches, lr 1e-4}",
            "control": f"{{clip-higher where nothing is rare | {ON_SUMS}, 16 minibatches}}",
            "pretrained": told_pretrained(
                "accuracy at the end, 0.28 minus 0.2 on old answers", ON_SMOLLM2
            ),
            "paper": "a small step in a chain; Fig. 3a",
        },
        told=clip_higher,
        panels=rare_panels,
        asked=(
            Asked(
                ids=("S08.1",),
                claim="clip-higher frees a rare token at every rate",
                heading="Deeper: The rare opening and a rare right rule, seed by seed?",
                says="section 3 expects the gain of 0.28 to vanish",
                runs={"rare_opening": ["clip-higher 0.28", "clip 0.2", "no trust region"]},
            ),
            Asked(
                ids=("S08.2",),
                claim="coins: entropy stays at .2 and .28",
                heading="Deeper: Noise eats entropy; what does a clip do about it?",
                says="Under either clip the entropy stays where it was, to a few hundredths of a "
                "nat, and 0.28 cannot be told from 0.2.",
                runs={
                    "published_coins": [
                        "coin, clip 0.2",
                        "coin, clip-higher 0.28",
                        "coin, no trust region",
                    ]
                },
            ),
            Asked(
                ids=("T08.1",),
                claim="fifteen batches instead of five; wider is sooner",
                heading="11 · What stands?",
                says="15 batches become 13; up to four updates nothing",
                how="exact",
            ),
        ),
    ),
    Question(
        claim="a ramp gives up care where half is cut off",
        row={
            "exact": "turns against care at a smaller share than the cliff; teaches most to stop",
            "pressing": f"answers at once {{the ramp gives up thinking | {TIGHT}}}; with room "
            f"{{what that costs when there is room | {TIGHT}}}",
            "control": f"{{control: what that costs when there is room | {TIGHT}}}",
            "paper": "a gain, with few answers cut off",
        },
        experiments={
            "tight_limit": Experiment(
                "What do cliff, ramp and filter teach where half of the answers are cut off?",
                tuple(limited()),
                tuning_seeds=(100, 101),
                chosen_by="pass@1_limit_32",
                measure=at_two_limits,
                evaluation=FEW,
            ),
            "tight_limit_control": Experiment(
                "... and where there is room to write?",
                tuple(unlimited()),
                seeds=tuple(range(5)),
                tuning_seeds=(100, 101),
                chosen_by="pass@1_limit_80",
                measure=at_two_limits,
                evaluation=FEW,
            ),
        },
        told=the_ramp,
        panels=limit_panels,
        asked=(
            Asked(
                ids=("S08.3",),
                claim="the ramp gives up care",
                heading="9 · What did each part earn, and at what price?",
                says="with 80 tokens allowed its accuracy is",
                runs={
                    "tight_limit": ["ramp", "cliff"],
                    "tight_limit_control": ["ramp", "cliff"],
                },
            ),
        ),
    ),
    Question(
        claim="the filter keeps care and teaches no brevity",
        row={
            "exact": "gives up last, and pushes least to stop",
            "pressing": f"with room {{the filter keeps it | {TIGHT}}}: not settled",
            "control": f"{{control: the filter keeps it | {TIGHT}}}; stops least when lost",
            "paper": "a gain; others: at short limits only",
        },
        told=the_filter,
        asked=(
            Asked(
                ids=("S08.4", "S12.5", "C12.9"),
                claim="the filter keeps care: best, +7 points or +1.4",
                heading="9 · What did each part earn, and at what price?",
                says="The overlong filter minus the cliff, at 32 tokens and asked with 80, is",
                runs={
                    "tight_limit": ["filter", "cliff"],
                    "tight_limit_control": ["filter", "cliff"],
                },
            ),
        ),
    ),
    Question(
        claim="dynamic sampling learns more per update",
        row={
            "exact": "1/(1 − z) prompts a useful one, more in whole rounds",
            "pressing": f"{{dynamic sampling, at equal updates | {SOLVABLE}}} in as many updates, "
            f"{{... against twice the updates | {SOLVABLE}}} in half as many; "
            f"at equal answers {{dynamic sampling, at equal answers | {SOLVABLE}}}",
            "control": "little to fill: most groups have spread",
            "paper": "the largest gain; little in verl's re-runs",
        },
        experiments={
            "unsolvable": Experiment(
                "What does dynamic sampling buy where three prompts in four teach nothing?",
                tuple(silent_prompts()),
                tuning_seeds=(100, 101),
                chosen_by="pass@1_solvable",
                world=unsolvable(0.75),
                measure=on_plain_sums,
                evaluation=FEW,
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
        },
        told=dynamic_sampling,
        panels=silent_panels,
        asked=(
            Asked(
                ids=("S08.5",),
                claim="dynamic sampling learns more per update",
                heading="9 · What did each part earn, and at what price?",
                says="the lead is gone",
                runs={
                    "unsolvable": ["+ dynamic sampling", "GRPO, twice the batches"],
                    "equal_answers": ["+ dynamic sampling", "GRPO"],
                },
            ),
        ),
    ),
    Question(
        claim="all of it together beats GRPO",
        row={
            "pressing": f"{{all of DAPO, for GRPO | {TROUBLED}}}; "
            f"its ramp alone {{the ramp, in its company | {TROUBLED}}}",
            "control": f"{{all of it together | {ON_SUMS}}}, with more answers and four times "
            "the updates",
            "paper": "the whole chain, on AIME 2024",
        },
        experiments={
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
        },
        told=all_together,
        asked=(
            Asked(
                ids=("S08.7",),
                claim="all of DAPO together beats GRPO",
                heading="Deeper: Lost answers, plain sums, and all of DAPO?",
                says="GRPO ends 0.31 higher (0.25 to 0.36)",
                runs={
                    "methods": ["dapo", "grpo"],
                    "ladder_sums": ["DAPO", "GRPO"],
                    "ladder_habits": ["DAPO", "GRPO"],
                    "all_troubles": ["DAPO", "GRPO"],
                },
            ),
        ),
    ),
)


QUOTED = {
    "equal answers": ("dynamic sampling, at equal answers", SOLVABLE),
    "equal updates": ("dynamic sampling, at equal updates", SOLVABLE),
    "ramp at once": ("the ramp gives up thinking", TIGHT),
    "ramp with room": ("what that costs when there is room", TIGHT),
    "filter": ("the filter keeps it", TIGHT),
    "DAPO": ("all of DAPO, for GRPO", TROUBLED),
    "ramp in DAPO": ("the ramp, in its company", TROUBLED),
}


def quoted() -> dict[str, pd.Series]:
    """The rows of the ledger that the text quotes."""
    return {name: ledger(*row) for name, row in QUOTED.items()}
