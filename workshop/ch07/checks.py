"""Chapter 07: three ways to weigh a token; long wrong answers, constants, κ, configs; the lab."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from rlbook.exact import FOUR
from rlbook.policy import Sampler, load_policy
from rlbook.tasks import SumsTask
from rlbook.training import RunConfig, Trainer
from workshop.shared.checks import (
    check_lines,
    check_numbers,
    not_attempted,
    not_yet,
    right,
    same,
    same_weights,
)
from workshop.shared.worlds.length_bias import StopPolicy, expected_update

BUDGET = 20
CONFIGS = {
    "a": ("token mean", True),
    "b": ("constant", True),
    "c": ("padded width", False),
    "d": ("mean per answer", True),
}
HINTS = {
    "a": "TRL's default `loss_type` is not the one that is called after GRPO's paper",
    "b": "`loss_type` decides about lengths; which argument decides about σ, and what is its "
    "default?",
    "c": "the mode divides by `loss_scale_factor`; what does it take if nobody sets one?",
    "d": "the mode's name says over what the tokens are averaged first",
}


def check_token_weights(weights_of: Callable[[Tensor, int], Tensor | None]) -> bool:
    """The chapter's three lines: weights of every token under three aggregations, (3, N, T)."""
    padded = torch.arange(10) < FOUR.lengths[:, None]
    return check_lines(
        weights_of,
        token_weights_of,
        TOKEN_WEIGHTS,
        [(padded, 80), (FOUR.mask, 8)],
        "the first looks at each answer's length, the second at the whole batch's, "
        "the third at none",
        "on the four completions the weights should be 1/16, 1/8, 1/32, 1/8 in the first row, 1/16 "
        "for all in the second, and with a limit of 8 tokens 1/32 for all in the third",
    )


def token_weights_of(mask: Tensor, limit: int, **wrong: Callable[..., Tensor]) -> Tensor:
    """The three lines as they should be, or with some of them `wrong`."""
    answers, length = len(mask), mask.sum(1, keepdim=True)
    rows = {
        "per_answer": mask / (answers * length),
        "per_token": mask / mask.sum(),
        "constant": mask / (answers * limit),
    }
    rows |= {name: line(mask, limit, answers, length) for name, line in wrong.items()}
    return torch.stack([row.double() for row in rows.values()])


def unmasked(mask: Tensor, limit: int) -> Tensor:
    """All three rows with a weight on padding."""
    rows = token_weights_of(mask, limit)
    return rows.max(2, keepdim=True).values.expand_as(rows)


TOKEN_WEIGHTS = {
    "first line: the weights add up to the number of answers, not to 1. The mean over answers "
    "is missing": partial(token_weights_of, per_answer=lambda m, limit, n, length: m / length),
    "first line: you divided by the width of the batch, padding included; GRPO divides by each "
    "answer's own length": partial(
        token_weights_of, per_answer=lambda m, limit, n, length: m / (n * m.shape[1])
    ),
    "second line: padding is counted. Divide by the tokens that are trained": partial(
        token_weights_of, per_token=lambda m, limit, n, length: m / m.numel()
    ),
    "second line: one mean over all tokens is enough; no second one over the answers": partial(
        token_weights_of, per_token=lambda m, limit, n, length: m / (n * m.sum())
    ),
    "third line: you divided by the width of the batch. Tomorrow's batch is wider, so the lengths "
    "are back in the denominator": partial(
        token_weights_of, constant=lambda m, limit, n, length: m / (n * m.shape[1])
    ),
    "third line: this batch's mean length was sampled, so it is no constant": partial(
        token_weights_of, constant=lambda m, limit, n, length: m / (n * length.double().mean())
    ),
    "third line: this batch's longest answer was sampled, so it is no constant": partial(
        token_weights_of, constant=lambda m, limit, n, length: m / (n * length.max())
    ),
    "third line: the mean over the answers is missing, so the gradient grows with the batch": (
        partial(token_weights_of, constant=lambda m, limit, n, length: m / limit)
    ),
    "third line: where is the limit? That is a sum over each answer": partial(
        token_weights_of, constant=lambda m, limit, n, length: m / n
    ),
    "padding has a weight: multiply by the mask": unmasked,
}


def same_as_trainer(train: Callable[..., Iterable[object]]) -> float:
    """The largest difference of a weight after two steps and after the package's `Trainer`.

    `train(policy, task, engine, steps)` is the reader's loop, here on plain sums. Raises
    `ValueError` above a hundredth of what the steps have changed.
    """
    start, mine = load_policy("tiny"), load_policy("tiny")
    list(train(mine, SumsTask(), Sampler(mine[0], mine[1].eos_token_id), 2))
    trainer = Trainer(RunConfig(method="dr_grpo", steps=2))
    list(trainer)
    weights = (model.parameters() for model in (start[0], mine[0], trainer.model))
    return same_weights(*weights, name="your loop")


def check_rambling(answer: tuple[float, ...] | None) -> None:
    """Exercise 1: push per token, weight of the whole answer, and the same with a constant."""
    check_numbers(
        answer,
        (40, 1, 40),
        "a mean gives every answer one vote, a constant every token",
        {
            (20, 1, 40): "(a) each is divided by its own length, and D has 2 tokens, not 4",
            (40, 40, 40): "(b) a whole answer is its length times the weight of one of its tokens",
            (40, 1 / 40, 40): "(b) a whole answer is its length times the weight of a token",
            (40, 1, 1): "(c) all tokens weigh alike now, but C has more of them",
            (1 / 40, 1, 40): "(a) upside down: the short answer's tokens are pushed harder",
        },
        "a token weighs 1/(G·length of its answer) under the mean, under a constant all alike",
    )


def check_weights(weights_of: Callable[[Tensor, int], Tensor | None]) -> None:
    """Exercise 2: `dr_grpo_weights(mask, budget)`, the weight of each token, (N, T)."""
    mask = FOUR.mask
    weights = weights_of(mask, BUDGET)
    if weights is None:
        not_attempted()
        return
    answers, width = mask.shape
    known = {
        answers * BUDGET: right,
        answers * width: "that divides by the padded width, which changes from batch to batch",
        int(mask.sum()): "a token mean: its denominator is made of the lengths that were sampled",
        BUDGET: "a sum over the batch: it grows with the number of answers",
        answers: "a sum over each answer: where is the budget?",
    }
    if tuple(weights.shape) != (answers, width):
        not_yet(f"one weight per token is asked, {(answers, width)}, not {tuple(weights.shape)}")
    elif weights[0, 0] != weights[2, 0]:
        not_yet("a token of A and one of C weigh differently: an answer's own length is in there")
    elif (weights[~mask] != 0).any():
        not_yet("padding has a weight")
    else:
        verdict = known.get(round(1 / float(weights[0, 0])), "is it 1 / (answers · budget)?")
        if verdict is right:
            right("it knows the number of answers and the limit, and nothing that was sampled")
        else:
            not_yet(str(verdict))


def check_kappa(kappa_of: Callable[[float], float | None]) -> None:
    """Exercise 3: κ(s) = E[1/L] − 1/E[L] of a geometric length."""
    for stop in (0.2, 0.5):
        given = kappa_of(stop)
        if given is None:
            not_attempted()
            return
        policy = StopPolicy.of(0.5, stop, max_tokens=200)
        drift = expected_update(policy, policy.rewards, "sequence_mean", group_size=8)[1].item()
        kappa = drift / (0.25 * 7 / 8)
        if same(given, kappa, 1e-9):
            continue
        if same(given, kappa + stop, 1e-9):
            not_yet("that is E[1/L]; κ also subtracts 1/E[L]")
        elif same(given, -kappa, 1e-9):
            not_yet("the sign: by Jensen's inequality κ is positive")
        elif same(given, (kappa + stop) * (1 - stop) - stop, 1e-9):
            not_yet("the power of (1 − s) in P(L) is L − 1, one less than in the given series")
        else:
            not_yet("write E[1/L] as the given series in 1 − s: which factors stand before it?")
        return
    right("the same number as the drift of the stop policy, counted over all groups")


def check_accumulated(
    accumulated: Callable[[Tensor, Tensor, Sequence[Sequence[int]]], Tensor | None],
) -> None:
    """Exercise 4: a token mean that does not depend on how the batch is cut into parts."""
    losses = torch.arange(32, dtype=torch.float64).reshape(4, 8).masked_fill(~FOUR.mask, 99.0)
    whole = losses[FOUR.mask].mean()
    for parts in ([[0, 1], [2, 3]], [[0], [1, 2, 3]]):
        value = accumulated(losses, FOUR.mask, parts)
        if value is None:
            not_attempted()
            return
        local = torch.stack([losses[p][FOUR.mask[p]].mean() for p in parts])
        padded = torch.stack([losses[p].mean() for p in parts])
        if same(value, whole, 1e-9):
            continue
        if same(value, local.sum(), 1e-9) or same(value, local.mean(), 1e-9):
            not_yet("every part is divided by its own tokens; whose tokens should it be?")
        elif same(value, padded.sum(), 1e-9) or same(value, padded.mean(), 1e-9):
            not_yet("padding is in the sum (a loss of 99) and in the count")
        else:
            not_yet("is padding (a loss of 99) in the sum, or in the count?")
        return
    right("every part is divided by the tokens of the whole update, so the cut does not matter")


def check_configs(answer: Mapping[str, tuple[str, bool]] | None) -> None:
    """Exercise 5: what four configurations divide by, and whether by σ."""
    if answer is None:
        not_attempted()
        return
    known = {aggregation for aggregation, _ in CONFIGS.values()}
    given = {key: (str(how).strip().lower(), bool(sigma)) for key, (how, sigma) in answer.items()}
    wrong = [key for key, value in CONFIGS.items() if given.get(key) != value]
    if set(given) != set(CONFIGS):
        not_yet(f"one answer for each of {', '.join(CONFIGS)}")
    elif strange := {how for how, _ in given.values()} - known:
        not_yet(f"{strange.pop()!r} is none of: {', '.join(sorted(known))}")
    elif wrong:
        not_yet(f"({wrong[0]}) {HINTS[wrong[0]]}")
    else:
        right("all four go by the name of GRPO or Dr. GRPO, and one of them is GRPO's Eq. 3")


def check_lab(
    lengths: Mapping[str, Sequence[float]] | None, grows: str | None, stops: str | None
) -> None:
    """The lab: length of lost answers by step and arm; which arm grows, which one stops it.

    Judged is whether the conclusions follow from the numbers that were measured.
    """
    if not lengths or grows is None or stops is None:
        not_attempted()
        return
    growth = {name: settled(steps) - steps[0] for name, steps in lengths.items()}
    if len(lengths) < 3 or min(map(len, lengths.values())) < 6:
        not_yet("measure one arm that grows and two that should not, six steps each at least")
    elif missing := {grows, stops} - lengths.keys():
        not_yet(f"{missing.pop()!r} is no arm that you measured")
    elif growth[grows] < max(growth.values()):
        not_yet(f"by your own numbers {max(growth, key=growth.__getitem__)!r} grows more")
    elif growth[grows] < 8:
        not_yet("your strongest arm grew by less than 8 tokens: what makes noise larger?")
    elif growth[stops] > growth[grows] / 2:
        not_yet(f"{stops!r} still grows by {growth[stops]:.0f} tokens; is that stopped?")
    else:
        right("what a bias does the seeds agree on; what noise does they disagree on. Do yours?")


def settled(lengths: Sequence[float]) -> float:
    """Mean of the last three steps."""
    return sum(lengths[-3:]) / 3
