import copy

import pytest
import torch

from rlbook.objectives import METHODS
from rlbook.policy import logprobs
from rlbook.training import Critic, collate, critic_step, explained_variance, train_step


@pytest.fixture
def batch(make_rollout):
    torch.manual_seed(1)
    rollouts = []
    for index in range(8):
        tokens = torch.randint(3, 20, (2 + 3 * (index % 4),)).tolist()
        rollouts.append(make_rollout(group=index // 4, tokens=tokens, reward=index % 2))
    batch = collate(rollouts)
    batch.advantages = torch.randn(8)
    return batch


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_micro_batch_size_does_not_change_the_update(name, policy, batch):
    method = METHODS[name]
    batch.logp_old = logprobs(policy[0], batch.ids, batch.mask).detach() + 0.1
    if method.kl:
        batch.logp_ref = batch.logp_old - 0.2
    results = []
    for tokens in (1, 40, 10_000):
        model = copy.deepcopy(policy[0])
        options = {"micro_batch_tokens": tokens, "max_grad_norm": 1e9}
        metrics = train_step(model, sgd(model), batch, method, **options)
        results.append((metrics, torch.cat([p.detach().flatten() for p in model.parameters()])))
    start = torch.cat([p.detach().flatten() for p in policy[0].parameters()])
    assert not torch.equal(results[0][1], start)
    for metrics, weights in results[1:]:
        torch.testing.assert_close(weights, results[0][1], rtol=0, atol=2e-6)
        assert metrics["loss"] == pytest.approx(results[0][0]["loss"], abs=1e-5)


def test_update_raises_the_probability_of_rewarded_completions(policy, batch):
    model, before = policy[0], logprobs(policy[0], batch.ids, batch.mask).detach()
    batch.logp_old = before
    train_step(model, sgd(model), batch, METHODS["dapo"])
    gain = ((logprobs(model, batch.ids, batch.mask) - before) * batch.mask).sum(1).detach()
    assert (gain * batch.advantages).sum() > 0


def test_non_finite_gradient_is_named_and_leaves_everything_untouched(policy, batch):
    model = policy[0]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    train_step(model, optimizer, batch, METHODS["dapo"])
    weights = copy.deepcopy(model.state_dict())
    moments = copy.deepcopy(optimizer.state_dict()["state"])
    batch.advantages[3] = float("nan")
    with pytest.warns(RuntimeWarning, match="non-finite gradient in .* first model.embed"):
        metrics = train_step(model, optimizer, batch, METHODS["dapo"])
    assert metrics["skipped_updates"] == 1
    for name, value in model.state_dict().items():
        assert torch.equal(value, weights[name])
    for index, entry in optimizer.state_dict()["state"].items():
        for key, value in entry.items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(moments[index][key]))


def test_critic_sees_only_the_tokens_before(policy, batch):
    critic = Critic(policy[0])
    torch.nn.init.normal_(critic.head.weight)
    values = critic(batch.ids, batch.mask)
    changed = batch.ids.clone()
    changed[:, 5] = (changed[:, 5] + 1) % 20
    difference = (critic(changed, batch.mask) - values).abs().amax(0)
    assert difference[:6].max() < 1e-6
    assert difference[6:].max() > 1e-4
    assert values[~batch.mask].abs().max() == 0


def test_critic_learns_returns_it_can_know(policy, batch):
    critic = Critic(policy[0])
    optimizer = torch.optim.AdamW(critic.parameters(), lr=3e-3)
    batch.values_old = critic(batch.ids, batch.mask).detach()
    batch.returns = torch.where(batch.mask, batch.rewards[:, None], 0.0)
    for _ in range(60):
        critic_step(critic, optimizer, batch, clip=None)
    values = critic(batch.ids, batch.mask).detach()
    assert explained_variance(values, batch.returns, batch.mask) > 0.3


def test_explained_variance_of_known_critics():
    mask = torch.tensor([[True, True, True, False]])
    returns = torch.tensor([[0.0, 1.0, 2.0, 99.0]])
    assert explained_variance(returns + 5, returns, mask) == pytest.approx(1.0)
    assert explained_variance(torch.zeros(1, 4), returns, mask) == pytest.approx(0.0)
    assert explained_variance(-returns, returns, mask) == pytest.approx(-3.0)
    assert explained_variance(returns, torch.ones(1, 4), mask) == 0.0
