import pytest
import torch

from rlbook.exact import SoftmaxPolicy, TokenTree
from workshop.shared.worlds.divergence import (
    exact_kl,
    exact_kl_gradient,
    exact_reverse_kl_gradient,
    kl_estimator,
    kl_estimator_table,
)

POLICY, REFERENCE = TokenTree.random(2, 3, seed=0), TokenTree.random(2, 3, seed=1)


def test_two_answers_by_hand():
    # .75 ln(.75/.5) + .25 ln(.25/.5)
    p, q = SoftmaxPolicy.from_probs([0.75, 0.25]), SoftmaxPolicy.from_probs([0.5, 0.5])
    assert exact_kl(p, q) == pytest.approx(0.130812, abs=1e-6)
    assert exact_kl(p, p) == 0


def test_sequence_kl_is_the_sum_of_token_kls():
    tables = POLICY.logits.log_softmax(-1), REFERENCE.logits.log_softmax(-1)
    total = 0.0
    for row, prefix in enumerate(POLICY.prefixes):
        reach = 1.0
        for t, token in enumerate(prefix):
            reach *= tables[0][POLICY.prefixes.index(prefix[:t]), token].exp().item()
        token_kl = torch.nn.functional.kl_div(
            tables[1][row], tables[0][row], log_target=True, reduction="sum"
        )
        total += reach * token_kl.item()
    assert exact_kl(POLICY, REFERENCE) == pytest.approx(total, rel=1e-12)


def test_gradient_is_a_slope():
    gradient, slopes = exact_kl_gradient(POLICY, REFERENCE), []
    for d in range(len(gradient)):
        step = torch.zeros_like(gradient)
        step[d] = 1e-5
        up, down = (exact_kl(POLICY.moved(sign * step), REFERENCE) for sign in (1, -1))
        slopes.append((up - down) / 2e-5)
    torch.testing.assert_close(gradient, torch.tensor(slopes).double(), atol=1e-9, rtol=1e-7)


def test_values():
    k1, k2, k3 = (kl_estimator(POLICY, REFERENCE, kind) for kind in ("k1", "k2", "k3"))
    true = exact_kl(POLICY, REFERENCE)
    assert k1.mean == pytest.approx(true, rel=1e-12)
    assert k3.mean == pytest.approx(true, rel=1e-12)
    assert abs(k2.mean - true) > 0.1


def test_values_agree_with_simulation():
    n, generator = 50_000, torch.Generator().manual_seed(0)
    draws = torch.multinomial(POLICY.probs, n, True, generator=generator)
    ratio = (REFERENCE.probs / POLICY.probs)[draws]
    for kind, k in {
        "k1": -ratio.log(),
        "k2": 0.5 * ratio.log() ** 2,
        "k3": ratio - 1 - ratio.log(),
    }.items():
        exact = kl_estimator(POLICY, REFERENCE, kind)
        assert k.mean().item() == pytest.approx(exact.mean, abs=4.5 * exact.sd / n**0.5)


def test_near_the_reference_k2_and_k3_are_far_less_noisy():
    near = POLICY.moved(0.01 * torch.ones(21).double() * torch.arange(21).remainder(3))
    k1, k2, k3 = (kl_estimator(near, POLICY, kind) for kind in ("k1", "k2", "k3"))
    assert k1.sd > 50 * k3.sd
    assert k2.sd == pytest.approx(k3.sd, rel=0.1)
    assert k2.mean == pytest.approx(k3.mean, rel=0.02)


def test_as_losses_only_k2_follows_the_kl():
    kl = exact_kl_gradient(POLICY, REFERENCE)
    reverse = exact_reverse_kl_gradient(POLICY, REFERENCE)
    loss = {k: kl_estimator(POLICY, REFERENCE, k).loss_gradient for k in ("k1", "k2", "k3")}
    torch.testing.assert_close(loss["k1"], torch.zeros_like(kl), atol=1e-12, rtol=0)
    torch.testing.assert_close(loss["k2"], kl, atol=1e-12, rtol=0)
    torch.testing.assert_close(loss["k3"], reverse, atol=1e-12, rtol=0)
    assert (reverse - kl).norm() > 0.5 * kl.norm()


def test_in_the_reward_only_k1_follows_the_kl():
    kl = exact_kl_gradient(POLICY, REFERENCE)
    rows = {row["kind"]: row for row in kl_estimator_table(POLICY, REFERENCE)}
    k1 = kl_estimator(POLICY, REFERENCE, "k1").reward_gradient
    torch.testing.assert_close(k1, kl, atol=1e-12, rtol=0)
    assert rows["k1"]["reward_error"] < 1e-12
    assert rows["k1"]["loss_error"] == pytest.approx(1)
    assert rows["k2"]["loss_error"] < 1e-12
    assert min(rows[k]["reward_error"] for k in ("k2", "k3")) > 0.1


def test_unknown_kind_is_named():
    with pytest.raises(ValueError, match="'k4'"):
        kl_estimator(POLICY, REFERENCE, "k4")
