"""Chapter 07: what its recorded experiments say, a table each."""

import pandas as pd

from rlbook.stats import t_interval

ORDER = ["mean per answer", "prompt mean", "token mean", "constant"]
BY_RUN = ["lr", "arm", "seed"]
TWO_MEANS = {"GRPO": "mean per answer", "PPO's loss, siblings": "token mean"}
MEASURED = ["pass@1", "format_ok", "truncated", "stops_when_lost", "share_verbose", "share_careful"]


def last_batch(steps: pd.DataFrame) -> pd.DataFrame:
    """The rows of the last step of every run."""
    return steps[steps["step"] == steps["step"].max()]


def lost_at_end(steps: pd.DataFrame) -> pd.DataFrame:
    """Tokens of a lost answer in the last batch, and minus those with the constant, by seed.

    A row per learning rate and way of averaging, from `lost_answers`. Raises `ValueError` where the
    arms do not stand in the order that section 4 has computed.
    """
    rows = {}
    for lr, runs in last_batch(steps).groupby("lr"):
        by_seed = runs.pivot(index="seed", columns="arm", values="length_lost")
        cut_off = runs.groupby("arm")["truncated_lost"].min()
        if list(by_seed.mean().sort_values(ascending=False).index) != ORDER:
            raise ValueError(f"another order at lr {lr:g}: {by_seed.mean().to_dict()}")
        for arm in ORDER:
            gap = t_interval(by_seed[arm] - by_seed["constant"])
            row = {"tokens": by_seed[arm].mean(), "at the limit, least": cut_off[arm]}
            if arm != "constant":
                row |= dict(zip(("minus constant", "low", "high"), gap, strict=True))
            rows[lr, arm] = row
    return pd.DataFrame(rows).T.rename_axis(["lr", "arm"]).astype(float)


def walks(steps: pd.DataFrame) -> pd.DataFrame:
    """The constant's lost answers: tokens at the end minus at the start, a column per seed."""
    first, last = steps[steps["step"] == 1], last_batch(steps)
    ends, starts = (some.set_index(BY_RUN)["length_lost"] for some in (last, first))
    return (ends - starts).unstack("seed").loc[:, "constant", :]


def two_means(runs: pd.DataFrame) -> pd.DataFrame:
    """On plain sums, a mean per answer beside a mean over all tokens; nothing else differs.

    A row per measure with both means and their difference over ten seeds, from `siblings`.
    """
    rows = {}
    for column in MEASURED:
        by_seed = runs.replace({"arm": TWO_MEANS}).pivot(index="seed", columns="arm", values=column)
        mine, other = TWO_MEANS.values()
        gap = t_interval(by_seed[mine] - by_seed[other])
        ends = by_seed.mean()[[mine, other]].to_dict()
        rows[column] = ends | dict(zip(("difference", "low", "high"), gap, strict=True))
    return pd.DataFrame(rows).T.astype(float)
