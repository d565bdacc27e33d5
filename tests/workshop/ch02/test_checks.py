"""Chapter 02's checks name each likely mistake; nbval shows that they accept the solutions."""

import pytest
import torch

from rlbook.exact import SoftmaxPolicy
from workshop.ch02 import checks as ch02


def test_the_exact_gradient_may_be_given_as_a_tensor(said):
    policy = SoftmaxPolicy.from_probs([0.5, 0.3, 0.2])
    exact = policy.true_gradient(torch.tensor([1.0, 0.0, 0.5]).double())
    assert said(ch02.check_gradient, exact.float()).startswith("right: ")


@pytest.mark.parametrize(
    ("check", "answer", "hint"),
    [
        (ch02.check_gradient, (0.5, 0.0, 0.1), "that is π r"),
        (ch02.check_gradient, (0.4, -0.6, -0.1), "met only with its probability"),
        (ch02.check_gradient, (0.25, -0.15, 0.0), "J is the mean under the policy"),
        (ch02.check_gradient, (-0.2, 0.18, 0.02), "the sign"),
        (ch02.check_gradient, (0.3, 0.3, 0.3), "sum to 0"),
        (ch02.check_gradient, (0.2, -0.18), "give 3 numbers, not 2"),
        (ch02.check_values, (0.5, 0.75, 0.25, -0.25), "which guesses more often"),
        (ch02.check_values, (0.45, 0.3, -0.15, -0.3), "no factor π"),
        (ch02.check_values, (0.45, 0.75, 0.75, 0.25), "those are Q values"),
        (ch02.check_values, (0.45, 0.75, 0.3, 0.2), "the sign of the last"),
        (ch02.check_values, (0.1, 0.2, 0.3, 0.4), "A = Q − V"),
        (ch02.check_squares, (0.5, 0.25, 0.218), "the mean square is asked"),
        (ch02.check_squares, (0.5, 0.5, 0.0475), "the batch mean is ½"),
        (ch02.check_squares, (0.25, 0.25, 0.0475), "r² = r"),
        (ch02.check_squares, (0.5, 0.25, 0.095), "do not add them"),
        (ch02.check_squares, (1, 1, 1), "how often each occurs"),
        (ch02.check_legal, {"a", "b", "c"}, "contains r_i itself"),
        (ch02.check_legal, {"a", "e"}, "another reward"),
        (ch02.check_legal, {"a", "c"}, "one is missing"),
        (ch02.check_legal, {"a", "z"}, "from a to f"),
    ],
)
def test_each_mistake_is_named(said, check, answer, hint):
    text = said(check, answer)
    assert text.startswith("not yet: ") and hint in text


def test_squares_by_listing_both_prompts(said):
    """Â² of right and wrong answers to prompts with p = .05 and .95, under three baselines."""

    def mean_square(baseline):
        prompts = (0.05, 0.95)
        return sum(p * (1 - baseline(p)) ** 2 + (1 - p) * baseline(p) ** 2 for p in prompts) / 2

    answer = (mean_square(lambda p: 0), mean_square(lambda p: 0.5), mean_square(lambda p: p))
    assert said(ch02.check_squares, answer).startswith("right: ")


def test_letters_may_be_large(said):
    assert said(ch02.check_legal, {"A", "c", "d", "f"}).startswith("right: ")


def weights(probs, pull=True, often=True):
    squares = sum(q * q for q in probs)
    return [(p if often else 1) * ((1 - 2 * p + squares) if pull else 1) for p in probs]


def weighted(probs, rewards, divide=True, **what):
    total = sum(w * r for w, r in zip(weights(probs, **what), rewards, strict=True))
    return total / sum(weights(probs, **what)) if divide else total


@pytest.mark.parametrize(
    ("what", "hint"),
    [
        ({"pull": False}, "that is the mean reward"),
        ({"often": False}, "π times pull"),
        ({"divide": False}, "divided by the sum of its weights"),
    ],
)
def test_baseline_of_a_token(said, what, hint):
    assert hint in said(ch02.check_token_baseline, lambda p, r: weighted(p, r, **what))
    assert "derivative" in said(ch02.check_token_baseline, lambda p, r: 7.0)


LAB = {
    **{("0/1", lr): a for lr, a in ((1e-4, 0.6), (2e-4, 0.7), (4e-4, 0.8))},
    **{("1/2", lr): a for lr, a in ((1e-4, 0.5), (2e-4, 0.55), (4e-4, 0.4))},
}
BEST = {"0/1": 4e-4, "1/2": 2e-4}


@pytest.mark.parametrize(
    ("answer", "hint"),
    [
        ((LAB, BEST, False), "right: "),
        ((LAB, BEST, True), "the gap is not small"),
        ((LAB, BEST | {"1/2": 4e-4}, False), "another best rate for '1/2'"),
        ((LAB | {("1/2", 2e-4): 0.79}, BEST, True), "right: "),
        ((LAB | {("1/2", 2e-4): 0.79}, BEST, False), "is that behind?"),
        (({("0/1", 4e-4): 0.8, ("1/2", 4e-4): 0.4}, BEST, False), "three learning rates"),
        (({arm: a + 1 for arm, a in LAB.items()}, BEST, False), "one point up"),
    ],
)
def test_the_lab_judges_conclusions_by_the_readers_own_numbers(said, answer, hint):
    assert hint in said(ch02.check_lab, *answer)


def test_nothing_is_said_before_an_attempt(said):
    stubs = [(check, None) for check in (ch02.check_gradient, ch02.check_values, ch02.check_legal)]
    stubs += [(ch02.check_squares, None), (ch02.check_token_baseline, lambda p, r: None)]
    stubs += [(ch02.check_lab, {}, None, None)]
    for check, *answer in stubs:
        assert said(check, *answer) == "not attempted yet"


@pytest.mark.parametrize(
    ("loss", "hint"),
    [
        (lambda logp, rewards, mask, b: -(rewards - b) * (logp * mask).sum(1), "one number"),
        (lambda logp, rewards, mask, b: 1.0, "one number"),
        (lambda logp, rewards, mask, b: (rewards - b).sum(), "does not depend on logp"),
        (lambda logp, rewards, mask, b: -((rewards - b) * logp).mean(), "must match the size"),
        (
            lambda logp, rewards, mask, b: -((rewards - b)[:, None] * (logp * mask).sum(1)).mean(),
            "an (N, N) table",
        ),
        (
            lambda logp, rewards, mask, b: 2 * ch02.loss_of(logp, rewards, mask, b),
            "the loss is −0.25",
        ),
    ],
)
def test_a_loss_that_is_none_is_named(said, loss, hint):
    text = said(ch02.check_reinforce_loss, loss)
    assert text.startswith("not yet: ") and hint in text


def test_a_loss_may_be_written_in_another_way(said):
    def loss(logp, rewards, mask, baseline):
        chosen = torch.where(mask, logp, 0.0)
        return torch.einsum("n,nt->", baseline - rewards, chosen) / len(mask)

    assert said(ch02.check_reinforce_loss, loss).startswith("right: ")
