"""Chapter 15: what its batches, its runs and its recorded experiments say, a table each."""

from collections.abc import Callable, Mapping, Sequence

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlbook.rewards import VerdictCredit
from rlbook.tasks.habits import HabitsTask
from rlbook.training import Rollout, collect_rollouts
from workshop.ch15.figures import Credit, first_choices, outcome_credit, rule_of
from workshop.ch15.step_credit import ChoiceTree, credit_moments
from workshop.ch15.tools import Calculator
from workshop.shared.evidence import load_results

Policy = tuple[PreTrainedModel, PreTrainedTokenizerBase]
Priced = Callable[[Sequence[Rollout], Sequence[Sequence[bool]]], Sequence[Sequence[float]]]
FAMILIES_ASKED = (1, 2, 3, 4, 5)
RATES = {"3e-4": 3e-4, "6e-4": 6e-4}


def by_rule(rollouts: Sequence[Rollout]) -> pd.DataFrame:
    """Answers by the rule that they follow: how many, right and wrong, and how many get blamed.

    An answer is blamed if its advantage by the outcome (leave-one-out) is negative.
    """
    said = pd.DataFrame(
        {
            "rule": "the right rule" if rule_of(r) == "right" else "any other",
            "right": r.correct,
            "blamed": min(credit) < 0,
        }
        for r, credit in zip(rollouts, outcome_credit(rollouts), strict=True)
    )
    counts = said.groupby("rule", sort=False)[["right", "blamed"]].sum()
    counts.insert(0, "answers", said["rule"].value_counts())
    counts.insert(2, "wrong", counts["answers"] - counts["right"])
    return counts.sort_index(ascending=False)


def noise_of(tree: ChoiceTree, ways: Mapping[str, Float[Tensor, "K T"]]) -> pd.Series:
    """Σ variance / |mean|² of the gradient that one answer gives, for each way to give credit.

    Computed from all answers of the tree for rewards of all right. Raises `AssertionError` for a
    way whose mean is not the true gradient.
    """
    moments = {name: credit_moments(tree, credit) for name, credit in ways.items()}
    for each in moments.values():
        truth = tree.true_gradient(tree.all_right)
        torch.testing.assert_close(each.mean, truth, rtol=1e-5, atol=1e-6)
    return pd.Series({name: each.noise for name, each in moments.items()}, name="noise")


def outcome_and_judge(policy: Policy, judge: Credit) -> pd.DataFrame:
    """One batch of a policy with a broken and with a repaired calculator, before any training.

    What outcome and judge say of the first choice: how many right rules each of them blames, and
    how their numbers correlate over all answers.
    """
    task, rows = HabitsTask(), {}
    for state, wrong in (("broken", 0.5), ("repaired", 0.0)):
        problems = task.sample(5, 32, FAMILIES_ASKED)
        engine = Calculator(*policy, wrong=wrong)
        answers = collect_rollouts(
            engine, policy[1], task, problems, n=16, max_new_tokens=48, seed=2
        )
        choices = first_choices(answers, judge)
        good = choices[choices["rule"] == "right"]
        rows[state] = {
            "right rules blamed by the outcome": (good["outcome"] < 0).mean(),
            "by the judge": (good["process"] < 0).mean(),
            "correlation": choices["outcome"].corr(choices["process"]),
        }
    return pd.DataFrame(rows).T


def prices(rollouts: Sequence[Rollout], judged: VerdictCredit, worth: Priced) -> pd.DataFrame:
    """The worth of standing on and off track before each step, in these answers."""
    told = [judged.verdicts(r) for r in rollouts]
    rows = zip(told, worth(rollouts, told), strict=True)
    at = {place: u for row, us in rows for place, u in zip(enumerate(row), us, strict=True)}
    table = pd.Series(at).unstack().rename(columns={True: "on track", False: "off track"})
    return table[["on track", "off track"]].rename_axis("before step")


def last_batches(logs: Mapping[str, Sequence[Mapping[str, float]]], skip: int = 5) -> pd.DataFrame:
    """Share of right rules and length of the gradient by run, means over all but `skip` batches."""
    means = {name: pd.DataFrame(log[skip:]).mean() for name, log in logs.items()}
    return pd.DataFrame(means).loc[["share_right", "grad_norm"]].T


def with_a_higher_rate(broken: pd.DataFrame) -> pd.DataFrame:
    """Right rules and right answers of outcome and judge at three rates, ten seeds each, held out.

    The third rate, 8.5e-4, was run to see whether outcome credit had been given too low a one.
    """
    runs = pd.concat([broken, load_results("process_rewards_above_eval")])
    ends = runs[runs["arm"].isin(["outcome", "process"])].groupby(["arm", "lr"])
    measures = {"right_rule": "right rules", "pass@1_with_tool": "right answers"}
    table = ends[list(measures)].mean().rename(columns=measures).unstack("lr")
    return table.rename(columns=lambda rate: f"{rate:g}", level="lr")


def masked_and_not(broken: pd.DataFrame, unmasked: pd.DataFrame) -> pd.DataFrame:
    """Outcome credit with the tool's tokens masked and trained, by rate: ten seeds, held out."""
    runs = pd.concat([broken[broken["arm"] == "outcome"], unmasked])
    measures = {
        "right_rule": "right rules, with the tool",
        "right_given_rule_alone": "right results behind a right rule, tool taken away",
    }
    named = {"outcome": "masked", "tool tokens trained": "trained"}
    table = runs.replace({"arm": named}).groupby(["lr", "arm"])[list(measures)].mean()
    return table.rename(columns=measures).rename(index=lambda rate: f"{rate:g}", level="lr")
