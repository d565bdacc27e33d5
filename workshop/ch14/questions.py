"""Chapter 14: its questions, each with what is run, claimed, printed and asked of it."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from rlbook.training import Trainer
from workshop.ch14.brevity import COMMON, behind, padded_weights, plain_weights, rules
from workshop.ch14.experiments import (
    FIVE,
    after_a_run,
    chosen_after_a_run,
    chosen_data,
    examples_or_rl,
    late_price,
    length_rules,
    on_chosen_data,
    priced,
    staged,
    stages,
    students,
    taught,
    teacher_null,
)
from workshop.ch14.pupils import arms, pupil, sampled
from workshop.shared.design import Experiment
from workshop.shared.evidence import each_family
from workshop.shared.experiments import FEW, STEPS
from workshop.shared.question import Asked, Question
from workshop.shared.runs import Column
from workshop.shared.scorecard import Questions
from workshop.shared.told import HABITS, OWN, SUMS, Told, recorded, there
from workshop.shared.verdict import Claim

EACH_FAMILY = Column("pass@1_habits")
WORLD = "habits, own rates"


TEACHER, DISTILLED = "SFT on the teacher", "on-policy distillation"
ALONE: dict[str, Any] = {"null": None, "unit": "pass@1"}


def a_price(told: Told) -> Iterator[Claim]:
    if there(told.load, "late_price"):
        for arm in ("at once", "after 12 batches"):
            yield told(f"a price {arm}, for no price", SUMS + OWN, "late_price", arm, "no price",
                       collapse=True)  # fmt: skip


def padded(told: Told) -> Iterator[Claim]:
    if there(told.load, "length_padded"):
        arms = told.load("length_padded_eval").arm.unique()
        for arm in (arm for arm in arms if arm != "no price"):
            how = ("padded answers" + OWN, "length_padded", arm, "no price")
            yield told(f"{arm}, for accuracy", *how)
            mean = Column("over_budgets")
            yield told(f"{arm}, over budgets", *how, mean, unit="right")


def a_teacher(told: Told) -> Iterator[Claim]:
    how = (WORLD, "distillation")
    for arm, text in ((TEACHER, "imitating a teacher"), (DISTILLED, "on-policy distillation")):
        yield told(f"{text}, against RL", *how, arm, "RL", EACH_FAMILY, beside="teacher_null",
                   **ALONE)  # fmt: skip
    small = ("habits, a student of a sixth", "small_student")
    for arm, text in ((TEACHER, "imitation"), (DISTILLED, "on-policy distillation")):
        yield told(f"{text}, against RL", *small, arm, "RL", EACH_FAMILY, lr=2e-3,
                   against_lr=1.2e-3, **ALONE)  # fmt: skip


def examples(told: Told) -> Iterator[Claim]:
    if there(told.load, "teacher_null"):
        yield told("48 examples by themselves, for RL", WORLD, "teacher_null", "48 examples", "RL",
                   EACH_FAMILY, collapse=True, **ALONE)  # fmt: skip
    if recorded(told.load, "pupils", arms=7):
        yield told("RL behind 48 examples, for them alone", WORLD, "pupils",
                   "48 examples, then RL", "48 examples", EACH_FAMILY, collapse=True,
                   **ALONE)  # fmt: skip
    for lr in (3e-4, 6e-4):
        for arm in ("cold start, then RL", "R1's four stages"):
            yield told(f"{arm}, for RL alone", HABITS, "r1_stages", arm, "RL alone", EACH_FAMILY,
                       lr=lr, **ALONE)  # fmt: skip


def rl_at_its_best(told: Told) -> Iterator[Claim]:
    if there(told.load, "teacher_null"):
        null = (WORLD, "teacher_null", "RL, MaxRL", "RL", EACH_FAMILY)
        yield told("RL at its best", *null, **ALONE)


def foresight(told: Told) -> Iterator[Claim]:
    if recorded(told.load, "pupils", arms=7):
        habits = (WORLD, "pupils")
        yield told("γ = 1, for γ = 0", *habits, "γ = 1", "γ = 0", EACH_FAMILY, unit="pass@1")
        for arm in ("distilled, then RL", "imitated, then RL", "squares begun, RL"):
            yield told(f"{arm}, for RL", *habits, arm, "RL", EACH_FAMILY, beside="teacher_null",
                       **ALONE)  # fmt: skip


def saved_tokens(told: Told) -> Iterator[Claim]:
    for lr in (1.5e-4, 3e-4):
        for arm in ("0.005 a token", "0.02 a token", "L1-Max, 32 tokens", "Kimi, among siblings"):
            yield told(f"{arm}, for accuracy", SUMS, "length_control", arm, "no price", lr=lr,
                       collapse=True)  # fmt: skip


def problems(told: Told) -> Iterator[Claim]:
    for lr in (3e-4, 6e-4):
        data: dict[str, Any] = {"lr": lr, "unit": "pass@1"}
        for arm in ("easy first", "brackets only", "four problems"):
            yield told(f"{arm}, for all families", HABITS, "data_choice", arm, "all families",
                       EACH_FAMILY, **data)  # fmt: skip
        yield told("a window of pass rates", HABITS, "data_choice", "pass rate 0.2 to 0.8",
                   "as many, any", EACH_FAMILY, **data)  # fmt: skip
        for arm in ("LIMR's third", "the third of most variance", "all 96"):
            yield told(f"{arm}, for any third", HABITS, "chosen_after_a_run", arm, "any third",
                       EACH_FAMILY, **data)  # fmt: skip


QUESTIONS = Questions(
    Question(
        claim="a price above what a token buys elects guesses, if it comes first",
        row={
            "exact": "c* = Δp / Δn",
            "pressing": "at once, minus no price: {a price at once, for no price | plain sums, own "
            "rates}",
            "control": "after twelve batches: {a price after 12 batches, for no price | plain "
            "sums, "
            "own rates}",
            "paper": "Kimi k1.5 warms up without its length reward",
        },
        experiments={
            "late_price": Experiment(
                "Is a price harmless once the policy has learned, beside no price at all?",
                tuple(late_price()),
                columns=STEPS,
                tuning_seeds=(100, 101),
                world=priced,
                evaluation={"prompts": 96, "n": 8, "ks": (1, 8)},
            ),
        },
        told=a_price,
        asked=(
            Asked(
                ids=("S14.1",),
                claim="a price above c* elects guesses; after twelve batches it is harmless",
                heading="8 · What stands",
                says="a price above what a token buys elects guesses, if it comes first",
                runs={"late_price": ["at once", "after 12 batches", "no price"]},
            ),
        ),
    ),
    Question(
        claim="a rule charged behind training shortens padded answers at no loss",
        row={
            "pressing": "ShorterBetter {fewer} tokens, pass@1 {lost}",
            "paper": "ShorterBetter, ThinkPrune: half as long",
        },
        experiments={
            "length_padded": Experiment(
                "Which rule shortens a policy that has learned, and whose answers are padded?",
                tuple(rules(1.5e-4, 3e-4, 6e-4)),
                tuning_seeds=(100, 101),
                chosen_by="over_budgets",
                world=partial(behind, padded_weights),
                **COMMON,
            ),
            "length_plain": Experiment(
                "... and one that has learned, and whose answers are not?",
                tuple(rules(3e-4)),
                seeds=(0, 1, 2, 3, 4),
                chosen_by=None,
                world=partial(behind, plain_weights),
                **COMMON,
                planned=True,
            ),
        },
        told=padded,
    ),
    Question(
        claim="a teacher passes on with an eighth of the answers what RL found",
        row={
            "pressing": f"imitated {{imitating a teacher, against RL | {WORLD}}}, on-policy "
            f"{{on-policy distillation, against RL | {WORLD}}}",
            "control": "with the teacher's training counted RL is cheaper",
            "paper": "R1: distilled 32B beats RL on 32B",
        },
        experiments={
            "distillation": Experiment(
                "What do 2,560 answers teach: right or wrong, a teacher's answers, a teacher's "
                "opinion?",
                tuple(students("tiny-habits", rl=(3e-4, 6e-4), sft=(1e-3, 2e-3), opd=(5e-4, 1e-3))),
                tuning_seeds=(100, 101),
                chosen_by="pass@1_habits",
                world=taught,
                measure=each_family,
                evaluation=FEW,
            ),
            "small_student": Experiment(
                "... and to a student of a sixth of the parameters?",
                tuple(
                    students(
                        "tiny-habits-small",
                        rl=(6e-4, 1.2e-3),
                        sft=(1e-3, 2e-3),
                        opd=(1e-3, 2e-3),
                    )
                ),
                chosen_by=None,
                seeds=FIVE,
                world=taught,
                measure=each_family,
                evaluation=FEW,
            ),
        },
        told=a_teacher,
        asked=(
            Asked(
                ids=("S14.4", "C14.A"),
                claim="a teacher passes on with an eighth of the answers; +.262 or +.369",
                heading="8 · What stands",
                says="imitated +0.22 [+0.2, +0.25] pass@1",
                runs={
                    "distillation": ["SFT on the teacher", "on-policy distillation", "RL"],
                    "teacher_null": ["48 examples", "RL, MaxRL"],
                },
            ),
            Asked(
                ids=("T14.2",),
                claim="a small student",
                heading="Deeper: And a student smaller than its teacher?",
                says="Per operation the picture changes.",
                runs={"small_student": ["SFT on the teacher", "on-policy distillation", "RL"]},
            ),
        ),
    ),
    Question(
        claim="48 worked examples by themselves, minus RL",
        row={
            "pressing": f"{{48 examples by themselves, for RL | {WORLD}}}",
            "paper": "R1's first stage; R1-Zero does without",
        },
        experiments={
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
            "r1_stages": Experiment(
                "What does each stage of DeepSeek-R1's pipeline add, at equal answers?",
                tuple(stages()),
                chosen_by=None,
                seeds=FIVE,
                world=staged,
                begins=Trainer,
                measure=each_family,
                evaluation=FEW,
            ),
        },
        told=examples,
        asked=(
            Asked(
                ids=("S14.6",),
                claim="a cold start brings rare rules within reach",
                heading="Deeper: What does each of R1's stages add?",
                says="The same 48 examples, imitated alone, end at 0.73 held out",
                runs={
                    "r1_stages": ["cold start, then RL", "RL alone"],
                    "teacher_null": ["48 examples"],
                },
            ),
        ),
    ),
    Question(
        claim="MaxRL is RL at its best where rules are rare",
        row={
            "pressing": f"no: {{RL at its best | {WORLD}}}",
        },
        told=rl_at_its_best,
    ),
    Question(
        claim="γ = 0 descends each state's KL where the student comes by, not the KL",
        row={
            "exact": "the gap is Σ KL_s ∇d(s)",
            "paper": "GKD, Thinking Machines: γ = 0; MiniLLM: the return",
        },
        experiments={
            "pupils": Experiment(
                "Does foresight teach, does RL behind a teacher, and do beginnings replace one?",
                tuple(arms()),
                columns=(*STEPS, "answers_sampled"),
                tuning_seeds=(100, 101),
                chosen_by="pass@1_habits",
                world=pupil,
                begins=Trainer,
                watch=sampled,
                measure=each_family,
                evaluation=FEW,
            ),
        },
        told=foresight,
    ),
    Question(
        claim="tokens saved are paid in accuracy",
        experiments={
            "length_control": Experiment(
                "What does each way to charge for length do to accuracy and to length?",
                tuple(length_rules()),
                chosen_by=None,
                seeds=FIVE,
                evaluation={"prompts": 96, "n": 8, "ks": (1, 8)},
            ),
        },
        told=saved_tokens,
        asked=(
            Asked(
                ids=("T14.1",),
                claim="tokens saved are paid in accuracy",
                heading="Deeper: What did five rules do from the base?",
                says="five seeds cannot tell its accuracy from that of no price",
                runs={
                    "length_control": [
                        "0.005 a token",
                        "0.02 a token",
                        "L1-Max, 32 tokens",
                        "Kimi, among siblings",
                        "no price",
                    ]
                },
            ),
            Asked(
                ids=("S14.2",),
                claim="an interrupted thought beats a cut one",
                heading="Deeper: May a thought be ended by force?",
                says="It does little for the trained policy",
                how="live, at an equal limit",
            ),
        ),
    ),
    Question(
        claim="families that come late are learned less",
        experiments={
            "data_choice": Experiment(
                "Which problems teach all families?",
                tuple(on_chosen_data()),
                chosen_by=None,
                seeds=FIVE,
                world=chosen_data,
                measure=each_family,
                evaluation=FEW,
            ),
            "chosen_after_a_run": Experiment(
                "Which problems does a whole run recommend to the next one?",
                tuple(after_a_run()),
                chosen_by=None,
                columns=("accuracy", "completions", "step"),
                world=chosen_after_a_run,
                measure=each_family,
                evaluation=FEW,
            ),
        },
        told=problems,
        asked=(
            Asked(
                ids=("S14.5",),
                claim="families opened late are learned less",
                heading="Deeper: Five choices of data, and a control",
                says="Held out, every choice ends below all families, at both rates.",
                runs={
                    "data_choice": [
                        "easy first",
                        "pass rate 0.2 to 0.8",
                        "as many, any",
                        "all families",
                    ],
                    "chosen_after_a_run": [
                        "LIMR's third",
                        "the third of most variance",
                        "any third",
                        "all 96",
                    ],
                },
            ),
        ),
    ),
)
