"""What chapter 05 claims: of its runs, and in its scorecard."""

from collections.abc import Iterator

from workshop.shared.told import ALL_LEVELS, OWN, SUMS, Told, rung, there
from workshop.shared.verdict import Claim


def grpo(told: Told) -> Iterator[Claim]:
    yield from rung(told, "GRPO for PPO", "GRPO", "PPO", null=None)
    yield from rung(told, "σ and nothing else", "GRPO", "GRPO, no σ")
    if there(told.load, "habits_sigma"):
        habits = ("habits, forty batches, own rates", "habits_sigma", "GRPO", "GRPO, no σ")
        yield told("σ and nothing else", *habits, control="ladder_sums")
    how = (SUMS + OWN, "siblings")
    critic, siblings = "PPO, critic, λ = 1", "PPO's loss, siblings"
    yield told("siblings against a critic", *how, siblings, critic)
    yield told("siblings against the batch mean", *how, siblings, "batch mean")
    yield told("a mean per answer costs", *how, "GRPO", siblings)
    yield told("a KL penalty", *how, "GRPO + KL", "GRPO")
    habits = ("habits, own rates", "habits", "GRPO", "RLOO", ALL_LEVELS)
    yield told("σ brings rare rules forward", *habits, null=None)


SCORECARD = (  # numbers: `verdicts.table.scored`
    {
        "claim": "siblings know a prompt at once",
        "pressing": "a critic needs thousands of answers (section 1, one critic)",
        "paper": "DeepSeekMath: a critic is costly and hard to get right",
    },
    {
        "claim": "siblings replace the critic",
        "control": "plain sums: {siblings against a critic | plain sums, own rates}; "
        "{detectable: siblings against a critic | plain sums, own rates} would be found",
        "paper": "DeepSeekMath: yes",
    },
    {
        "claim": "what parts GRPO from PPO is the averaging",
        "control": "plain sums: {a mean per answer costs | plain sums, own rates}",
        "paper": "Dr. GRPO, DAPO",
    },
    {
        "claim": "σ brings rare rules forward",
        "exact": "w(p, G); not at all at G = 2",
        "pressing": "habits, all families: {σ brings rare rules forward | habits, own rates}, not "
        "clear of chance among its kin; σ alone, forty batches: {σ and nothing else | habits, "
        "forty batches, own rates}",
        "control": "plain sums: {σ where nothing is hard | plain sums, own rates}",
        "paper": "Dr. GRPO: a bias",
    },
    {
        "claim": "the KL penalty is needed",
        "control": "plain sums, with minus without: {a KL penalty | plain sums, own rates}",
        "paper": "β = 0.04; most later runs 0",
    },
)
