"""The world of strategies against automatic differentiation, enumeration and published formulas."""

from functools import partial
from math import comb

import numpy as np
import pytest
import torch

from rlbook.exact import expected_gradient
from rlbook.objectives import group_normalize, leave_one_out, max_rl
from rlbook.stats import exact_pass_at_k
from workshop.shared.worlds.strategy_mixture import (
    StrategyMixture,
    easy_and_hard,
    estimator_weight,
    likelihood_weight,
    truncated_log_likelihood,
)

EQUATION_9 = partial(max_rl, form="equation_9")
EQUATION_10 = partial(max_rl, form="equation_10")
P = torch.tensor([0.001, 0.05, 0.3, 0.5, 0.9, 0.999], dtype=torch.float64)
START = torch.tensor([0.5, 0.5], dtype=torch.float64)
ALMOST = {"atol": 1e-12, "rtol": 1e-10}


def three_strategies() -> StrategyMixture:
    generator = torch.Generator().manual_seed(0)
    return StrategyMixture(torch.rand(3, 5, generator=generator, dtype=torch.float64))


@pytest.mark.parametrize("order", [1, 2, 7, None])
def test_weight_is_the_derivative_of_the_truncated_log_likelihood(order):
    p = P.clone().requires_grad_()
    (slope,) = torch.autograd.grad(truncated_log_likelihood(p, order).sum(), p)
    torch.testing.assert_close(likelihood_weight(P, order), slope, **ALMOST)


def test_first_order_is_the_solve_rate_and_high_orders_are_its_logarithm():
    torch.testing.assert_close(truncated_log_likelihood(P, 1), P - 1)
    assert truncated_log_likelihood(P[2:], 2000).tolist() == pytest.approx(P[2:].log().tolist())
    torch.testing.assert_close(likelihood_weight(P, 1), torch.ones_like(P))


def test_giving_a_prompt_up_costs_a_harmonic_number():
    nothing = torch.zeros(1, dtype=torch.float64)
    assert truncated_log_likelihood(nothing, 3).item() == pytest.approx(-(1 + 1 / 2 + 1 / 3))
    assert likelihood_weight(nothing, 3).item() == 3
    assert truncated_log_likelihood(nothing).item() == -torch.inf


@pytest.mark.parametrize("n", [2, 4, 16])
@pytest.mark.parametrize(
    "estimator, order", [(leave_one_out, None), (max_rl, -1), (EQUATION_9, 0), (EQUATION_10, 0)]
)
def test_weights_of_unbiased_estimators(estimator, order, n):
    expected = torch.ones_like(P) if order is None else likelihood_weight(P, n + order)
    torch.testing.assert_close(estimator_weight(estimator, n)(P), expected, **ALMOST)


@pytest.mark.parametrize("n", [2, 5, 16])
def test_weight_of_grpo_is_the_expected_inverse_spread(n):
    for p in P.tolist():
        spread = sum(
            comb(n, c) * p**c * (1 - p) ** (n - c) * (c * (n - c) * (n - 1) / n) ** 0.5 / n
            for c in range(1, n)
        )
        ours = estimator_weight(partial(group_normalize, eps=0.0), n)(p).item()
        assert ours == pytest.approx(spread / (p * (1 - p)))


@pytest.mark.parametrize("estimator", [leave_one_out, group_normalize, max_rl, EQUATION_9])
def test_gradient_is_the_mean_over_prompts_of_the_enumerated_estimator(estimator):
    world, n = three_strategies(), 4
    probs = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    answers = [world.answers(probs, prompt) for prompt in range(5)]
    enumerated = [expected_gradient(estimator, a, a.rewards, n).mean for a in answers]
    ours = world.gradient(probs, estimator_weight(estimator, n))
    torch.testing.assert_close(ours, torch.stack(enumerated).mean(0), **ALMOST)


@pytest.mark.parametrize("order", [1, 3, None])
def test_gradient_of_the_objective(order):
    world = three_strategies()
    logits = torch.tensor([0.3, -1.0, 0.2], dtype=torch.float64, requires_grad=True)
    probs = logits.softmax(-1)
    objective = truncated_log_likelihood(world.solve_rates(probs), order).mean()
    (true,) = torch.autograd.grad(objective, logits)
    ours = world.gradient(probs.detach(), partial(likelihood_weight, order=order))
    torch.testing.assert_close(ours, true, **ALMOST)


def test_ascent_raises_its_own_objective_at_every_step():
    world = three_strategies()
    for order in (1, 4, None):
        path = world.ascend(partial(likelihood_weight, order=order), torch.ones(3) / 3, 100, lr=0.2)
        values = truncated_log_likelihood(world.solve_rates(path), order).mean(-1)
        assert path.shape == (101, 3)
        assert (values.diff() > 0).all()


def test_pass_at_k_of_many_policies_at_once():
    world = easy_and_hard()
    probs = torch.tensor([[0.5, 0.5], [1.0, 0.0]], dtype=torch.float64)
    for k in (1, 16):
        rates = world.solve_rates(probs).numpy()
        ours = world.pass_at_k(probs, k).numpy()
        np.testing.assert_allclose(ours, exact_pass_at_k(rates, k).mean(-1))
    assert world.pass_at_k(probs[1], 1000).item() == pytest.approx(0.5)


def test_a_policy_that_chooses_pass_at_1_gives_the_hard_prompts_up():
    """An independent study of this world: share of the careful strategy after 2000 steps."""
    careful = {
        (leave_one_out, 16): 0.0037,
        (group_normalize, 16): 0.0012,
        (max_rl, 2): 0.0037,
        (max_rl, 16): 0.785,
        (max_rl, 64): 0.994,
    }
    for (estimator, n), expected in careful.items():
        end = easy_and_hard().ascend(estimator_weight(estimator, n), START, steps=2000)[-1]
        assert end[1].item() == pytest.approx(expected, abs=6e-4), (estimator, n)


@pytest.mark.parametrize("hard", [1, 2, 4])
def test_likelihood_gives_hard_prompts_their_share(hard):
    """max_c Σ log p_x with p = .95 − .35 c (easy) and ∝ c (hard): c = hard / 16 · .95 / .35."""
    end = easy_and_hard(hard).ascend(likelihood_weight, START, steps=3000)[-1]
    assert end[1].item() == pytest.approx(hard / 16 * 0.95 / 0.35, rel=1e-3)


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: StrategyMixture(torch.tensor([0.5])), "one row per strategy"),
        (lambda: StrategyMixture(torch.tensor([[1.5]])), "probabilities"),
        (lambda: estimator_weight(max_rl, 0), "n ≥ 1"),
        (lambda: likelihood_weight(P, 0), "at least 1"),
        (lambda: truncated_log_likelihood(P, 0), "at least 1"),
        (lambda: easy_and_hard(17), "between 0 and 16"),
    ],
)
def test_errors_name_the_thing(make, words):
    with pytest.raises(ValueError, match=words):
        make()
