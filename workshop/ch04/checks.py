"""Chapter 04: two lines of loss, margins, the leash, best-of-n, the weight in DPO; the lab."""

from collections.abc import Callable, Mapping, Sequence
from math import exp, log
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from rlbook.exact import FOUR
from rlbook.rewards import dpo_loss
from workshop.ch04.best_of_n import best_of_n_kl
from workshop.shared.checks import check_lines, check_numbers, not_attempted, not_yet, right, same

NATS = 3.0
ENDINGS = ("turns later", "turns as early", "does not turn")
SAYS = {  # one pair of runs each, so what it says of these two
    "turns later": "what was chance in its members' errors is gone; look at what they still share",
    "turns as early": "it errs where its members err together, and they share a trunk and the data",
    "does not turn": "no error that its members share was found in these steps: look at families",
}
FALL, LATER, NEAR = 0.1, 5, 2  # of a share; steps that are later, steps that are no difference

CHOSEN = torch.tensor([2.0, -1.0, 0.5, 3.0])
REJECTED = torch.tensor([0.0, 1.0, 0.5, -2.5])
FAR = torch.tensor([-150.0, 4.0]), torch.tensor([50.0, 1.0])
LIKED = torch.tensor([2.0, 0.0, 3.0, 0.0], dtype=torch.float64)
NOISE = torch.where(FOUR.mask, 0.0, -9.0).double()  # what stands where no token is


def preference_loss(chosen: Tensor, rejected: Tensor) -> Tensor:
    """Bradley and Terry: −log σ of the margin, the mean over pairs."""
    return -logsigmoid(chosen - rejected).mean()


def check_preference_loss(mine: Callable[[Tensor, Tensor], Tensor]) -> bool:
    """Section 2: the loss of a reward model, as the reader writes it."""
    return check_lines(
        mine,
        preference_loss,
        {
            "the wrong way round: the loss must fall as the chosen answer scores higher": (
                lambda chosen, rejected: -logsigmoid(rejected - chosen).mean()
            ),
            "σ is the probability of the choice; a likelihood is made large through its log": (
                lambda chosen, rejected: -(chosen - rejected).sigmoid().mean()
            ),
            "the sign: a likelihood is maximised, and a loss is minimised": (
                lambda chosen, rejected: logsigmoid(chosen - rejected).mean()
            ),
            "that grows with the number of pairs: take the mean": (
                lambda chosen, rejected: -logsigmoid(chosen - rejected).sum()
            ),
            "at a margin of −200 that is infinite: σ has become 0. `logsigmoid` has not": (
                lambda chosen, rejected: -(chosen - rejected).sigmoid().log().mean()
            ),
            "that is the margin itself; it has no end, and a sure pair would pull as an open one": (
                lambda chosen, rejected: (rejected - chosen).mean()
            ),
            "one number for all pairs: take the mean": lambda chosen, rejected: (
                -logsigmoid(chosen - rejected)
            ),
        },
        [(CHOSEN, REJECTED), FAR],
        "only the difference of the two scores enters",
        "the margin is chosen − rejected; the loss is −log σ(margin), the mean over pairs",
    )


def last_token(mask: Tensor) -> tuple[Tensor, Tensor]:
    """The line that is written for the reader: row and column of each answer's last token."""
    return torch.arange(len(mask)), mask.cumsum(1).argmax(1)


def priced(scores: Tensor, logp: Tensor, logp_ref: Tensor, mask: Tensor, beta: float) -> Tensor:
    """What every token earns (N, T): minus β of its log-ratio, and at the end the score."""
    rewards = -beta * (logp - logp_ref) * mask
    rewards[last_token(mask)] += scores
    return rewards


def check_priced(mine: Callable[..., Tensor]) -> bool:
    """Section 5: the price of distance and the place of the score."""

    def at_end(scores: Tensor, rewards: Tensor, mask: Tensor) -> Tensor:
        rewards = rewards.clone()
        rewards[last_token(mask)] += scores
        return rewards

    def last_column(score: Tensor, logp: Tensor, ref: Tensor, mask: Tensor, beta: float) -> Tensor:
        rewards = -beta * (logp - ref) * mask
        rewards[:, -1] += score
        return rewards

    def replaced(score: Tensor, logp: Tensor, ref: Tensor, mask: Tensor, beta: float) -> Tensor:
        rewards = -beta * (logp - ref) * mask
        rewards[last_token(mask)] = score
        return rewards

    def all_at_end(score: Tensor, logp: Tensor, ref: Tensor, mask: Tensor, beta: float) -> Tensor:
        return at_end(score - beta * ((logp - ref) * mask).sum(1), torch.zeros_like(logp), mask)

    return check_lines(
        mine,
        priced,
        {
            "that pays the policy for going away: distance is a price, so it is subtracted": (
                lambda score, logp, ref, mask, beta: at_end(score, beta * (logp - ref) * mask, mask)
            ),
            "the score stands on every token; it is for the answer, once, at its last token": (
                lambda score, logp, ref, mask, beta: (score[:, None] - beta * (logp - ref)) * mask
            ),
            "the last column is padding in a short answer; `end` is where an answer ends": (
                last_column
            ),
            "at the last token the score has replaced the price: add it": replaced,
            "prompt or padding pays, too: only the answer's own tokens do": (
                lambda score, logp, ref, mask, beta: at_end(score, -beta * (logp - ref), mask)
            ),
            "a nat costs a whole point: where is β?": (
                lambda score, logp, ref, mask, beta: at_end(score, -(logp - ref) * mask, mask)
            ),
            "no token pays yet: that is the reward of section 1": (
                lambda score, logp, ref, mask, beta: at_end(score, torch.zeros_like(logp), mask)
            ),
            "nobody has got a score yet": lambda score, logp, ref, mask, beta: (
                -beta * (logp - ref) * mask
            ),
            "the whole price stands at the end: right in sum, but the critic cannot learn which "
            "token was dear": all_at_end,
            "that is the price of a probability; take the difference of the logs": (
                lambda score, logp, ref, mask, beta: at_end(
                    score, -beta * (logp.exp() - ref.exp()) * mask, mask
                )
            ),
        },
        [(LIKED, FOUR.logp + NOISE, FOUR.logp_old - NOISE, FOUR.mask, beta) for beta in (0.1, 0.5)],
        "each token pays for its own distance, and the answer is judged where it ends",
        "−β (log π − log π_ref) inside the mask, 0 outside; then the score where the answer ends",
    )


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

    Judged is whether the conclusion follows from the reader's own numbers. Where they are on the
    edge of two conclusions, either will do.
    """
    if not measured or ending is None:
        not_attempted()
        return
    if set(measured) != {"one model", "committee"} or min(map(len, measured.values())) < 20:
        not_yet('give "one model" and "committee", the accuracy of 20 steps or more each')
    elif ending not in ENDINGS:
        not_yet(f"say one of: {', '.join(ENDINGS)}")
    elif ending not in (fitting := endings(measured)):
        not_yet(
            f"your own numbers say it {fitting[0]}: compare when the means over five steps fall"
        )
    elif len(fitting) > 1:
        right(f"but these numbers would also bear “{fitting[ending == fitting[0]]}”: too close")
    else:
        right(SAYS[ending])


def seen(measured: Mapping[str, Sequence[float]]) -> str:
    """The likeliest of what two curves say."""
    return endings(measured)[0]


def endings(measured: Mapping[str, Sequence[float]]) -> list[str]:
    """What two curves may be said to show, by means over five steps, the likeliest first.

    A curve turns at the first step that is `FALL` below the best before it; the last is compared
    with the best for whether it has turned at all. `LATER` steps are later, `NEAR` are none;
    between them, and where a fall is within a fifth of `FALL`, both are let pass.
    """
    smooth = {name: means_of_five(values) for name, values in measured.items()}
    fall = max(smooth["committee"]) - smooth["committee"][-1]
    delay = turn(smooth["committee"]) - turn(smooth["one model"])
    when = ["turns later", "turns as early"]
    if delay < LATER:
        when.reverse()
    turned = when if NEAR < delay < LATER else when[:1]
    if fall < 0.8 * FALL:
        return ["does not turn"]
    if fall > 1.2 * FALL:
        return turned
    return ["does not turn", *turned] if fall < FALL else [*turned, "does not turn"]


def turn(values: Sequence[float]) -> int:
    """The first place that is `FALL` below the best before it; the length where there is none."""
    best = values[0]
    for place, value in enumerate(values):
        best = max(best, value)
        if best - value >= FALL:
            return place
    return len(values)


def means_of_five(values: Sequence[float]) -> list[float]:
    """Means over every five neighbours."""
    return [sum(values[i : i + 5]) / 5 for i in range(len(values) - 4)]
