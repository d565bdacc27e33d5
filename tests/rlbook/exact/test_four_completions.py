"""The hand arithmetic of the four completions, as literal numbers."""

from collections import defaultdict
from math import sqrt

import pytest
import torch

from rlbook.exact import FOUR, four_table
from rlbook.objectives import (
    DivergenceMask,
    RatioClip,
    Tokens,
    WeightClip,
    aggregate,
    gae,
    group_center,
    group_normalize,
    leave_one_out,
    max_rl,
    sequence_ratio,
    weigh,
)
from rlbook.tasks import Problem, SumsTask

RATIOS = [
    [1.25, 4 / 3, 0.75, 1],
    [0.98, 2],
    [1.25, 0.5, 1.6, 4 / 3, 0.9, 5 / 6, 1, 1],
    [0.98, 7 / 9],
]


def ratio():
    return (FOUR.logp - FOUR.logp_old).exp()


def labels(selected):
    return [f"{'ABCD'[n]}{t + 1}" for n, t in selected.nonzero().tolist()]


def test_the_verifier_agrees_with_the_rewards():
    problem = Problem("four", FOUR.prompt, FOUR.answer)
    verdicts = [SumsTask().verify(problem, text) for text in FOUR.texts]
    assert [verdict.correct for verdict in verdicts] == [True, True, False, False]
    assert [verdict.format_ok for verdict in verdicts] == [True] * 4
    assert FOUR.rewards.tolist() == [1, 1, 0, 0]


def test_layout():
    assert FOUR.lengths.tolist() == FOUR.mask.sum(1).tolist() == [4, 2, 8, 2]
    for table in (FOUR.logp, FOUR.logp_old, FOUR.values):
        assert table.dtype == torch.float64
        assert table.shape == FOUR.mask.shape == (4, 8)
        assert (table[~FOUR.mask] == 0).all()
        assert not table.isnan().any()


def test_ratios():
    for row, length, expected in zip(ratio(), FOUR.lengths, RATIOS, strict=True):
        assert row[:length].tolist() == pytest.approx(expected)


@pytest.mark.parametrize("probs", [FOUR.probs_old, FOUR.probs], ids=["old", "current"])
def test_tokens_after_one_prefix_share_one_distribution(probs):
    next_tokens = defaultdict(dict)
    for tokens, row in zip(FOUR.tokens, probs, strict=True):
        for t, p in enumerate(row):
            assert next_tokens[tokens[:t]].setdefault(tokens[t], p) == p
    assert all(sum(options.values()) <= 1 for options in next_tokens.values())


def test_critic_agrees_after_one_prefix():
    value_of = {}
    for tokens, row in zip(FOUR.tokens, FOUR.critic_values, strict=True):
        for t, value in enumerate(row):
            assert value_of.setdefault(tokens[:t], value) == value


def test_advantages_by_hand():
    by_hand = {
        group_center: 1 / 2,
        group_normalize: sqrt(3) / 2,
        leave_one_out: 2 / 3,
        max_rl: 1,
    }
    for advantage, expected in by_hand.items():
        ours = advantage(FOUR.rewards, FOUR.groups).tolist()
        assert ours == pytest.approx([expected, expected, -expected, -expected], abs=2e-6)


def test_masked_tokens_by_hand():
    advantages = group_center(FOUR.rewards, FOUR.groups)[:, None].expand(4, 8)

    def masked(region):
        keep = weigh(region, Tokens.of(FOUR.logp, FOUR.logp_old, advantages, FOUR.mask)).keep
        return labels(FOUR.mask & ~keep)

    assert masked(RatioClip(0.2, 0.2)) == ["A1", "A2", "B2", "C2", "D2"]
    assert masked(RatioClip(0.2, 0.28)) == ["A2", "B2", "C2", "D2"]
    assert masked(DivergenceMask("tv", 0.15, 0.15)) == ["A2", "C6", "D2"]
    assert masked(DivergenceMask("kl", 0.05, 0.05)) == ["A2", "C6", "D2"]
    assert masked(WeightClip(max=1.2)) == []


def test_whole_completions_masked_by_the_sequence_ratio():
    s = sequence_ratio(FOUR.logp, FOUR.logp_old, FOUR.mask)
    by_hand = [1.25**0.25, 1.4, 1.0, sqrt(0.98 * 7 / 9)]
    assert s.reshape(4, -1)[:, 0].tolist() == pytest.approx(by_hand)
    advantages = group_center(FOUR.rewards, FOUR.groups)[:, None].expand(4, 8)
    tokens = Tokens.of(FOUR.logp, FOUR.logp_old, advantages, FOUR.mask, "sequence")
    keep = weigh(RatioClip(3e-4, 4e-4), tokens).keep
    assert keep[:, 0].tolist() == [False, False, True, False]


def test_temporal_differences_of_the_critic_by_hand():
    """λ = 0, γ = 1: V(next) - V, and reward - V at the end."""
    token_rewards = torch.zeros_like(FOUR.values)
    token_rewards[torch.arange(4), FOUR.lengths - 1] = FOUR.rewards
    advantages, _ = gae(token_rewards, FOUR.values, FOUR.mask, 1.0, 0.0)
    assert advantages.tolist() == [
        [0.25, 0, 0.25, 0, 0, 0, 0, 0],
        [-0.25, 0.75, 0, 0, 0, 0, 0, 0],
        [0.25, -0.5, 0, 0, -0.25, 0, 0, 0],
        [-0.25, -0.25, 0, 0, 0, 0, 0, 0],
    ]


def test_every_case_of_the_ratio_occurs():
    """Inside the window, between the two upper bounds, above, below: for both signs."""
    for rows in (slice(0, 2), slice(2, 4)):
        r = ratio()[rows][FOUR.mask[rows]]
        for low, high in ((0.8, 1.2), (1.2, 1.28), (1.28, 9), (0, 0.8)):
            assert ((r > low) & (r < high)).any(), (rows, low, high)


def test_token_weights_by_hand():
    by_hand = {
        ("sequence_mean", None): [1 / 16, 1 / 8, 1 / 32, 1 / 8],
        ("token_mean", None): [1 / 16] * 4,
        ("constant", 8): [1 / 32] * 4,
    }
    for (how, constant), expected in by_hand.items():
        logp = FOUR.logp.requires_grad_()
        aggregate(logp, FOUR.mask, how, FOUR.groups, constant).backward()
        assert logp.grad[:, 0].tolist() == pytest.approx(expected), how


def test_table_lists_every_token_once():
    rows = four_table()
    assert len(rows) == 16
    rare = next(row for row in rows if row["completion"] == "B" and row["position"] == 2)
    assert (rare["pi_old"], rare["pi"]) == (0.01, 0.02)
    assert rare["ratio"] == pytest.approx(2)
    assert rare["tv"] == pytest.approx(0.01)


def test_changing_a_tensor_does_not_change_the_book():
    FOUR.logp.zero_()
    FOUR.rewards.fill_(9)
    assert FOUR.logp[0, 1].item() == pytest.approx(-0.2231435513)
    assert FOUR.rewards.sum() == 2
