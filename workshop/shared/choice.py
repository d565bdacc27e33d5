"""Does a verdict survive the choice of its rates?

The rate of an arm is chosen on a few tuning seeds, so another draw of them might have chosen
another. Here the choice is drawn again together with the seeds: one resample of all seeds, those of
tuning and those of the record, chooses each arm's rate, and another reads the difference.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from statistics import NormalDist, fmean
from typing import Any, Literal

import numpy as np

from rlbook.stats.intervals import Interval, t_interval

State = Literal["robust", "open", "falls"]
RESAMPLES, LEVEL = 4000, 0.95
CLOSE = 2.0  # standard errors of the tuning seeds' margin: a rate that is nearer may be the best


@dataclass(frozen=True)
class AtRate:
    """An arm at one of the rates that were tried: the result and the score that chooses, by seed.

    `values` has the seeds of the record, none where the rate was only tried, `tried` the tuning
    seeds; `scores` has both.
    """

    rate: float
    values: Mapping[Any, float]
    scores: Mapping[Any, float] = field(repr=False)
    tried: Mapping[Any, float] = field(default_factory=dict, repr=False)

    @property
    def tuning(self) -> list[float]:
        """The scores of the seeds that helped to choose."""
        return [score for seed, score in self.scores.items() if seed not in self.values]


@dataclass(frozen=True)
class Choice:
    """What is left of a difference when its rates are chosen again.

    state    "robust": the interval with the choice in it says what the printed one says
             "falls": at the rates that all seeds choose, the difference says something else
             "open": neither, or `may_turn` names a rate that was not run
    found    the difference with the choice in its interval; not_run: what `may_turn` names
    """

    state: State
    found: Interval
    not_run: tuple[str, ...] = ()


def choice(
    arm: Sequence[AtRate], against: Sequence[AtRate], printed: Interval, names: tuple[str, str]
) -> Choice:
    """The verdict on arm minus against; of both the first is the rate that was chosen."""
    not_run = tuple(may_turn(arm, against, printed, names))
    run = [[one for one in rates if one.values.keys() >= rates[0].values.keys()]
           for rates in (arm, against)]  # fmt: skip
    found = chosen_again(*run)
    best = [max(rates, key=lambda one: fmean(one.scores.values())) for rates in run]
    at_best = t_interval(list(paired(*best).values()))
    if sign(at_best) != sign(printed) and sign(found) != sign(printed):
        return Choice("falls", found, not_run)
    agree = sign(found) == sign(printed)
    return Choice("robust" if agree and not not_run else "open", found, not_run)


def may_turn(
    arm: Sequence[AtRate], against: Sequence[AtRate], printed: Interval, names: tuple[str, str]
) -> Iterator[str]:
    """Rates that may be the best, were not run, and at which the verdict may be another.

    A difference that leaves zero out stays where it does so by two standard errors of the few
    tuning seeds, with the largest scatter that they or the record's seeds show. Where it does not,
    nothing that few seeds say makes it a verdict: every such rate leaves it open.
    """
    sides = [[(None, rates[0].values), *unrun(rates)] for rates in (arm, against)]
    for (one, its), (other, others) in product(*sides):
        if one is None and other is None:
            continue
        gap = fmean(its.values()) - fmean(others.values()) if its and others else 0.0
        shown = (its, others, arm[0].values, against[0].values)
        scatter = max(np.std(list(seen.values()), ddof=1) for seen in shown if len(seen) > 1)
        error = scatter * (1 / max(len(its), 1) + 1 / max(len(others), 1)) ** 0.5
        if sign(printed) * gap <= CLOSE * error:
            rates = zip(names, (one, other), strict=True)
            yield " and ".join(f"{name} at {rate:g}" for name, rate in rates if rate is not None)


def unrun(rates: Sequence[AtRate]) -> list[tuple[float, Mapping[Any, float]]]:
    """The rates near the chosen one that were only tried, with what the tuning seeds came to."""
    may = may_be_best(rates)
    return [(one.rate, one.tried) for one in rates[1:] if one.rate in may]


def may_be_best(rates: Sequence[AtRate]) -> list[float]:
    """Rates near the chosen one that have not been run with the record's seeds."""
    return [one.rate for one in near(rates) if not one.values.keys() >= rates[0].values.keys()]


def near(rates: Sequence[AtRate]) -> list[AtRate]:
    """Rates that the tuning seeds do not set apart from the first, which they chose.

    Apart are two means over k tuning seeds whose margin is more than two standard errors,
    √(2/k) s each, s being the scatter of the record's seeds at the chosen rate.
    """
    chosen, *others = rates
    error = np.std([chosen.scores[seed] for seed in chosen.values], ddof=1) * 2**0.5
    return [
        one
        for one in others
        if fmean(chosen.tuning) - fmean(one.tuning) <= CLOSE * error / len(one.tuning) ** 0.5
    ]


def chosen_again(arm: Sequence[AtRate], against: Sequence[AtRate], seed: int = 0) -> Interval:
    """Mean and interval of the difference, choice included.

    Each resample draws as many of all seeds as there are, and each arm takes the rate with the best
    mean score over these; the difference is read on as many of the record's seeds, drawn apart, as
    in an experiment what chooses does not judge. The percentiles are those of Hesterberg (2015),
    those beyond √(n/(n−1)) t_{n−1} of a normal law: with one rate that is Student's interval.
    """
    from scipy.stats import t

    rates, rng = (*arm, *against), np.random.default_rng(seed)
    choose = sorted(set.intersection(*(set(one.scores) for one in rates)))
    judge = sorted(set.intersection(*(set(one.values) for one in rates)))
    chose, judged = (
        rng.multinomial(len(seeds), [1 / len(seeds)] * len(seeds), size=RESAMPLES) / len(seeds)
        for seeds in (choose, judge)
    )
    ends = []
    for some in (arm, against):
        scores = chose @ np.array([[one.scores[s] for s in choose] for one in some]).T
        values = judged @ np.array([[one.values[s] for s in judge] for one in some]).T
        ends.append(values[np.arange(RESAMPLES), scores.argmax(axis=1)])
    differences, n = ends[0] - ends[1], len(judge)
    tail = NormalDist().cdf(-t.ppf((1 + LEVEL) / 2, n - 1) * (n / (n - 1)) ** 0.5)
    low, high = np.quantile(differences, [tail, 1 - tail])
    return Interval(float(differences.mean()), float(low), float(high))


def paired(arm: AtRate, against: AtRate) -> dict[Any, float]:
    common = sorted(arm.values.keys() & against.values.keys())
    return {seed: arm.values[seed] - against.values[seed] for seed in common}


def sign(found: Interval) -> int:
    """1 or −1 where an interval leaves zero out."""
    return int(found.low > 0) - int(found.high < 0)
