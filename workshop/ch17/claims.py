"""Chapter 17: what published curves and recorded runs say, and what other seeds would have said."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import pandas as pd

from rlbook.evaluation import evaluate_run, held_out_rollouts
from rlbook.scaling import Points, Sigmoid
from rlbook.training import Rollout, Trainer
from workshop.shared.evidence import difference_table, load_results

Redraw = Callable[[np.ndarray, np.ndarray, np.random.Generator], tuple[np.ndarray, np.ndarray]]
SLOW = ", half the rate"
PAIR = {"P": "batch 512", "Q": "batch 2048"}
OTHERS = ("Scout", "math and code: math", "math and code: code")  # another model, other data
KNOBS = {
    ("answers a batch", "512"): "batch 512",
    ("answers a batch", "768"): "ScaleRL",
    ("answers a batch", "2,048"): "batch 2048",
    ("tokens an answer", "14,000"): "ScaleRL",
    ("tokens an answer", "32,000"): "ScaleRL, 32k tokens",
    ("answers a prompt", "8"): "8 per prompt",
    ("answers a prompt", "16"): "ScaleRL",
    ("answers a prompt", "24"): "24 per prompt",
    ("answers a prompt", "32"): "32 per prompt",
    ("model", "8B, dense"): "ScaleRL",
    ("model", "17B of 16 experts"): "Scout",
}


def first_hours(curves: Mapping[str, Sigmoid]) -> pd.DataFrame:
    """Both runs' evaluations up to 8,000 GPU-hours, with the noise of 1,000 problems."""
    hours, draw = np.arange(2000, 8001, 2000), np.random.default_rng(3)
    seen = {
        run: curves[name](hours) + 0.004 * draw.standard_normal(4) for run, name in PAIR.items()
    }
    return pd.DataFrame(seen, index=pd.Index(hours, name="GPU-hours"))


def ranks(curves: Mapping[str, Sigmoid], budgets: Sequence[int]) -> pd.DataFrame:
    """Place of the seven 8B runs on mathematics at each budget, 1 the best, in the last's order."""
    names = [name for name in curves if name not in OTHERS]
    rewards = pd.DataFrame({f"{C:,} h": {n: float(curves[n](C)) for n in names} for C in budgets})
    places = rewards.rank(ascending=False).astype(int)
    return places.sort_values(places.columns[-1])


def shares(
    curves: Mapping[str, Sigmoid], hours: Sequence[int], names: Sequence[str], sigmoid: Callable
) -> pd.DataFrame:
    """The three numbers of some curves and their share of the way at some hours.

    Raises `AssertionError` where `sigmoid(C, A, B, C_mid)` is not the package's curve.
    """
    rows = {}
    for name in names:
        c = curves[name]
        np.testing.assert_allclose(sigmoid(np.array(hours), c.A, c.B, c.C_mid), c(hours))
        rows[name] = {"A": c.A, "B": c.B, "C_mid": c.C_mid}
        rows[name] |= {
            f"{C:,} h": float(share) for C, share in zip(hours, c.gain(hours), strict=True)
        }
    return pd.DataFrame(rows).T


def promises(
    candidates: Sequence[Sigmoid], compute: np.ndarray, reward: np.ndarray, until: float
) -> pd.DataFrame:
    """For each curve its error on the points from 1,500 to `until`, and its value at 100,000."""
    seen = (compute >= 1500) & (compute <= until)
    rows = [
        {
            "A": c.A,
            "B": c.B,
            "C_mid": c.C_mid,
            "error so far": float(np.sqrt(((c(compute) - reward)[seen] ** 2).mean())),
            "promised at 100,000": float(c(100_000)),
        }
        for c in candidates
    ]
    return pd.DataFrame(rows)


def turned(curves: Mapping[str, Sigmoid]) -> pd.DataFrame:
    """The four knobs of what a run is made of: ceiling, midpoint, share done at 4,000 hours."""
    rows = {
        knob: {
            "A": curves[name].A,
            "C_mid": curves[name].C_mid,
            "done at 4,000 h": float(curves[name].gain(4000)),
        }
        for knob, name in KNOBS.items()
    }
    return pd.DataFrame.from_dict(rows, "index")


def held_out(trainer: Trainer) -> tuple[float, list[Rollout]]:
    """Held-out pass@1 of a run's policy, from 96 problems asked 16 times, and three answers."""
    policy = (trainer.model, trainer.tokenizer)
    score = evaluate_run(trainer, prompts=96, n=16)["pass@1"]
    return score, held_out_rollouts(policy, trainer.task, prompts=3, n=1)


def curves_of(runs: pd.DataFrame, arm: str) -> np.ndarray:
    """Held-out accuracy of an arm, (seeds, evaluations), without the base."""
    trained = runs[(runs["arm"] == arm) & (runs["step"] > 0)]
    return trained.pivot(index="seed", columns="step", values="pass@1").to_numpy()


def points_of(runs: pd.DataFrame, arm: str) -> dict[int, Points]:
    """Compute in updates and held-out accuracy of every seed's run, without the base."""
    by_seed = runs[(runs["arm"] == arm) & (runs["step"] > 0)].groupby("seed")
    return {s: Points(run.step.to_numpy(float), run["pass@1"].to_numpy()) for s, run in by_seed}


def redrawn(runs: pd.DataFrame, redraw: Redraw, arm: str, null: str, draws: int = 1000) -> str:
    """95 % of the differences at the end that `redraw`'s other seeds give."""
    pair, rng = (curves_of(runs, arm), curves_of(runs, null)), np.random.default_rng(0)
    gaps = [one[-1] - two[-1] for one, two in (redraw(*pair, rng) for _ in range(draws))]
    return "{:+.2f} to {:+.2f}".format(*np.quantile(gaps, [0.025, 0.975]))


def at_the_end(runs: pd.DataFrame, redraw: Redraw, arms: Sequence[str]) -> pd.DataFrame:
    """Every arm against the first after update 80, paired by seed, and by `redraw`'s seeds."""
    ends = runs[(runs["step"] == 80) & runs["arm"].isin(arms)]
    table = difference_table(ends, "pass@1", arms[0])
    others = partial(redrawn, runs, redraw, null=arms[0])
    table["redrawn"] = [others(arm) if arm != arms[0] else "" for arm in table.index]
    return table.rename(index=lambda arm: arm.removesuffix(SLOW))


def on_the_ladder() -> pd.DataFrame:
    """ScaleRL's row less GRPO's after 2,560 answers, each at its own best of four rates."""
    rows = {}
    for world in ("sums", "habits"):
        ends = load_results(f"ladder_{world}_eval")
        pair = ends[ends["arm"].isin(["ScaleRL", "GRPO"])]
        rows[world] = difference_table(pair, "pass@1", "GRPO").loc["ScaleRL"]
    return pd.DataFrame(rows).T
