"""What chapter 03 claims: of its runs, and in its scorecard."""

from collections.abc import Iterator

import pandas as pd

from workshop.ch03.figures import USES
from workshop.shared.told import OWN, SUMS, Told, clip_where_nothing_is_rare, rung
from workshop.shared.verdict import Claim


def reuse(told: Told) -> Iterator[Claim]:
    yield from rung(told, "PPO for REINFORCE", "PPO", "REINFORCE", null=None)
    clipped, free = "16 minibatches, clip 0.2", "16 minibatches, no trust region"
    how = (SUMS + OWN, "reuse")
    yield told("sixteen updates pay, with a clip", *how, clipped, "one update", null=free)
    yield told("sixteen without a clip", *how, free, "one update")
    yield told("four passes or one", *how, "4 passes of 4, clip 0.2", clipped)
    yield told(
        "λ = 0.95 against 1", SUMS + OWN, "siblings", "PPO, critic, λ = 0.95", "PPO, critic, λ = 1"
    )
    yield from clip_where_nothing_is_rare(told, "a clip", "clip 0.2", "no trust region")


def card(ends: pd.Series, reach: pd.DataFrame) -> list[dict[str, str]]:
    """Rows of the scorecard. `ends`: live accuracy by rate and arm; `reach`: `usable` rates."""
    live = {lr: ends[lr] for lr in ("1.5e-4", "4e-5")}
    alive, idle = (
        f"{by['with your clip']:.2f}, without {by['without']:.2f}" for by in live.values()
    )
    twice = [
        reach.loc[f"{USES[0]}, {region}", "twice"] for region in ("clip 0.2", "no trust region")
    ]
    where = "plain sums, own rates"
    return [
        {
            "claim": "the clip is a mask: 5 of 16 tokens",
            "exact": "by autograd",
            "paper": "PPO, Eq. 7",
        },
        {
            "claim": "a clip keeps sixteen updates a batch alive (one seed)",
            "pressing": alive,
            "control": f"at a quarter of the rate {idle}",
            "paper": "PPO, Table 1",
        },
        {
            "claim": "a clip widens the range of rates (two seeds)",
            "pressing": f"at twice its best rate {twice[0]:.2f}, without {twice[1]:.2f}",
        },
        {
            "claim": "sixteen updates a batch pay, each arm at its own rate",
            "pressing": f"{{sixteen updates pay, with a clip | {where}}}; "
            f"without a clip {{sixteen without a clip | {where}}}",
        },
        {
            "claim": "PPO for REINFORCE, on as many answers",
            "pressing": "{PPO for REINFORCE | habits, the ladder}",
            "control": "{control: PPO for REINFORCE | habits, the ladder}",
        },
    ]
