"""What chapter 10 claims: of its runs, and in its scorecard."""

from collections.abc import Iterator

from rlbook.tasks.habits import FAMILIES
from workshop.shared.runs import Column
from workshop.shared.told import PASS, Told, rung, there
from workshop.shared.verdict import Claim

DIFFERENT = (("MaxRL finds rare rules sooner", 4), ("... the rarer the rule, the more", 5))
DIFFERENT += (("... and what is known pays meanwhile", 1),)


def maxrl(told: Told) -> Iterator[Claim]:
    yield from rung(told, "MaxRL for RLOO", "MaxRL", "RLOO", null=None)
    if there(told.load, "habits_sigma"):
        rows = ("MaxRL, mean over tokens", "RLOO, mean over tokens")
        yield told("MaxRL's weight and nothing else", "habits, forty batches, own rates",
                   "habits_sigma", *rows, control=("ladder_sums", "MaxRL", "RLOO"),
                   headline=True)  # fmt: skip
    for lr in (3e-4, 6e-4):
        how = ("habits_rates", "MaxRL", "RLOO")
        for text, level in DIFFERENT:
            world = f"habits, {list(FAMILIES)[level - 1]}, steps 6–15"
            column = Column(f"accuracy_level_{level}", steps=(6, 15))
            yield told(text, world, *how, column, lr=lr, null=None, unit="accuracy")
        square = Column("greedy_level_6", learned=Column("pass@1_level_*"))
        yield told("... and its mode on the rarest has changed", "habits, square", *how, square,
                   lr=lr, null=None, unit="greedy")  # fmt: skip
    yield told("MaxRL on habits", "habits, own rates", "habits", "MaxRL", "RLOO", null=None,
               control=("methods", "maxrl", "rloo"))  # fmt: skip
    for lr in (0.03, 0.1):
        how = ("a shared opening", "shared_choice")
        for text, column, arm in (
            ("MaxRL keeps what RLOO gives up", "pass@64", "MaxRL"),
            ("GRPO keeps some of it", "pass@64", "GRPO"),
            ("... and pays in one try", "pass@1", "MaxRL"),
        ):
            judged = Column(column, learned=PASS)
            yield told(text, *how, arm, "RLOO", judged, lr=lr, null=None)


SCORECARD = (  # numbers: `verdicts.table.scored`
    {
        "claim": "where prompts share a choice MaxRL keeps pass@64 that RLOO gives up",
        "exact": "the elected share, for every N",
        "pressing": "one shared opening: {MaxRL keeps what RLOO gives up | a shared opening, "
        "lr 3e-2} and {MaxRL keeps what RLOO gives up | a shared opening, lr 1e-1}",
        "control": "short sums only: nobody loses (section 5, one run)",
        "paper": "highest at large k: mazes, GSM8K, Qwen3",
    },
    {
        "claim": "it pays at the first try",
        "exact": "below the base's pass@1",
        "pressing": "{... and pays in one try | a shared opening, lr 3e-2} and "
        "{... and pays in one try | a shared opening, lr 1e-1}; habits, forty batches, the weight "
        "alone: {MaxRL's weight and nothing else | habits, forty batches, own rates}",
        "control": "plain sums: {control: MaxRL on habits | habits, own rates}",
        "paper": "no such price reported",
    },
    {
        "claim": "rare rules are learned sooner (powers, batches 6 to 15)",
        "exact": "w(p) = (1 − (1−p)^(N−1)) / p",
        "pressing": "{... the rarer the rule, the more | habits, power, steps 6–15, lr 3e-4} and "
        "{... the rarer the rule, the more | habits, power, steps 6–15, lr 6e-4}",
        "paper": "ImageNet: REINFORCE hardly starts, MaxRL does",
    },
    {
        "claim": "what is known pays meanwhile (plain sums)",
        "pressing": "{... and what is known pays meanwhile | habits, plain, steps 6–15, lr 3e-4} "
        "and {... and what is known pays meanwhile | habits, plain, steps 6–15, lr 6e-4}",
    },
    {
        "claim": "a group without a success teaches nothing",
        "exact": "0 under all three",
        "pressing": "habits: the first success comes to all at about the same batch",
        "paper": "Algorithm 1: 0 by definition",
    },
)
