"""Chapter 01: two scores to write, a path's ratio, a fooled verifier, top-p, all@k; the lab."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import comb, inf, log
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from rlbook.exact import FOUR
from workshop.shared.checks import check_lines, check_numbers, not_attempted, not_yet, right, same

ANSWERS = range(100)
EXACT = 1e-6

DICE = torch.Generator().manual_seed(0)
STEPS = torch.randn(5, 5, generator=DICE, dtype=torch.float64)  # what a token does to the logits
IDS = torch.tensor([[1, 4, 2, 3, 2, 0], [2, 1, 3, 0, 0, 0], [4, 4, 1, 2, 3, 3]])
MASK = torch.tensor([[0, 0, 1, 1, 1, 1], [0, 1, 1, 1, 0, 0], [0, 0, 0, 1, 1, 1]]).bool()
SCORES = -torch.rand(3, 6, generator=DICE, dtype=torch.float64) * MASK


def summing(input_ids: Tensor, **_: Any) -> SimpleNamespace:
    """A policy whose logits depend on every token that it has read."""
    return SimpleNamespace(logits=STEPS[input_ids].cumsum(1))


def log_prob(policy: Callable[..., Any], ids: Tensor, mask: Tensor) -> Tensor:
    """log π of every token that the policy chose, (N, T); 0 elsewhere."""
    return picked(policy(input_ids=ids).logits[:, :-1].log_softmax(-1), ids[:, 1:], mask)


def picked(rows: Tensor, tokens: Tensor, mask: Tensor) -> Tensor:
    """What rows say of tokens, in the places of the mask."""
    return pad(rows.gather(-1, tokens[..., None]).squeeze(-1), (1, 0)) * mask


def imitation_loss(logp: Tensor, mask: Tensor) -> Tensor:
    """Mean of -log π over the tokens of the mask."""
    return -logp.sum() / mask.sum()


def scored(function: Callable[..., Tensor], *probe: Any) -> Tensor:
    """A reader's score; rows that are one too many are named as such."""
    try:
        return function(*probe)
    except RuntimeError as error:
        if "size of tensor" not in str(error):
            raise
        raise ValueError(
            "one row too many: nothing stands before the first token, so T tokens are scored "
            "by T − 1 rows"
        ) from error


def check_log_prob(mine: Callable[[Any, Tensor, Tensor], Tensor]) -> bool:
    """Section 2: the score of each token of an answer."""
    return check_lines(
        mine,
        log_prob,
        {
            "row t has already read token t, and says what comes next; ask the row before it": (
                lambda p, ids, m: picked(p(ids).logits[:, 1:].log_softmax(-1), ids[:, 1:], m)
            ),
            "shifted the wrong way: these rows are asked for a token that they read one place "
            "ago": lambda p, ids, m: picked(p(ids).logits[:, 1:].log_softmax(-1), ids[:, :-1], m),
            "these are probabilities, and those of a path multiply; take logarithms, which add "
            "up": lambda p, ids, m: picked(p(ids).logits[:, :-1].softmax(-1), ids[:, 1:], m),
            "these are logits, which are log-probabilities but for a number that differs from "
            "row to row; normalise first": lambda p, ids, m: picked(
                p(ids).logits[:, :-1], ids[:, 1:], m
            ),
            "normalised over the places; in each row the vocabulary has to add up to one": (
                lambda p, ids, m: picked(p(ids).logits[:, :-1].log_softmax(1), ids[:, 1:], m)
            ),
            "that is the likeliest token of each row; asked is the one that was chosen": (
                lambda p, ids, m: picked(
                    p(ids).logits[:, :-1].log_softmax(-1), p(ids).logits[:, :-1].argmax(-1), m
                )
            ),
        },
        [(summing, IDS, MASK)],
        "each token is scored by the row that had not yet read it",
        "the rows before the tokens, normalised over the vocabulary; then the tokens that follow",
        scored,
    )


def check_imitation_loss(mine: Callable[[Tensor, Tensor], Tensor]) -> bool:
    """Section 5: what is minimised when answers are imitated."""
    return check_lines(
        mine,
        imitation_loss,
        {
            "the sign: a loss is minimised, and these answers are to become likelier": (
                lambda logp, mask: logp.sum() / mask.sum()
            ),
            "padding and prompt are counted as tokens; divide by what the policy chose": (
                lambda logp, mask: -logp.mean()
            ),
            "a sum grows with the batch, and the step with it; divide by the number of chosen "
            "tokens": lambda logp, mask: -logp.sum(),
            "that is a mean over answers; here every token is to weigh the same": (
                lambda logp, mask: -logp.sum() / len(logp)
            ),
            "a mean of each answer's mean gives the tokens of a short answer more weight": (
                lambda logp, mask: -(logp.sum(1) / mask.sum(1)).mean()
            ),
        },
        [(SCORES, MASK)],
        "every kept token weighs one over the number of kept tokens",
        "minus the sum of log π, over the number of tokens in the mask",
    )


def check_path_ratio(answer: float | None) -> None:
    """Exercise 1: π_θ(A)/π_old(A) of the first of the four completions."""
    ratios = (FOUR.logp - FOUR.logp_old).exp()[0, : FOUR.lengths[0]]
    ratio = ratios.prod().item()
    check_numbers(
        answer,
        ratio,
        "ratios along a path multiply, and the third token takes back what the second won",
        {
            1 / ratio: "upside down: the policy that is trained is the numerator",
            ratios.mean().item(): "a mean of the ratios; but probabilities along a path multiply",
            ratios.sum().item(): "a sum of the ratios; it is their logarithms that add up",
            ratio ** (1 / len(ratios)): "the geometric mean of a token; the whole answer is asked",
            log(ratio): "that is the logarithm of the ratio",
        },
        "multiply π_θ / π_old over the tokens of A",
    )


def check_substring_attack(text: str | None, limit: int = 300) -> None:
    """Exercise 2: one text that contains every answer of the task."""
    if text is None:
        not_attempted()
        return
    missed = [str(n) for n in ANSWERS if str(n) not in text]
    if len(text) > limit:
        not_yet(f"{len(text)} characters; do two numbers need anything between them?")
    elif missed:
        not_yet(f"{len(missed)} of the answers from 0 to 99 are not in it, such as {missed[0]}")
    else:
        right(f"{len(text)} characters earn every reward, without any arithmetic")


class Counting:
    """A policy that is sure: after token t comes t + 1."""

    def __call__(self, input_ids: torch.Tensor, **_: Any) -> SimpleNamespace:
        following = (input_ids + 1).clamp(max=4)[..., None]
        logits = torch.full((*input_ids.shape, 5), -50.0).scatter(-1, following, 50.0)
        return SimpleNamespace(logits=logits)


def check_sampling_loop(generate: Callable[..., tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Exercise 3: the repaired loop, `generate(policy, prompts, eos, limit)` to (ids, mask).

    The policy counts and 3 ends an answer, so the prompts 0 and 2 are answered by 1 2 3 and by 3.
    """
    ids, mask = (part.tolist() for part in generate(Counting(), [[0], [2]], eos=3, limit=4))
    chosen = [[t for t, on in zip(*row, strict=True) if on] for row in zip(ids, mask, strict=True)]
    if any(row[0] for row in mask):
        not_yet("the mask holds tokens of the prompt, which the policy did not choose")
    elif any(3 not in row for row in chosen):
        not_yet("the mask leaves out a token that the policy chose; which one?")
    elif any(row[-1] != 3 for row in chosen):
        not_yet("the mask holds tokens that come after the end of their answer")
    elif len(ids[0]) > 4:
        not_yet("all answers have ended, and the loop writes on")
    elif chosen != [[1, 2, 3], [3]]:
        not_yet("some token that the policy chose is missing from the mask, or another is in it")
    else:
        right("the end is an action like any other, and nothing after it is one")


def check_top_p(logp: Callable[[Sequence[float], int, float], float]) -> None:
    """Exercise 4: `top_p_logp(probs, token, p)`."""
    probs, shuffled = (0.5, 0.25, 0.15, 0.1), (0.1, 0.25, 0.5, 0.15)
    first = logp(probs, 0, 0.7)
    if first is None:
        not_attempted()
    elif logp(probs, 1, 0.7) == -inf:
        not_yet("the token with which the sum reaches p is kept as well")
    elif same(first, log(0.5), EXACT):
        not_yet("what is kept must add up to 1 again")
    elif logp(probs, 2, 0.7) != -inf:
        not_yet("a token beyond p can never be drawn; what is its log-probability?")
    elif not same(logp(shuffled, 2, 0.7), first, EXACT):
        not_yet("it depends on the order in which the tokens come")
    elif not same(first, log(2 / 3), EXACT):
        not_yet("the set is the right one; the log-probabilities in it are not")
    else:
        right("a cut sampler reports log-probabilities of its own distribution, not of π")


def check_all_at_k(estimate: Callable[[int, int, int], float]) -> None:
    """Exercise 5: an unbiased `all_at_k(n, c, k)`, judged by its expectation over c."""
    n, k, p = 12, 3, 0.4
    if estimate(4, 2, 2) is None:
        not_attempted()
        return
    chances = [comb(n, c) * p**c * (1 - p) ** (n - c) for c in range(n + 1)]
    mean = sum(chance * estimate(n, c, k) for c, chance in enumerate(chances))
    if same(mean, p**k, EXACT):
        right("unbiased, because any k of n samples are k samples")
    elif same(mean, sum(chance * (c / n) ** k for c, chance in enumerate(chances)), EXACT):
        not_yet("(c/n)^k is biased, this time upwards; count subsets instead")
    elif same(mean, 1 - (1 - p) ** k, EXACT):
        not_yet("that is pass@k, at least one right; here all are to be right")
    else:
        not_yet(f"where p = {p} and k = {k}, its expectation is {mean:.3f} and not p^k")


def check_cooled_share(share: Callable[[float, float], float]) -> None:
    """Lab, part 1: `cooled_share(p, temperature)`, a choice between two."""
    value = share(0.2, 0.5)
    if value is None:
        not_attempted()
    elif same(value, [0.2**2], EXACT) or same(value, 0.2**0.5, EXACT):
        not_yet("the shares of the two choices must add up to 1 again")
    elif not same(share(0.2, 1.0), 0.2, EXACT):
        not_yet("at T = 1 nothing may change")
    elif not all(share(0.2, hot) > share(0.2, cool) for cool, hot in pairwise((0.5, 1.0, 2.0))):
        not_yet("the rarer choice gets likelier with heat: which way round does T enter?")
    elif not same(value / (1 - value), (0.2 / 0.8) ** 2, EXACT):
        not_yet("what happens to the odds p / (1 − p) when every logit is doubled?")
    else:
        right("a temperature raises the odds to a power, and rare choices feel it most")
