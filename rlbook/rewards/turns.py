"""Credit for turns: what each turn of an episode has changed, given to all of its tokens.

Each is a reward (`rlbook.training.Reward`) whose part `credit` is an advantage already, for the
estimator `rlbook.objectives.process.token_credit`. They compare turns that begin at an equal *key*:
the tokens so far, the place in the group, or the place in the batch (`TOKENS`, `GROUP`, `BATCH`).
A cluster rewards group by group: there BATCH knows no more places than GROUP.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, stdev
from typing import Literal

from rlbook.rewards.process import less, of_others
from rlbook.training import Rollout

__all__ = [
    "BATCH",
    "GROUP",
    "TOKENS",
    "BesideCredit",
    "GiGPOCredit",
    "PricedCredit",
    "turn_returns",
]

Key = Callable[[Rollout, int], Hashable]
PerTurn = list[list[float]]


def TOKENS(rollout: Rollout, turn: int) -> Hashable:
    """The prompt's answers that have said the same so far."""
    return rollout.group, tuple(rollout.token_ids[: rollout.turns.index(turn)])


def GROUP(rollout: Rollout, turn: int) -> Hashable:
    """The prompt's answers that stood at this place, by whatever road."""
    return rollout.group, place(rollout, turn)


def BATCH(rollout: Rollout, turn: int) -> Hashable:
    """All answers that stood at this place, whatever they were asked."""
    return place(rollout, turn)


def place(rollout: Rollout, turn: int) -> str:
    """Where the world stood before a turn. Raises `ValueError` if it has not said."""
    found = rollout.places[turn] if rollout.places else None
    if found is None:
        raise ValueError(
            f"the world of {rollout.problem.id} does not say where turn {turn} begins: give "
            "`Reply.place`, or compare by `TOKENS`"
        )
    return found


def turn_returns(rollout: Rollout, discount: float = 1.0) -> list[float]:
    """What an episode still earns from each turn on.

    R_t = r_t + discount · R_(t+1)  with r_t what the world paid for turn t. A world that pays
    at the end pays its verdict (1 for right, or its score) with the last turn.
    """
    paid = rollout.earned or [*[0.0] * (rollout.turn_count - 1), rollout.worth]
    returns, ahead = [], 0.0
    for reward in reversed(paid):
        ahead = reward + discount * ahead
        returns.append(ahead)
    return returns[::-1]


def keys_of(rollouts: Sequence[Rollout], key: Key) -> list[list[Hashable]]:
    """The key of each turn."""
    return [[key(r, turn) for turn in range(r.turn_count)] for r in rollouts]


def spread(rollouts: Sequence[Rollout], per_turn: Sequence[Sequence[float]]) -> dict[str, PerTurn]:
    """The part `credit`: what a turn gets is given to each of its tokens."""
    rows = zip(rollouts, per_turn, strict=True)
    return {"credit": [[values[turn] for turn in r.turns] for r, values in rows]}


def met_at(
    keys: Sequence[Sequence[Hashable]], values: Sequence[Sequence[float]]
) -> dict[Hashable, list[float]]:
    """The values at each key."""
    met: dict[Hashable, list[float]] = defaultdict(list)
    for row in zip(keys, values, strict=True):
        for key, value in zip(*row, strict=True):
            met[key].append(value)
    return met


@dataclass(frozen=True)
class BesideCredit:
    """The return from a turn on, less what the others earned from an equal key on.

    A_t = R_t − mean of R over the turns of other episodes at the same key; 0 where nobody else was.
    """

    key: Key = GROUP
    discount: float = 1.0

    def __call__(self, rollouts: Sequence[Rollout]) -> dict[str, PerTurn]:
        returns = [turn_returns(r, self.discount) for r in rollouts]
        others = of_others(returns, keys_of(rollouts, self.key))
        beside = zip(returns, others, strict=True)
        return spread(rollouts, [list(map(less, *turns)) for turns in beside])


@dataclass(frozen=True)
class PricedCredit:
    """What a turn has changed, a place being worth what was earned from it on.

    A_t = r_t + V(place after) − V(place before),  V = mean return of all turns at the key; V = 0
    after the end. The credits of an episode add up to its return less V of its first place.
    """

    key: Key = BATCH

    def __call__(self, rollouts: Sequence[Rollout]) -> dict[str, PerTurn]:
        returns, keys = [turn_returns(r) for r in rollouts], keys_of(rollouts, self.key)
        worth = {key: fmean(met) for key, met in met_at(keys, returns).items()}
        per_turn = []
        for row, places in zip(returns, keys, strict=True):
            paid = [now - then for now, then in pairwise([*row, 0.0])]
            value = [*(worth[place] for place in places), 0.0]
            change = [after - before for before, after in pairwise(value)]
            per_turn.append([r + c for r, c in zip(paid, change, strict=True)])
        return spread(rollouts, per_turn)


@dataclass(frozen=True)
class GiGPOCredit:
    """An episode beside its group, and `weight` times each turn beside the group's equal places.

    A_t = (R − mean R) / s  +  weight · (R_t − mean R_t at the place) / s_place

    `normalize` divides by the standard deviation plus `eps` (its "mean_std_norm"; without, s = 1).
    The own episode counts in every mean; a turn that is alone at its place gets 0 from the second
    term. With `count="turns"` a long episode counts in the group's mean once per turn, with
    "episodes" once. Standard deviations are unbiased (n − 1), 1 for a lone episode.
    Source: GiGPO, arXiv:2505.10978, equation 8, and its code.
    """

    weight: float = 1.0
    discount: float = 0.95
    normalize: bool = True
    count: Literal["turns", "episodes"] = "turns"
    eps: float = 1e-6

    def __call__(self, rollouts: Sequence[Rollout]) -> dict[str, PerTurn]:
        whole = [[turn_returns(r)[0]] * r.turn_count for r in rollouts]
        counted = whole if self.count == "turns" else [row[:1] for row in whole]
        groups = [[r.group] * len(row) for r, row in zip(rollouts, counted, strict=True)]
        of_group = met_at(groups, counted)
        returns, keys = [turn_returns(r, self.discount) for r in rollouts], keys_of(rollouts, GROUP)
        at_place = met_at(keys, returns)

        def level_and_scale(met: Sequence[float]) -> tuple[float, float]:
            alone = not self.normalize or len(met) < 2
            return fmean(met), 1.0 if alone else stdev(met) + self.eps

        levels = {key: level_and_scale(met) for key, met in {**of_group, **at_place}.items()}

        def beside(value: float, key: Hashable) -> float:
            level, scale = levels[key]
            return (value - level) / scale

        return spread(
            rollouts,
            [
                [
                    beside(total, r.group)
                    + self.weight * (beside(value, key) if len(at_place[key]) > 1 else 0.0)
                    for total, value, key in zip(*row, strict=True)
                ]
                for r, *row in zip(rollouts, whole, returns, keys, strict=True)
            ],
        )
