"""Chapter 08: edges and balance of a clip, silent groups, a colleague's configuration; the lab."""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from itertools import pairwise
from math import ceil, log

import torch
from torch import Tensor

from rlbook.objectives import Method, group_normalize
from rlbook.training import RunConfig, Trainer
from workshop.shared.checks import check_lines, check_numbers, not_attempted, not_yet, right, same

EXACT = 1e-6
RULES = ("cliff", "ramp", "filter")

RATIO = torch.tensor([2 * [0.5, 0.9, 1.1, 1.25, 1.5], [*2 * [0.5, 0.75], *3 * [1.1, 1.5]]])
SIGN = torch.tensor([[1.0], [-1.0]])
LENGTHS = torch.tensor([1, 16, 20, 26, 29, 32, 40])
GROUPS = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0], [0, 0, 1, 0]]).bool()


def window(ratio: Tensor, advantage: Tensor, low: float = 0.2, high: float = 0.28) -> Tensor:
    """PPO's clipped gain with an edge for each side, (N, T)."""
    return torch.minimum(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)


def ramp(length: Tensor, limit: int, cache: int) -> Tensor:
    """0 up to limit − cache tokens, then down to −1 at the limit."""
    return -((length - (limit - cache)) / cache).clamp(0, 1)


def speaks(correct: Tensor) -> Tensor:
    """Whether a group (a row) has both right and wrong answers."""
    right = correct.sum(1)
    return (right > 0) & (right < correct.shape[1])


def check_window(mine: Callable[..., Tensor]) -> bool:
    """Section 3: the clipped gain that the reader writes."""

    def clipped(ratio: Tensor, advantage: Tensor, low: float, high: float) -> Tensor:
        return ratio.clamp(1 - low, 1 + high) * advantage

    return check_lines(
        mine,
        window,
        {
            "that is the larger of the two, so exactly the tokens that still pay are masked": (
                lambda r, a: torch.maximum(r * a, clipped(r, a, 0.2, 0.28))
            ),
            "one edge for both sides; DAPO raises the upper one only": (
                lambda r, a: torch.minimum(r * a, clipped(r, a, 0.28, 0.28))
            ),
            "both edges at 0.2: that is PPO's window": (
                lambda r, a: torch.minimum(r * a, clipped(r, a, 0.2, 0.2))
            ),
            "the edges are exchanged: 1 − low below, 1 + high above": (
                lambda r, a: torch.minimum(r * a, clipped(r, a, 0.28, 0.2))
            ),
            "a token that has moved against its advantage is masked too, and can never be called "
            "back: take the smaller of the clipped and the free gain": (
                lambda r, a: clipped(r, a, 0.2, 0.28)
            ),
            "that is the smaller ratio, which is the wrong one where the advantage is negative: "
            "multiply first": lambda r, a: torch.minimum(r, r.clamp(0.8, 1.28)) * a,
        },
        [(RATIO, SIGN)],
        "two edges, and a token outside them may still come back",
        "the smaller of ratio · advantage and clipped ratio · advantage",
    )


def check_ramp(mine: Callable[..., Tensor]) -> bool:
    """Section 5: the soft punishment that the reader writes."""
    return check_lines(
        mine,
        ramp,
        {
            "yours begins at the limit; the ramp begins cache tokens before it": (
                lambda n, limit, cache: -((n - limit) / cache).clamp(0, 1)
            ),
            "the sign: long answers are punished": lambda *at: -ramp(*at),
            "short answers are paid here: the ramp is 0 up to limit − cache": (
                lambda n, limit, cache: -((n - (limit - cache)) / cache).clamp(max=1)
            ),
            "the floor is missing: −1 is the worst, however long": (
                lambda n, limit, cache: -((n - (limit - cache)) / cache).clamp(min=0)
            ),
            "too gentle: −1 is reached within the cache, so divide by the cache": (
                lambda n, limit, cache: -((n - (limit - cache)) / limit).clamp(0, 1)
            ),
            "every token is punished from the first; only the last `cache` are on the ramp": (
                lambda n, limit, cache: -(n / limit).clamp(0, 1)
            ),
        },
        [(LENGTHS, 32, 6)],
        "free up to the cache, one part in `cache` a token, and no deeper than −1",
        "how far into the cache, as a share of it, between 0 and 1, with a minus",
    )


def check_speaks(mine: Callable[[Tensor], Tensor]) -> bool:
    """Section 6: the filter that the reader writes."""
    return check_lines(
        mine,
        speaks,
        {
            "a group that is all right stays in, and there is nothing to compare in it": (
                lambda correct: correct.sum(1) > 0
            ),
            "a group that is all wrong stays in, and there is nothing to compare in it": (
                lambda correct: correct.sum(1) < correct.shape[1]
            ),
            "upside down: these are the silent groups": lambda correct: ~speaks(correct),
            "no group is all right and all wrong at once, so yours keeps all": (
                lambda correct: torch.ones(len(correct), dtype=torch.bool)
            ),
        },
        [(GROUPS,)],
        "right and wrong answers in one group, by correctness and not by reward",
        "more than none of a group's answers are right, and fewer than all",
    )


def same_as_trainer(policy: tuple, run: Iterable, method: Method) -> float:
    """Largest difference in any weight after 16 updates of a run of `policy` and of `Trainer`.

    Prints it; raises `ValueError` above 1e-4.
    """
    list(run)
    trainer = Trainer(RunConfig(method=method, prompts=8, minibatches=8, steps=2, lr=1e-4))
    list(trainer)
    pairs = zip(policy[0].parameters(), trainer.model.parameters(), strict=True)
    apart = max((mine - its).abs().max().item() for mine, its in pairs)
    if apart > 1e-4:
        raise ValueError(f"a weight differs from Trainer's by {apart:.1e}: is it the same loss?")
    print(f"your loop and the package, 16 updates: parameters differ by at most {apart:.1e}")
    return apart


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
