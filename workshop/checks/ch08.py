"""Chapter 08: edges and balance of a clip, silent groups, a colleague's configuration; the lab."""

from collections.abc import Callable, Mapping, Sequence, Set
from itertools import pairwise
from math import ceil, log

import torch
from torch import Tensor

from rlbook.objectives import group_normalize
from workshop.checks.verdicts import check_numbers, not_attempted, not_yet, right, same

EXACT = 1e-6
RULES = ("cliff", "ramp", "filter")


def check_batches(answer: Sequence[int] | None) -> None:
    """Exercise 1: batches from 0.01 to ½, each ending exactly at 1 + ε_high, for 0.2 and 0.28."""
    needed = [log(0.5 / 0.01) / log(1 + eps) for eps in (0.2, 0.28)]
    check_numbers(
        answer,
        [ceil(n) for n in needed],
        "the edge moves with π_old, so what it allows per batch is a factor",
        {
            tuple(ceil(n) - 1 for n in needed): "after that many batches it is still just below ½",
            tuple(0.49 / (0.01 * eps) for eps in (0.2, 0.28)): (
                "the edge moves with π_old: growth by a factor, not by the same amount each time"
            ),
            tuple(ceil(n) for n in reversed(needed)): "the wider window is the faster one",
            tuple(needed): "whole batches are asked",
        },
        "solve 0.01 · (1 + ε)ⁿ ≥ ½ by taking logarithms",
        tolerance=0.05,
    )


def check_balanced(answer: Callable[[float], float]) -> None:
    """Exercise 2: `balanced(eps_low)`, the ε_high of a fair window."""
    value = answer(0.2)
    if value is None:
        not_attempted()
    elif same(value, 0.2, EXACT):
        not_yet("that is symmetric in ratios: down and up again ends below the start")
    elif same(value, 1 / (1 - 0.2), EXACT):
        not_yet("that is the edge itself; ε_high is its distance from 1")
    elif same(value, 0.25, EXACT) and not same(answer(0.5), 1.0, EXACT):
        not_yet("right for 0.2 alone; try it with another ε_low")
    elif all(same((1 - low) * (1 + answer(low)), 1.0, EXACT) for low in (0.1, 0.2, 0.5)):
        right("the wider the window, the more lopsided the one that is symmetric in ratios")
    else:
        not_yet("go down to the lower edge, then up to the upper: what must the product be?")


def check_talkative(answer: Sequence[float] | None) -> None:
    """Exercise 3: advantages in a group of eight wrong answers of which one is overlong."""
    rewards = torch.tensor([-2.0, *7 * [-1.0]], dtype=torch.float64)
    centred = rewards - rewards.mean()
    normal = group_normalize(rewards, torch.zeros(8, dtype=torch.long)).tolist()
    biased = (centred / centred.square().mean().sqrt()).tolist()
    check_numbers(
        answer,
        (*normal[:2], 0.0),
        "seven wrong answers are praised for being short, and σ makes it full-sized praise",
        {
            (
                *normal[:2],
                *normal[:1],
            ): "(c) no answer is right: what does Eq. 11 do with the group?",
            (*normal[:2], normal[1]): "(c) no answer is right: what does Eq. 11 do with the group?",
            (*centred[:2].tolist(), 0.0): "distances to the mean; DAPO keeps GRPO's division by σ",
            (*biased[:2], 0.0): "you divided by N; this σ has N − 1 in its denominator",
        },
        "find the mean, the deviations, and σ with N − 1 in its denominator",
        tolerance=0.006,
    )


def check_idle(answer: Set[str] | None) -> None:
    """Exercise 4: the lines of a configuration that cannot change the run."""
    if answer is None:
        not_attempted()
        return
    given = {letter.lower() for letter in answer}
    if not given <= set("abcdef"):
        not_yet("give letters from a to f")
    elif "a" in given:
        not_yet("a decides how many updates a batch has, and with it what other lines can do")
    elif given & {"d", "e"}:
        not_yet("the mean over tokens and the filter act however many updates there are")
    elif "c" not in given:
        not_yet("how far from 1 is a ratio when the only gradient of a batch is taken?")
    elif "b" not in given:
        not_yet("one of the clip's names is not read when two others are set")
    elif "f" not in given:
        not_yet("the table of section 11 has a setting that verl itself says it ignores")
    else:
        right("with one update per batch this is GRPO with a token mean and a filter")


def check_mixed(answer: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Exercise 5: `mixed(correct, groups)`, the rollouts whose groups have right and wrong."""
    groups = torch.tensor([7, 3, 7, 5, 3, 5, 7, 5])
    correct = torch.tensor([1, 0, 0, 1, 0, 1, 1, 1]).bool()
    keep = answer(correct, groups)
    if keep is None:
        not_attempted()
    elif len(keep) != len(groups):
        not_yet("one value per rollout, not per group")
    elif keep[groups == 3].any():
        not_yet("a group without a right answer is kept")
    elif keep[groups == 5].any():
        not_yet("a group without a wrong answer is kept")
    elif not keep[groups == 7].all():
        not_yet("of a mixed group keep every member, the right and the wrong")
    else:
        right("correctness decides, whatever a ramp has added to the rewards")


def check_three_regimes(measured: Mapping[int, Mapping[str, float]]) -> None:
    """Lab: limit -> rule -> share of answers without a thought; who gives up at which limit?"""
    if not measured:
        not_attempted()
        return
    if missing := [limit for limit, shares in measured.items() if shares.keys() != set(RULES)]:
        not_yet(f"limit {missing[0]}: give a share for each of {', '.join(RULES)}")
        return
    gave_up = {
        limit: {rule for rule, share in shares.items() if share > 0.5}
        for limit, shares in measured.items()
    }
    if set(RULES) not in gave_up.values():
        not_yet("no limit yet at which all three give up care: what can still arrive at yours?")
    elif set() not in gave_up.values():
        not_yet(
            "no limit yet at which none gives up: how many careful answers are cut off at yours?"
        )
    elif not any(0 < len(rules) < len(RULES) for rules in gave_up.values()):
        not_yet("the rules agree at all your limits: look between them")
    elif any(len(gave_up[a]) < len(gave_up[b]) for a, b in pairwise(sorted(measured))):
        not_yet("more give up at a looser limit than at a tighter one: a matter of seeds?")
    else:
        right("which rule is right depends on how many careful answers the limit lets through")
