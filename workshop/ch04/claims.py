"""What chapter 04 claims: of its runs, and in its scorecard."""

from collections.abc import Iterator

from workshop.shared.told import Told, there
from workshop.shared.verdict import Claim


def rlhf(told: Told) -> Iterator[Claim]:
    world, name = "habits, 1000 pairs", "overoptimisation"
    yield told("a reward model instead of the verifier", world, name, "1000 pairs", "verifier")
    leash = "1000 pairs, β = 0.1"
    yield told("... and what a leash of 0.1 gives back", world, name, leash, "1000 pairs")
    yield told("a leash of 0.3, for one of 0.1", world, "short_leash", "1000 pairs, β = 0.3", leash,
               beside=name)  # fmt: skip
    yield told("half the rate, twice the steps", world, f"{name}_slow", "1000 pairs", "1000 pairs",
               beside=name)  # fmt: skip
    if there(told.load, "fresh_pairs"):
        yield told("pairs of the policy as it is, for pairs of the base", world, "fresh_pairs",
                   "its own pairs, five times", "the base's pairs, five times")  # fmt: skip
    if there(told.load, "told_directly"):
        yield told("right answers that somebody wrote, for PPO with a verifier", "habits",
                   "told_directly", "256 written answers", "verifier", beside=name,
                   null=None)  # fmt: skip
        yield told("DPO, for PPO under a leash of 0.1, the same pairs", world,
                   "told_directly", "DPO on 1000 pairs", leash, beside=name, null=None)  # fmt: skip
    yield told("four passes over 1000 pairs, for one over 4000", world, "passes",
               "1000 pairs, four passes", "4000 pairs", beside=name)  # fmt: skip
    yield told("four passes over 1000 pairs, for one", world, "passes",
               "1000 pairs, four passes", "1000 pairs, one pass")  # fmt: skip
    misled = "misled annotators, β = 0.1"
    yield told("annotators who share a misconception", world, "misled", misled, leash, beside=name)


SCORECARD = (  # numbers in braces: `verdicts.table.scored`
    {
        "claim": "pleasing a learned reward loses the truth",
        "exact": "β from 10 to 0.1: truth .28, .66, .00",
        "pressing": "minus a verifier in its place: {a reward model instead of the verifier | "
        "habits, 1000 pairs}; one rate",
        "paper": "Gao et al.: up, then down",
    },
    {
        "claim": "a leash keeps the mean; only a short one keeps every family",
        "pressing": "β = 0.1 minus none: {... and what a leash of 0.1 gives back | "
        "habits, 1000 pairs}; plain sums fall at 0.1 and rise at 0.3, the largest that was tried",
        "paper": "Gao et al.: no more truth than stopping early",
    },
    {
        "claim": "more pairs or more passes: a higher peak, the same end",
        "pressing": "1000 pairs four times minus 4000 once, at the end: "
        "{four passes over 1000 pairs, for one over 4000 | habits, 1000 pairs}; level at the peak",
    },
    {
        "claim": "a leash is no help against annotators who err together",
        "pressing": "minus experts: {annotators who share a misconception | habits, 1000 pairs}",
    },
    {
        "claim": "picking the best of n, and DPO, turn as well",
        "exact": "best of 1024: truth .00",
        "pressing": "one reward model, one run (folded)",
    },
    {
        "claim": "being told right answers is worth more than RL on a reward",
        "pressing": "256 written answers minus PPO with a verifier: "
        "{right answers that somebody wrote, for PPO with a verifier | habits} (folded)",
    },
)
