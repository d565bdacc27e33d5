"""What chapter 08 claims: of its runs, and in its scorecard."""

from collections.abc import Iterator

from workshop.shared.runs import Column
from workshop.shared.told import (
    NOT_NAMED,
    OWN,
    SUMS,
    Told,
    clip_where_nothing_is_rare,
    rare,
    recorded,
    rung,
    there,
)
from workshop.shared.verdict import Claim


def dapo(told: Told) -> Iterator[Claim]:
    yield from rung(told, "DAPO for GRPO", "DAPO", "GRPO", null=None)
    if there(told.load, "equal_answers"):
        yield told("dynamic sampling, at equal answers", "3 of 4 prompts unsolvable, own rates",
                   "equal_answers", "+ dynamic sampling", "GRPO", Column("pass@1_solvable"),
                   unit="pass@1", headline=True)  # fmt: skip
    higher = ("clip-higher 0.28", "clip 0.2")
    yield from clip_where_nothing_is_rare(told, "clip-higher", *higher)
    yield from rare(told, "clip-higher frees a rare token", "clip-higher on a rare rule", *higher)
    at_once, room = Column("answers_at_once", learned=Column("pass@1_limit_80")), "pass@1_limit_80"
    how = ("limit of 32 tokens, own rates", "tight_limit")
    loose = {"control": "tight_limit_control"}
    yield told("the ramp gives up thinking", *how, "ramp", "cliff", at_once, unit="share",
               collapse=True, **loose)  # fmt: skip
    yield told("what that costs when there is room", *how, "ramp", "cliff", Column(room),
               collapse=True, headline=True, unit="pass@1", **loose)  # fmt: skip
    yield told("the filter keeps it", *how, "filter", "cliff", Column(room), unit="pass@1", **loose)
    hard = ("3 of 4 prompts unsolvable, own rates", "unsolvable", "+ dynamic sampling")
    solvable = Column("pass@1_solvable")
    yield told("dynamic sampling, at equal updates", *hard, "GRPO", solvable, unit="pass@1")
    twice = "GRPO, twice the batches"
    yield told("... against twice the updates", *hard, twice, solvable, unit="pass@1")
    yield told("all of it together", SUMS + OWN, "methods", "dapo", "grpo", null=None)
    if recorded(told.load, "all_troubles", arms=6, least=5):
        yield from parts_of_dapo(told)


def parts_of_dapo(told: Told) -> Iterator[Claim]:
    """DAPO for GRPO, and DAPO for DAPO without a part, where each part has its trouble."""
    rivals = {
        "all of DAPO, for GRPO": "GRPO",
        "DAPO's window, in its company": "DAPO, clip 0.2",
        "dynamic sampling, in its company": "DAPO, silent groups kept",
        "the token mean, in its company": "DAPO, mean per answer",
        "the ramp, in its company": "DAPO, no ramp",
    }
    for limit, where in ((32, "under its limit"), (80, "with room")):
        world = f"all of DAPO's troubles, asked {where}, own rates"
        for text, against in rivals.items():
            yield told(text, world, "all_troubles", "DAPO", against,
                       Column(f"pass@1_limit_{limit}"), family="all of DAPO", unit="pass@1",
                       null=None if against == "GRPO" else NOT_NAMED, collapse=True,
                       headline=True)  # fmt: skip


TIGHT, SOLVABLE = "limit of 32 tokens, own rates", "3 of 4 prompts unsolvable, own rates"
TROUBLED = "all of DAPO's troubles, asked with room, own rates"
ON_SUMS, RARE = "plain sums, own rates", "clip-higher frees a rare token | rare opening"
SCORECARD = (  # numbers: `verdicts.table.scored`; the exact one of the first row is the chapter's
    {
        "claim": "ε_high lets a rare good token grow faster",
        "pressing": f"half time of a rare opening {{{RARE}, lr 1e-4}}, {{{RARE}, lr 2e-4}}; "
        "a rare rule {clip-higher on a rare rule | habits, 16 minibatches, lr 1e-4}",
        "control": f"{{clip-higher where nothing is rare | {ON_SUMS}, 16 minibatches}}",
        "paper": "a small step in a chain; Fig. 3a",
    },
    {
        "claim": "a ramp gives up care where half is cut off",
        "exact": "turns against care at a smaller share than the cliff; teaches most to stop",
        "pressing": f"answers at once {{the ramp gives up thinking | {TIGHT}}}; with room "
        f"{{what that costs when there is room | {TIGHT}}}",
        "control": f"{{control: what that costs when there is room | {TIGHT}}}",
        "paper": "a gain, with few answers cut off",
    },
    {
        "claim": "the filter keeps care and teaches no brevity",
        "exact": "gives up last, and pushes least to stop",
        "pressing": f"with room {{the filter keeps it | {TIGHT}}}: not settled",
        "control": f"{{control: the filter keeps it | {TIGHT}}}; stops least when lost",
        "paper": "a gain; others: at short limits only",
    },
    {
        "claim": "dynamic sampling learns more per update",
        "exact": "1/(1 − z) prompts a useful one, more in whole rounds",
        "pressing": f"{{dynamic sampling, at equal updates | {SOLVABLE}}} in as many updates, "
        f"{{... against twice the updates | {SOLVABLE}}} in half as many; "
        f"at equal answers {{dynamic sampling, at equal answers | {SOLVABLE}}}",
        "control": "little to fill: most groups have spread",
        "paper": "the largest gain; little in verl's re-runs",
    },
    {
        "claim": "all of it together beats GRPO",
        "pressing": f"{{all of DAPO, for GRPO | {TROUBLED}}}; "
        f"its ramp alone {{the ramp, in its company | {TROUBLED}}}",
        "control": f"{{all of it together | {ON_SUMS}}}, with more answers and four times "
        "the updates",
        "paper": "the whole chain, on AIME 2024",
    },
)
