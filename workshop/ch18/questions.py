"""Chapter 18: its questions, each with what is run, claimed, printed and asked of it."""

from workshop.shared.question import Question
from workshop.shared.scorecard import Questions

AGED = "{{tokens up to {} updates old | plain sums, a pipeline, lr {}}}"


QUESTIONS = Questions(
    Question(
        claim="no trained token is more than K updates old",
        row={
            "exact": "b + ⌊i / B⌋ ≤ v + K",
            "pressing": "K = 4, your rule: kept in two runs (section 5)",
            "paper": "ScaleRL: K = 8",
        },
    ),
    Question(
        claim="old keys and values may stay",
        row={
            "pressing": "kept: fresh tokens off by less than 0.005 nats (mean, section 5)",
            "control": "computed again: by less than 0.00001",
            "paper": "PipelineRL keeps them",
        },
    ),
    Question(
        claim="where no token is old, every ratio is 1",
        row={
            "exact": "the same weights",
            "pressing": "within 0.0001 (section 5)",
        },
    ),
    Question(
        claim="a death loses no update",
        row={
            "pressing": "two kills, 16 updates of 16; those made again equal to the bit (section "
            "7)",
        },
    ),
    Question(
        claim="age costs accuracy, at one rate for all",
        row={
            "pressing": f"K = 2: {AGED.format(2, '4e-4')}, K = 8: {AGED.format(8, '4e-4')}",
            "control": f"at half the rate: {AGED.format(2, '2e-4')} and {AGED.format(8, '2e-4')}",
            "paper": "ScaleRL: K = 8 and 4 alike",
        },
    ),
)
