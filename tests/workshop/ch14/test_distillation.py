"""On-policy distillation by enumeration: which KL each discount descends, and where they part."""

from functools import partial

import pytest
import torch

from rlbook.exact import TokenTree
from workshop.ch14.distillation import (
    copycat,
    descend,
    distillation_update,
    forward_kl,
    reverse_kl,
    state_kls,
    update_noise,
    visits,
    whole,
)

CLOSE = {"rtol": 1e-8, "atol": 1e-10}


@pytest.fixture(params=[0, 1])
def pair(request):
    return (TokenTree.random(2, 3, seed=request.param), TokenTree.random(2, 3, seed=7))


def test_return_to_go_descends_the_kl_of_whole_answers(pair):
    """By finite differences of the divergence itself."""
    student, teacher = pair
    update, kl, eps = distillation_update(student, teacher, 1.0), reverse_kl(student, teacher), 1e-5
    for row, column in ((0, 0), (1, 2), (4, 1)):
        step = torch.zeros_like(student.logits)
        step[row, column] = eps
        slope = (kl(student.logits + step) - kl(student.logits - step)) / (2 * eps)
        torch.testing.assert_close(update[row, column], -slope, rtol=1e-5, atol=1e-8)


def test_no_discounting_ahead_descends_the_kl_of_each_state_where_it_is_visited(pair):
    student, teacher = pair
    reached = visits(student)
    frozen = torch.func.grad(lambda z: (reached * state_kls(student, teacher)(z)).sum())
    update = distillation_update(student, teacher, 0.0)
    torch.testing.assert_close(update, -frozen(student.logits), **CLOSE)


def test_what_is_left_out_is_the_change_of_the_visits(pair):
    student, teacher = pair
    fixed = state_kls(student, teacher)(student.logits)
    moving = torch.func.grad(lambda z: (visits(student, z) * fixed).sum())(student.logits)
    whole_update = distillation_update(student, teacher, 1.0)
    torch.testing.assert_close(
        whole_update, distillation_update(student, teacher, 0.0) - moving, **CLOSE
    )
    assert moving.abs().max() > 0.01


def test_chain_rule(pair):
    student, teacher = pair
    by_state = (visits(student) * state_kls(student, teacher)(student.logits)).sum()
    torch.testing.assert_close(reverse_kl(student, teacher)(student.logits), by_state, **CLOSE)


def test_all_updates_vanish_at_the_teacher():
    teacher = TokenTree.random(2, 3, seed=3)
    for gamma in (0.0, 0.5, 1.0):
        assert distillation_update(teacher, teacher, gamma).abs().max() < 1e-12
    assert torch.func.grad(forward_kl(teacher, teacher))(teacher.logits).abs().max() < 1e-12


def test_noise_is_that_of_sampled_answers(pair):
    student, teacher = pair
    generator, gamma = torch.Generator().manual_seed(0), 0.5
    drawn = torch.multinomial(student.probs, 20_000, replacement=True, generator=generator)
    scores = torch.func.jacrev(student.token_log_probs)(student.logits)
    earned = teacher.token_log_probs(teacher.logits) - student.token_log_probs(student.logits)
    ahead = torch.zeros_like(earned[:, 0])
    updates = torch.zeros_like(scores[:, 0])
    for t in reversed(range(earned.shape[1])):
        ahead = torch.where(student.mask[:, t], earned[:, t] + gamma * ahead, ahead)
        updates += (ahead * student.mask[:, t])[:, None, None] * scores[:, t]
    sampled = updates[drawn].flatten(1).var(0).sum()
    torch.testing.assert_close(update_noise(student, teacher, gamma), sampled, rtol=0.05, atol=0)


def test_a_student_without_a_memory_commits_only_if_it_looks_ahead():
    teacher, student = copycat()

    def slips(policy):
        """Share of answers whose tokens differ: 1 % of the teacher's."""
        return whole(policy).exp()[[1, 2]].sum().item()

    assert slips(teacher) == pytest.approx(0.01)
    ends = {
        gamma: descend(student, partial(distillation_update, teacher=teacher, gamma=gamma))[-1]
        for gamma in (0.0, 1.0)
    }
    assert slips(ends[1.0]) < 0.05
    assert slips(ends[0.0]) == pytest.approx(0.5, abs=0.05)
    imitates = descend(student, lambda s: -torch.func.grad(forward_kl(s, teacher))(s.logits))
    assert slips(imitates[-1]) == pytest.approx(0.5, abs=0.01)
