"""Chapter 17: runs drawn again, shares, a twin, a dead prompt, the least staleness; the lab."""

from collections.abc import Callable, Mapping, Sequence
from math import log2, sqrt

import numpy as np

from rlbook.scaling import Cluster, Lengths, Sigmoid, ceilings, pipeline_rl
from workshop.ch17.accelerators import split
from workshop.ch17.scalerl import published_curves
from workshop.shared.checks import (
    check_lines,
    check_numbers,
    not_attempted,
    not_yet,
    numbers,
    right,
    same,
)

SHARES = ((0.5, 3.0), (0.9, 1.92), (0.9, 1.09), (0.2, 2.0))
RUN = published_curves()["ScaleRL"]
CLAIM = 0.70  # an asymptote
TIMES_AS_FAR = (CLAIM - RUN.R_0) / (RUN.A - RUN.R_0)
LAB_PAIRS, LAB_PARTS = ("far apart", "alike"), (8000, 16_000, 32_000, 64_000)
RELIABLE = 0.8  # of the seeds in which a rule keeps the better recipe


SEEDS, EVALUATIONS, DRAWS = 10, 16, 400
Arrays = tuple[np.ndarray, np.ndarray]


def check_redraw(mine: Callable[[np.ndarray, np.ndarray, np.random.Generator], Arrays]) -> bool:
    """Section 5: mean curves of two arms, as other seeds might have made them."""

    def rows(pick: Callable[[np.ndarray, np.random.Generator], np.ndarray]) -> Callable:
        def redraw(a: np.ndarray, b: np.ndarray, rng: np.random.Generator) -> Arrays:
            drawn = pick(a, rng)
            return a[drawn].mean(0), b[drawn].mean(0)

        return redraw

    def points(a: np.ndarray, b: np.ndarray, rng: np.random.Generator) -> Arrays:
        drawn = rng.integers(len(a), size=a.shape)
        return tuple(np.take_along_axis(x, drawn, 0).mean(0) for x in (a, b))

    def apart(a: np.ndarray, b: np.ndarray, rng: np.random.Generator) -> Arrays:
        return tuple(x[rng.choice(len(x), len(x))].mean(0) for x in (a, b))

    return check_lines(
        mine,
        rows(lambda a, rng: rng.choice(len(a), len(a))),
        {
            "a seed moves a whole run: draw rows, not points": points,
            "a draw for each arm: what a seed means for both no longer cancels": apart,
            "every draw gives the same: draw with replacement, by the `rng` that is handed in": (
                rows(lambda a, rng: rng.permutation(len(a)))
            ),
            "more runs than there are: the interval would be too narrow": (
                rows(lambda a, rng: rng.choice(len(a), 10 * len(a)))
            ),
            "that is one run: draw as many as there are, and take their mean": (
                rows(lambda a, rng: rng.choice(len(a), 1))
            ),
            "b's curve comes first: a's is asked first": swapped,
        },
        [runs_with_a_seed()],
        "whole runs, the same for both arms",
        "draw as many row numbers as there are seeds, with replacement; the mean over those rows",
        outcome=scatter,
    )


def swapped(a: np.ndarray, b: np.ndarray, rng: np.random.Generator) -> Arrays:
    """Whole runs of both arms, the second arm's curve first."""
    drawn = rng.choice(len(a), len(a))
    return b[drawn].mean(0), a[drawn].mean(0)


def runs_with_a_seed() -> Arrays:
    """Two arms a point apart, of which a seed shifts the whole run alike."""
    rng = np.random.default_rng(16)
    shift = rng.standard_normal((SEEDS, 1))
    noise = 0.3 * rng.standard_normal((2, SEEDS, EVALUATIONS))
    return shift + noise[0] + 1, shift + noise[1]


def scatter(redraw: Callable[..., Arrays], a: np.ndarray, b: np.ndarray) -> list[float]:
    """How far redraws lie apart, in powers of two of what is expected, and their difference.

    Coarse, since any way of drawing by the generator is as good as another.
    """
    rng = np.random.default_rng(0)
    one, two = (np.array(curves, dtype=float) for curves in zip(
        *(redraw(a, b, rng) for _ in range(DRAWS)), strict=True))  # fmt: skip
    if one.shape != (DRAWS, EVALUATIONS) or two.shape != one.shape:
        raise ValueError("two mean curves are asked, a number for each evaluation")
    found = [one[:, -1], (one - two)[:, -1], one.mean(1)]
    expected = [a[:, -1], (a - b)[:, -1], a.mean(1)]
    ratios = [
        max(float(drawn.std() / (runs.std() / sqrt(SEEDS))), 2**-6)
        for drawn, runs in zip(found, expected, strict=True)
    ]
    return [float((one - two).mean().round()), *(round(log2(ratio)) for ratio in ratios)]


def check_share(answer: Callable[[float, float], float | None]) -> None:
    """Exercise 1: C / C_mid at which a run has done a share s of the way, for an exponent B."""
    given = [answer(s, B) for s, B in SHARES]
    if given[0] is None:
        not_attempted()
    elif not same(given[0], 1):
        not_yet("half of the way is C_mid, whatever B is")
    else:
        check_numbers(
            given,
            [(s / (1 - s)) ** (1 / B) for s, B in SHARES],
            "the flatter curve takes more than twice as many of its midpoints to nine tenths",
            {
                tuple((1 / s - 1) ** (1 / B) for s, B in SHARES): "upside down: more than half "
                "of the way takes more than C_mid",
                tuple((s / (1 - s)) ** B for s, B in SHARES): "a steeper curve takes less: "
                "a root, not a power",
                tuple(s / (1 - s) for s, _ in SHARES): "and B? The odds are (C / C_mid)^B",
            },
            "solve 1 / (1 + (C_mid / C)^B) = s for C / C_mid",
        )


def check_twin(answer: float | None) -> None:
    """Exercise 2: C_mid of a run with A = 0.70 that begins like the published ScaleRL."""
    midpoint = RUN.C_mid * TIMES_AS_FAR ** (1 / RUN.B)
    twin = Sigmoid(CLAIM, RUN.B, midpoint, RUN.R_0)
    apart = (f"{twin(C) - RUN(C):.3f} at {C:,}" for C in (300, 1500, 10_000))
    check_numbers(
        answer,
        midpoint,
        f"the twins differ by {', '.join(apart)} GPU-hours",
        {
            RUN.C_mid: "with the same C_mid the higher asymptote is ahead everywhere",
            RUN.C_mid * TIMES_AS_FAR: "(A − R_0) / C_mid^B is kept: take the B-th root",
            RUN.C_mid * TIMES_AS_FAR**RUN.B: "(A − R_0) / C_mid^B is kept: a root, not a power",
            RUN.C_mid / TIMES_AS_FAR ** (1 / RUN.B): "upside down: who climbs farther from the "
            "same beginning is half-way later",
            RUN.C_mid * (CLAIM / RUN.A) ** (1 / RUN.B): "the way begins at R_0, not at 0",
            midpoint / RUN.C_mid: "in GPU-hours, not in midpoints of the other",
        },
        "set (A − R_0) / C_mid^B equal for the two",
        tolerance=5,
    )


def check_dead_prompt(answer: float | None) -> None:
    """Exercise 3: new advantage over old if σ is taken with four zeros more."""
    factor = sqrt(11 / 7)
    check_numbers(
        answer,
        factor,
        "zeros make the batch look calmer, and every step a quarter longer",
        {
            1 / factor: "that is σ, and the advantage is divided by it",
            factor**2: "that is the variance's; σ is its root",
            sqrt(12 / 8): "nearly: σ divides by the number of answers minus one",
            factor - 1: "the new advantage over the old one, not the change",
            1.0: "the four zeros are counted, though they add nothing to the sum of squares",
        },
        "the sum of squares stays 7; what is it divided by?",
        tolerance=5e-3,
    )


def check_least_k(answer: Callable[[float], int | None], costs: Cluster) -> None:
    """Exercise 4: the smallest k with which staleness is not the lowest of the three ceilings.

    On 16 accelerators with these costs, in batches of 128, with lengths of 2,000 tokens on
    average, cut at 8,000; for tails of σ = 0.8 and σ = 0.
    """

    def lowest(k: int, sigma: float) -> str:
        schedule, tail = pipeline_rl(k), Lengths(2000, sigma, 8000)
        shape = split(schedule, costs, tail, 128, 16)
        speeds = ceilings(schedule, shape, tail, 128)
        return min(speeds, key=lambda name: speeds[name])

    found = {sigma: answer(sigma) for sigma in (0.8, 0.0)}
    if found[0.8] is None:
        not_attempted()
        return
    for sigma, given in found.items():
        k = numbers(given)
        if len(k) != 1 or not (k[0] >= 0 and k[0] % 1 == 0):
            not_yet(f"σ = {sigma}: k is a number of updates, whole and not negative")
            return
        least = int(k[0])
        if lowest(least, sigma) == "staleness":
            not_yet(f"σ = {sigma}: with k = {least} staleness is still the lowest")
            return
        if least and lowest(least - 1, sigma) != "staleness":
            not_yet(f"σ = {sigma}: k = {least - 1} is enough")
            return
    right("the longest of all answers sets the pace, and staleness pays for little else")


Seen = tuple[str, int]


def check_lab(
    predicted: Mapping[str, int] | None,
    measured: Mapping[Seen, Sequence[float]] | None,
    told_apart: bool | None,
) -> None:
    """The lab: how often the leader and the fit keep the better of two runs, by pair and part.

    `predicted`: the first part from which on a rule is reliable for the pair far apart. It is
    answered, not judged. `told_apart`: whether one of the last two parts tells the pair alike.
    """
    if predicted is None or measured is None or told_apart is None:
        not_attempted()
        return
    cases = {(pair, part) for pair in LAB_PAIRS for part in LAB_PARTS}
    if set(predicted) != {"leader", "fit"} or not set(predicted.values()) <= set(LAB_PARTS):
        not_yet(f'predict a part for "leader" and one for "fit", of {LAB_PARTS}')
    elif set(measured) != cases:
        not_yet(f"two shares are asked for each pair of {LAB_PAIRS} and each part of {LAB_PARTS}")
    elif not all(len(two) == 2 and _are_shares(two) for two in map(numbers, measured.values())):
        not_yet("two numbers from 0 to 1: in which share of the seeds leader and fit are right")
    else:
        shares = {case: numbers(measured[case]).tolist() for case in cases}
        _judge(predicted, shares, bool(told_apart))


def _are_shares(values: np.ndarray) -> bool:
    return bool(((values >= 0) & (values <= 1)).all())


def _judge(
    predicted: Mapping[str, int], shares: Mapping[Seen, Sequence[float]], told_apart: bool
) -> None:
    far, alike = ({part: shares[pair, part] for part in LAB_PARTS} for pair in LAB_PAIRS)
    if far[8000][0] > 0.2:
        not_yet("at 8,000 GPU-hours batch 512 leads by far: which of the two is the right one?")
    elif far[64_000][0] < RELIABLE:
        not_yet("at 64,000 GPU-hours the curves have crossed: do you compare the last evaluations?")
    elif far[8000][1] > 0.95:
        not_yet("so sure at 8,000? Fit the points that were seen by then, and no others")
    elif min(far[32_000][1], far[64_000][1]) < RELIABLE:
        not_yet("fit each run with R_0 = 0.38, and compare what the two curves say of 100,000")
    elif alike[64_000][1] > 0.95:
        not_yet("every seed moves the asymptote of a run: is it so in yours, of both recipes?")
    elif told_apart != (max(*alike[32_000], *alike[64_000]) >= RELIABLE):
        not_yet("your conclusion on the pair alike contradicts what you measured")
    else:
        leads, fits = (_reliable_from(far, rule) for rule in (0, 1))
        right(
            f"the fit tells the pair far apart from {fits:,} GPU-hours on, the leader from "
            f"{leads:,}; you said {predicted['fit']:,} and {predicted['leader']:,}"
        )


def _reliable_from(shares: Mapping[int, Sequence[float]], rule: int) -> int:
    """The first part from which on the rule is right in most of the seeds."""
    wrong = [part for part in LAB_PARTS if shares[part][rule] < RELIABLE]
    return min(part for part in LAB_PARTS if part > max(wrong, default=0))
