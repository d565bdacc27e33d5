"""Chapter 06: its questions, each with what is run, claimed, printed and asked of it."""

from collections.abc import Iterator
from dataclasses import replace

from rlbook.objectives import METHODS
from workshop.shared.design import Arm, Experiment, arm, vary
from workshop.shared.question import Asked, Question
from workshop.shared.scorecard import Questions
from workshop.shared.told import HABITS, OWN, SUMS, Told, pretrained, rung, told_pretrained
from workshop.shared.verdict import Claim

ON_SMOLLM2 = "no baseline for RLOO from a pretrained model"


def group_sizes() -> Iterator[Arm]:
    """RLOO with 128 answers a batch, in groups of two, four, eight and sixteen."""
    method = replace(METHODS["rloo"], kl=None)
    for size in (2, 4, 8, 16):
        settings = {"prompts": 128 // size, "group_size": size, "minibatches": 1, "steps": 15}
        yield vary(arm(f"k = {size}", method, **settings), lr=(2e-4, 4e-4, 8e-4))


def few_siblings(told: Told) -> Iterator[Claim]:
    yield told("groups of two against eight", SUMS + OWN, "group_sizes", "k = 2", "k = 8")
    yield told("groups of four against eight", SUMS + OWN, "group_sizes", "k = 4", "k = 8")


def other_baselines(told: Told) -> Iterator[Claim]:
    yield from rung(told, "siblings for no baseline", "RLOO", "REINFORCE")
    yield told("no baseline leads siblings", SUMS + OWN, "methods", "reinforce", "rloo", null=None)
    yield from pretrained(
        told, ON_SMOLLM2, "real_more_sums", "no baseline", "RLOO", beside="real_sums"
    )


def greedy(told: Told) -> Iterator[Claim]:
    yield told("a greedy answer for a baseline", SUMS + OWN, "methods", "remax", "rloo")


def many_prompts(told: Told) -> Iterator[Claim]:
    yield from rung(
        told, "REINFORCE++ with its 128 prompts for RLOO", "REINFORCE++", "RLOO", null=None
    )
    for world, name in ((HABITS, "habits"), (SUMS, "sums")):
        for text, one, against in (
            ("128 prompts once for 16 eight times", "REINFORCE, 128 prompts", "REINFORCE"),
            ("REINFORCE++ with 16 prompts for RLOO", "REINFORCE++, 16 prompts", "RLOO"),
        ):
            where = f"{world}, the ladder", f"cut_{name}"
            yield told(text, *where, one, against, beside=f"ladder_{name}")


QUESTIONS = Questions(
    Question(
        claim="leave-one-out is unbiased; the group mean is too short",
        row={
            "exact": "all groups enumerated: 1 and (n−1)/n",
            "paper": "Kool et al. 2019",
        },
    ),
    Question(
        claim="a trained model leaves little noise to fight",
        row={
            "pressing": "{tenth} of the noise in a tenth of the tokens",
            "paper": "yes, for RLHF; VAPO disagrees for long chains",
        },
        asked=(
            Asked(
                ids=("S06.3",),
                claim="a tenth of the tokens has 62 % of the noise",
                heading="6 · How much noise is there to fight?",
                says="a tenth of the base's tokens hold 62% of its noise",
                how="one batch of the base",
            ),
        ),
    ),
    Question(
        claim="a few siblings are enough",
        row={
            "control": "plain sums, ten seeds: {sizes}",
            "paper": "k = 2 beats PPO, k = 4 does better",
        },
        experiments={
            "group_sizes": Experiment(
                "Which group size uses a budget of answers best?",
                tuple(group_sizes()),
                tuning_seeds=(100, 101),
            ),
        },
        told=few_siblings,
        asked=(
            Asked(
                ids=("S06.4",),
                claim="two siblings fall short, four are enough",
                heading="Ten seeds, each group size at its best",
                says="Groups of two end six points below groups of eight",
                runs={"group_sizes": ["k = 2", "k = 4", "k = 8", "k = 16"]},
            ),
        ),
    ),
    Question(
        claim="siblings are the best baseline",
        row={
            "exact": "not where 0 is nearly the mean",
            "control": "no: none {none} beside siblings",
            "pretrained": told_pretrained("none minus siblings", ON_SMOLLM2),
            "paper": "yes, for rewards of a model",
        },
        told=other_baselines,
        asked=(
            Asked(
                ids=("S06.5",),
                claim="'none' leads, +.08 beside siblings",
                heading="10 · What is a baseline worth after training?",
                says="RLOO ends 0.06 below no baseline on sums and 0.05 on habits",
                runs={
                    "methods": ["reinforce", "reinforce_ema", "rloo"],
                    "ladder_sums": ["RLOO", "REINFORCE"],
                    "ladder_habits": ["RLOO", "REINFORCE"],
                },
            ),
        ),
    ),
    Question(
        claim="greedy is a good baseline",
        row={
            "exact": "never, where its completion is paid for",
            "control": "{greedy} beside siblings",
            "paper": "against PPO: half the memory",
        },
        told=greedy,
        asked=(
            Asked(
                ids=("S06.7",),
                claim="greedy is a bad baseline",
                heading="10 · What is a baseline worth after training?",
                says="that of the moving average survives it, and so does that of greedy",
                runs={"methods": ["remax", "rloo"]},
            ),
        ),
    ),
    Question(
        claim="more prompts are worth more than siblings",
        row={
            "pressing": "habits, 128 × 1 for 16 × 8: "
            "{128 prompts once for 16 eight times | habits, the ladder}",
            "control": "sums: {128 prompts once for 16 eight times | plain sums, the ladder}",
        },
        told=many_prompts,
    ),
)
