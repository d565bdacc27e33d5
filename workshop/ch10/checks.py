"""Chapter 10: votes, the order of a group, any T from N samples, how effort is divided; the lab."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.optim import AdamW

from rlbook.objectives import group_normalize, max_rl
from rlbook.objectives.groups import group_mean, group_size, group_sum
from rlbook.policy import Sampler, load_policy
from rlbook.training import RunConfig, Trainer
from workshop.shared.checks import check_lines, not_attempted, not_yet, right, same, same_weights
from workshop.shared.worlds.strategy_mixture import (
    StrategyMixture,
    easy_and_hard,
    estimator_weight,
    likelihood_weight,
)

SHARES = (1 / 2, 2 / 3, 3 / 4, 5 / 6)
# Solve rates of the base of section 1 on short and on long sums, and how often it opens so.
OPENINGS = ((0.10, 0.06), (0.61, 0.0), (0.50, 0.0), (0.33, 0.0))
AT_FIRST = (0.36, 0.05, 0.15, 0.44)
TOLERANCE = 0.2  # rates are measured, and 0.06 of them decide

FEW_RIGHT = torch.tensor([1.0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1], dtype=torch.float64)
FOUR_GROUPS = torch.arange(16) // 4


def check_my_votes(mine: Callable[[Tensor, Tensor], Tensor]) -> bool:
    """Section 4: MaxRL's advantages, as the reader writes them."""

    def over(divisor: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
        def advantage(r: Tensor, g: Tensor) -> Tensor:
            rate = group_mean(r, g)
            return torch.where(rate > 0, (r - rate) / divisor(r, g).clamp(min=1e-9), 0.0)

        return advantage

    def siblings(r: Tensor, g: Tensor) -> Tensor:
        return (group_sum(r, g) - r) / (group_size(g) - 1)

    return check_lines(
        mine,
        max_rl,
        {
            "0/0: a group without a success has no rate to divide by; it teaches nothing, so 0": (
                lambda r, g: (r - group_mean(r, g)) / group_mean(r, g)
            ),
            "the group without a success gets −1 each: that is the paper's Equation 10; Algorithm "
            "1, the one that is run, gives 0": lambda r, g: (
                torch.where(group_mean(r, g) > 0, r / group_mean(r, g).clamp(min=1e-9), 0.0) - 1
            ),
            "that praises every right answer and blames nobody: subtract its mean, which is 1": (
                lambda r, g: max_rl(r, g, "equation_9")
            ),
            "by σ: that is GRPO, where a lone success of four gets 1.5 and not 3": group_normalize,
            "by the batch's rate, one number for all prompts: that is a learning rate, no vote": (
                over(lambda r, g: r.mean().expand_as(r))
            ),
            "the siblings' rate of a lone success is 0; the answer itself belongs into r̂": over(
                siblings
            ),
            "nothing is divided yet: a prompt still counts in proportion to its rate": (
                lambda r, g: r - group_mean(r, g)
            ),
            "by the root of the rate: a prompt still counts in proportion to √p": over(
                lambda r, g: group_mean(r, g).sqrt()
            ),
            "1/N is counted twice: the mean over samples comes later": (
                lambda r, g: max_rl(r, g) / group_size(g)
            ),
        },
        [(FEW_RIGHT, FOUR_GROUPS)],
        "one vote for every prompt that was solved at all",
        "the reward minus the group's mean, over that mean; 0 where the mean is 0",
    )


def same_as_trainer(step: Callable[..., None]) -> float:
    """The largest difference of a weight after two steps and after the package's `Trainer`.

    `step(model, words, engine, optimizer, number)` takes one. Raises `ValueError` above a hundredth
    of what the steps have changed.
    """
    model, words = load_policy("tiny")
    start = [weight.detach().clone() for weight in model.parameters()]
    optimizer = AdamW(model.parameters(), 1.5e-4, betas=(0.9, 0.95), weight_decay=0.0)
    for number in range(2):
        step(model, words, Sampler(model, words.eos_token_id), optimizer, number)
    trainer = Trainer(RunConfig(method="maxrl", steps=2))
    list(trainer)
    return same_weights(start, model.parameters(), trainer.model.parameters())


def check_votes(answer: Sequence[tuple[float, float]] | None) -> None:
    """Exercise 1: MaxRL's advantages for 1, 4 and 8 right answers of 8."""
    if answer is None:
        not_attempted()
        return
    given = [tuple(float(x) for x in pair) for pair in answer]
    if len(given) != 3 or any(len(pair) != 2 for pair in given):
        not_yet("three pairs are asked, a right and a wrong answer's advantage for each prompt")
    elif given == [(7, -1), (1, -1), (0, 0)]:
        right("the rarer the success, the louder; a wrong answer never gets less than −1")
    elif given[0][0] == 8:
        not_yet("(r − r̂)/r̂ is r/r̂ − 1: the −1 is missing")
    elif same(given[0], (7 / 8, -1 / 8)):
        not_yet("that is r − r̂, before it is divided")
    elif given[2][0] != 0 or given[2][1] != 0:
        not_yet("all eight right: how far is a right answer from the mean, and who is wrong?")
    elif given[0][1] != -1 or given[1][1] != -1:
        not_yet("what does a reward of 0 give in (r − r̂)/r̂?")
    else:
        not_yet("the solve rates of the three groups are an eighth, a half and one")


def check_smallest_group(answer: int | None, p: float = 0.02, q: float = 0.5) -> None:
    """Exercise 2: the smallest N for which a 2 % prompt weighs ten times a 50 % one."""
    if answer is None:
        not_attempted()
        return
    pair = torch.tensor([p, q], dtype=torch.float64)
    weights = {T: likelihood_weight(pair, T).tolist() for T in range(1, 99)}
    order = min(T for T, (rare, even) in weights.items() if rare >= 10 * even)
    if answer == order + 1:
        right("and Algorithm 1 pays one sample for its baseline")
    elif answer == order:
        not_yet("that is T. Which T does Algorithm 1 reach with N samples?")
    elif answer == 10:
        not_yet("w_T(p) stays below T, but w_T(0.5) is not 1")
    elif answer > order + 1:
        not_yet("enough, but not the smallest")
    else:
        not_yet("compare w_T(0.02) with ten times w_T(0.5) for growing T")


def check_order(estimator: Callable[..., Tensor | None], n: int = 8) -> None:
    """Exercise 3: an advantage for one group whose expected gradient is that of J_T."""
    if estimator(torch.tensor([1.0, 0.0]).double(), torch.zeros(2).long(), 1) is None:
        not_attempted()
        return
    p = torch.tensor([0.01, 0.1, 0.5, 0.95], dtype=torch.float64)
    for order in (1, 3, n - 1):
        weight = estimator_weight(partial(estimator, order=order), n)(p)
        shorter = likelihood_weight(p, order - 1) if order > 1 else torch.zeros_like(p)
        close = partial(torch.allclose, rtol=1e-4, atol=1e-5)
        if close(weight, likelihood_weight(p, order)):
            continue
        if close(weight, likelihood_weight(p, order + 1)):
            not_yet(f"T = {order}: one term too many; at which k does the sum begin?")
        elif close(weight, shorter):
            not_yet(f"T = {order}: one term is missing; the first is k = 0")
        elif order > 1 and close(weight, order * (1 - p) ** (order - 1)):
            not_yet(f"T = {order}: that is pass@{order} alone, PKPO; J_T adds up all up to T")
        else:
            not_yet(f"T = {order} fails: does f count sample i itself? do wrong answers get 0?")
        return
    right("T = 1 is REINFORCE without a baseline, and T = N would be Equation 9")


def check_share(best_share: Callable[[int], float | None]) -> None:
    """Exercise 4: the share of the careful way that maximises the mean of log p."""
    if best_share(2) is None:
        not_attempted()
        return
    base = torch.tensor([0.5, 0.5], dtype=torch.float64)
    for hard in (1, 2, 4):
        given = best_share(hard)
        found = easy_and_hard(hard).ascend(likelihood_weight, base, steps=1500)[-1, 1].item()
        if abs(given - found) <= 0.01:
            continue
        if same(given, hard / 16):
            not_yet("so it would be if easy prompts lost all of p with c; how much do they lose?")
        elif same(given, 0.95 / 0.35 * hard / (16 + hard)):
            not_yet("how many easy prompts are there beside h hard ones?")
        else:
            not_yet(f"h = {hard}: gradient ascent ends elsewhere; set the derivative in c to 0")
        return
    if best_share(8) > 1:
        not_yet("right up to h = 5; what can a share not exceed?")
    else:
        right("likelihood divides its effort by the number of prompts, not by how hard they are")


def elected(share: float, n: int) -> float:
    """Share of guesses that MaxRL elects in the world of section 1, by exact gradient steps."""
    rates, long = torch.tensor(OPENINGS, dtype=torch.float64), round(12 * share)
    columns = [rates[:, :1].expand(-1, 12 - long), rates[:, 1:].expand(-1, long)]
    world = StrategyMixture(torch.cat(columns, dim=1))
    return world.ascend(estimator_weight(max_rl, n), torch.tensor(AT_FIRST), 3000)[-1, 0].item()


def check_lab(
    predicted: Mapping[float, float] | None,
    measured: Mapping[float, float] | None,
    keeps_from: float | None,
) -> None:
    """The lab: guesses elected by share of long sums, predicted and measured, and the turn.

    Judged is the prediction, and whether the conclusion follows from it.
    """
    if not predicted or not measured or keeps_from is None:
        not_attempted()
        return
    given = {nearest(share): guesses for share, guesses in predicted.items()}
    if set(given) != set(SHARES):
        not_yet("predict all four shares: 1/2, 2/3, 3/4 and 5/6")
        return
    off = differing(given, n=8)
    if off and not differing(given, n=16):
        not_yet("those are the guesses of groups of sixteen; here N = 8")
    elif off:
        not_yet(f"at {off[0]:.2f} the exact ascent ends elsewhere: are the columns in proportion?")
    elif len(measured) < 2:
        not_yet("run the transformer at two of the shares at least")
    elif not all(0 <= guesses <= 1 for guesses in measured.values()):
        not_yet("a share of guesses lies in [0, 1]")
    elif nearest(keeps_from) != min((s for s in SHARES if given[s] >= 0.25), default=None):
        not_yet("by your own prediction a quarter is first reached at another share")
    else:
        right("the price of giving up is 1 + ½ + … + 1/T a prompt, and T went from 15 to 7")


def differing(predicted: Mapping[float, float], n: int) -> list[float]:
    """Shares of long sums at which a prediction is not what groups of n elect."""
    return [s for s in SHARES if abs(predicted[s] - elected(s, n)) > TOLERANCE]


def nearest(share: float) -> float:
    """The one of `SHARES` that is meant."""
    return min(SHARES, key=lambda one: abs(one - share))
