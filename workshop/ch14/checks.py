"""Chapter 14: a length reward, a token's weight; prices, Kimi, discounts, compute; the lab."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rlbook.objectives import reward_to_go
from rlbook.rewards import TeacherReward
from rlbook.training import RunConfig, Trainer, adamw
from workshop.shared.checks import (
    check_lines,
    check_numbers,
    not_attempted,
    not_yet,
    right,
    same,
    same_weights,
)

GROUPS = (
    ([10, 20, 30], [True, True, False]),
    ([30, 10], [True, False]),
    ([10, 10, 10], [True, False, True]),
    ([12, 40, 26, 19], [False, True, True, False]),
)


Lengths, Verdicts = Sequence[int], Sequence[bool]


def shorter(lengths: Lengths, right: Verdicts, price: float = 0.1) -> list[float]:
    """ShorterBetter's rewards of one prompt's answers."""
    return away_from(goal_of, lengths, right, price)


def goal_of(lengths: Lengths, right: Verdicts) -> float:
    """The shortest right answer's length; the mean where none is right."""
    of_right = [n for n, ok in zip(lengths, right, strict=True) if ok]
    return min(of_right) if of_right else sum(lengths) / len(lengths)


def away_from(
    goal: Callable[[Lengths, Verdicts], float], lengths: Lengths, right: Verdicts, price: float
) -> list[float]:
    aim = goal(lengths, right)
    return [float(ok) - price * abs(n - aim) for n, ok in zip(lengths, right, strict=True)]


def check_shorter(mine: Callable[..., Sequence[float]]) -> bool:
    """Section 2: the length reward that the reader writes."""

    def signed(lengths: Lengths, right: Verdicts, price: float = 0.1) -> list[float]:
        aim = goal_of(lengths, right)
        return [float(ok) - price * (n - aim) for n, ok in zip(lengths, right, strict=True)]

    def only_right(lengths: Lengths, right: Verdicts, price: float = 0.1) -> list[float]:
        return [r if ok else 0.0 for r, ok in zip(shorter(lengths, right), right, strict=True)]

    return check_lines(
        mine,
        shorter,
        {
            "that is a price from the first token: the shortest lie pays better than a long try": (
                lambda n, ok, p=0.1: away_from(lambda *_: 0, n, ok, p)
            ),
            "the goal is the shortest of the *right* answers; a wrong one is no goal": (
                lambda n, ok, p=0.1: away_from(lambda n, _: min(n), n, ok, p)
            ),
            "an answer shorter than the goal is paid for it: take the distance": signed,
            "wrong answers have their price, too": only_right,
            "the goal is the shortest right answer, not their mean": (
                lambda n, ok, p=0.1: away_from(
                    lambda n, ok: sum(m for m, o in zip(n, ok, strict=True) if o)
                    / max(sum(ok), 1)
                    if any(ok)
                    else sum(n) / len(n),
                    n, ok, p,
                )
            ),
            "nothing is charged yet": lambda n, ok, p=0.1: [float(x) for x in ok],
        },
        [([12, 20, 33, 8], [False, True, True, False]), ([10, 20, 60], [False] * 3)],
        "as short as somebody has been and was right, and no shorter",
        "1 if right, less the price times the distance to the goal; without a right answer the "
        "goal is the mean length",
    )  # fmt: skip


SPOKEN = torch.tensor([[-0.2, -2.0, -0.1], [-1.0, -0.5, -9.0]], dtype=torch.float64)
HEARD = torch.tensor([[-0.1, -0.3, -0.1], [-3.0, -0.5, -1.0]], dtype=torch.float64)
WRITTEN = torch.tensor([3 * [True], [True, True, False]])


def check_weight(mine: Callable[[Tensor, Tensor, Tensor], Tensor]) -> bool:
    """Section 5: on-policy distillation's weight of a token."""

    def outcome(function: Callable, teacher: Tensor, student: Tensor, mask: Tensor) -> Tensor:
        of = student.clone().requires_grad_()
        value = function(teacher, of, mask)
        if isinstance(value, Tensor) and value.requires_grad:
            (slope,) = torch.autograd.grad(value.sum(), of)
            return torch.stack([value.detach(), slope])
        return value if not isinstance(value, Tensor) else torch.stack([value, 0 * value])

    def distil(teacher: Tensor, student: Tensor, mask: Tensor) -> Tensor:
        return torch.where(mask, teacher - student, 0.0).detach()

    return check_lines(
        mine,
        distil,
        {
            "the sign: what the teacher finds likelier than the student should rise": (
                lambda teacher, student, mask: -distil(teacher, student, mask)
            ),
            "that is the ratio and never negative, so no token is ever pushed down; take its "
            "logarithm": lambda teacher, student, mask: torch.where(
                mask, (teacher - student).exp(), 0.0
            ).detach(),
            "that is the teacher's opinion alone: what the student says anyway is no news": (
                lambda teacher, student, mask: torch.where(mask, teacher, 0.0)
            ),
            "a gradient flows through the weight: detach it": (
                lambda teacher, student, mask: torch.where(mask, teacher - student, 0.0)
            ),
            "summed to the end of the answer: that is γ = 1, MiniLLM's return": (
                lambda teacher, student, mask: (
                    distil(teacher, student, mask).flip(1).cumsum(1).flip(1)
                )
            ),
            "padding has a weight, too": lambda teacher, student, mask: (
                teacher - student
            ).detach(),
        },
        [(HEARD, SPOKEN, WRITTEN)],
        "a number for every token, and no right answer needed",
        "the teacher's log-probability minus the student's, 0 outside the mask, detached",
        outcome,
    )


def same_as_trainer(
    distil: Callable[..., None], config: RunConfig, teacher: PreTrainedModel
) -> float:
    """The largest difference of a weight after one update and after the package's `Trainer`.

    `distil(model, optimizer, rollouts)` makes it. Raises `ValueError` above a hundredth of what the
    update has changed.
    """
    trainer = Trainer(config, reward=TeacherReward(teacher))
    start, twin, rollouts = deepcopy(trainer.model), deepcopy(trainer.model), trainer.collect()
    distil(twin, adamw(twin, config.optimizer), rollouts)
    trainer.learn(rollouts)
    return same_weights(*(model.parameters() for model in (start, twin, trainer.model)))


def check_price(price: float | None, budget: float | None) -> None:
    """Exercise 1: the highest price at which the long way pays, and L1-Max's point of balance.

    Direct: right .3, 10 tokens. Worked out: right .8, 210 tokens. α = .002, δ = .5.
    """
    if price is None or budget is None:
        not_attempted()
        return
    check_numbers(
        (1000 * price, budget),  # a price in thousandths: the tolerance is absolute
        (2.5, (0.8 * (0.002 * 210 - 0.5) - 0.3 * (0.002 * 10 - 0.5)) / (0.002 * 0.5)),
        "what a token buys is a slope; and L1-Max multiplies, so the better way has more to lose",
        {
            (800 / 210, 80.0): "that is accuracy per token; what does one token *more* buy?",
            (500 / 210, 80.0): "the direct way is not free: it takes ten tokens",
            (2.5, 110.0): "halfway between the lengths? A budget multiplies what is right",
            (2.5, 210.0): "at a budget of 210 the long way earns 0.8 · δ; what does the short?",
        },
        "set p_long·(α(n − 210) + δ) equal to p_short·(α(n − 10) + δ), and solve for n",
    )


def kimi(lengths: Sequence[int], correct: Sequence[bool]) -> list[float]:
    """Kimi's length reward of one group (arXiv:2501.12599, section 2.3.3)."""
    longest, shortest = max(lengths), min(lengths)
    if longest == shortest:
        return [0.0] * len(lengths)
    ranks = [0.5 - (n - shortest) / (longest - shortest) for n in lengths]
    return [rank if ok else min(0.0, rank) for rank, ok in zip(ranks, correct, strict=True)]


def check_kimi(
    length_reward: Callable[[list[int], list[bool]], Sequence[float] | None],
) -> None:
    """Exercise 2: the length part of Kimi k1.5's reward for one group."""
    if length_reward([10, 20], [True, True]) is None:
        not_attempted()
        return
    try:
        length_reward([10, 10], [True, True])
    except ZeroDivisionError:
        not_yet("all answers equally long: what is longest − shortest?")
        return
    for lengths, correct in GROUPS:
        given, wanted = length_reward(list(lengths), list(correct)), kimi(lengths, correct)
        if same(given, wanted):
            continue
        if same(given, kimi(lengths, [True] * len(lengths))):
            not_yet("a wrong answer is never paid for being short")
        elif len(set(lengths)) == 1:
            not_yet("where all answers are equally long nobody earns or loses anything")
        elif same([-x for x in given], wanted):
            not_yet("the sign: the shortest of the group should get the most")
        elif same([x - ok for x, ok in zip(given, correct, strict=True)], wanted):
            not_yet("the length part alone: leave out the 1 for being right")
        else:
            not_yet(f"lengths {lengths}: λ is ½ for the shortest and −½ for the longest")
        return
    right("it compares siblings, so it needs no budget and no unit of length")


def check_advantages(
    token_advantages: Callable[[Tensor, Tensor, float], Tensor | None],
) -> None:
    """Exercise 3: discounted sums of token rewards from each token on."""
    generator = torch.Generator().manual_seed(0)
    rewards = torch.randn(3, 6, generator=generator, dtype=torch.float64)
    mask = torch.tensor([[0, 1, 1, 1, 1, 0], [0, 0, 1, 1, 0, 0], [0, 1, 1, 1, 1, 1]]).bool()
    if token_advantages(rewards, mask, 1.0) is None:
        not_attempted()
        return
    clean = torch.where(mask, rewards, 0.0)
    for gamma in (0.0, 0.5, 1.0):
        given, wanted = (
            token_advantages(rewards.clone(), mask, gamma),
            reward_to_go(clean, mask, gamma),
        )
        if given.shape == mask.shape and torch.allclose(given, wanted):
            continue
        if given.shape != mask.shape:
            not_yet(f"one number per token is asked, {tuple(mask.shape)}, not {tuple(given.shape)}")
        elif torch.allclose(torch.where(mask, given, 0.0), wanted):
            not_yet("right inside the mask; outside it the advantage should be 0")
        elif torch.allclose(given, reward_to_go(rewards, torch.ones_like(mask), gamma) * mask):
            not_yet("what stands outside the mask was added up too")
        elif torch.allclose(torch.where(mask, given, 0.0), past(clean, gamma) * mask):
            not_yet("those are the rewards up to a token; a token answers for what comes after it")
        elif gamma == 0.5 and torch.allclose(given, reward_to_go(clean, mask, 1.0)):
            not_yet("γ = ½ gives the sum of γ = 1: where is the discount?")
        else:
            not_yet(f"γ = {gamma}: A_t = r_t + γ A_(t+1), from the last token to the first")
        return
    right("γ decides how far a token answers for what comes after it")


def past(rewards: Tensor, gamma: float) -> Tensor:
    """Discounted sums up to each token: the wrong way round."""
    columns = rewards.shape[1]
    late = torch.arange(columns)[None, :] - torch.arange(columns)[:, None]
    return rewards @ torch.where(late >= 0, float(gamma) ** late.clamp(min=0), 0.0).to(
        rewards.dtype
    )


def check_compute(factor: float | None, at_par: float | None) -> None:
    """Exercise 4: RL on 1.5 billion parameters against distillation from 32 billion."""
    if factor is None or at_par is None:
        not_attempted()
        return
    student, teacher, answers = 1.5, 32.0, 400_000
    rl, opd = 8 * student, 8 * student + 2 * teacher
    check_numbers(
        (round(factor, 2), round(at_par / 1000)),
        (round(answers * rl / (50_000 * opd), 2), round(answers * rl / opd / 1000)),
        "an eighth of the answers is not an eighth of the bill: the teacher reads every one",
        {
            (8.0, 400.0): "that compares answers; a large teacher reads every one of them",
            (
                round(8 * rl / (rl + 6 * teacher), 2),
                round(answers * rl / (rl + 6 * teacher) / 1000),
            ): "nobody trains the teacher here: it only reads",
        },
        "RL costs 8 N_S a token, distillation 8 N_S + 2 N_T",
        tolerance=0.011,
    )


def check_lab(
    lengths: Mapping[int, float] | None,
    right_share: Mapping[int, float] | None,
    explanation: str | None,
) -> None:
    """The lab: lengths and accuracy by budget, and what early groups differ in."""
    if not lengths or not right_share or explanation is None:
        not_attempted()
        return
    budgets = sorted(lengths)
    if len(budgets) < 3 or set(budgets) != set(right_share):
        not_yet("give a mean length and a share of right answers for each of the three budgets")
    elif not all(0 <= share <= 1 for share in right_share.values()):
        not_yet("a share of right answers lies in [0, 1]")
    elif lengths[budgets[-1]] < lengths[budgets[0]] + 10:
        not_yet("so far no budget is obeyed: more batches, or is the budget in the prompt at all?")
    elif explanation not in ("length", "answer"):
        not_yet('say "length" or "answer"')
    elif explanation == "answer":
        not_yet("how many answers of a group were right in the first batches? What else differs?")
    else:
        right("a reward that differs in every group beats one that is never met")
