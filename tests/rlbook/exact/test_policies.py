import pytest
import torch

from rlbook.exact import FillerPolicy, SoftmaxPolicy, TokenTree

POLICIES = {
    "softmax": SoftmaxPolicy.from_probs([0.5, 0.3, 0.15, 0.05]),
    "filler": FillerPolicy.of(0.3, fillers=3, filler_prob=0.6),
    "tree": TokenTree.random(symbols=2, max_tokens=3),
}
policies = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)


def rewards_of(policy):
    generator = torch.Generator().manual_seed(7)
    return torch.rand(len(policy.probs), generator=generator, dtype=torch.float64)


def finite_difference(function, point, h=1e-5):
    columns = []
    for d in range(point.numel()):
        step = torch.zeros_like(point).flatten()
        step[d] = h
        step = step.reshape(point.shape)
        columns.append((function(point + step) - function(point - step)) / (2 * h))
    return torch.stack(columns, dim=-1)


@policies
def test_probabilities_sum_to_one(policy):
    assert policy.probs.sum().item() == pytest.approx(1, abs=1e-12)


@policies
def test_scores_are_derivatives_and_average_to_zero(policy):
    slopes = finite_difference(policy.log_probs, policy.logits)
    torch.testing.assert_close(policy.scores, slopes, atol=1e-9, rtol=1e-7)
    assert (policy.probs @ policy.scores).abs().max() < 1e-15


@policies
def test_true_gradient_three_ways(policy):
    rewards = rewards_of(policy)
    slope = finite_difference(lambda z: policy.log_probs(z).exp() @ rewards, policy.logits)
    score_function = policy.scores.T @ (policy.probs * rewards)
    torch.testing.assert_close(policy.true_gradient(rewards), slope, atol=1e-9, rtol=1e-7)
    torch.testing.assert_close(policy.true_gradient(rewards), score_function, atol=1e-12, rtol=0)


@policies
def test_a_step_along_the_gradient_helps(policy):
    rewards = rewards_of(policy)
    gradient = policy.true_gradient(rewards)
    gain = policy.moved(1e-4 * gradient).expected_reward(rewards) - policy.expected_reward(rewards)
    assert gain.item() == pytest.approx(1e-4 * (gradient @ gradient).item(), rel=1e-3)


def test_tree_agrees_with_sampling_token_by_token():
    tree = TokenTree.random(symbols=2, max_tokens=3, seed=3)
    tables = dict(zip(tree.prefixes, tree.logits.softmax(-1), strict=True))
    generator = torch.Generator().manual_seed(0)
    n, counts = 20_000, dict.fromkeys(tree.sequences, 0)
    draws = {
        prefix: iter(torch.multinomial(p, n, True, generator=generator).tolist())
        for prefix, p in tables.items()
    }
    for _ in range(n):
        sequence = ()
        while len(sequence) < 3 and tree.stop not in sequence:
            sequence += (next(draws[sequence]),)
        counts[sequence] += 1
    frequency = torch.tensor(list(counts.values())) / n
    sd = (tree.probs * (1 - tree.probs) / n).sqrt()
    assert ((frequency - tree.probs).abs() < 4.5 * sd).all()


def test_tree_layout():
    tree = TokenTree.random(symbols=2, max_tokens=3)
    assert len(tree.prefixes) == 1 + 2 + 4
    assert len(tree.sequences) == len(set(tree.sequences)) == 7 + 8
    assert tree.lengths.tolist() == tree.mask.sum(1).tolist()
    assert (tree.token_log_probs(tree.logits)[~tree.mask] == 0).all()
    assert tree.sequences[4] == (0, 1, tree.stop)


def test_filler_rewards_follow_the_first_token():
    policy = FillerPolicy.of(0.3, fillers=4)
    assert len(policy.probs) == 32
    assert policy.expected_reward(policy.rewards).item() == pytest.approx(0.3)
    assert policy.true_gradient(policy.rewards).tolist() == pytest.approx([0.21, 0, 0, 0, 0])


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="sum to 1"):
        SoftmaxPolicy.from_probs([0.5, 0.6])
    with pytest.raises(ValueError, match=r"shape \(3, 3\)"):
        TokenTree(torch.zeros(4, 3), max_tokens=2)
