"""Chapter 16: its questions, each with what is run, claimed, printed and asked of it."""

from collections.abc import Iterator
from typing import Any

import pandas as pd

from workshop.ch16.experiments import BY_TURN, RATES, in_world
from workshop.shared.question import Question
from workshop.shared.scorecard import Questions
from workshop.shared.told import Told
from workshop.shared.verdict import Claim

AGAINST_OUTCOME = {
    "GiGPO": "equal places of a group (GiGPO) for outcome credit",
    "place in the batch": "equal places of a batch for outcome credit",
    "priced": "prices of places for outcome credit",
    BY_TURN: "pay by turn for outcome credit",
}


def by_place(told: Told) -> Iterator[Claim]:
    """A network's walk with doors; one rule for all cells is the control."""
    for arm, text in AGAINST_OUTCOME.items():
        yield told(text, "walk with doors, a network", "turns_doors", arm, "outcome", lr=RATES[0],
                   control="turns_one_rule")  # fmt: skip


QUESTIONS = Questions(
    Question(
        claim="a policy learns what stands in no prompt",
        row={
            "exact": "halving finds min(1, (2^t − 1) / n)",
            "pressing": "one live run of 50 batches: found {before} → {after}",
        },
        experiments={
            "turns_guess": in_world(
                "Whose turn was it, in a game where every place asks for the same rule?",
                "workshop.ch16.worlds:guess",
                "workshop.ch16.worlds:guess_paid",
                "guess",
            ),
        },
    ),
    Question(
        claim="priced places are nearer the truth than outcomes",
        row={
            "exact": "correlation with the change of worth, untrained walker: outcome {far}, "
            "priced {near}",
            "paper": "GiGPO: gains for agents on ALFWorld and WebShop",
        },
    ),
    Question(
        claim="exact credit teaches more where places ask for different rules (minus outcome)",
        row={
            "exact": "worths computed from the last step backwards",
            "pressing": "walk with doors: {exact_doors} of arrivals",
            "control": "one rule for all cells: {exact_one}",
        },
        experiments={
            "turns_doors": in_world(
                "Does credit by place teach more where places ask for different rules?",
                "workshop.ch16.worlds:two_doors",
                "workshop.ch16.worlds:two_doors_paid",
                "walk",
                planned=True,
            ),
            "turns_one_rule": in_world(
                "... and where one rule serves all of them?",
                "workshop.ch16.worlds:one_rule",
                "workshop.ch16.worlds:one_rule_paid",
                "walk",
                planned=True,
            ),
        },
    ),
    Question(
        claim="GiGPO, which compares a group's equal places, goes a part of that way",
        row={
            "pressing": "walk with doors: {gigpo_doors} of arrivals; a network: "
            "{equal places of a group (GiGPO) for outcome credit | "
            "walk with doors, a network, lr 4e-4}",
            "control": "one rule for all cells: {gigpo_one}; a network: {control: "
            "equal places of a group (GiGPO) for outcome credit | "
            "walk with doors, a network, lr 4e-4}",
        },
        told=by_place,
    ),
    Question(
        claim="places can be priced by the batch, if the batch has visitors (minus outcome)",
        row={
            "exact": "a lone visitor's own return is the price: its turn gets 0",
            "pressing": "doors, 64 episodes a batch: {priced_64}; 16 episodes: {priced_16}; "
            "a network, 64: {prices of places for outcome credit | "
            "walk with doors, a network, lr 4e-4}",
        },
    ),
    Question(
        claim="a world that shows its state is read, not played",
        row={"pressing": "found {leaking} where it leaks, {honest} in the honest game"},
    ),
)


def of_walks(lead: pd.DataFrame) -> dict[str, Any]:
    """What the scorecard prints of `figures.walks`, at the lower rate."""
    large, doors = {"doors": "two rules", "one": "one rule"}, "two rules"
    found = {f"exact_{name}": lead.loc[64, world, 0.1, "exact"] for name, world in large.items()}
    found |= {f"gigpo_{name}": lead.loc[64, world, 0.1, "GiGPO"] for name, world in large.items()}
    return found | {f"priced_{n}": lead.loc[n, doors, 0.1, "priced"] for n in (16, 64)}
