"""Chapter 15: gains of steps, a judge's price, step groups, a soft mean, a mask; the lab."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from itertools import pairwise
from typing import Any

import torch

from rlbook.training import Trainer, adamw
from workshop.shared.checks import (
    check_lines,
    check_numbers,
    not_attempted,
    not_yet,
    numbers,
    right,
    same,
)

Turn = tuple[str, Sequence[int]]

DIALOGUES: tuple[tuple[Turn, ...], ...] = (
    (("policy", (7, 8)), ("tool", (9, 9, 9)), ("policy", (4, 2))),
    (("tool", (5,)), ("policy", (6, 1)), ("tool", (3,)), ("tool", (3, 3)), ("policy", (2,))),
    (("policy", (1,)),),
)
# Shares of wrong results in the lab, and what a right rule is then worth: two calls on average.
LAB_WRONG = (0.0, 0.3, 0.6)


def gains(u: Sequence[float], reward: float) -> list[float]:
    """What each step changed: the worth after it less the worth before it."""
    return [after - before for before, after in pairwise([*u, reward])]


def check_gains(mine: Callable[[Sequence[float], float], Sequence[float]]) -> bool:
    """Section 3: the credit of steps that the reader writes."""
    return check_lines(
        mine,
        gains,
        {
            "that is the reward less the worth before: all later luck is still in it": (
                lambda u, r: [r - before for before in u]
            ),
            "that is the outcome for every step: nothing has been assigned": (
                lambda u, r: [r - u[0] for _ in u]
            ),
            "one step short: after the last one stands the reward itself": (
                lambda u, r: gains(u, r)[:-1]
            ),
            "the sign: after the step, less before it": lambda u, r: [-g for g in gains(u, r)],
            "shifted by one: a step gets what it changed itself, not what the one before did": (
                lambda u, r: [0.0, *gains(u, r)[:-1]]
            ),
            "that is the worth after the step; what was there before is not its doing": (
                lambda u, r: [*u[1:], r]
            ),
        },
        [([0.5, 0.7, 0.2], 1.0), ([0.3, 0.1, 0.4, 0.6], 0.0), ([0.25], 1.0)],
        "together they are the reward less the worth of the prompt, and each stands where it "
        "was earned",
        "for each step: the worth of the prefix behind it less that of the prefix before it",
    )


def same_as_trainer(learn: Callable[..., None], trainer: Trainer) -> float:
    """How far one update and the package's `Trainer` are apart, in units of the mean step; printed.

    `learn(model, optimizer, rollouts)` makes it. Means over all weights: where a gradient is nearly
    0, Adam's first step turns its rounding into a step of full size. Raises `ValueError` above a
    thousandth.
    """
    start, twin, batch = deepcopy(trainer.model), deepcopy(trainer.model), trainer.collect()
    learn(twin, adamw(twin, trainer.config.optimizer), batch)
    trainer.learn(batch)
    before, loop, package = (
        torch.cat([p.detach().flatten() for p in model.parameters()])
        for model in (start, twin, trainer.model)
    )
    apart = float((loop - package).abs().mean() / (loop - before).abs().mean())
    print(f"the loop's update and the trainer's differ by {apart:.0e} of a step")
    if apart > 1e-3:
        raise ValueError("the loop is not the package's")
    return apart


def check_price(answer: Sequence[float] | None) -> None:
    """Exercise 1: A's two gains at the judge's word, then at the batch's price."""
    check_numbers(
        answer,
        (0.0, -1.0, 1 / 12, -1 / 4),
        "the judge's word calls one answer in four a sure thing, so the second step pays for it; "
        "each pair sums to the reward less the worth of the prompt",
        {
            (0.0, -1.0, 1 / 4, -1 / 4): "the prompt has a price, too: what all twelve earned",
            (0.0, -1.0, 1 / 12, -1 / 12): "each pair must sum to the reward less the worth of the "
            "prompt; what is A's prefix worth in the middle?",
            (
                1.0,
                -1.0,
                1 / 12,
                -1 / 4,
            ): "nobody is off track at the prompt: the judge says 1 there",
            (0.0, 0.0, 1 / 12, -1 / 4): "after the last step the judge is not asked: there stands "
            "the reward",
            (0.0, -1.0, 1 / 12, 0.0): "A ends wrong, and its prefix had been worth something",
            (1 / 12, -1 / 4, 0.0, -1.0): "the other way round: the judge's word first",
            (0.0, -1.0, 2 / 3, -2 / 3): "a price is what those answers earned, not how many there "
            "are",
        },
        "two numbers for each: worth after less worth before; the price of a place is the mean "
        "reward of those who stood there",
    )


def check_step_groups(answer: Sequence[float] | None) -> None:
    """Exercise 2: both credits of answer A; rewards 1, 0, 1, 0, the last begun otherwise."""
    own = "the answer itself does not belong to its own baseline"
    check_numbers(
        answer,
        (2 / 3, 1 / 2),
        "RLOO says 2/3 twice; but whoever stands at a good place is expected to be right",
        {
            (2 / 3, 2 / 3): "in the second step D is no sibling: it stood elsewhere",
            (1 / 2, 1 / 2): own,
            (1 / 2, 1 / 3): own,
            (2 / 3, 1 / 3): own,
            (1 / 2, 2 / 3): "the steps are the wrong way round, or D is counted in the wrong one",
            (1.0, 1.0): "the rewards of the others at the same place are missing",
        },
        "in each step: the reward less the mean reward of the others that stood at the same place",
    )


def check_soft_mean(answer: float | None) -> None:
    """Exercise 3: β log E[exp(r/β)] of two completions worth log 3 and 0, one in four the first."""
    check_numbers(
        answer,
        0.4055,
        "a soft mean lies above the mean: implicit rewards are optimists, the more the smaller β",
        {
            0.2747: "that is the mean of r; the model's is a mean of exp(r), then the logarithm",
            1.0986: "that is the better completion alone: weigh both with their chance",
            1.5: "now the logarithm",
            0.6931: "one completion in four is the good one, not one in two",
        },
        "the sum of exp(r) over the completions, each with its chance, and then the logarithm",
    )


def check_mask(trained: Callable[[Sequence[Turn]], Any]) -> None:
    """Exercise 4: which tokens of a dialogue are trained, as one list of booleans."""
    if trained(DIALOGUES[0]) is None:
        not_attempted()
        return
    for turns in DIALOGUES:
        given = [bool(x) for x in trained(turns)]
        wanted = [who == "policy" for who, ids in turns for _ in ids]
        if given == wanted:
            continue
        if len(given) != len(wanted):
            not_yet(f"{len(wanted)} tokens need {len(wanted)} booleans, not {len(given)}")
        elif all(given):
            not_yet("the tool's tokens are trained too: the policy did not choose them")
        elif given == [not x for x in wanted]:
            not_yet("the wrong way round: True is what the policy wrote")
        elif given == first_turn_only(turns):
            not_yet("the policy goes on after the tool, and what it writes there it chose as well")
        elif given == last_turn_only(turns):
            not_yet("the call was the policy's choice too, not only the last turn")
        else:
            not_yet(f"the turns are by {', '.join(who for who, _ in turns)}: look at each token")
        return
    right("and the tool's tokens stay in the context of everything after them")


def first_turn_only(turns: Sequence[Turn]) -> list[bool]:
    """The mask of somebody who trains the policy's first turn alone."""
    first = next(i for i, (who, _) in enumerate(turns) if who == "policy")
    return [i == first for i, (_, ids) in enumerate(turns) for _ in ids]


def last_turn_only(turns: Sequence[Turn]) -> list[bool]:
    """The mask of somebody who trains its last turn alone."""
    last = max(i for i, (who, _) in enumerate(turns) if who == "policy")
    return [i == last for i, (_, ids) in enumerate(turns) for _ in ids]


def check_lab(
    predicted: Mapping[float, float] | None,
    measured: Mapping[float, float] | None,
    leads: Mapping[float, float] | None,
) -> None:
    """The lab: the worth of a right rule by the calculator's share of errors, and the leads."""
    if predicted is None or measured is None or leads is None:
        not_attempted()
        return
    if any(set(given) != set(LAB_WRONG) for given in (predicted, measured)):
        not_yet(f"a value for each share of wrong results is asked: {LAB_WRONG}")
        return
    if not {0.0, 0.6} <= set(leads):
        not_yet("the lead of process is asked where the tool is never wrong, and at 0.6")
        return
    worth = [numbers(measured[wrong])[0] for wrong in LAB_WRONG]
    guess = [numbers(predicted[wrong])[0] for wrong in LAB_WRONG]
    if same(guess, [1 - wrong for wrong in LAB_WRONG], 0.03):
        not_yet("that is one call; half of the problems need three, the others two")
    elif not (worth[0] > 0.9 and worth[0] > worth[1] > worth[2]):
        not_yet("measured after the first `=` of a right rule the worth starts near 1 and falls")
    elif not same(guess, worth, 0.12):
        not_yet("prediction and measurement lie apart: do you count the calls still to come?")
    else:
        right(
            f"a right rule is worth {worth[0]:.2f}, {worth[1]:.2f}, {worth[2]:.2f}; process leads "
            f"by {leads[0.0]:+.2f} where nothing goes wrong and {leads[0.6]:+.2f} where most does"
        )
