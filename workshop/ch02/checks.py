"""Chapter 02: REINFORCE's loss; gradients and values by hand, legal baselines, the lab."""

from collections.abc import Callable, Mapping, Set
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rlbook.exact import FOUR, SoftmaxPolicy, optimal_baseline
from workshop.shared.checks import check_lines, check_numbers, not_attempted, not_yet, right, same

Loss = Callable[[Tensor, Tensor, Tensor, float], Any]

LEGAL = frozenset("acdf")
ILLEGAL = {
    "b": "one of them contains r_i itself, so it knows the answer it is subtracted from",
    "e": "one of them is computed from the sampled answer: that is another reward, not a baseline",
}


def check_reinforce_loss(loss: Loss) -> bool:
    """The chapter's three lines: the loss whose gradient is REINFORCE's, with its value."""
    padded = torch.arange(10) < FOUR.lengths[:, None]
    draw = torch.Generator().manual_seed(0)
    logp = -torch.rand(padded.shape, generator=draw, dtype=torch.float64)
    logp = torch.where(padded, logp, -3.0)  # a model has an opinion on padding too
    graded = torch.tensor([1.0, 1.0, 0.0, 0.25], dtype=torch.float64)
    return check_lines(
        loss,
        loss_of,
        LOSSES,
        [(logp, graded, padded, 0.5), (logp, graded, padded, -1.0)],
        "its gradient pushes every token that was chosen, as hard as its answer was better than b",
        "for two answers with rewards 1 and 0, b = ½, the first with log-probabilities −1 and −2, "
        "the second with −4 alone, the loss is −0.25",
        gradient_and_value,
    )


def gradient_and_value(
    loss: Loss, logp: Tensor, rewards: Tensor, mask: Tensor, baseline: float
) -> Any:
    """What a loss does to every log-probability, and what it says it is, in one row."""
    logp = logp.clone().requires_grad_()
    value = loss(logp, rewards, mask, baseline)
    if value is None or value is ...:
        return value
    if not isinstance(value, Tensor) or value.dim():
        found = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"the loss should be one number, a tensor without axes; it is {found}")
    if not value.requires_grad:
        raise ValueError("the loss does not depend on logp, so it cannot teach anything")
    (gradient,) = torch.autograd.grad(value, logp)
    return torch.cat([gradient.flatten(), value.detach().reshape(1)])


def loss_of(
    logp: Tensor, rewards: Tensor, mask: Tensor, baseline: float, **wrong: Callable[..., Tensor]
) -> Tensor:
    """The three lines as they should be, or with some of them `wrong`."""
    lines = {
        "advantages": lambda r, b: r - b,
        "log_pi": lambda logp, mask: (logp * mask).sum(1),
        "value": lambda a, log_pi: -(a * log_pi).mean(),
    } | wrong
    advantages = lines["advantages"](rewards, baseline)
    return lines["value"](advantages, lines["log_pi"](logp, mask))


def token_mean(logp: Tensor, rewards: Tensor, mask: Tensor, baseline: float) -> Tensor:
    """One mean over all tokens."""
    return -((rewards - baseline)[:, None] * logp * mask).sum() / mask.sum()


def after_the_mean(logp: Tensor, rewards: Tensor, mask: Tensor, baseline: float) -> Tensor:
    """The baseline taken from the loss."""
    return loss_of(logp, rewards, mask, 0.0) - baseline


LOSSES: dict[str, Loss] = {
    "third line: the sign. Optimisers minimise, so this one makes good answers rarer": partial(
        loss_of, value=lambda a, log_pi: (a * log_pi).mean()
    ),
    "second line: the padding is in the sum. Only tokens under the mask were chosen by the "
    "policy": partial(loss_of, log_pi=lambda logp, mask: logp.sum(1)),
    "a number taken from the *loss* has no gradient, so it changes nothing. Take the baseline "
    "from the rewards": after_the_mean,
    "first line: these are the rewards; the baseline is not in it": partial(
        loss_of, advantages=lambda r, b: r
    ),
    "first line: the baseline is added. It says what was to be expected, so it is taken off": (
        partial(loss_of, advantages=lambda r, b: r + b)
    ),
    "first line: that is the mean of these rewards. Take the baseline that you are handed": partial(
        loss_of, advantages=lambda r, b: r - r.mean()
    ),
    "second line: divided by each answer's length. That is another objective: a short answer's "
    "tokens would be pushed harder": partial(
        loss_of, log_pi=lambda logp, mask: (logp * mask).sum(1) / mask.sum(1)
    ),
    "second line: divided by the width of the batch. The log-probability of an answer is a sum": (
        partial(loss_of, log_pi=lambda logp, mask: (logp * mask).mean(1))
    ),
    "one mean over all tokens: add up each answer's tokens first, then take the mean over the "
    "answers": token_mean,
    "an (N, N) table: `advantages[:, None]` meets every log-probability with every advantage. "
    "Both are (N,), so multiply them as they are": partial(
        loss_of, value=lambda a, log_pi: -(a[:, None] * log_pi).mean()
    ),
    "second line: that is π of the answer, not its logarithm": partial(
        loss_of, log_pi=lambda logp, mask: (logp * mask).sum(1).exp()
    ),
    "third line: a sum grows with the batch, and so would the step. Take the mean over the "
    "answers": partial(loss_of, value=lambda a, log_pi: -(a * log_pi).sum()),
}


def check_gradient(answer: tuple[float, ...] | None) -> None:
    """Exercise 1: the gradient of the expected reward with respect to three logits."""
    check_numbers(
        answer,
        (0.2, -0.18, -0.02),
        "each logit moves by π (r − J): the exact gradient has the mean reward as its baseline",
        {
            (0.5, 0.0, 0.1): "that is π r. The score of a logit is e_y − π: the others push back",
            (0.4, -0.6, -0.1): "that is r − J, but each answer is met only with its probability",
            (0.25, -0.15, 0.0): "J is the mean under the policy, not the mean of the three rewards",
            (-0.2, 0.18, 0.02): "the sign: this gradient is climbed, not descended",
        },
        "a softmax only moves probability about: do your three numbers sum to 0?",
    )


def check_values(answer: tuple[float, ...] | None) -> None:
    """Exercise 2: V of the start, Q of thinking, A of thinking, A of guessing."""
    check_numbers(
        answer,
        (0.45, 0.75, 0.3, -0.2),
        "under the policy the advantages of a state average to 0, and yours do",
        {
            (0.5, 0.75, 0.25, -0.25): "V is the mean under the policy, which guesses more often",
            (0.45, 0.3, -0.15, -0.3): "Q is what follows *once* the token is written: no factor π",
            (0.45, 0.75, 0.75, 0.25): "those are Q values: an advantage is measured from V",
            (0.45, 0.75, 0.3, 0.2): "the sign of the last: guessing is worse than the average",
        },
        "V is the mean of Q under the policy; A = Q − V, so π-weighted advantages sum to 0",
    )


def check_legal(answer: Set[str] | None) -> None:
    """Exercise 3: which baselines leave the expected gradient as it is."""
    if answer is None:
        not_attempted()
        return
    given = frozenset(str(letter).strip().lower() for letter in answer)
    if wrong := sorted(given & ILLEGAL.keys()):
        not_yet(ILLEGAL[wrong[0]])
    elif given - LEGAL:
        not_yet("the letters go from a to f")
    elif given == LEGAL:
        right("all that is fixed before answer i is drawn, or drawn without it, is free")
    else:
        not_yet("one is missing: what does a number know of answer i if it was made without it?")


def check_squares(answer: tuple[float, ...] | None) -> None:
    """Exercise 4: E[Â²] without a baseline, with the batch mean, with each prompt's own."""
    check_numbers(
        answer,
        (0.5, 0.25, 0.0475),
        "most of what the batch mean leaves says only which prompt an answer belongs to",
        {
            (0.5, 0.25, 0.0475**0.5): "the third is a standard deviation; the mean square is asked",
            (0.5, 0.5, 0.0475): "the batch mean is ½ here, so every advantage is +½ or −½",
            (0.25, 0.25, 0.0475): "without a baseline Â = r, and r² = r for rewards of 0 and 1",
            (0.5, 0.25, 0.095): "average the two prompts, do not add them",
        },
        "square Â for a right and for a wrong answer, then weigh by how often each occurs",
        tolerance=1e-4,
    )


def check_token_baseline(answer: Callable[[list[float], list[float]], float | None]) -> None:
    """Exercise 5: the best baseline of one place, on the first token of the four completions."""
    probs, rewards = [0.4, 0.5, 0.1], [0.5, 0.01, 0.0]
    given = answer(list(probs), list(rewards))
    if given is None:
        not_attempted()
        return
    pulls = [1 - 2 * p + sum(q * q for q in probs) for p in probs]
    unweighted = sum(w * r for w, r in zip(pulls, rewards, strict=True)) / sum(pulls)
    total = sum(p * w * r for p, w, r in zip(probs, pulls, rewards, strict=True))
    exact = optimal_baseline(SoftmaxPolicy.from_probs(probs), torch.tensor(rewards).double())
    mean = sum(p * r for p, r in zip(probs, rewards, strict=True))
    if same(given, exact, 1e-6):
        right("rewards weighted by how often a choice is made and how hard it pulls")
    elif same(given, mean, 1e-6):
        not_yet("that is the mean reward: count each choice by its pull as well")
    elif same(given, unweighted, 1e-6):
        not_yet("a choice also counts by how often it is made: π times pull")
    elif same(given, total, 1e-6):
        not_yet("a weighted mean is divided by the sum of its weights")
    else:
        not_yet("set the derivative of E[(r − b)² pull] with respect to b to 0")


def check_lab(
    accuracy: Mapping[tuple[str, float], float] | None,
    best: Mapping[str, float] | None,
    catches_up: bool | None,
) -> None:
    """The lab: accuracies by (rewards, learning rate), the best rate of each, the conclusion.

    Judged is whether the conclusions follow from the numbers that were measured.
    """
    if not accuracy or best is None or catches_up is None:
        not_attempted()
        return
    arms = {rewards for rewards, _ in accuracy}
    rates = {rewards: sorted(lr for arm, lr in accuracy if arm == rewards) for rewards in arms}
    if len(arms) < 2 or min(map(len, rates.values())) < 3:
        not_yet("measure both rewards, each at three learning rates at least")
    elif not all(0 <= a <= 1 for a in accuracy.values()):
        not_yet("an accuracy lies in [0, 1]; is it a mean *reward*, one point up?")
    elif wrong := [arm for arm in arms if best.get(arm) != best_rate(accuracy, arm)]:
        not_yet(f"your own table has another best rate for {sorted(wrong)[0]!r}")
    else:
        scores = {arm: accuracy[arm, best[arm]] for arm in arms}
        conclude(scores, catches_up)


def best_rate(accuracy: Mapping[tuple[str, float], float], rewards: str) -> float:
    """The learning rate at which these rewards end highest."""
    return max((lr for arm, lr in accuracy if arm == rewards), key=lambda lr: accuracy[rewards, lr])


def conclude(scores: Mapping[str, float], catches_up: bool) -> None:
    """Compare the reader's conclusion with the gap between two arms at their best rates."""
    gap = max(scores.values()) - min(scores.values())
    if catches_up == (gap < 0.03):
        right("your conclusion is what your numbers say; how it looks with another seed is open")
    elif catches_up:
        not_yet("compare the two arms each at its *own* best rate: the gap is not small")
    else:
        not_yet("at their best rates your two arms are within three points: is that behind?")
