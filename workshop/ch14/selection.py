"""Which answers, and which problems, are worth training on."""

from collections.abc import Iterable, Mapping

from jaxtyping import Float
from torch import Tensor

from rlbook.grouping import group_by
from rlbook.tasks import Problem
from rlbook.training.batch import Rollout


def right_answers(
    rollouts: Iterable[Rollout], most: int | None = None, shortest: bool = False
) -> list[Rollout]:
    """Rejection sampling: the right answers, at most so many of each problem.

    The first ones, or the `shortest` (Kimi k1.5's short answers to imitate). Equal texts of one
    problem count once. Source: DeepSeek-R1, arXiv:2501.12948, §2.3.3. Chapter 14.
    """
    kept: list[Rollout] = []
    for members in group_by(rollouts, lambda r: r.problem.id).values():
        right = list({r.text: r for r in reversed(members) if r.correct}.values())[::-1]
        kept += sorted(right, key=lambda r: r.length if shortest else 0)[:most]
    return kept


def difficulty_window(
    problems: Iterable[Problem], rates: Mapping[str, float], low: float = 0.2, high: float = 0.8
) -> list[Problem]:
    """The problems whose pass rate lies in [low, high]: neither solved nor hopeless.

    Rates are estimates from a few answers each, and those answers are part of the bill. PRIME
    (arXiv:2502.01456) keeps 0.2 to 0.8. Chapter 14.
    """
    return [p for p in problems if low <= rates[p.id] <= high]


def learning_impact(curves: Float[Tensor, "P E"]) -> Float[Tensor, " P"]:
    """LIMR's score of each problem: how closely its reward curve follows the mean curve.

    s_i = 1 − Σ_k (r_ik − r̄_k)² / Σ_k (1 − r̄_k)² over the epochs k of a full run, r̄ the mean over
    problems: 1 for a curve that is the mean. The full run that gives the curves is part of the
    bill. Raises `ValueError` where every problem is always solved.
    Source: LIMR, arXiv:2502.11886. Chapter 14.
    """
    mean_curve = curves.mean(0)
    room = (1 - mean_curve).square().sum()
    if room == 0:
        raise ValueError("all problems are always solved: no score can tell them apart")
    return 1 - (curves - mean_curve).square().sum(1) / room
