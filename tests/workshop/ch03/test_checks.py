"""Chapter 03's checks name each likely mistake; nbval shows that they accept the solutions."""

from math import inf

import pytest
import torch

from rlbook.exact import FOUR
from rlbook.objectives import gae
from workshop.ch03 import checks as ch03


def masked_by_max() -> set[str]:
    """The tokens whose gradient vanishes under the bug, by autograd."""
    logp = FOUR.logp.clone().requires_grad_()
    advantages = (FOUR.rewards - 0.5)[:, None]
    ratio = (logp - FOUR.logp_old).exp()
    both = ratio * advantages, ratio.clamp(0.8, 1.2) * advantages
    bug = torch.where(advantages >= 0, torch.minimum(*both), torch.maximum(*both))
    (gradient,) = torch.autograd.grad(bug[FOUR.mask].sum(), logp)
    return {f"{'ABCD'[n]}{t + 1}" for n, t in ((gradient == 0) & FOUR.mask).nonzero().tolist()}


def test_the_wrong_side(said):
    assert said(ch03.check_wrong_side, masked_by_max()).startswith("right: ")


def clip_fraction(ratio, advantages, mask):
    masked = (advantages > 0) & (ratio > 1.2) | (advantages < 0) & (ratio < 0.8)
    signal = mask & (advantages != 0)
    return (masked & signal).sum() / signal.sum()


def test_a_clip_fraction_may_be_a_plain_number(said):
    answer = said(ch03.check_clip_fraction, lambda *a: clip_fraction(*a).item())
    assert answer.startswith("right: ")


def outside(ratio, advantages, mask):
    signal = mask & (advantages != 0)
    return (((ratio - 1).abs() > 0.2 + 1e-9) & signal).sum() / signal.sum()


def over_all_tokens(ratio, advantages, mask):
    return clip_fraction(ratio, advantages, mask) * 14 / 16


def over_padding(ratio, advantages, mask):
    return clip_fraction(ratio, advantages, mask) * 14 / 32


def without_mask(ratio, advantages, mask):
    masked = (advantages > 0) & (ratio > 1.2) | (advantages < 0) & (ratio < 0.8)
    return masked.sum() / (mask & (advantages != 0)).sum()


@pytest.mark.parametrize(
    ("answer", "hint"),
    [
        (outside, "use the sign of Â"),
        (over_all_tokens, "not in the denominator"),
        (over_padding, "counts padding"),
        (without_mask, "what stands in the padding"),
        (lambda *_: 0.9, "which tokens are masked"),
    ],
)
def test_mistakes_of_the_clip_fraction(said, answer, hint):
    text = said(ch03.check_clip_fraction, answer)
    assert text.startswith("not yet: ") and hint in text


def decoupled(rewards, values, mask, lam_policy, lam_critic):
    advantages, _ = gae(rewards, values, mask, lam=lam_policy)
    _, returns = gae(rewards, values, mask, lam=lam_critic)
    return advantages, returns


@pytest.mark.parametrize(
    ("answer", "hint"),
    [
        (lambda *a: decoupled(*a)[::-1], "first the advantages"),
        (lambda r, v, m, p, c: decoupled(r, v, m, c, p), "exchanged"),
        (lambda r, v, m, p, c: gae(r, v, m, lam=p), "V goes on learning from V"),
        (
            lambda r, v, m, p, c: (gae(r, v, m, lam=p)[0], gae(r, v, m, lam=c)[0]),
            "something must be added back",
        ),
        (lambda r, v, m, p, c: gae(r, v, m, lam=c), "exchanged"),
        (lambda r, v, m, p, c: (r, r), "not those of `gae` with λ_policy"),
        (lambda r, v, m, p, c: (gae(r, v, m, lam=p)[0], r), "with λ_critic"),
    ],
)
def test_mistakes_of_the_decoupling(said, answer, hint):
    text = said(ch03.check_decoupled, answer)
    assert text.startswith("not yet: ") and hint in text


def test_the_runaway_is_e_to_the_fourth(said):
    log_ratio = torch.tensor([0.0, 0.5, 1.0, 2.0, 4.0])
    answer = (log_ratio.exp().max().item(), int((log_ratio.exp() > 3).sum()))
    assert said(ch03.check_runaway, answer).startswith("right: ")


@pytest.mark.parametrize(
    ("check", "answer", "hint"),
    [
        (ch03.check_wrong_side, {"A1", "A2", "B2", "C2", "D2"}, "What does the larger term do"),
        (ch03.check_wrong_side, {"C1", "C3", "C4"}, "the two versions agree"),
        (ch03.check_wrong_side, {"A1", "A2", "B2", "C1"}, "go through C and D"),
        (ch03.check_runaway, (1.2, 2), "does not exist for Â < 0"),
        (ch03.check_runaway, (54.6, 1), "compare ρ with c"),
        (ch03.check_runaway, (54.6, 4), "exceed 1, not 3"),
        (ch03.check_runaway, (4.0, 2), "a multiple of the ratio"),
        (ch03.check_runaway, (3.0, 2), "without a dual clip"),
        (ch03.check_runaway, (7.4, 3), "count ρ > 3"),
        (ch03.check_logs, {"P": "healthy"}, "a cause of"),
        (ch03.check_logs, dict.fromkeys("PQRS", "healthy"), "3 of four do not fit"),
        (ch03.check_logs, ch03.LOGS | {"S": "healthy", "Q": "old anew"}, "stays at 1 for ever"),
    ],
)
def test_each_mistake_is_named(said, check, answer, hint):
    text = said(check, answer)
    assert text.startswith("not yet: ") and hint in text


def test_the_logs_show_what_the_answer_says(said):
    """Each cause is read off the table by a rule, not looked up."""
    logs = ch03.four_logs()
    first, last = logs.xs(1, level="update"), logs.groupby("log").last()
    cause = {}
    for log in first.index:
        apart = abs(first.ratio_min[log] - 1) > 0.1
        still = abs(last.ratio_max[log] - last.ratio_min[log]) < 1e-3
        far = last.kl[log] > 0.1
        named = {"temperature": apart, "old anew": still, "learning rate": far and not apart}
        cause[log] = next((name for name, holds in named.items() if holds), "healthy")
    assert said(ch03.check_logs, cause).startswith("right: ")


def updates_until(trainer, batch, limit):
    made = 0
    for epoch in range(trainer.config.optimizer.epochs):
        for part in trainer.learner.minibatches(batch, epoch):
            made += 1
            if trainer.learner.update(part)["kl"] > limit:
                return made
    return made


def leaves_the_pass(trainer, batch, limit):
    made = 0
    for epoch in range(trainer.config.optimizer.epochs):
        for part in trainer.learner.minibatches(batch, epoch):
            made += 1
            if trainer.learner.update(part)["kl"] > limit:
                break
    return made


def looks_after_the_pass(trainer, batch, limit):
    made = 0
    for epoch in range(trainer.config.optimizer.epochs):
        kl = 0.0
        for part in trainer.learner.minibatches(batch, epoch):
            kl, made = trainer.learner.update(part)["kl"], made + 1
        if kl > limit:
            return made
    return made


def one_pass(trainer, batch, limit):
    return sum(1 for part in trainer.learner.minibatches(batch) if trainer.learner.update(part))


@pytest.mark.parametrize(
    ("answer", "hint"),
    [
        (leaves_the_pass, "leaves the pass"),
        (looks_after_the_pass, "of every update"),
        (one_pass, "3 of the 6"),
        (lambda *a: updates_until(a[0], a[1], inf), "of every update"),
        (lambda *a: updates_until(*a) + 1, "and returned"),
    ],
)
def test_mistakes_of_the_early_stop(said, answer, hint):
    text = said(ch03.check_early_stop, answer).replace("*", "")
    assert text.startswith("not yet: ") and hint in text


def test_what_was_not_attempted_is_not_judged(said):
    for check in (ch03.check_wrong_side, ch03.check_runaway, ch03.check_logs):
        assert said(check, None) == "not attempted yet"
    for check in (ch03.check_clip_fraction, ch03.check_decoupled, ch03.check_early_stop):
        assert said(check, lambda *_: None) == "not attempted yet"


def test_no_check_shows_its_answer(said):
    text = said(ch03.check_wrong_side, {"A1"}) + said(ch03.check_wrong_side, {"A1", "A2", "B2"})
    text += said(ch03.check_runaway, (0.0, 0))
    assert not any(secret in text for secret in ("C1", "C3", "C4", "54.6"))
