"""The leash's optimum, best-of-n and DPO, each against something computed another way."""

from itertools import product

import pytest
import torch

from rlbook.exact import SoftmaxPolicy
from rlbook.rewards import bradley_terry_loss, dpo_loss
from workshop.ch04.best_of_n import best_of_n_kl
from workshop.ch04.preferences import best_of_n, flipped, kl_optimum, preference_probs
from workshop.shared.worlds.divergence import exact_kl

REFERENCE = SoftmaxPolicy.from_probs([0.45, 0.30, 0.20, 0.05])
WORTH = torch.tensor([0.0, 1.0, -0.5, 2.0], dtype=torch.float64)
PAIRS = [(i, j) for i in range(4) for j in range(4) if i != j]


def objective(policy, beta):
    return policy.expected_reward(WORTH).item() - beta * exact_kl(policy, REFERENCE)


@pytest.mark.parametrize("beta", [0.1, 1.0, 5.0])
def test_the_optimum_has_no_gradient_and_the_value_beta_log_z(beta):
    best = kl_optimum(REFERENCE, WORTH, beta)
    logits = best.logits.clone().requires_grad_()
    logp = logits.log_softmax(-1)
    (logp.exp() @ (WORTH - beta * (logp - REFERENCE.logp))).backward()
    torch.testing.assert_close(logits.grad, torch.zeros(4, dtype=torch.float64))
    log_z = torch.logsumexp(REFERENCE.logp + WORTH / beta, 0).item()
    assert objective(best, beta) == pytest.approx(beta * log_z)
    for seed in range(5):
        step = torch.randn(4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        assert objective(best.moved(step), beta) < objective(best, beta)


def test_a_leash_of_no_length_is_refused():
    with pytest.raises(ValueError, match="must be positive"):
        kl_optimum(REFERENCE, WORTH, 0.0)


@pytest.mark.parametrize("scores", [[0.0, 1.0, -0.5, 2.0], [1.0, 0.0, 1.0, 1.0]])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_best_of_n_by_writing_down_every_sample(scores, n):
    scores, p = torch.tensor(scores), REFERENCE.probs
    expected = torch.zeros(4, dtype=torch.float64)
    for drawn in product(range(4), repeat=n):
        expected[max(drawn, key=lambda i: scores[i])] += p[list(drawn)].prod()
    torch.testing.assert_close(best_of_n(REFERENCE, scores, n), expected)


@pytest.mark.parametrize("n", [2, 8, 64])
def test_best_of_n_is_never_farther_than_its_bound(n):
    picked = best_of_n(REFERENCE, WORTH, n)
    distance = (picked * (picked / REFERENCE.probs).log()).sum().item()
    assert 0 < distance < best_of_n_kl(n)
    many = SoftmaxPolicy(torch.zeros(4000))
    picked = best_of_n(many, torch.arange(4000), n)
    distance = (picked * (picked * 4000).clamp(min=1e-300).log()).sum().item()
    assert distance == pytest.approx(best_of_n_kl(n), abs=0.02)


def minimised(loss, start):
    """Where L-BFGS arrives on a loss of `start`."""
    x = start.clone().requires_grad_()
    optimizer = torch.optim.LBFGS(
        [x], max_iter=500, tolerance_grad=1e-12, line_search_fn="strong_wolfe"
    )

    def closure():
        optimizer.zero_grad()
        value = loss(x)
        value.backward()
        return value

    optimizer.step(closure)
    return x.detach()


def expected_loss(pair_loss, preferred):
    """Mean of a pair's loss over all ordered pairs, each label with its probability."""
    return sum(preferred[i, j] * pair_loss(i, j) for i, j in PAIRS) / len(PAIRS)


@pytest.mark.parametrize("noise", [0.0, 0.1, 0.3])
def test_bradley_terry_recovers_differences_and_noise_shrinks_them(noise):
    preferred = flipped(preference_probs(WORTH), noise)
    found = minimised(
        lambda s: expected_loss(lambda i, j: bradley_terry_loss(s[i, None], s[j, None]), preferred),
        torch.full((4,), 7.0, dtype=torch.float64),
    )
    margins, wanted = found[:, None] - found, WORTH[:, None] - WORTH
    assert found.mean().item() == pytest.approx(7.0, abs=1e-4)  # the start: nothing moves the sum
    if noise == 0:
        torch.testing.assert_close(margins, wanted, atol=2e-3, rtol=0)
    else:
        assert (margins.abs() <= wanted.abs() + 1e-6).all()
        largest = torch.tensor((1 - noise) / noise).log()
        assert margins.max() < largest


@pytest.mark.parametrize("beta", [0.3, 1.0])
def test_the_minimum_of_dpo_is_the_optimum_under_the_leash(beta):
    """DPO is never told the rewards, and lands on π_ref exp(r/β)/Z."""
    preferred, ref = preference_probs(WORTH), REFERENCE.logp

    def loss(logits):
        logp = logits.log_softmax(-1)
        pair = lambda i, j: dpo_loss(  # noqa: E731
            logp[i, None], logp[j, None], ref[i, None], ref[j, None], beta
        )
        return expected_loss(pair, preferred)

    found = SoftmaxPolicy(minimised(loss, REFERENCE.logits))
    torch.testing.assert_close(
        found.probs, kl_optimum(REFERENCE, WORTH, beta).probs, atol=1e-4, rtol=0
    )
