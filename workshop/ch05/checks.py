"""Chapter 05: an advantage in two lines; silent groups, wrong groups, other divisors; the lab."""

from collections.abc import Callable, Mapping
from copy import deepcopy

import torch
from torch import Tensor
from torch.optim import AdamW

from rlbook.exact import FOUR
from rlbook.objectives import group_center, group_normalize
from rlbook.objectives.groups import group_mean, group_size, group_sum, has_spread
from rlbook.policy import load_policy, logprobs
from rlbook.training import RunConfig, Trainer, collate, derive_seed
from workshop.shared.checks import (
    check_lines,
    check_numbers,
    not_attempted,
    not_yet,
    numbers,
    right,
    same,
)
from workshop.shared.worlds.strategy_mixture import estimator_weight

Estimator = Callable[[Tensor, Tensor], Tensor]
LARGE = 512  # a group in which the observed solve rate is nearly the true one
FEW = torch.tensor([0.1, 0.3, 0.6], dtype=torch.float64)
GRADED = torch.tensor([1.0, 0, 0, 3, 1, 0, 7, 7, 0, 7, 0, 0], dtype=torch.float64)
SHUFFLED = torch.tensor([0, 1, 0, 2, 1, 0, 2, 1, 0, 2, 1, 2])


def spread(rewards: Tensor, groups: Tensor, degrees: Tensor | None = None) -> Tensor:
    """Standard deviation of each answer's group, with n − 1 unless `degrees` says otherwise."""
    squares = group_sum((rewards - group_mean(rewards, groups)) ** 2, groups)
    return (squares / (group_size(groups) - 1 if degrees is None else degrees)).sqrt()


def over(centred: Tensor, sigma: Tensor, rewards: Tensor, groups: Tensor) -> Tensor:
    """The line that is written for the reader."""
    return torch.where(has_spread(rewards, groups), centred / (sigma + 1e-6), 0.0)


def siblings_advantage(rewards: Tensor, groups: Tensor) -> Tensor:
    """Reward minus the group's mean, in units of the group's σ, (N,)."""
    centred = rewards - group_mean(rewards, groups)
    return over(centred, spread(rewards, groups), rewards, groups)


def check_siblings_advantage(mine: Estimator) -> bool:
    """Section 3: mean and spread of a group, as the reader writes them."""

    def rows_of_four(r: Tensor, g: Tensor) -> Tensor:
        table = r.reshape(-1, 4)
        centred = (table - table.mean(1, keepdim=True)).flatten()
        sigma = table.std(1, keepdim=True).expand(-1, 4).flatten()
        return over(centred, sigma, r, g)

    return check_lines(
        mine,
        siblings_advantage,
        {
            "that is the mean of the whole batch: then an average answer to an easy prompt looks "
            "good. Compare with the siblings only": lambda r, g: over(
                r - r.mean(), spread(r, g), r, g
            ),
            "you took four rows in a row for a group; `groups` says who is whose sibling, in any "
            "order": rows_of_four,
            "all your numbers are √(G/(G − 1)) too long: G − 1 stands below the line": (
                lambda r, g: over(r - group_mean(r, g), spread(r, g, group_size(g)), r, g)
            ),
            "that is the variance; take its root, or ten times the points give a tenth of the "
            "advantage": lambda r, g: over(r - group_mean(r, g), spread(r, g) ** 2, r, g),
            "square what is left after the mean, not the rewards": lambda r, g: over(
                r - group_mean(r, g), (group_sum(r**2, g) / (group_size(g) - 1)).sqrt(), r, g
            ),
            "that is the spread of the whole batch; each group has its own": lambda r, g: over(
                r - group_mean(r, g), r.std(), r, g
            ),
            "the answer itself belongs into its group's mean; without it that is leave-one-out, "
            "chapter 06": lambda r, g: over(
                group_size(g) / (group_size(g) - 1) * (r - group_mean(r, g)), spread(r, g), r, g
            ),
            "square each deviation before you add: the deviations themselves add up to 0": (
                lambda r, g: over(
                    r - group_mean(r, g),
                    (group_sum(r - group_mean(r, g), g) ** 2 / (group_size(g) - 1)).sqrt(),
                    r,
                    g,
                )
            ),
            "the squares are added and never divided by G − 1": lambda r, g: over(
                r - group_mean(r, g), spread(r, g, torch.ones_like(r)), r, g
            ),
            "you divide by the size of the batch; each group has its own G − 1": lambda r, g: over(
                r - group_mean(r, g), spread(r, g, torch.full_like(r, len(r) - 1)), r, g
            ),
            "that is the spread of what is left in the whole batch; each group has its own": (
                lambda r, g: over(r - group_mean(r, g), (r - group_mean(r, g)).std(), r, g)
            ),
            "that is the group's sum, not its mean": lambda r, g: over(
                r - group_sum(r, g), spread(r, g), r, g
            ),
            "nothing is divided by σ yet": lambda r, g: r - group_mean(r, g),
            "the sign: the best answer is above its siblings": (
                lambda r, g: -siblings_advantage(r, g)
            ),
        },
        [(FOUR.rewards, FOUR.groups), (GRADED, SHUFFLED)],
        "each answer against its own siblings, in their own unit",
        "subtract the group's mean; then σ is the root of the summed squares over G − 1",
    )


def same_as_trainer(step: Callable[..., None]) -> float:
    """The largest difference of a log-probability after `step` and after the package's `Trainer`.

    Both take one step of GRPO on the first batch. Raises `ValueError` above a hundredth of what
    the step itself has changed.
    """
    trainer = Trainer(RunConfig(method="grpo"))
    rollouts = trainer.collect()
    model, _ = load_policy("tiny")
    optimizer = AdamW(model.parameters(), 1.5e-4, betas=(0.9, 0.95), weight_decay=0.0)
    shuffle = derive_seed(0, 0, "shuffle", 0)
    step(model, deepcopy(model), optimizer, collate(rollouts), seed=shuffle)
    trainer.learn(rollouts)
    batch = trainer.learner.prepare(rollouts)
    before, mine, package = (
        logprobs(each, batch.ids, batch.mask).detach()
        for each in (load_policy("tiny")[0], model, trainer.model)
    )
    apart, moved = ((x - package).abs().max().item() for x in (mine, before))
    print(f"log-probs moved by up to {moved:.2f}; the step and Trainer are {apart:.0e} apart")
    if apart >= 0.01 * moved:
        raise ValueError("the step is not the package's")
    return apart


def check_one_of_eight(answer: tuple[float, float] | None) -> None:
    """Exercise 1: advantages of the right answer and of a wrong one, ddof = 1."""
    rewards = torch.zeros(8, dtype=torch.float64)
    rewards[0] = 1
    group = torch.zeros(8, dtype=torch.long)
    exact = group_normalize(rewards, group)[:2].tolist()
    population = group_normalize(rewards, group, ddof=0)[:2].tolist()
    check_numbers(
        answer,
        exact,
        "a lone success gets (G − 1)/√G: the larger the group, the harder it is pushed",
        {
            tuple(population): "that is ddof = 0: the squares are divided by G − 1",
            (0.875, -0.125): "the mean is subtracted; now divide by σ",
            (1.0, -1 / 7): "that is leave-one-out, chapter 06; here the answer is in its own mean",
            (exact[1], exact[0]): "the right answer first",
        },
        "three steps: the mean, the sum of the squared deviations over G − 1, its root",
        tolerance=0.01,
    )


def check_siblings(answer: float | None) -> None:
    """Exercise 2: the smallest G at which half of the groups of a prompt with p = 0.01 speak."""
    smallest = next(G for G in range(1, 1000) if 0.99**G + 0.01**G <= 0.5)
    check_numbers(
        answer,
        smallest,
        "hard prompts want groups of DeepSeekMath's size",
        {
            50: "50 · 0.01 = ½ counts expected right answers, not groups with at least one",
            100: "with G = 100 one right answer is *expected*; most groups have it by then",
            smallest - 1: "just short: put it into p^G + (1−p)^G",
            smallest + 1: "one fewer is enough",
        },
        "when is p^G + (1−p)^G at most ½? One of the two terms hardly counts",
        tolerance=0.0,
    )


def check_breaking(suspect: Estimator, batch: tuple[Tensor, Tensor] | None) -> None:
    """Exercise 3: `(rewards, groups)` on which an estimator that takes rows for groups is wrong."""
    if batch is None:
        not_attempted()
        return
    rewards, groups = torch.as_tensor(batch[0]).double(), torch.as_tensor(batch[1]).long()
    if rewards.shape != groups.shape or rewards.ndim != 1:
        not_yet("two rows of numbers of one length: rewards, and the prompt of each")
    elif set(groups.unique(return_counts=True)[1].tolist()) != {4}:
        not_yet("four answers to each prompt; with other sizes it need not be right")
    elif not rewards.isfinite().all():
        not_yet("rewards that are not finite break everything; find a harmless batch")
    elif (suspect(rewards, groups) - group_normalize(rewards, groups)).abs().max() < 1e-3:
        not_yet("here it is right. What does it take for granted about the order of the answers?")
    else:
        right("rows were the groups only as long as nobody had shuffled, which minibatches do")


def check_divisor(
    divisor: Callable[[Tensor], Tensor] | None, objective: Callable[[Tensor], Tensor]
) -> None:
    """Exercise 4: the divisor with which large groups climb an objective of the solve rate."""
    if divisor is None:
        not_attempted()
        return
    p = FEW.clone().requires_grad_()
    (slope,) = torch.autograd.grad(objective(p).sum(), p)

    def advantage(rewards: Tensor, groups: Tensor) -> Tensor:
        rate = group_mean(rewards, groups).clamp(1e-3, 1 - 1e-3)
        return group_center(rewards, groups) / divisor(rate)

    if torch.allclose(estimator_weight(advantage, LARGE)(FEW), slope, rtol=0.03):
        right("the weight is one over the divisor, and its integral is what is climbed")
    elif torch.allclose(divisor(FEW).double(), slope, rtol=1e-3):
        not_yet("that is the slope of the objective; does the divisor go up or down with it?")
    else:
        not_yet("in a large group w(p) is 1 / divisor(p); which w has this objective's slope?")


def check_thousandth(answer: tuple[float, float] | None) -> None:
    """Lab, part 1: the advantage of the short answer, with σ and without."""
    rewards = 0.001 * torch.tensor([32.0, 32, 32, 26], dtype=torch.float64)
    group = torch.zeros(4, dtype=torch.long)
    divided, centred = (f(rewards, group)[3].item() for f in (group_normalize, group_center))
    population = group_normalize(rewards, group, ddof=0)[3].item()
    coarse = answer is not None and same(answer, (divided, centred), 0.01)
    if coarse and not same(numbers(answer)[1], centred, 4e-4):
        not_yet("the second number is small; give it to four decimals")
        return
    check_numbers(
        answer,
        (divided, centred),
        "the same quarrel, three hundred times as loud",
        {
            (-divided, -centred): "the sign: the short answer earns less than its siblings",
            (population, centred): "that is ddof = 0",
            (centred, divided): "with σ first",
            (-divided / 3, -centred / 3): "that is the advantage of one of the long answers",
        },
        "nobody is right, so only 0.001 a token is left; mean, deviations, σ",
        tolerance=0.01,
    )


def check_forecast(
    forecast: Mapping[str, str | None], runs: Mapping[str, tuple[float, float]]
) -> None:
    """Lab, part 2: "rises" or "falls" for the right rule of `square` in each run, then judged.

    `runs` holds the probability before and after, by the same names.
    """
    if any(forecast.get(name) is None for name in runs):
        not_attempted()
        return
    for name, (before, after) in runs.items():
        happened = "rises" if after > before else "falls"
        said = str(forecast[name]).strip().lower()
        if said not in ("rises", "falls"):
            not_yet(f'{name}: say "rises" or "falls"')
        elif said == happened:
            right(f"{name}: {before:.4f} before, {after:.4f} after")
        else:
            not_yet(
                f"{name}: {before:.4f} before, {after:.4f} after. In nearly every group nobody is "
                "right; what is left to tell its answers apart, and how loud is it?"
            )
