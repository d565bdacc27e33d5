"""Chapter 10: its questions, each with what is run, claimed, printed and asked of it."""

from collections.abc import Iterator

from rlbook.policy import load_policy
from rlbook.tasks.habits import FAMILIES
from rlbook.training import RunConfig, Trainer
from workshop.shared.design import Experiment, no_columns
from workshop.shared.evidence import families, rules_by_family
from workshop.shared.experiments import FEW, on_policy
from workshop.shared.question import Asked, Question
from workshop.shared.runs import Column
from workshop.shared.scorecard import Questions
from workshop.shared.told import PASS, Told, pretrained, rung, there, told_pretrained
from workshop.shared.verdict import Claim
from workshop.shared.worlds import HABITS
from workshop.shared.worlds.shared_choice import OpeningTask, shared_choice

ON_SMOLLM2 = "MaxRL for RLOO from a pretrained model"


def one_choice(config: RunConfig) -> Trainer:
    """All prompts share one opening, and nothing else can be trained."""
    return Trainer(config, shared_choice(load_policy(config.model.policy)), task=OpeningTask())


def one_opening(told: Told, text: str, column: str, arm: str) -> Iterator[Claim]:
    """Against RLOO where all prompts share one opening, at two rates."""
    for lr in (0.03, 0.1):
        judged = Column(column, learned=PASS)
        yield told(text, "a shared opening", "shared_choice", arm, "RLOO", judged, lr=lr, null=None)


def kept(told: Told) -> Iterator[Claim]:
    yield from one_opening(told, "MaxRL keeps what RLOO gives up", "pass@64", "MaxRL")
    yield from one_opening(told, "GRPO keeps some of it", "pass@64", "GRPO")


def first_try(told: Told) -> Iterator[Claim]:
    yield from rung(told, "MaxRL for RLOO", "MaxRL", "RLOO", null=None)
    yield from one_opening(told, "... and pays in one try", "pass@1", "MaxRL")
    if there(told.load, "habits_sigma"):
        rows = ("MaxRL, mean over tokens", "RLOO, mean over tokens")
        yield told("MaxRL's weight and nothing else", "habits, forty batches, own rates",
                   "habits_sigma", *rows, control=("ladder_sums", "MaxRL", "RLOO"),
                   headline=True)  # fmt: skip
    yield told("MaxRL on habits", "habits, own rates", "habits", "MaxRL", "RLOO", null=None,
               control=("methods", "maxrl", "rloo"))  # fmt: skip
    yield from pretrained(told, ON_SMOLLM2, "real_more_sums", "MaxRL", "RLOO", beside="real_sums")


def on_the_way(told: Told, text: str, level: int) -> Iterator[Claim]:
    """MaxRL's accuracy for RLOO's on one family of habits, in batches 6 to 15."""
    world = f"habits, {list(FAMILIES)[level - 1]}, steps 6–15"
    for lr in (3e-4, 6e-4):
        column = Column(f"accuracy_level_{level}", steps=(6, 15))
        yield told(text, world, "habits_rates", "MaxRL", "RLOO", column, lr=lr, null=None,
                   unit="accuracy")  # fmt: skip


def rare_rules(told: Told) -> Iterator[Claim]:
    yield from on_the_way(told, "MaxRL finds rare rules sooner", 4)
    yield from on_the_way(told, "... the rarer the rule, the more", 5)
    for lr in (3e-4, 6e-4):
        square = Column("greedy_level_6", learned=Column("pass@1_level_*"))
        yield told("... and its mode on the rarest has changed", "habits, square", "habits_rates",
                   "MaxRL", "RLOO", square, lr=lr, null=None, unit="greedy")  # fmt: skip


def known_rules(told: Told) -> Iterator[Claim]:
    yield from on_the_way(told, "... and what is known pays meanwhile", 1)


QUESTIONS = Questions(
    Question(
        claim="where prompts share a choice MaxRL keeps pass@64 that RLOO gives up",
        row={
            "exact": "52 % guesses with MaxRL, none with RLOO (section 5)",
            "pressing": "one shared opening: {MaxRL keeps what RLOO gives up | a shared opening, "
            "lr 3e-2} and {MaxRL keeps what RLOO gives up | a shared opening, lr 1e-1}",
            "control": "short sums only: neither falls below the base (section 5, one run)",
            "paper": "highest at large k: mazes, GSM8K, Qwen3",
        },
        experiments={
            "shared_choice": Experiment(
                "Which opening is elected when short and long sums must share one?",
                tuple(on_policy((0.03, 0.1), steps=30, levels=(3, 6, 7), max_new_tokens=28)),
                chosen_by=None,
                seeds=tuple(range(6)),
                world=one_choice,
                measure=no_columns,
                evaluation={"prompts": 48, "n": 128, "ks": (1, 4, 16, 64)},
            ),
        },
        told=kept,
        asked=(
            Asked(
                ids=("S10.1", "S10.2"),
                claim="one shared opening: MaxRL keeps pass@k and pays at the first try",
                heading="7 · Evidence: the election, over seeds",
                says="RLOO ends far below the base at sixteen tries, and MaxRL above it on average",
                runs={"shared_choice": ["MaxRL", "RLOO", "GRPO"]},
            ),
        ),
    ),
    Question(
        claim="it pays at the first try",
        row={
            "exact": "below RLOO, above the base (section 5); in a folded world below both",
            "pressing": "{... and pays in one try | a shared opening, lr 3e-2} and "
            "{... and pays in one try | a shared opening, lr 1e-1}; habits, the same mean, own "
            "rates: {MaxRL's weight and nothing else | habits, forty batches, own rates}",
            "control": "plain sums: {control: MaxRL on habits | habits, own rates}",
            "pretrained": told_pretrained("MaxRL minus RLOO", ON_SMOLLM2),
            "paper": "no such price reported",
        },
        told=first_try,
    ),
    Question(
        claim="rare rules are learned sooner (powers answered right, batches 6 to 15)",
        row={
            "exact": "w(p) = (1 − (1−p)^(N−1)) / p",
            "pressing": "{... the rarer the rule, the more | habits, power, steps 6–15, lr 3e-4} "
            "and "
            "{... the rarer the rule, the more | habits, power, steps 6–15, lr 6e-4}",
            "paper": "ImageNet: REINFORCE hardly starts, MaxRL does",
        },
        experiments={
            "habits_rates": Experiment(
                "Is MaxRL's lead on rare rules its weight, or its learning rate?",
                tuple(on_policy((3e-4, 6e-4), ("rloo", "maxrl"), steps=40, **HABITS)),
                chosen_by=None,
                measure=rules_by_family,
                watch=families,
                evaluation=FEW,
            ),
        },
        told=rare_rules,
        asked=(
            Asked(
                ids=("S10.4",),
                claim="MaxRL: rare rules sooner, easy ones dip",
                heading="6 · Does it help with rare rules, where no opening is shared?",
                says="It does not follow that it is ahead in practice.",
                runs={
                    "habits_rates": ["MaxRL", "RLOO"],
                    "habits_sigma": ["MaxRL, mean over tokens", "RLOO, mean over tokens"],
                },
            ),
            Asked(
                ids=("S10.5",),
                claim="SGD: in order of N; Adam: no order",
                heading="Deeper: Does it become cross-entropy?",
                says="RL starts a few updates late, and then the order is gone",
                how="one draw of the classes",
            ),
            Asked(
                ids=("T10.1", "C10.A"),
                claim="squares' greedy answer +.27 (own rates), or +.14 and +.10 (equal rates)",
                heading="Deeper: Its weight, or its rate? And what has become of the mode?",
                says="it got the larger one, twice that of the other two",
                runs={"habits": ["MaxRL", "RLOO"], "habits_rates": ["MaxRL", "RLOO"]},
            ),
            Asked(
                ids=("S05.7",),
                claim="RL moves the favourite answer",
                heading="Deeper: Its weight, or its rate? And what has become of the mode?",
                says="the greedy answer to a square is right in .39 of the problems with MaxRL "
                "and in .12 with RLOO",
                runs={"habits": ["GRPO", "RLOO", "MaxRL"]},
            ),
        ),
    ),
    Question(
        claim="what is known pays meanwhile (plain sums)",
        row={
            "pressing": "{... and what is known pays meanwhile | habits, plain, steps 6–15, lr "
            "3e-4} "
            "and {... and what is known pays meanwhile | habits, plain, steps 6–15, lr 6e-4}",
        },
        told=known_rules,
    ),
    Question(
        claim="a group without a success teaches nothing",
        row={
            "exact": "0 under all three",
            "pressing": "habits: the first success comes to RLOO and MaxRL at about the same batch",
            "paper": "Algorithm 1: 0 by definition",
        },
    ),
)
