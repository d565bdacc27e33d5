from itertools import combinations, pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlbook.objectives import METHODS
from rlbook.training import TrainBatch, collate, micro_batch_rows, minibatches
from rlbook.training.batch import balance, lengths_of
from rlbook.training.filter import select_groups
from rlbook.training.metrics import rollout_metrics
from rlbook.training.prepare import staleness_of


def test_collate_aligns_every_tensor_with_its_token(make_rollout):
    short = make_rollout(group=4, prompt=(1, 5), tokens=(6, 2), logps=[-0.1, -0.2], reward=0.5)
    long = make_rollout(group=7, prompt=(1, 5, 6), tokens=(7, 8, 2), logps=[-1.0, -2.0, -3.0])
    batch = collate([short, long])
    assert batch.ids.tolist() == [[1, 5, 6, 2, 0, 0], [1, 5, 6, 7, 8, 2]]
    assert batch.mask.long().tolist() == [[0, 0, 1, 1, 0, 0], [0, 0, 0, 1, 1, 1]]
    assert batch.logp_sampler[0, 2:4].tolist() == pytest.approx([-0.1, -0.2])
    assert batch.logp_sampler[1, 3:].tolist() == [-1.0, -2.0, -3.0]
    assert batch.logp_sampler[~batch.mask].abs().sum() == 0
    assert batch.rewards.tolist() == [0.5, 1.0]
    assert batch.groups.tolist() == [4, 7]
    assert batch.finished.tolist() == [True, True]
    assert batch.token_rewards is None


def test_rewards_per_token_stand_at_their_tokens_and_add_up(make_rollout):
    first = make_rollout(prompt=(1, 5), tokens=(6, 7, 2), reward=0.5, finish_reason="length")
    first.token_rewards = {"process": [0.25, 0.0, 1.0], "length": [-0.5, -0.5, -0.5]}
    second = make_rollout(prompt=(1,), tokens=(6, 2), reward=2.0)
    batch = collate([first, second])
    assert batch.token_rewards.tolist() == [[0, 0, -0.25, -0.5, 0.5], [0, 0, 0, 0, 0]]
    assert batch.rewards.tolist() == [0.5, 2.0]
    assert batch.finished.tolist() == [False, True]
    assert first.reward == 0.25  # 0.5 + 1.25 - 1.5


def test_forced_tokens_are_context_but_not_trained(make_rollout):
    logps = [-0.1, 0.0, 0.0, -0.4]
    interrupted = make_rollout(
        prompt=(1, 5), tokens=(6, 7, 8, 2), logps=logps, forced=[False, True, True, False]
    )
    batch = collate([interrupted])
    assert batch.ids.tolist() == [[1, 5, 6, 7, 8, 2]]
    assert batch.mask.long().tolist() == [[0, 0, 1, 0, 0, 1]]
    assert batch.logp_sampler[0].tolist() == pytest.approx([0, 0, *logps])


def test_collate_of_nothing_is_an_error():
    with pytest.raises(ValueError, match="at least one rollout"):
        collate([])


def test_select_cuts_common_padding_but_no_token(make_rollout):
    rollouts = [make_rollout(tokens=range(3, 3 + n)) for n in (1, 5, 2)]
    batch = collate(rollouts)
    picked = batch.select(torch.tensor([2, 0]))
    assert picked.ids.shape == (2, 5)
    assert picked.ids[0].tolist() == [1, 9, 10, 3, 4]
    assert picked.mask.sum(1).tolist() == [2, 1]


def test_select_takes_every_tensor_along(make_rollout):
    rollouts = [make_rollout(group=g, tokens=(4, 5, 2)[: 1 + g]) for g in range(3)]
    batch = collate(rollouts).prepared(
        advantages=torch.tensor([1.0, 2.0, 3.0]), topk_ids=torch.arange(36).view(3, 6, 2)
    )
    picked = batch.select(torch.tensor([1]))
    assert picked.advantages.tolist() == [2.0]
    assert picked.groups.tolist() == [1]
    assert picked.topk_ids.tolist() == [[[12, 13], [14, 15], [16, 17], [18, 19], [20, 21]]]
    assert picked.returns is None


def ragged_batch(lengths, groups=None):
    width = max(lengths)
    mask = torch.arange(width) < torch.tensor(lengths)[:, None]
    blank = torch.zeros(len(lengths), width)
    ids = torch.arange(len(lengths))[:, None].expand(-1, width)
    return TrainBatch(
        ids,
        mask,
        blank,
        rewards=blank[:, 0],
        groups=torch.arange(len(lengths)) if groups is None else torch.tensor(groups),
        finished=mask[:, 0],
        versions=torch.zeros_like(ids),
        logp_old=blank,
        advantages=blank[:, 0],
    )


def test_staleness_stands_at_its_token(make_rollout):
    first = make_rollout(prompt=(1, 5), tokens=(6, 2), versions=[3, 5])
    second = make_rollout(prompt=(1, 5, 6), tokens=(7, 8, 2), versions=[6, 6, 7])
    staleness = staleness_of(collate([first, second]), 7)
    assert staleness.tolist() == [[0, 0, 4, 2, 0, 0], [0, 0, 0, 1, 1, 0]]


@given(st.lists(st.integers(1, 30), min_size=1, max_size=20), st.integers(1, 80))
def test_micro_batches_partition_the_rows_within_budget(lengths, budget):
    batch = ragged_batch(lengths)
    slices = list(micro_batch_rows(batch, budget))
    assert sorted(torch.cat(slices).tolist()) == list(range(len(lengths)))
    for rows in slices:
        padded = len(rows) * max(lengths[i] for i in rows)
        assert padded <= budget or len(rows) == 1


@given(st.integers(1, 6), st.integers(0, 5))
def test_minibatches_keep_groups_whole(count, seed):
    groups = [3, 3, 8, 8, 8, 1, 5, 5, 9, 2, 2]
    parts = list(minibatches(ragged_batch([4] * len(groups), groups), count, seed))
    seen = [set(part.groups.tolist()) for part in parts]
    assert len(parts) == count
    assert sum(len(part) for part in parts) == len(groups)
    assert sum(len(s) for s in seen) == len(set(groups))
    assert max(map(len, seen)) - min(map(len, seen)) <= 1


def test_another_seed_cuts_other_minibatches():
    batch = ragged_batch([1] * 8)
    first, again, other = (
        [part.groups.tolist() for part in minibatches(batch, 2, seed)] for seed in (0, 0, 1)
    )
    assert first == again
    assert first != other


def test_too_many_minibatches_is_named():
    batch = ragged_batch([2, 2])
    with pytest.raises(ValueError, match="3 minibatches need at least 3 prompts"):
        list(minibatches(batch, 3, 0))


def test_length_of_a_row_without_trained_tokens_is_zero():
    mask = torch.tensor([[False, False, False], [False, True, False]])
    assert lengths_of(mask).tolist() == [0, 2]


def test_a_filter_selects_by_what_it_says_and_the_metric_counts_the_rest(make_rollout):
    """By correctness: arXiv:2503.14476, equation 11, 0 < number of right answers < G."""
    mixed = [make_rollout(group=0, reward=1.0, correct=c) for c in (True, False)]
    solved = [make_rollout(group=1, reward=r, correct=True) for r in (1.0, 0.5)]
    alike = [make_rollout(group=2, reward=0.0, correct=False) for _ in range(2)]
    everyone = mixed + solved + alike
    assert select_groups(everyone, METHODS["dapo"]) == mixed
    assert select_groups(everyone, METHODS["scalerl"]) == solved
    assert select_groups(everyone, METHODS["grpo"]) == everyone
    metrics = rollout_metrics(everyone, 0)
    assert metrics["all_right_or_wrong"] == metrics["equal_rewards"] == pytest.approx(2 / 3)


LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=30)


@given(LENGTHS, st.integers(1, 5), st.integers(1, 120))
def test_a_plan_gives_every_row_once_and_every_rank_as_many_slices(lengths, ranks, budget):
    shares = balance(lengths, ranks, budget)
    assert len(shares) == ranks
    assert len({len(share) for share in shares}) == 1
    rows = [row for share in shares for slice_ in share for row in slice_]
    assert sorted(rows) == list(range(len(lengths)))
    for slice_ in (s for share in shares for s in share if s):
        assert len(slice_) == 1 or len(slice_) * max(lengths[row] for row in slice_) <= budget


@given(LENGTHS, st.integers(1, 5), st.integers(1, 120))
def test_no_rank_is_idle_in_a_round_that_could_be_left_out(lengths, ranks, budget):
    """Rounds cost a forward pass of all ranks: there are no more than one rank's slices need."""
    rounds = len(balance(lengths, ranks, budget)[0])
    alone = len(balance(lengths, 1, budget)[0])
    assert rounds == -(-alone // ranks)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(1, 3), st.integers(1, 30))
def test_the_largest_slice_is_as_small_as_it_can_be(lengths, ranks, budget):
    """Ranks wait for the slowest: compared with all ways to cut the sorted rows."""
    shares = balance(lengths, ranks, budget)
    ascending, most = sorted(lengths), ranks * len(shares[0])
    best = min(
        max((b - a) * ascending[b - 1] for a, b in pairwise((0, *cuts, len(lengths))))
        for count in range(min(most, len(lengths)))
        for cuts in combinations(range(1, len(lengths)), count)
    )
    sizes = [len(s) * max(lengths[row] for row in s) for share in shares for s in share if s]
    assert max(sizes) == best


def test_known_plan():
    """Four equal rows fit into one slice of 40; two ranks take two rows each, not four and none."""
    assert balance([10, 10, 10, 10], 2, 40) == [[[0, 1]], [[2, 3]]]
    assert balance([3, 9, 3], 2, 12) == [[[0, 2]], [[1]]]
    assert balance([5], 3, 100) == [[[0]], [[]], [[]]]
