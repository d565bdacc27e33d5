"""Chapter 12: an angle, a lone wrong answer, learning rates in disguise, entropy; the lab."""

from collections.abc import Callable, Collection, Mapping, Sequence
from types import SimpleNamespace

import torch
from torch import Tensor

from workshop.shared.checks import check_lines, check_numbers, not_attempted, not_yet, right, same

TURNING = {"c", "f", "h"}
WHY_NOT = {
    "a": "without σ, other rewards stretch every centred reward by one factor",
    "b": "the batch's σ is one number for all prompts",
    "d": "α is one number for all prompts",
    "e": "the constant divides every token alike",
    "g": "with one update all ratios are 1, inside any window",
}
WHY = {
    "c": "one of the switches gives every prompt a factor of its own",
    "f": "one of the switches gives tokens of short answers more than those of long ones",
    "h": "one of the baselines does not know the prompt",
}


class LuckyWorld:
    """A world whose every batch has a luck of its own; `collect` counts the batches."""

    def __init__(self) -> None:
        self.drawn = 0

    def collect(self, seed: int | None = None) -> Tensor:
        self.drawn += 1
        return torch.tensor([0.0, 0.0, 0.3 * self.drawn])


def lucky_push(world: LuckyWorld, method: SimpleNamespace, luck: Tensor) -> Tensor:
    return method.direction + luck


STRAIGHT, TURNED, BACK = (
    SimpleNamespace(direction=torch.tensor(d)) for d in ([2.0, 0, 0], [1.0, 3, 0], [-3.0, 1, 0])
)


def turn(push: Callable, world: LuckyWorld, method: SimpleNamespace, switched) -> Tensor:
    """Angle in degrees between two pushes from one batch."""
    return angle_of(*pushes(push, world, method, switched))


def pushes(push: Callable, world: LuckyWorld, *methods: SimpleNamespace) -> tuple[Tensor, ...]:
    rollouts = world.collect(seed=1)
    return tuple(push(world, method, rollouts) for method in methods)


def angle_of(before: Tensor, after: Tensor) -> Tensor:
    return torch.cosine_similarity(before, after, dim=0).clamp(-1, 1).acos().rad2deg()


def check_turn(mine: Callable[..., Tensor]) -> bool:
    """Section 3: the angle that a switch turns a push by."""

    def of(measure: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
        return lambda push, world, *pair: measure(*pushes(push, world, *pair))

    def two_batches(push: Callable, world: LuckyWorld, method, switched) -> Tensor:
        each = (push(world, one, world.collect(seed=1)) for one in (method, switched))
        return angle_of(*each)

    return check_lines(
        mine,
        turn,
        {
            "a batch for each push: its luck is in the angle; both pushes must come from one "
            "batch": two_batches,
            "divide the dot product by both lengths": of(
                lambda a, b: (a @ b).clamp(-1, 1).acos().rad2deg()
            ),
            "that is how much longer the push is, and a learning rate could do the same": of(
                lambda a, b: b.norm() / a.norm()
            ),
            "these are radians; degrees are asked": of(lambda a, b: angle_of(a, b).deg2rad()),
            "that is the cosine; the angle is its acos": of(
                lambda a, b: torch.cosine_similarity(a, b, dim=0)
            ),
            "a switch that points backwards is more than 90 degrees away: no absolute value": of(
                lambda a, b: torch.cosine_similarity(a, b, dim=0).abs().acos().rad2deg()
            ),
        },
        [(lucky_push, STRAIGHT, TURNED), (lucky_push, STRAIGHT, BACK)],
        "one batch, two pushes, and no run",
        "two pushes from one batch; their dot product over both lengths; acos; degrees",
        lambda function, push, *pair: function(push, LuckyWorld(), *pair),
    )


def check_lone_wrong(answer: Sequence[float] | None) -> None:
    """Exercise 1: advantages of one wrong answer of eight, in each of 32 groups."""
    centred, group, batch = -0.875, -0.875 / 0.125**0.5, -0.875 / (0.875 * 0.125 * 256 / 255) ** 0.5
    check_numbers(
        answer,
        (centred, group, batch),
        "where all prompts are easy, both σ are small, and the batch's protects nothing",
        {
            (-0.875, -0.875 / 0.109375**0.5, -0.875 / 0.109375**0.5): (
                "n − 1: seven for a group, 255 for the batch"
            ),
            (0.125, 0.125 / 0.125**0.5, 0.125 / (0.109375 * 256 / 255) ** 0.5): (
                "these are the right answers' advantages"
            ),
            (centred, group, -0.875): "what is the spread of 256 rewards, 32 of which are 0?",
            (-1, -1 / 0.125**0.5, -1 / (0.109375 * 256 / 255) ** 0.5): (
                "the wrong answer is part of its group's mean"
            ),
        },
        "start with the mean of a group: seven of eight are right",
        tolerance=6e-3,
    )


def check_turning(answer: Collection[str] | None) -> None:
    """Exercise 2: the switches that change a direction."""
    if answer is None:
        not_attempted()
        return
    given = {str(letter).strip().lower() for letter in answer}
    if unknown := given - set("abcdefgh"):
        not_yet(f"there is no switch {sorted(unknown)}: answer with letters from a to h")
    elif given == TURNING:
        right("the others multiply the gradient by one number, or leave it as it is")
    elif wrong := sorted(given - TURNING):
        not_yet(WHY_NOT[wrong[0]])
    else:
        not_yet(f"not all of them: {WHY[min(TURNING - given)]}")


def check_entropy_change(change: Callable[[Tensor, Tensor], Tensor | None]) -> None:
    """Exercise 3: −Cov(log π, Δz), against a small step."""
    g = torch.Generator().manual_seed(12)
    z, move = torch.randn(2, 7, generator=g, dtype=torch.float64) * 1.5
    logp = z.log_softmax(0)
    found = change(logp, move)
    if found is None:
        not_attempted()
        return
    pi, plain = logp.exp(), (logp.exp() * logp).sum()
    slope = -((pi * logp * move).sum() - plain * (pi * move).sum())
    mistakes = {
        "entropy falls when likely tokens rise: the sign": -slope,
        "the mean of one of the two factors is not subtracted": -(pi * logp * move).sum(),
        "the covariance is under π, not under equal weights": -(
            ((logp - logp.mean()) * (move - move.mean())).mean()
        ),
    }
    value = float(found)
    if same(value, slope, 1e-6):
        right("a constant added to all logits costs nothing, and the covariance knows it")
    else:
        fitting = (hint for hint, wrong in mistakes.items() if same(value, wrong, 1e-6))
        not_yet(next(fitting, "compare with the entropy after a small step along the move"))


def check_entropy_rate(rate: Callable[[float], float | None], turning_point: float | None) -> None:
    """Exercise 4: change of entropy of two tokens, natural gradient, and where its sign turns."""
    ps = torch.tensor([0.03, 0.2, 0.45, 0.7, 0.98], dtype=torch.float64)
    if rate(0.2) is None:
        not_attempted()
        return
    given = torch.tensor([float(rate(p)) for p in ps.tolist()], dtype=torch.float64)
    odds = (ps / (1 - ps)).log()
    wanted = -ps * (1 - ps) * odds
    if same(given, -wanted, 1e-6):
        not_yet("while p is small, does learning spread the policy or sharpen it?")
    elif same(given, -odds, 1e-6):
        not_yet("that is the slope of the logits' difference alone: weigh with π, then centre")
    elif not same(given, wanted, 1e-6):
        not_yet("A of the right token is 1 − p, of the wrong one −p; put both into −Cov(log π, A)")
    elif turning_point is None or not same(turning_point, 0.5, 1e-3):
        not_yet("the function is right; where does it change its sign?")
    else:
        right("until the right token is the mode, every step earns entropy")


def check_dial(measured: Mapping[float, Sequence[float]]) -> None:
    """Lab: bonus -> (entropy of the first batch, of the last, accuracy of the last)."""
    if not measured:
        not_attempted()
        return
    if 0 not in measured or len(measured) < 3:
        not_yet("three runs are asked at least, one of them without a bonus")
        return
    if any(len(row) != 3 or not 0 <= row[2] <= 1 for row in measured.values()):
        not_yet("three numbers a run: entropy first, entropy last, accuracy last")
        return
    first, last, _ = measured[0]
    held = [b for b, (h0, h1, _) in measured.items() if b and abs(h1 - h0) <= 0.2 * h0]
    if last > 0.8 * first:
        not_yet("without a bonus the entropy of plain sums falls: is that run long enough?")
    elif not held:
        most = max(measured, key=lambda b: measured[b][1])
        much = measured[most][1] > measured[most][0]
        not_yet(f"none ends where it began: try {'less' if much else 'more'} than {most:g}")
    elif any(measured[b][1] < last for b in measured if b > 0):
        not_yet("a bonus ended below the run without one: were batches and rate the same?")
    else:
        right("entropy is for sale; what was bought with it is in the third column")
