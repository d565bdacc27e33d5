"""What chapter 15 claims: of its runs, and in its scorecard."""

from collections.abc import Iterator

from workshop.shared.runs import Column
from workshop.shared.told import NOT_NAMED, Told, there
from workshop.shared.verdict import Claim


def credit(told: Told) -> Iterator[Claim]:
    tool = Column("pass@1_with_tool")
    texts = {"process": "a verdict on each step", "step groups": "siblings at the same place"}
    texts |= {"VinePPO, k = 2": "Monte-Carlo values of prefixes", "PRIME": "a judge from outcomes"}
    for lr in (3e-4, 6e-4):
        for arm, text in texts.items():
            sound = "process_rewards_control" if arm in ("process", "step groups") else None
            sound = "sound_credit" if arm == "PRIME" else sound
            yield told(text, "habits, an unreliable tool", "process_rewards", arm, "outcome", tool,
                       lr=lr, control=sound, unit="pass@1",
                       null=None if arm == "PRIME" else NOT_NAMED)  # fmt: skip
        yield told("the tool's tokens trained as well", "habits, an unreliable tool", "tool_tokens",
                   "tool tokens trained", "outcome", tool, lr=lr, beside="process_rewards",
                   control="sound_credit", unit="pass@1")  # fmt: skip
    if there(told.load, "prime_whitened"):
        for lr in (3e-4, 6e-4):
            for text, rival in (
                ("PRIME whitened, for PRIME", "PRIME"),
                ("PRIME whitened, for outcomes", "outcome"),
            ):
                yield told(text, "habits, an unreliable tool", "prime_whitened", "PRIME, whitened",
                           rival, tool, lr=lr, beside="process_rewards", unit="pass@1",
                           null=NOT_NAMED if rival == "PRIME" else None)  # fmt: skip
    if there(told.load, "process_rewards_above"):
        yield told("a verdict on each step", "habits, an unreliable tool", "process_rewards_above",
                   "process", "outcome", tool, lr=8.5e-4, unit="pass@1")  # fmt: skip


BROKEN = "habits, an unreliable tool"
TOOLS_TOO = "the tool's tokens trained as well"


def at_both_rates(claim: str, control: bool = False) -> str:
    """What the ledger says of a claim at either rate, as `verdicts.table.scored` reads it."""
    which = "control: " if control else ""
    named = (f"{rate} {{{which}{claim} | {BROKEN}, lr {rate}}}" for rate in ("3e-4", "6e-4"))
    return ", ".join(named)


SCORECARD = (  # numbers: `verdicts.table.scored`, right answers with the tool
    {
        "claim": "a judge of steps teaches more where right steps come to grief",
        "exact": "takes out the luck of all that comes later",
        "pressing": f"over outcome, {at_both_rates('a verdict on each step')}",
        "control": f"a sound tool: {at_both_rates('a verdict on each step', control=True)}",
        "paper": "process supervision beats outcomes for choosing among answers",
    },
    {
        "claim": "a right step said again is paid for",
        "exact": "if the judge's word is the worth; not if the batch's rewards are",
    },
    {
        "claim": "siblings, or two more answers, at the same place do a judge's work",
        "exact": "unbiased; no less noise",
        "pressing": f"siblings {at_both_rates('siblings at the same place')}; answers "
        f"{at_both_rates('Monte-Carlo values of prefixes')}",
        "control": f"siblings {at_both_rates('siblings at the same place', control=True)}",
        "paper": "GiGPO: gains for agents; VinePPO, K = 9: up to 9× fewer steps than PPO",
    },
    {
        "claim": "outcomes alone train a judge of tokens",
        "exact": "token rewards are changes of a soft mean",
        "pressing": f"runs away: {at_both_rates('a judge from outcomes')}",
        "control": f"a sound tool: {at_both_rates('a judge from outcomes', control=True)}",
        "paper": "PRIME: 2.5× sample efficiency",
    },
    {
        "claim": "a tool's tokens must be masked",
        "exact": "else right results are unlearned",
        "pressing": f"trained as well, {at_both_rates(TOOLS_TOO)}",
        "control": f"a sound tool: {at_both_rates(TOOLS_TOO, control=True)}",
        "paper": "Search-R1 masks them",
    },
)
