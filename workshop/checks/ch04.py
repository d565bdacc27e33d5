"""Chapter 04: margins of noisy labels, the leash, best-of-n, DPO's gradient; the lab."""

from collections.abc import Callable, Mapping, Sequence
from math import exp, log
from typing import Any

import torch
from torch import Tensor

from rlbook.rewards import dpo_loss
from rlbook.stats.best_of_n import best_of_n_kl
from workshop.checks.verdicts import check_numbers, not_attempted, not_yet, right, same

NATS = 3.0
ENDINGS = ("turns later", "turns as early", "does not turn")


def check_margin(answer: float | None) -> None:
    """Exercise 1: the margin that Bradley–Terry learns where a fifth of the labels is wrong."""
    check_numbers(
        answer,
        log(0.8 / 0.2),
        "noise sets the scale: σ of the margin is the share of labels that agree",
        {
            4.0: "those are the odds; the margin is what σ turns into the share",
            0.8: "that is the share of labels that agree, σ(margin), not the margin itself",
            -log(0.8): "that is the loss of one agreeing label at σ = 0.8",
            log(0.2 / 0.8): "the sign: the margin is that of the right answer over the wrong one",
            1 / (1 + exp(-0.8)): "the other way round: which margin has σ(margin) = 0.8?",
        },
        "with r the margin, the expected loss is −0.8 log σ(r) − 0.2 log σ(−r): set its slope to 0",
        tolerance=0.01,
    )


def tilted(reference: Sequence[float], exponents: Sequence[float]) -> tuple[float, ...]:
    """A distribution ∝ reference · exp(exponents)."""
    weights = [p * exp(x) for p, x in zip(reference, exponents, strict=True)]
    return tuple(w / sum(weights) for w in weights)


def check_leash(answer: Sequence[float] | None) -> None:
    """Exercise 2: π ∝ π_ref exp(r/β) of three answers, π_ref = .6, .3, .1, r = 0, 1, 2, β = ½."""
    reference, rewards = (0.6, 0.3, 0.1), (0.0, 1.0, 2.0)
    doubled, halved = ([factor * r for r in rewards] for factor in (2, 0.5))
    check_numbers(
        answer,
        tilted(reference, doubled),
        "a short leash is a large β: here each point of reward is worth a factor e²",
        {
            tilted(reference, halved): "that is exp(β r); the reward is divided by β",
            tilted((1, 1, 1), doubled): "where is π_ref? That is the optimum from uniform answers",
            tilted(reference, rewards): "that is β = 1",
            tuple(p * exp(x) for p, x in zip(reference, doubled, strict=True)): (
                "now divide by their sum: these are weights, not probabilities"
            ),
        },
        "weigh every answer by π_ref(y) exp(r(y)/β), then divide by the sum",
        tolerance=0.006,
    )


def check_samples(answer: int | None) -> None:
    """Exercise 3: the smallest n for which best-of-n can be three nats from the base."""
    if answer is None:
        not_attempted()
        return
    smallest = next(n for n in range(1, 999) if best_of_n_kl(n) >= NATS)
    if answer == smallest:
        right("nats are dear: every further one multiplies the samples by e")
    elif answer in (20, 21):
        not_yet("e³ ≈ 20 forgets the second term: log n − (n − 1)/n")
    elif answer > smallest:
        not_yet("enough, but not the smallest: (n − 1)/n is not quite 1")
    else:
        not_yet("log n − (n − 1)/n of your n is below 3")


def check_dpo_weight(weight: Callable[..., Any]) -> None:
    """Exercise 4: the number by which DPO multiplies ∇(log π_w − log π_l) of a pair."""
    draw = torch.Generator().manual_seed(0)
    logps = torch.randn(4, 6, generator=draw, dtype=torch.float64)
    beta = 0.3
    given = weight(*logps, beta)
    if given is None:
        not_attempted()
        return
    given = torch.as_tensor(given, dtype=torch.float64)
    chosen = logps[0].clone().requires_grad_()
    (-dpo_loss(chosen, *logps[1:], beta=beta) * logps.shape[1]).backward()
    wanted, margin = chosen.grad, beta * (logps[0] - logps[2] - logps[1] + logps[3])
    assert wanted is not None
    mistakes: dict[str, Tensor] = {
        "that pulls hardest where the pair is right already: look at the sign inside σ": (
            beta * margin.sigmoid()
        ),
        "β is missing in front: it multiplies inside σ and outside": (-margin).sigmoid(),
        "the reference is missing: the margin is of log-ratios": (
            beta * (-beta * (logps[0] - logps[1])).sigmoid()
        ),
        "the sign in front: a gradient step on the loss makes the chosen answer likelier": -wanted,
    }
    if given.shape != wanted.shape:
        not_yet(f"one weight a pair: shape {tuple(wanted.shape)}, not {tuple(given.shape)}")
    elif same(given, wanted, 1e-6):
        right("a pair that is ranked right by far pulls no more, one that is wrong pulls with β")
    else:
        fitting = (hint for hint, wrong in mistakes.items() if same(given, wrong, 1e-6))
        not_yet(next(fitting, "differentiate −log σ(m): its slope is −σ(−m); then m by log π_w"))


class Stub:
    """A model that scores answers by their length, on its own scale."""

    def __init__(self, slope: float, zero: float):
        self.slope, self.zero = slope, zero

    def scores(self, answers: Sequence[Any]) -> Tensor:
        """A line in the length of each answer."""
        return torch.tensor([self.slope * len(a.token_ids) + self.zero for a in answers])


def check_committee(committee: Callable[..., Any]) -> None:
    """Lab, step 1: the pessimistic vote of several reward models, on one zero."""
    from rlbook.training.sft import Answer

    asked = [Answer([1], [7] * n) for n in (1, 2, 3, 6)]
    models, base = [Stub(1.0, 0.0), Stub(-0.5, 5.0)], asked[:3]
    given = committee(models, base)
    if given is None:
        not_attempted()
        return
    parts = given(asked)
    values = next(iter(parts.values())) if isinstance(parts, Mapping) else parts
    centred = torch.stack([m.scores(asked) - m.scores(base).mean() for m in models])
    raw = torch.stack([m.scores(asked) for m in models])
    if not isinstance(parts, Mapping):
        not_yet('a reward gives its parts by name: {"proxy": [...]}')
    elif same(values, centred.amin(0), 1e-4):
        right("an answer is worth what its sharpest critic says, all critics on one zero")
    elif same(values, raw.amin(0), 1e-4):
        not_yet("whose zero? The likelihood fixes differences only: two models' scores have two")
    elif same(values, centred.mean(0), 1e-4):
        not_yet("that is the mean; one enthusiast can still carry it")
    elif same(values, centred.amax(0), 1e-4):
        not_yet("that is the most enthusiastic of them")
    else:
        not_yet("subtract each model's mean on the base's answers, then take the smallest")


def check_lab(measured: Mapping[str, Sequence[float]] | None, ending: str | None) -> None:
    """Lab, step 4: accuracy of every step under one model and under a committee, and what it says.

    Judged is whether the conclusion follows from the reader's own numbers.
    """
    if not measured or ending is None:
        not_attempted()
        return
    if set(measured) != {"one model", "committee"} or min(map(len, measured.values())) < 20:
        not_yet('give "one model" and "committee", the accuracy of 20 steps or more each')
    elif ending not in ENDINGS:
        not_yet(f"say one of: {', '.join(ENDINGS)}")
    elif ending != seen(measured):
        not_yet(f"your own numbers say it {seen(measured)}: compare means over five steps")
    else:
        right(
            "a committee errs where its members err together, and they share a trunk and the data"
        )


def seen(measured: Mapping[str, Sequence[float]]) -> str:
    """What two curves say, by means over five steps: a fall is one of at least 0.1."""
    smooth = {name: means_of_five(values) for name, values in measured.items()}
    together = smooth["committee"]
    if max(together) - together[-1] < 0.1:
        return "does not turn"
    peaks = {name: values.index(max(values)) for name, values in smooth.items()}
    return "turns later" if peaks["committee"] > peaks["one model"] else "turns as early"


def means_of_five(values: Sequence[float]) -> list[float]:
    """Means over every five neighbours."""
    return [sum(values[i : i + 5]) / 5 for i in range(len(values) - 4)]
