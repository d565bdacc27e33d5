"""Chapter 15: its questions, each with what is run, claimed, printed and asked of it."""

from collections.abc import Iterator

from workshop.ch15.experiments import (
    CREDITS,
    KEPT,
    RATES,
    SEEN,
    SETTINGS,
    UNMASKED,
    WHITENED,
    arms,
    credit_above,
    sound_credit,
    unreliable_tool,
)
from workshop.shared.design import Experiment, arm, vary
from workshop.shared.experiments import STEPS
from workshop.shared.question import Asked, Question
from workshop.shared.runs import Column
from workshop.shared.scorecard import Questions
from workshop.shared.told import NOT_NAMED, Told, there
from workshop.shared.verdict import Claim

BROKEN = "habits, an unreliable tool"
TOOLS_TOO = "the tool's tokens trained as well"


def at_both_rates(claim: str, control: bool = False) -> str:
    """What the ledger says of a claim at either rate, as `verdicts.table.scored` reads it."""
    which = "control: " if control else ""
    named = (f"{rate} {{{which}{claim} | {BROKEN}, lr {rate}}}" for rate in ("3e-4", "6e-4"))
    return ", ".join(named)


WITH_TOOL = Column("pass@1_with_tool")


def for_outcomes(
    told: Told, text: str, arm: str, sound: str | None, null: str | None = NOT_NAMED
) -> Iterator[Claim]:
    """Credit for steps against rewards for outcomes; `sound`: where the tool is always right."""
    for lr in RATES:
        yield told(text, BROKEN, "process_rewards", arm, "outcome", WITH_TOOL, lr=lr,
                   control=sound, unit="pass@1", null=null)  # fmt: skip


def verdicts_on_steps(told: Told) -> Iterator[Claim]:
    text = "a verdict on each step"
    yield from for_outcomes(told, text, "process", "process_rewards_control")
    if there(told.load, "process_rewards_above"):
        yield told(text, BROKEN, "process_rewards_above", "process", "outcome", WITH_TOOL,
                   lr=8.5e-4, unit="pass@1")  # fmt: skip


def the_same_place(told: Told) -> Iterator[Claim]:
    siblings = ("siblings at the same place", "step groups", "process_rewards_control")
    yield from for_outcomes(told, *siblings)
    yield from for_outcomes(told, "Monte-Carlo values of prefixes", "VinePPO, k = 2", None)


def a_judge_from_outcomes(told: Told) -> Iterator[Claim]:
    yield from for_outcomes(told, "a judge from outcomes", "PRIME", "sound_credit", null=None)
    if there(told.load, "prime_whitened"):
        for lr in RATES:
            for text, rival in (
                ("PRIME whitened, for PRIME", "PRIME"),
                ("PRIME whitened, for outcomes", "outcome"),
            ):
                yield told(text, BROKEN, "prime_whitened", "PRIME, whitened", rival, WITH_TOOL,
                           lr=lr, beside="process_rewards", unit="pass@1",
                           null=NOT_NAMED if rival == "PRIME" else None)  # fmt: skip


def the_tools_tokens(told: Told) -> Iterator[Claim]:
    for lr in RATES:
        yield told(TOOLS_TOO, BROKEN, "tool_tokens", "tool tokens trained", "outcome", WITH_TOOL,
                   lr=lr, beside="process_rewards", control="sound_credit",
                   unit="pass@1")  # fmt: skip


QUESTIONS = Questions(
    Question(
        claim="a judge of steps teaches more where right steps come to grief",
        row={
            "exact": "takes out the luck of all that comes later",
            "pressing": f"over outcome, {at_both_rates('a verdict on each step')}",
            "control": f"a sound tool: {at_both_rates('a verdict on each step', control=True)}",
            "paper": "process supervision beats outcomes for choosing among answers",
        },
        experiments={
            "process_rewards": Experiment(
                "What does credit for steps buy where a right step is often followed by bad luck?",
                tuple(arms(*(label for label in CREDITS if label != WHITENED), steps=20)),
                columns=KEPT,
                world=unreliable_tool(0.5),
                **SEEN,
            ),
            "process_rewards_control": Experiment(
                "... and where the tool is always right?",
                tuple(arms("outcome", "step groups", "process", steps=20)),
                seeds=tuple(range(5)),
                columns=KEPT,
                world=unreliable_tool(0.0),
                **SEEN,
            ),
            "process_rewards_above": Experiment(
                "What does credit for steps buy at a larger rate?",
                tuple(credit_above()),
                columns=STEPS,
                **SEEN,
                world=unreliable_tool(0.5),
            ),
        },
        told=verdicts_on_steps,
        asked=(
            Asked(
                ids=("S15.2", "C15.A"),
                claim="verdicts on steps: +.12 of right rules, or +.033 of accuracy",
                heading="10 · What stands",
                says="over outcome, 3e-4 +0.029 [+0.014, +0.044] pass@1",
                runs={
                    "process_rewards": ["process", "outcome"],
                    "process_rewards_control": ["process", "outcome"],
                    "process_rewards_above": ["process", "outcome"],
                },
            ),
        ),
    ),
    Question(
        claim="a right step said again is paid for",
        row={
            "exact": "if the judge's word is the worth; not if the batch's rewards are",
        },
        asked=(
            Asked(
                ids=("S15.2b",),
                claim="verdict differences cannot be farmed",
                heading="6 · Can the policy farm its judge?",
                says="repeating earns +¼ and finishing −¼",
                how="exact, and one run with the mend",
            ),
        ),
    ),
    Question(
        claim="siblings, or two more answers, at the same place do a judge's work",
        row={
            "exact": "unbiased; no less noise",
            "pressing": f"siblings {at_both_rates('siblings at the same place')}; answers "
            f"{at_both_rates('Monte-Carlo values of prefixes')}",
            "control": f"siblings {at_both_rates('siblings at the same place', control=True)}",
            "paper": "GiGPO: gains for agents; VinePPO, K = 9: up to 9× fewer steps than PPO",
        },
        told=the_same_place,
        asked=(
            Asked(
                ids=("S15.3", "S15.4"),
                claim="siblings at the same place, or two more answers, do a judge's work",
                heading="Deeper: What did ten seeds of five credits say?",
                says="Step groups are level with outcome credit to about a hundredth.",
                runs={"process_rewards": ["step groups", "VinePPO, k = 2", "outcome"]},
            ),
        ),
    ),
    Question(
        claim="outcomes alone train a judge of tokens",
        row={
            "exact": "token rewards are changes of a soft mean",
            "pressing": f"runs away: {at_both_rates('a judge from outcomes')}",
            "control": f"a sound tool: {at_both_rates('a judge from outcomes', control=True)}",
            "paper": "PRIME: 2.5× sample efficiency",
        },
        experiments={
            "prime_whitened": Experiment(
                "Is it the size of PRIME's credit that a policy does not survive?",
                tuple(arms(WHITENED, steps=20)),
                seeds=(0, 1, 2, 3, 4),
                columns=(*STEPS, "truncated"),
                **SEEN,
                world=unreliable_tool(0.5),
            ),
            "sound_credit": Experiment(
                "What do PRIME and a tool's own tokens cost where the tool is always right?",
                tuple(sound_credit()),
                columns=STEPS,
                **SEEN,
                world=unreliable_tool(0.0),
            ),
        },
        told=a_judge_from_outcomes,
        asked=(
            Asked(
                ids=("S15.5",),
                claim="PRIME: slow .00, fast −.10",
                heading="Deeper: What did ten seeds of five credits say?",
                says="Nor is it the size of its credit.",
                runs={
                    "process_rewards": ["PRIME", "PRIME, slow judge", "outcome"],
                    "sound_credit": ["PRIME", "outcome"],
                    "prime_whitened": ["PRIME, whitened"],
                },
            ),
        ),
    ),
    Question(
        claim="a tool's tokens must be masked",
        row={
            "exact": "else right results are unlearned",
            "pressing": f"trained as well, {at_both_rates(TOOLS_TOO)}",
            "control": f"a sound tool: {at_both_rates(TOOLS_TOO, control=True)}",
            "paper": "Search-R1 masks them",
        },
        experiments={
            "tool_tokens": Experiment(
                "... and where the tool's own tokens are trained as well?",
                (vary(arm("tool tokens trained", UNMASKED, **SETTINGS, steps=20), lr=RATES),),
                columns=KEPT,
                world=unreliable_tool(0.5),
                **SEEN,
            ),
        },
        told=the_tools_tokens,
        asked=(
            Asked(
                ids=("S15.6",),
                claim="a tool's tokens must be masked",
                heading="Deeper: What do a tool's tokens do to the policy?",
                says="most of the harm is the broken tool's own",
                runs={
                    "tool_tokens": ["tool tokens trained"],
                    "process_rewards": ["outcome"],
                    "sound_credit": ["tool tokens trained", "outcome"],
                },
            ),
        ),
    ),
)
