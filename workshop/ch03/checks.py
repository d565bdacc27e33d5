"""Chapter 03: PPO's clip in three lines; the wrong side, clip fraction, GAE, logs; the lab."""

from collections.abc import Callable, Mapping, Set
from dataclasses import replace
from functools import partial
from math import inf
from types import SimpleNamespace
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from rlbook.exact import FOUR
from rlbook.objectives import METHODS, batch_mean_baseline, gae, token_ratio
from rlbook.training import RunConfig, Trainer
from workshop.shared.checks import check_lines, check_numbers, not_attempted, not_yet, right, same

RIGHT_SIDE, WRONG_SIDE = {"A1", "A2", "B2"}, {"C1", "C3", "C4"}
CAUSES = {
    "healthy": "none of the faults",
    "old anew": "log π_old is computed again before every update",
    "temperature": "trained at temperature 0.7, sampled at 1",
    "learning rate": "the learning rate is twenty times too high",
}
LOGS = {"P": "temperature", "Q": "healthy", "R": "learning rate", "S": "old anew"}


Line = Callable[[Tensor, Tensor, float, float], Tensor]


def check_clip_surrogate(surrogate: Callable[..., Any]) -> bool:
    """The chapter's three lines: loss of every token, its gradient, and which tokens keep it."""
    draw = torch.Generator().manual_seed(3)
    ratio = torch.exp(0.5 * torch.randn(6, 12, generator=draw, dtype=torch.float64))
    signs = torch.randn(6, 12, generator=draw, dtype=torch.float64)
    four = token_ratio(FOUR.logp, FOUR.logp_old).where(FOUR.mask, 1.0)
    return check_lines(
        surrogate,
        clip_surrogate_of,
        CLIP_SURROGATE,
        [(four, FOUR.rewards[:, None].expand(4, 8) - 0.5, 0.2, 0.28), (ratio, signs, 0.1, 0.3)],
        "the tokens whose gradient is 0 are exactly those that you do not keep",
        "go through the four rows of the table, by hand, with A2 (good, 1.33), A3 (good, 0.75), "
        "C1 (bad, 1.25) and C2 (bad, 0.5)",
        outcome=loss_gradient_and_mask,
    )


def loss_gradient_and_mask(
    surrogate: Callable[..., Any], ratio: Tensor, advantages: Tensor, low: float, high: float
) -> Tensor:
    """What is judged, (3, N, T): the loss, its gradient with respect to log π, and the mask."""
    logp = ratio.log().requires_grad_()
    loss, keep = surrogate(logp.exp(), advantages, low, high)
    (gradient,) = torch.autograd.grad(loss.sum(), logp)
    return torch.stack([loss.detach(), gradient, torch.as_tensor(keep).double()])


def clip_surrogate_of(
    ratio: Tensor, advantages: Tensor, low: float = 0.2, high: float = 0.2, **wrong: Line
) -> tuple[Tensor, Tensor]:
    """The three lines as they should be, or with some of them `wrong`."""
    window = wrong.get("clipped", lambda r, a, low, high: r.clamp(1 - low, 1 + high))
    clipped = window(ratio, advantages, low, high)
    if "loss" in wrong:
        loss = wrong["loss"](ratio, advantages, low, high)
    else:
        loss = -torch.minimum(ratio * advantages, clipped * advantages)
    keep = wrong.get("keep", kept)(ratio, advantages, low, high)
    return loss, keep


def kept(ratio: Tensor, advantages: Tensor, low: float, high: float) -> Tensor:
    """True for the tokens that still learn."""
    return ~((advantages > 0) & (ratio > 1 + high) | (advantages < 0) & (ratio < 1 - low))


def narrow(ratio: Tensor, advantages: Tensor, low: float, high: float) -> Tensor:
    return clip_surrogate_of(ratio, advantages, low, low)[0]


CLIP_SURROGATE = {
    "second line: for bad tokens that is the larger of the two terms. A negative Â has turned the "
    "inequality round already, so it is the min for both signs; the smaller *ratio* is not the "
    "smaller term": partial(
        clip_surrogate_of,
        loss=lambda r, a, low, high: -torch.minimum(r, r.clamp(1 - low, 1 + high)) * a,
    ),
    "second line: the clipped term alone. A token that has moved the wrong way beyond the window "
    "could never come back; the min lets it": partial(
        clip_surrogate_of, loss=lambda r, a, low, high: -r.clamp(1 - low, 1 + high) * a
    ),
    "second line: PPO maximises the min, and an optimiser minimises": partial(
        clip_surrogate_of,
        loss=lambda r, a, low, high: torch.minimum(r * a, r.clamp(1 - low, 1 + high) * a),
    ),
    "second line: the larger of the two terms. Never believe more gain than the window allows": (
        partial(
            clip_surrogate_of,
            loss=lambda r, a, low, high: -torch.maximum(r * a, r.clamp(1 - low, 1 + high) * a),
        )
    ),
    "second line: there is no clip in it": partial(
        clip_surrogate_of, loss=lambda r, a, low, high: -r * a
    ),
    "first line: a window lies around 1, from 1 − low to 1 + high": partial(
        clip_surrogate_of, clipped=lambda r, a, low, high: r.clamp(low, high)
    ),
    "first line: `high` is not used. A window may be wider upwards": partial(
        clip_surrogate_of, clipped=lambda r, a, low, high: r.clamp(1 - low, 1 + low)
    ),
    "third line: that counts which tokens are outside the window. C1 is outside and on its way "
    "back, so it still learns: ask for the sign of Â": partial(
        clip_surrogate_of,
        keep=lambda r, a, low, high: (r >= 1 - low) & (r <= 1 + high),
    ),
    "third line: upside down. True stands for a token that keeps its gradient": partial(
        clip_surrogate_of, keep=lambda r, a, low, high: ~kept(r, a, low, high)
    ),
    "third line: the sides are exchanged. A good token is silent above the window, a bad one "
    "below it": partial(clip_surrogate_of, keep=lambda r, a, low, high: kept(r, -a, low, high)),
    "third line: `high` is not used there": partial(
        clip_surrogate_of, keep=lambda r, a, low, high: kept(r, a, low, low)
    ),
    "`high` is not used. A window may be wider upwards": partial(
        clip_surrogate_of, loss=narrow, keep=lambda r, a, low, high: kept(r, a, low, low)
    ),
}


def check_wrong_side(answer: Set[str] | None) -> None:
    """Exercise 1: the tokens of the four completions that the `max` version masks."""
    if answer is None:
        not_attempted()
        return
    given = {str(name).strip().upper() for name in answer}
    if given & {"C2", "D2"}:
        not_yet("C2 and D2 fell below 0.8: `min` masks them. What does the larger term do?")
    elif not given >= RIGHT_SIDE:
        not_yet("for good tokens the two versions agree, and some that PPO masks are missing")
    elif given - RIGHT_SIDE != WRONG_SIDE:
        not_yet("a bad token is masked where the clipped term is the larger; go through C and D")
    else:
        right("of the bad tokens it masks exactly those that should come back")


def check_clip_fraction(fraction: Callable[..., Any]) -> None:
    """Exercise 2: `clip_fraction(ratio, advantages, mask, low, high)` on the four completions."""
    advantages = (FOUR.rewards - 0.5)[:, None].expand(4, 8).clone()
    advantages[3] = 0.0  # D's tokens carry no signal now
    ratio, mask = token_ratio(FOUR.logp, FOUR.logp_old), FOUR.mask
    share = fraction(ratio, advantages, mask)
    if share is None:
        not_attempted()
        return
    padded = torch.where(mask, ratio, 3.0)
    if same(share, 4 / 14, 1e-6) and not same(fraction(padded, advantages, mask), 4 / 14, 1e-6):
        not_yet("it changes with what stands in the padding")
        return
    check_numbers(
        share,
        4 / 14,
        "masked gradients, out of those that were there to be masked",
        {
            8 / 14: "you count |ρ−1| > ε: use the sign of Â",
            9 / 16: "you count |ρ−1| > ε, also of tokens without a signal",
            4 / 16: "tokens with Â = 0 have no gradient to lose: not in the denominator",
            4 / 32: "the denominator counts padding",
            5 / 16: "D2 has Â = 0 here: nothing of it is masked",
        },
        "which tokens are masked, and which could have been?",
        tolerance=1e-6,
    )


def check_decoupled(answer: Callable[..., tuple[Tensor, Tensor]]) -> None:
    """Exercise 3: `decoupled(rewards, values, mask, lam_policy, lam_critic)`."""
    mask = torch.tensor([[False, True, True, True, False]])
    values = torch.tensor([[9.0, 0.5, 0.8, 0.6, 9.0]])
    rewards = torch.tensor([[0.0, 0.0, 0.0, 1.0, 0.0]])
    given = answer(rewards, values, mask, 0.5, 1.0)
    if given is None:
        not_attempted()
        return
    policy, critic = (gae(rewards, values, mask, lam=lam) for lam in (0.5, 1.0))
    advantages, returns = (torch.where(mask, part, 0.0) for part in given)
    wanted, target = policy[0], torch.where(mask, critic[1], 0.0)
    if same(advantages, wanted) and same(returns, target):
        right("the policy gets its calm, the critic a target that holds none of its own guesses")
    elif same(advantages, target) or same(returns, wanted):
        not_yet("first the advantages, then the returns")
    elif same(advantages, critic[0]):
        not_yet("the policy's advantages come from the critic's λ: the two are exchanged")
    elif not same(advantages, wanted):
        not_yet("the advantages are not those of `gae` with λ_policy")
    elif same(returns, torch.where(mask, policy[1], 0.0)):
        not_yet("the returns still come from λ_policy, so V goes on learning from V")
    elif same(returns, critic[0]):
        not_yet("the critic predicts rewards, not advantages: something must be added back")
    else:
        not_yet("the advantages are right; the returns are not those of `gae` with λ_critic")


def check_runaway(answer: tuple[float, int] | None) -> None:
    """Exercise 4: (largest gradient magnitude, steps masked by a dual clip at 3)."""
    check_numbers(
        answer,
        (54.6, 2),
        "one token of a batch can outweigh fifty; a second bound is all that stops it",
        {
            (1.2, 2): "1.2 is the upper edge of the window, which does not exist for Â < 0",
            (1.2, 4): "1.2 is the upper edge of the window, which does not exist for Â < 0",
            (54.6, 1): "compare ρ with c, not log ρ",
            (54.6, 4): "a dual clip at c masks ρ > c; four of the ratios exceed 1, not 3",
            (4.0, 2): "4 is a log-ratio; the gradient is a multiple of the ratio",
            (3.0, 2): "(a) is about PPO without a dual clip",
        },
        "(a) the gradient is ρ |Â|, without an upper bound; (b) count ρ > 3",
        tolerance=0.06,
    )


def four_logs() -> pd.DataFrame:
    """Exercise 5: four updates on one batch, logged by four programs, three of which are wrong."""
    rows = [
        {"log": letter, "update": number, **row}
        for letter, cause in LOGS.items()
        for number, row in enumerate(logged(cause), start=1)
    ]
    return pd.DataFrame(rows).set_index(["log", "update"])


def logged(cause: str) -> list[dict[str, float]]:
    """Metrics of four updates on 32 rollouts, with one thing wrong."""
    method = replace(METHODS["ppo"], advantage=batch_mean_baseline, old_logprobs="sampler")
    lr = {"learning rate": 2e-3}.get(cause, 1e-4)
    trainer = Trainer(RunConfig(method=method, prompts=4, lr=lr, seed=3))
    batch, rows = trainer.learner.prepare(trainer.collect()), []
    if cause == "temperature":
        trainer.learner.config = trainer.config.replace(temperature=0.7)
    for part in trainer.learner.minibatches(batch):
        if cause == "old anew":
            part = replace(part, logp_old=trainer.learner.logprobs(part))
        metrics = trainer.learner.update(part)
        rows.append({k: metrics[k] for k in ("clip_fraction", "ratio_min", "ratio_max", "kl")})
    return rows


def check_logs(answer: Mapping[str, str] | None) -> None:
    """Exercise 5: {log: cause}."""
    if answer is None:
        not_attempted()
        return
    given = {str(log).strip().upper(): cause for log, cause in answer.items()}
    hints = {
        "temperature": "before the first update nothing has moved: where is ρ not 1 even there?",
        "old anew": "a ratio that stays at 1 for ever compares the policy with itself",
        "learning rate": "which of them walks farthest between two updates?",
        "healthy": "a healthy log begins at 1 and moves a little with every update",
    }
    if given.keys() != LOGS.keys() or not set(given.values()) <= CAUSES.keys():
        not_yet(f"a cause of {sorted(CAUSES)} for each of the logs {sorted(LOGS)}")
        return
    wrong = [cause for log, cause in LOGS.items() if given[log] != cause]
    if not wrong:
        right("the ratio of the first update and the walk of the next tell these four apart")
    else:
        not_yet(f"{len(wrong)} of four do not fit; {next(hints[c] for c in hints if c in wrong)}")


class Scripted:
    """A trainer whose KL after each update is known: two passes of three updates."""

    def __init__(self, kls: tuple[float, ...]):
        self.kls, self.done = kls, 0
        self.config = SimpleNamespace(optimizer=SimpleNamespace(epochs=2, minibatches=3))
        self.learner = self

    def minibatches(self, batch: Any, epoch: int = 0) -> list[int]:
        """Three, whatever the batch."""
        return [0, 1, 2]

    def update(self, part: Any) -> dict[str, float]:
        """The next KL of the script."""
        self.done += 1
        return {"kl": self.kls[self.done - 1], "clip_fraction": 0.0}


def check_early_stop(updates_until: Callable[..., Any]) -> None:
    """The lab: `updates_until(trainer, batch, limit)` returns how many updates it made."""
    made = {}
    for name, limit in (("never", inf), ("second pass", 0.35), ("first pass", 0.15)):
        trainer = Scripted((0.0, 0.1, 0.2, 0.3, 0.4, 0.5))
        given = updates_until(trainer, None, limit)
        if given is None and not trainer.done:
            not_attempted()
            return
        if given is None or not same(given, trainer.done):
            not_yet(f"it made {trainer.done} updates and returned {given}")
            return
        made[name] = trainer.done
    if made["never"] != 6:
        not_yet(f"without a limit it made {made['never']} of the 6 updates of two passes")
    elif made["first pass"] == 4:
        not_yet("it leaves the pass, not the batch: the next pass begins all the same")
    elif made["first pass"] == 6 or made["second pass"] == 6:
        not_yet("it goes on after the limit: compare the KL of *every* update, not of a pass")
    elif (made["first pass"], made["second pass"]) != (3, 5):
        not_yet("it should stop with the first update that reports more than the limit")
    else:
        right("the update that reports too large a KL is the last one on its batch")
