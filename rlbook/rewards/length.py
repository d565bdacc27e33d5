"""What an answer's length may cost: a price per token, a budget, a rank within the group.

Each is a reward in place of the verifier's word: right answers are still worth 1, and length comes
on top. Lengths count completion tokens, the EOS included.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rlbook.grouping import group_by
from rlbook.training.batch import Rollout

__all__ = ["KimiLength", "L1Exact", "L1Max", "LengthCost"]

Parts = dict[str, list[float]]


def rightness(rollouts: Sequence[Rollout]) -> list[float]:
    """1 for a right answer, 0 for any other."""
    return [float(r.correct) for r in rollouts]


def budget_of(rollout: Rollout, otherwise: int | None = None) -> int:
    """The length its prompt asks for (`meta["budget"]`), or else this one.

    Raises `ValueError` where neither says any.
    """
    budget = rollout.problem.meta.get("budget", otherwise)
    if budget is None:
        raise ValueError(f"no length budget: neither the problem {rollout.problem.id} nor the run")
    return int(budget)


@dataclass(frozen=True)
class LengthCost:
    """A price per token: r = 1[right] − cost·|y|, whatever the answer is worth."""

    cost: float = 0.005

    def __call__(self, rollouts: Sequence[Rollout]) -> Parts:
        return {
            "answer": rightness(rollouts),
            "length": [-self.cost * r.length for r in rollouts],
        }


@dataclass(frozen=True)
class L1Exact:
    """As long as asked: r = 1[right] − α·abs(n_gold − |y|).

    n_gold is the budget of the prompt, or `budget` for all. The paper's α is 3e-4 for budgets of
    hundreds of tokens. Source: L1, arXiv:2503.04697 (LCPO-Exact).
    """

    alpha: float = 3e-4
    budget: int | None = None

    def __call__(self, rollouts: Sequence[Rollout]) -> Parts:
        gaps = [abs(budget_of(r, self.budget) - r.length) for r in rollouts]
        return {"answer": rightness(rollouts), "length": [-self.alpha * gap for gap in gaps]}


@dataclass(frozen=True)
class L1Max:
    """No longer than asked: r = 1[right]·clip(α·(n_gold − |y|) + δ, 0, 1).

    At the budget itself a right answer earns δ; shorter ones more, up to 1. A wrong answer earns
    nothing at any length. Source: L1, arXiv:2503.04697 (LCPO-Max, δ = 0.5).
    """

    alpha: float = 3e-4
    delta: float = 0.5
    budget: int | None = None

    def __call__(self, rollouts: Sequence[Rollout]) -> Parts:
        return {"answer": [r.correct * self.worth(r) for r in rollouts]}

    def worth(self, rollout: Rollout) -> float:
        """What a right answer of this length earns."""
        room = budget_of(rollout, self.budget) - rollout.length
        return min(1.0, max(0.0, self.alpha * room + self.delta))


@dataclass(frozen=True)
class KimiLength:
    """Shorter than its siblings: r = 1[right] + weight·(λ if right else min(0, λ)).

    λ = ½ − (|y| − shortest) / (longest − shortest) within the group, 0 where all are equally long.
    Source: Kimi k1.5, arXiv:2501.12599, §2.3.3, which adds it after a warm-up without it.
    """

    weight: float = 1.0

    def __call__(self, rollouts: Sequence[Rollout]) -> Parts:
        ends = {
            group: (min(r.length for r in members), max(r.length for r in members))
            for group, members in group_by(rollouts, lambda r: r.group).items()
        }
        ranks = [0.5 - place(r.length, *ends[r.group]) for r in rollouts]
        length = [
            rank if r.correct else min(0.0, rank) for r, rank in zip(rollouts, ranks, strict=True)
        ]
        return {"answer": rightness(rollouts), "length": [self.weight * one for one in length]}


def place(length: int, shortest: int, longest: int) -> float:
    """Where a length lies between the ends of its group: 0 … 1, ½ where all are equal."""
    return (length - shortest) / (longest - shortest) if longest > shortest else 0.5
