"""Chapter 09: two losses, four meanings of one ε, lengths, masks as weights, caps; the lab."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import ceil, log
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from rlbook.exact import SoftmaxPolicy
from rlbook.objectives import Method
from rlbook.policy import load_policy
from rlbook.tasks import SumsTask
from rlbook.training import RunConfig, Trainer
from workshop.ch09.worlds import batches
from workshop.shared.checks import check_lines, check_numbers, not_attempted, not_yet, right

WIDTHS = ("a hundredth", "a tenth", "mine", "ten times")
BEHIND = 0.02  # less than that between two accuracies is a matter of seeds

CAP = 5.0
DETACHED = "no gradient reaches log π: answer_ratio must not detach"
RATIOS = torch.tensor([[0.05, 1, 2, 8, 50, 3], [0.05, 1, 2, 8, 50, 3]], dtype=torch.float64)
PROBE = SimpleNamespace(
    logp_old=torch.full((2, 6), -4.5, dtype=torch.float64),
    advantages=torch.tensor([1.0, -0.5], dtype=torch.float64),
    mask=torch.tensor([5 * [True] + [False]] * 2),
)
MOVED = torch.tensor([[0.1, -0.1, 0.2, 0], [0.5, 0, 0, 0], [0.3, -0.3, 0.1, -0.2]]).double()
SHORT = torch.tensor([3 * [True] + [False], [True, True, False, False], 4 * [True]])


def cispo_loss(logp: Tensor, part: SimpleNamespace, cap: float = CAP) -> Tensor:
    """−min(ρ, cap) · Â · log π with the weight as a constant, the mean over tokens."""
    return weighted(logp, part, ratio_of(logp, part).detach().clamp(max=cap))


def ratio_of(logp: Tensor, part: SimpleNamespace) -> Tensor:
    return (logp - part.logp_old).exp()


def weighted(logp: Tensor, part: SimpleNamespace, weight: Tensor) -> Tensor:
    return (-weight * part.advantages[:, None] * logp)[part.mask].mean()


def gradient(loss: Callable[..., Any], part: SimpleNamespace) -> Tensor:
    """What a loss does to log π of every token, at ratios from 0.05 to 50."""
    logp = (part.logp_old + RATIOS.log()).requires_grad_()
    try:
        value = loss(logp, part)
    except RuntimeError as error:
        if "must match" not in str(error):
            raise
        raise ValueError("an advantage for each row of logp: write advantages[:, None]") from error
    if value is None or value is ...:
        return value
    if not value.requires_grad:
        raise ValueError("no gradient reaches log π: is it detached, too?")
    return torch.autograd.grad(value, logp)[0]


def check_cispo_loss(mine: Callable[..., Tensor]) -> bool:
    """Section 3: CISPO's weight and loss, judged by the gradient."""

    def of(weight: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
        def loss(logp: Tensor, part: SimpleNamespace) -> Tensor:
            return weighted(logp, part, weight(ratio_of(logp, part), part.advantages[:, None]))

        return loss

    def no_log(logp: Tensor, part: SimpleNamespace) -> Tensor:
        capped = ratio_of(logp, part).clamp(max=CAP)
        return (-capped * part.advantages[:, None])[part.mask].mean()

    return check_lines(
        mine,
        cispo_loss,
        {
            "beyond the cap nothing flows any more: that is a mask again. Is log π in your loss, "
            "and is the weight detached?": no_log,
            "the gradient also runs through the weight: detach it": of(
                lambda r, a: r.clamp(max=CAP)
            ),
            "there is a floor: a token that is nearly gone (ρ = 0.05) still weighs 0.8": of(
                lambda r, a: r.detach().clamp(0.8, CAP)
            ),
            "the cap is absolute here, 5 means 5; verl counts from 1": of(
                lambda r, a: r.detach().clamp(max=1 + CAP)
            ),
            "a bad token that grew eightfold is still pushed eightfold: cap for both signs": of(
                lambda r, a: torch.where(a > 0, r.clamp(max=CAP), r).detach()
            ),
            "the sign: what is minimised must fall when a good token becomes likelier": of(
                lambda r, a: -r.detach().clamp(max=CAP)
            ),
            "no token is weighted: where is the ratio?": of(lambda r, a: torch.ones_like(r)),
            "no weight is capped yet": of(lambda r, a: r.detach()),
            "the cap bounds from above: clamp(max=cap), not min": of(
                lambda r, a: r.detach().clamp(min=CAP)
            ),
            "the sign of Â is lost: a wrong answer has to become less likely": of(
                lambda r, a: r.detach().clamp(max=CAP) * a.sign()
            ),
            "the padding is counted: take the mean over part.mask": (
                lambda n, p: cispo_loss(n, p) * p.mask.sum() / p.mask.numel()
            ),
        },
        [(PROBE,)],
        "a weight with a cap, and no token is masked",
        "the ratio, detached, no larger than the cap; then −weight · Â · log π",
        gradient,
    )


def check_answer_ratio(mine: Callable[[Tensor, Tensor, Tensor], Tensor]) -> bool:
    """Section 6: the geometric mean of an answer's ratios."""

    def gap(logp: Tensor, logp_old: Tensor, mask: Tensor) -> Tensor:
        return torch.where(mask, logp - logp_old, 0.0)

    def geometric(logp: Tensor, logp_old: Tensor, mask: Tensor) -> Tensor:
        return (gap(logp, logp_old, mask).sum(1) / mask.sum(1)).exp()

    return check_lines(
        mine,
        geometric,
        {
            "that is the ratio of the whole answer; divide by its length before exp": (
                lambda logp, old, mask: gap(logp, old, mask).sum(1).exp()
            ),
            "that is the mean of the ratios; s averages their logarithms": (
                lambda logp, old, mask: (
                    torch.where(mask, (logp - old).exp(), 0.0).sum(1) / mask.sum(1)
                )
            ),
            "padding is counted: divide by the tokens of the answer, not by the width": (
                lambda logp, old, mask: gap(logp, old, mask).mean(1).exp()
            ),
            "that is log s; the ratio is its exponential": (
                lambda logp, old, mask: gap(logp, old, mask).sum(1) / mask.sum(1)
            ),
            "one number for each token; GSPO has one for the answer": (
                lambda logp, old, mask: gap(logp, old, mask).exp()
            ),
            "divide by the number of tokens, not by its root": (
                lambda logp, old, mask: (gap(logp, old, mask).sum(1) / mask.sum(1) ** 0.5).exp()
            ),
            DETACHED: lambda logp, old, mask: geometric(logp, old, mask).detach(),
        },
        [(MOVED - 1, torch.full_like(MOVED, -1), SHORT)],
        "one ratio for an answer, whatever its length",
        "sum the log-ratios of an answer, divide by its tokens, and take the exponential",
        with_gradient,
    )


def with_gradient(
    ratio: Callable[[Tensor, Tensor, Tensor], Tensor], logp: Tensor, *given: Tensor
) -> Tensor:
    """What a ratio is, and below it how its sum depends on log π: the loss trains with both."""
    logp = logp.clone().requires_grad_()
    s = ratio(logp, *given)
    if not isinstance(s, Tensor):
        return s
    slope = torch.autograd.grad(s.sum(), logp)[0] if s.requires_grad else torch.zeros_like(logp)
    return torch.cat([s.detach().flatten(), slope.flatten()])


def same_as_trainer(train: Callable[..., Iterator], method: Method, loss: Callable) -> float:
    """Largest difference in any weight after 16 updates of `train` and of `Trainer`.

    Prints it; raises `ValueError` above 1e-4.
    """
    policy = load_policy("tiny")
    list(train(policy, batches(policy, SumsTask(), estimate=method.new_advantage()), loss, 8))
    trainer = Trainer(RunConfig(method=method, prompts=8, minibatches=8, steps=2, lr=1e-4))
    list(trainer)
    pairs = zip(policy[0].parameters(), trainer.model.parameters(), strict=True)
    apart = max((mine - its).abs().max().item() for mine, its in pairs)
    if apart > 1e-4:
        raise ValueError(f"a weight differs from Trainer's by {apart:.1e}: is it the same loss?")
    print(f"your loop and the package, 16 updates: parameters differ by at most {apart:.1e}")
    return apart


def check_verl_setting(answer: Sequence[float] | None) -> None:
    """Exercise 1: `(clip_ratio_low, clip_ratio_high)` of a cap of 5 without a floor."""
    check_numbers(
        answer,
        (1.0, 4.0),
        "verl counts both bounds from 1, TRL's cap is the cap",
        {
            (1.0, 5.0): "the cap is one too high: verl counts from 1",
            (0.2, 4.0): "the cap is right, but there is a floor under the weight",
            (0.2, 5.0): "a floor is left, and the cap is one too high: verl counts from 1",
            (0.0, 4.0): "with clip_ratio_low = 0 no weight could fall below 1",
            (0.0, 5.0): "both are counted from 1: what is the range of the weight with yours?",
        },
        "the range is from 1 − clip_ratio_low to 1 + clip_ratio_high; which one do you want?",
    )


def check_lengths(answer: Sequence[float] | None) -> None:
    """Exercise 2: shortest answers that one tripled token leaves inside a window."""
    widths = (4e-4, 5e-3)
    bounds = [log(3) / log(1 + eps) for eps in widths]
    check_numbers(
        answer,
        [ceil(n) for n in bounds],
        "below these lengths a single token masks all the others of its answer",
        {
            tuple(2 / eps for eps in widths): "s averages logarithms, not the ratios themselves",
            tuple(int(n) for n in bounds): (
                "still just outside: is the edge of log s ε or ln(1 + ε), and did you round up?"
            ),
            tuple(bounds): "whole tokens are asked",
        },
        "what is log s of an answer with one token that moved, and where is the edge?",
        tolerance=0.4,
    )


def check_ppo_weight(answer: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Exercise 3: `ppo_weight(ratio, advantages)`, PPO's clip as a weight on A ∇log π."""
    ratio, sign = torch.tensor([0.5, 0.9, 1.1, 1.5]), torch.ones(4)
    up, down = answer(ratio, sign), answer(ratio, -sign)
    if up is None or down is None:
        not_attempted()
    elif torch.allclose(up, down):
        not_yet("PPO's mask depends on the sign of Â")
    elif up[3] or down[0]:
        not_yet("a good token above the window, or a bad one below it, still has a gradient")
    elif not up[0] or not down[3]:
        not_yet("a token on its way back to the window keeps its gradient")
    elif torch.allclose(up[:3], torch.ones(3)):
        not_yet("where the token is kept, what is the derivative of ρ A with respect to log π?")
    elif torch.allclose(up[:3], ratio[:3]) and torch.allclose(down[1:], ratio[1:]):
        right("a mask is a weight too, and PPO and CISPO differ in nothing else")
    else:
        not_yet("inside the window and on the way back the weight is that of the plain ratio")


def check_cap_bias(answer: Callable[..., Tensor]) -> None:
    """Exercise 4: `cap_bias(old, new, A, cap)`, the bias of a capped weight, for two policies."""
    draw = torch.Generator().manual_seed(1)
    old = SoftmaxPolicy(1.5 * torch.randn(20, generator=draw, dtype=torch.float64))
    rewards = torch.rand(20, generator=draw, dtype=torch.float64)
    advantages = rewards - old.expected_reward(rewards)
    new = old.moved(4 * advantages / advantages.norm())
    given = answer(old, new, advantages, 1.2)
    if given is None:
        not_attempted()
        return
    ratio = new.probs / old.probs
    capped = (old.probs * ratio.clamp(max=1.2) * advantages) @ new.scores
    bias = capped - new.true_gradient(rewards)
    masked = -(old.probs * ratio * (ratio > 1.2) * advantages) @ new.scores
    if torch.allclose(given, bias):
        right("what is missing is the probability beyond c times π_old, and no other")
    elif torch.allclose(given, -bias):
        not_yet("the sign: is a capped token pushed too little or too much?")
    elif torch.allclose(given, masked):
        not_yet("that drops the tokens beyond the cap, as a mask would; a cap keeps a part of each")
    else:
        not_yet("below the cap everything cancels; what is left over of a token beyond it?")


def check_window(measured: Sequence[float] | None) -> None:
    """Lab, part 1: (scatter of log s, window for it, window for answers of 3,000 tokens)."""
    if not measured:
        not_attempted()
        return
    if len(measured) != 3 or min(measured) <= 0:
        not_yet("give three lengths above 0: the scatter, your window, the one for 3,000 tokens")
        return
    scatter, window, longer = measured
    if window < scatter / 3:
        not_yet("most answers leave that window by chance, whatever they deserve")
    elif window > 3 * scatter:
        not_yet("hardly an answer ever reaches the edge of that window")
    elif longer > window / 3:
        not_yet("a mean over a hundred times as many tokens scatters less: by how much?")
    elif longer < window / 30:
        not_yet("a mean over n tokens shrinks more slowly than with n")
    else:
        right("a window is a length in units of the scatter of what it bounds")


def check_widths(accuracy: Mapping[str, float]) -> None:
    """Lab, part 2: mean accuracy of runs with the chosen window, two narrower and a wider one."""
    if not accuracy:
        not_attempted()
        return
    if missing := [name for name in WIDTHS if name not in accuracy]:
        not_yet(f"no accuracy for {', '.join(missing)}")
    elif accuracy["mine"] < accuracy["a hundredth"] - BEHIND:
        not_yet("the narrowest window is ahead of yours: are the two exchanged?")
    elif accuracy["mine"] < accuracy["a hundredth"] + BEHIND:
        not_yet("the narrowest keeps up: is it of a hundredth, at sixteen updates a batch?")
    elif accuracy["mine"] < max(accuracy["a tenth"], accuracy["ten times"]) - 2 * BEHIND:
        not_yet("another width is far ahead: yours still stops answers that should go on")
    else:
        right("a window may miss the scatter by much; far below it stops half of every batch")
