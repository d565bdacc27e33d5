"""Experts that a rounding error exchanges, and what is left of the ratio when they are replayed."""

import pytest
import torch

from workshop.ch11.routed_experts import routed


def two_near_the_border(requires_grad=False):
    """One token; scores 1, .999, 0, −1; four experts over three words."""
    state = torch.ones(1, 1, dtype=torch.float64)
    router = torch.tensor([[1.0, 0.999, 0.0, -1.0]], dtype=torch.float64)
    words = torch.tensor(
        [[0.7, 0.2, 0.1], [0.1, 0.2, 0.7], [0.2, 0.6, 0.2], [0.3, 0.3, 0.4]], dtype=torch.float64
    )
    experts = words.log()[:, None, :]
    return (
        state,
        router.requires_grad_(requires_grad),
        experts.clone().requires_grad_(requires_grad),
    )


ROUNDING = torch.tensor([[0.0, 0.002, 0.0, 0.0]], dtype=torch.float64)


def test_a_thousandth_makes_a_ratio_of_seven_and_replay_makes_it_one():
    world = two_near_the_border()
    log_mu, engine = routed(*world, rounding=ROUNDING)
    log_pi, own = routed(*world)
    replayed, taken = routed(*world, replay=engine)
    assert (own.item(), engine.item(), taken.item()) == (0, 1, 1)
    assert (log_pi - log_mu).exp()[0, 0].item() == pytest.approx(7)
    torch.testing.assert_close(replayed, log_mu, rtol=0, atol=1e-15)


def test_of_two_experts_the_choice_is_replayed_and_the_weights_are_not():
    """Gates 1/(1 + e^∓.001): the replayed token differs by the rounding of its gates alone."""
    world = two_near_the_border()
    engine = torch.tensor([[1, 2]])
    log_pi, _ = routed(*world, top=2, replay=engine)
    gate = torch.tensor([0.999, 0.0], dtype=torch.float64).softmax(0)
    _, _, experts = world
    mixed = gate[0] * experts[1, 0] + gate[1] * experts[2, 0]
    torch.testing.assert_close(log_pi[0], mixed.log_softmax(-1))


def test_a_choice_of_ones_own_replayed_changes_nothing():
    draw = torch.Generator().manual_seed(0)
    world = [torch.randn(*s, generator=draw) for s in ((9, 5), (5, 4), (4, 5, 3))]
    for top in (1, 2, 4):
        log_pi, own = routed(*world, top=top)
        assert torch.equal(routed(*world, top=top, replay=own)[0], log_pi)


@pytest.mark.parametrize(("top", "learns"), [(1, False), (2, True)])
def test_a_replayed_token_teaches_the_experts_that_were_replayed(top, learns):
    """And the router through the weights of these, of which a single expert has none but 1."""
    state, router, experts = two_near_the_border(requires_grad=True)
    engine = torch.tensor([[1, 2]])[:, :top]
    routed(state, router, experts, top, replay=engine)[0][0, 0].backward()
    taught = experts.grad.abs().sum((1, 2)) > 1e-9
    assert taught.tolist() == [False, True, top == 2, False]
    assert (router.grad.abs().sum() > 1e-9) == learns
