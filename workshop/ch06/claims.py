"""What chapter 06 claims: of its runs, and in its scorecard."""

from collections.abc import Iterator, Mapping
from typing import Any

from workshop.shared.told import OWN, SUMS, Told, rung
from workshop.shared.verdict import Claim


def rloo(told: Told) -> Iterator[Claim]:
    yield from rung(told, "siblings for no baseline", "RLOO", "REINFORCE")
    yield from rung(told, "128 prompts for 16 of eight", "REINFORCE++", "RLOO", null=None)
    yield told("groups of two against eight", SUMS + OWN, "group_sizes", "k = 2", "k = 8")
    yield told("groups of four against eight", SUMS + OWN, "group_sizes", "k = 4", "k = 8")
    how = (SUMS + OWN, "methods")
    yield told("no baseline leads siblings", *how, "reinforce", "rloo", null=None)
    yield told("a greedy answer for a baseline", *how, "remax", "rloo")


def scores(facts: Mapping[str, Any]) -> list[dict[str, str]]:
    """The rows of the chapter's scorecard; `facts` are numbers its cells have measured, as text."""
    return [
        {
            "claim": "leave-one-out is unbiased; the group mean is too short",
            "exact": "all groups enumerated: 1 and (n−1)/n",
            "paper": "Kool et al. 2019",
        },
        {
            "claim": "a trained model leaves little noise to fight",
            "pressing": f"{facts['tenth']} of the noise in a tenth of the tokens",
            "paper": "yes, for RLHF; VAPO disagrees for long chains",
        },
        {
            "claim": "a few siblings are enough",
            "control": f"plain sums, ten seeds: {facts['k']}",
            "paper": "k = 2 beats PPO, k = 4 does better",
        },
        {
            "claim": "siblings are the best baseline",
            "exact": "not where 0 is nearly the mean",
            "control": f"no: none {facts['after']['reinforce']} beside siblings",
            "paper": "yes, for rewards of a model",
        },
        {
            "claim": "greedy is a good baseline",
            "exact": "never, where its completion is paid for",
            "control": f"{facts['after']['remax']} beside siblings",
            "paper": "against PPO: half the memory",
        },
    ]
