"""Chapter 14: what its runs and its recorded experiments say, a table each."""

from collections.abc import Sequence

import pandas as pd
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlbook.evaluation import held_out_rollouts
from rlbook.tasks import SumsTask, strategy_of
from rlbook.training import Rollout
from workshop.ch14.brevity import BUDGETS
from workshop.shared.evidence import difference_table

Policy = tuple[PreTrainedModel, PreTrainedTokenizerBase]
WITHIN = [f"right_within_{n}" for n in BUDGETS]
TIGHT = slice(2, 5)  # of the budgets: 16, 24 and 32 tokens


def ways_of(rollouts: Sequence[Rollout]) -> pd.DataFrame:
    """By way of answering: its share, how often it is right, and its tokens."""
    said = pd.DataFrame(
        {"way": strategy_of(r.text, not r.truncated), "right": r.correct, "tokens": r.length}
        for r in rollouts
    )
    ways = said.groupby("way").agg(right=("right", "mean"), tokens=("tokens", "mean"))
    ways.insert(0, "share", said["way"].value_counts(normalize=True))
    return ways


def in_all(ways: pd.DataFrame) -> dict[str, float]:
    """Right answers, tokens and guesses over all ways of answering, from `ways_of`."""
    means = {column: float((ways["share"] * ways[column]).sum()) for column in ("right", "tokens")}
    return means | {"guesses": float(ways["share"].get("direct", 0.0))}


def on_sums(policy: Policy) -> dict[str, float]:
    """Right answers, tokens and guesses of a policy, on 96 held-out sums asked eight times."""
    return in_all(ways_of(held_out_rollouts(policy, SumsTask(), prompts=96, n=8)))


def early_and_late(runs: pd.DataFrame) -> pd.DataFrame:
    """The price from the first batch, after twelve, and never: ten seeds of `late_price`.

    A row per arm: held-out accuracy, tokens and guesses, and accuracy minus that without a price.
    """
    columns = {"pass@1": "right", "length": "tokens", "share_direct": "guesses"}
    table = runs.groupby("arm", sort=False)[list(columns)].mean().rename(columns=columns)
    gap = difference_table(runs, "pass@1", against="no price")
    return table.join(gap[["mean", "low", "high"]])


def padded(runs: pd.DataFrame) -> pd.DataFrame:
    """Rules that shorten a policy which has learned and pads: ten seeds of `length_padded`.

    A row per arm: held-out accuracy and tokens, share right within 16, 24 and 32 tokens; accuracy
    won beside no price, with its interval and what would have been found; tokens saved.
    """
    table = runs.groupby("arm", sort=False)[["pass@1", "length", *WITHIN[TIGHT]]].mean()
    won = difference_table(runs, "pass@1", against="no price")
    tokens = -difference_table(runs, "length", against="no price")[["mean", "low", "high"]]
    return (
        table.join(won[["mean", "low", "high", "detectable"]].add_prefix("won "))
        .join(tokens.set_axis(["saved", "saved high", "saved low"], axis=1))
        .rename(columns={"won mean": "won"})
    )


def taught(pupils: pd.DataFrame, alone: pd.DataFrame) -> pd.DataFrame:
    """Held-out runs of all arms with 2,560 answers and of the 48 examples, a row per arm and seed.

    The pupils are those of `distillation`; RL, at its best of three rates, and the examples are
    those of `teacher_null`.
    """
    return pd.concat([alone, pupils[pupils["arm"] != "RL"]], ignore_index=True)
