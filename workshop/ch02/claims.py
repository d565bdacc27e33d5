"""What chapter 02 claims: of its runs, and in its scorecard."""

from collections.abc import Iterator

from workshop.shared.told import OWN, SUMS, Told, rung
from workshop.shared.verdict import Claim


def baselines(told: Told) -> Iterator[Claim]:
    yield from rung(told, "a batch mean for no baseline", "REINFORCE, batch mean", "REINFORCE")
    average = "REINFORCE, moving average"
    yield from rung(told, "an average that starts at the mean", average, "REINFORCE")
    how = (SUMS + OWN, "baselines")
    yield told("one point more for every answer costs", *how, "none, 1/2", "none, 0/1")
    yield told("a batch mean against no baseline", *how, "batch mean", "none, 0/1", null=None)


WORLD = "plain sums, own rates"
SCORECARD = (  # numbers: `verdicts.table.scored`; those of the last two rows are the chapter's
    {
        "claim": "the score function estimates ∇J without bias",
        "exact": "yes: autograd on the sum agrees",
        "paper": "Williams 1992: proved",
    },
    {
        "claim": "a point in every reward is noise and nothing else",
        "exact": "the same mean gradient, four times the rollouts and more",
        "pressing": f"{{one point more for every answer costs | {WORLD}}}",
        "control": "0 once a mean is subtracted: the same run, bit for bit",
    },
    {
        "claim": "subtracting the mean helps",
        "exact": "less noise for long answers, more for two answers above p = ⅔",
        "control": f"rewards 0 and 1: {{a batch mean against no baseline | {WORLD}}}",
        "paper": "Ahmadian et al. 2024: helps a little",
    },
    {
        "claim": "REINFORCE can change a model's mode",
        "control": "plain sums: the mode was right before",
    },
)
