"""Why a row has no line of its own on the ladder is so: until then it is another row."""

from dataclasses import replace

import pytest
import torch

from rlbook.objectives import FIELD, METHODS, NoTrustRegion, best_of_group, policy_loss
from workshop.shared.ladder_arms import NO_SIGMA

LENGTHS = torch.tensor([1, 3, 5, 5])
MASK = torch.arange(5) < LENGTHS[:, None]
ADVANTAGES = torch.tensor([0.25, -1.0, 0.5, -1.0], dtype=torch.float64)
FREE = NoTrustRegion()
SAME = {
    "gmpo": (METHODS["gmpo"], replace(METHODS["gspo"], trust_region=FREE)),
    "vespo": (FIELD["vespo"], replace(METHODS["grpo"], kl=None, aggregation="token_mean")),
    "topr": (FIELD["topr"], METHODS["reinforce"]),
    "deepseek_v32": (FIELD["deepseek_v32"], NO_SIGMA),
}
DRIFTS = {"gmpo": (0.3, 1.5)}  # as far as they are the same, and farther


def gradient(row, drift):
    """Of the row's loss by log-prob, (4, 5); answers became less likely by up to `drift`."""
    noise = -torch.rand(4, 5, generator=torch.Generator().manual_seed(3)).double()
    old = torch.full((4, 5), -1.5, dtype=torch.float64)
    logp = (old + drift * noise).requires_grad_()
    loss = policy_loss(replace(row, kl=None), logp, old, ADVANTAGES, MASK, groups=LENGTHS * 0).loss
    return torch.where(MASK, torch.autograd.grad(loss, logp)[0], 0.0)


@pytest.mark.parametrize("name", SAME)
def test_until_then_it_is_the_other_row_and_not_farther(name):
    (row, other), (near, far) = SAME[name], DRIFTS.get(name, (0.0, 1.5))
    torch.testing.assert_close(gradient(row, near), gradient(other, near), rtol=1e-9, atol=1e-12)
    gap = (gradient(row, far) - gradient(other, far)).abs().max()
    assert gap > 0.1 * gradient(other, far).abs().max()


def test_luspo_is_gspo_times_the_length():
    luspo, gspo = (gradient(row, 1e-4) for row in (FIELD["luspo"], METHODS["gspo"]))
    torch.testing.assert_close(luspo, gspo * LENGTHS[:, None], rtol=1e-9, atol=1e-12)
    assert luspo.abs().max() > 0


@pytest.mark.parametrize("right", range(9))
def test_pass_at_k_learns_from_groups_with_one_right_answer(right):
    rewards, groups = (torch.arange(8) < right).double(), torch.zeros(8, dtype=torch.long)
    assert int((best_of_group(rewards, groups) != 0).sum()) == (right == 1)
