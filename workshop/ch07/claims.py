"""What chapter 07 claims: of its runs, and in its scorecard."""

from collections.abc import Iterator, Mapping

from workshop.shared.runs import Column
from workshop.shared.told import OWN, PASS, SUMS, Told, rung
from workshop.shared.verdict import Claim

LATE = Column("accuracy", steps=(16, 20))
LOST = Column("length_lost", steps=(20, 20), learned=LATE)


def dr_grpo(told: Told) -> Iterator[Claim]:
    yield from rung(told, "Dr. GRPO for GRPO", "Dr. GRPO", "GRPO", null=None)
    yield told("σ where nothing is hard", SUMS + OWN, "siblings", "GRPO", "GRPO, no σ")
    averages = (
        ("dividing by its length lets a lost answer grow", "mean per answer"),
        ("a mean over the prompt does so too", "prompt mean"),
        ("a mean over all tokens, less", "token mean"),
    )
    for lr in (1.5e-4, 3e-4):
        for text, arm in averages:
            yield told(text, "answers that start lost", "lost_answers", arm, "constant", LOST,
                       lr=lr, unit="tokens")  # fmt: skip
        plain = ("lost_answers_control", "mean per answer", "constant")
        length = Column("length", learned=PASS)
        yield told(
            "where none starts lost, the answers", SUMS, *plain, length, lr=lr, unit="tokens"
        )
        yield told("... and their accuracy", SUMS, *plain, lr=lr)


def scores(ends_at: Mapping[str, int], gaps: Mapping[str, str]) -> list[dict[str, str]]:
    """The chapter's claims.

    `ends_at`: tokens of lost answers by arm. `gaps`, each with its interval: how far the constant's
    lost answers walked ("walk"); on plain sums, how much longer GRPO's mean makes wrong answers
    than the constant ("control"), and what σ gains in pass@1 ("sigma").
    """
    mean, prompt, token, constant = ends_at.values()
    return [
        {
            "claim": "the mean over each answer teaches lost answers to go on",
            "exact": "drift −p(1−p)·(G−1)/G·κ of the logit of “stop”",
            "pressing": f"{mean} tokens at the end, against {constant} with the constant",
            "control": f"wrong answers {gaps['control']} tokens (two rates)",
            "paper": "wrong answers much shorter without it (Fig. 5)",
        },
        {
            "claim": "prompt mean and token mean keep a part of it",
            "exact": "a twelfth; a fiftieth with 32 answers",
            "pressing": f"{prompt} and {token} tokens; the second is within the noise",
            "paper": "not compared",
        },
        {
            "claim": "a constant has no length bias",
            "exact": "exactly 0",
            "pressing": f"{gaps['walk']} tokens: the seeds scatter",
            "paper": "both denominators dropped (App. A)",
        },
        {
            "claim": "σ moves weight to easy and hard questions, more so in large groups",
            "exact": "the curve w(p); flat for G = 2",
            "pressing": "a network's gradients on habits; trained in chapter 05",
            "control": f"pass@1 {gaps['sigma']}",
            "paper": "“too easy or too hard”, not measured per question",
        },
    ]
