import copy
import math
from dataclasses import replace

import pytest
import torch

from rlbook.objectives import METHODS
from rlbook.policy import logprobs
from rlbook.training import Critic, collate, critic_step, explained_variance, train_step
from rlbook.training.config import OptimizerConfig
from rlbook.training.parallel import LocalProcess
from rlbook.training.step import adamw, apply_gradients, warm_up


@pytest.fixture
def batch(make_rollout):
    torch.manual_seed(1)
    rollouts = []
    for index in range(8):
        tokens = torch.randint(3, 20, (2 + 3 * (index % 4),)).tolist()
        rollouts.append(make_rollout(group=index // 4, tokens=tokens, reward=index % 2))
    return collate(rollouts).prepared(advantages=torch.randn(8))


def old_logprobs(policy, batch, shift=0.0):
    """The batch with log π_old = log π + `shift`, and a reference that is 0.2 further away."""
    old = logprobs(policy[0], batch.ids, batch.mask).detach() + shift
    return replace(batch, logp_old=old, logp_ref=old - 0.2)


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_micro_batch_size_does_not_change_the_update(name, policy, batch):
    method = METHODS[name].resolved(20)
    batch = old_logprobs(policy, batch, shift=0.1)
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
    train_step(model, sgd(model), replace(batch, logp_old=before), METHODS["dapo"])
    gain = ((logprobs(model, batch.ids, batch.mask) - before) * batch.mask).sum(1).detach()
    assert (gain * batch.advantages).sum() > 0


def test_non_finite_gradient_is_named_and_leaves_everything_untouched(policy, batch):
    model = policy[0]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    train_step(model, optimizer, batch, METHODS["dapo"])
    weights = copy.deepcopy(model.state_dict())
    moments = copy.deepcopy(optimizer.state_dict()["state"])
    advantages = batch.advantages.clone()
    advantages[3] = float("nan")
    batch = replace(batch, advantages=advantages)
    with pytest.warns(RuntimeWarning, match="non-finite gradient in .* first model.embed"):
        metrics = train_step(model, optimizer, batch, METHODS["dapo"])
    assert metrics["skipped_updates"] == 1
    for name, value in model.state_dict().items():
        assert torch.equal(value, weights[name])
    for index, entry in optimizer.state_dict()["state"].items():
        for key, value in entry.items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(moments[index][key]))


class Alternating(LocalProcess):
    """Two pretended processes: each runs every other micro-batch; sums and gradients meet."""

    def micro_batches(self, batch, max_tokens):
        parts = list(super().micro_batches(batch, max_tokens))
        nothing = replace(batch, mask=torch.zeros_like(batch.mask)).select(torch.tensor([0]))
        yield from [*parts[::2], (torch.tensor([], dtype=torch.long), nothing), *parts[1::2]]


@pytest.mark.parametrize("name", ["scalerl", "gspo", "dr_grpo", "grpo"])
def test_who_runs_a_micro_batch_does_not_matter_nor_does_an_empty_one(name, policy, batch):
    staleness = torch.arange(8)[:, None].expand_as(batch.mask) // 4
    batch = replace(old_logprobs(policy, batch, shift=0.1), staleness=staleness)
    results = []
    for parallel in (LocalProcess(), Alternating()):
        model = copy.deepcopy(policy[0])
        metrics = train_step(
            model,
            sgd(model),
            batch,
            METHODS[name].resolved(20),
            micro_batch_tokens=30,
            parallel=parallel,
        )
        results.append((metrics, torch.cat([p.detach().flatten() for p in model.parameters()])))
    torch.testing.assert_close(results[1][1], results[0][1], rtol=0, atol=2e-6)
    assert results[1][0] == pytest.approx(results[0][0], rel=1e-4, abs=1e-5)


def test_mismatch_is_split_by_staleness(policy, batch):
    batch = old_logprobs(policy, batch)
    assert "staleness_mean" not in train_step(
        copy.deepcopy(policy[0]), sgd(policy[0]), batch, METHODS["scalerl"]
    )
    staleness = torch.zeros_like(batch.ids)
    staleness[5:] = 3
    sampler = batch.logp_old + torch.where(staleness > 0, -0.25, 0.125)
    staleness[~batch.mask] = 99  # padding counts nowhere
    batch = replace(batch, staleness=staleness, logp_sampler=sampler)
    metrics = train_step(policy[0], sgd(policy[0]), batch, METHODS["scalerl"])
    assert metrics["mismatch_fresh"] == pytest.approx(0.125, abs=1e-6)
    assert metrics["mismatch_stale"] == pytest.approx(0.25, abs=1e-6)
    stale = int(batch.mask[5:].sum())
    assert metrics["staleness_mean"] == pytest.approx(3 * stale / int(batch.mask.sum()))
    assert (metrics["staleness_min"], metrics["staleness_max"]) == (0, 3)


def test_mismatch_is_measured_against_the_sampler_whatever_the_old_log_probs(policy, batch):
    batch = old_logprobs(policy, batch)
    batch = replace(batch, logp_sampler=batch.logp_old - 0.5, staleness=torch.zeros_like(batch.ids))
    metrics = train_step(policy[0], sgd(policy[0]), batch, METHODS["dapo"])
    assert metrics["mismatch_fresh"] == pytest.approx(0.5, abs=1e-6)
    assert math.isnan(metrics["mismatch_stale"])
    assert metrics["ratio_max"] == pytest.approx(1, abs=1e-5)


def test_the_correction_weights_the_gradient(policy, batch):
    batch = old_logprobs(policy, batch)
    start = torch.cat([p.detach().flatten() for p in policy[0].parameters()])
    moves = []
    for correction in (None, torch.full_like(batch.logp_old, 0.5)):
        model = copy.deepcopy(policy[0])
        corrected = replace(batch, correction=correction)
        train_step(model, sgd(model), corrected, METHODS["dapo"], max_grad_norm=1e9)
        moves.append(torch.cat([p.detach().flatten() for p in model.parameters()]) - start)
    assert moves[0].norm() > 1e-3
    torch.testing.assert_close(moves[1], moves[0] / 2, rtol=0, atol=1e-6)


def test_a_norm_that_overflows_is_skipped_too(policy, batch):
    model = policy[0]
    weights = copy.deepcopy(model.state_dict())
    for p in model.parameters():
        p.grad = torch.full_like(p, 3e38 / p.numel() ** 0.5)
    with pytest.warns(RuntimeWarning, match="update skipped"):
        assert apply_gradients(model, sgd(model), 1.0)[1] == 1
    assert all(torch.equal(v, weights[k]) for k, v in model.state_dict().items())


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
    batch = replace(
        batch,
        values_old=critic(batch.ids, batch.mask).detach(),
        returns=torch.where(batch.mask, batch.rewards[:, None], 0.0),
    )
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


@pytest.fixture
def critic_batch(policy, batch):
    """Values at rollout time are 0.1 everywhere, and returns the rewards."""
    returns = torch.where(batch.mask, batch.rewards[:, None], 0.0)
    return replace(batch, values_old=torch.where(batch.mask, 0.1, 0.0), returns=returns)


@pytest.mark.parametrize(("clip", "right"), [(None, 0.005), (0.2, 0.245), (0.5, 0.08)])
def test_the_value_loss_is_clipped_where_it_is_asked(clip, right, policy, critic_batch):
    """V = 0.9, V_old = 0.1. A return of 0 costs ½·0.9², a return of 1 ½·(0.1 + clip − 1)²."""
    critic = Critic(policy[0])
    torch.nn.init.constant_(critic.head.bias, 0.9)
    share = float(critic_batch.returns.sum() / critic_batch.mask.sum())
    assert 0.2 < share < 0.8
    metrics = critic_step(critic, sgd(critic), critic_batch, clip=clip)
    assert metrics["value_loss"] == pytest.approx((1 - share) * 0.405 + share * right, rel=1e-4)


@pytest.mark.parametrize("tokens", [1, 60])
def test_micro_batch_size_does_not_change_the_critics_update(tokens, policy, critic_batch):
    weights = []
    for limit in (tokens, 10_000):
        critic = Critic(policy[0])
        torch.nn.init.normal_(
            critic.head.weight, std=0.1, generator=torch.Generator().manual_seed(0)
        )
        critic_step(critic, sgd(critic), critic_batch, micro_batch_tokens=limit, max_grad_norm=1e9)
        weights.append(torch.cat([p.detach().flatten() for p in critic.parameters()]))
    start = torch.cat([p.detach().flatten() for p in Critic(policy[0]).trunk.parameters()])
    assert (weights[1][: len(start)] - start).abs().max() > 1e-3
    torch.testing.assert_close(weights[0], weights[1], rtol=0, atol=1e-5)


def test_a_critic_without_targets_says_what_it_misses(policy, batch):
    with pytest.raises(ValueError, match="values_old and returns; this batch has none"):
        critic_step(Critic(policy[0]), sgd(policy[0]), batch)


def test_the_optimizer_is_what_the_settings_say(policy):
    settings = OptimizerConfig(lr=0.5, betas=(0.7, 0.8), eps=0.25, weight_decay=0.125)
    group = adamw(policy[0], settings).param_groups[0]
    wanted = {"lr": 0.5, "betas": (0.7, 0.8), "eps": 0.25, "weight_decay": 0.125}
    assert {key: group[key] for key in wanted} == wanted
    assert adamw(policy[0], settings, lr=0.75).param_groups[0]["lr"] == 0.75


def test_warm_up_is_linear():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=9.0)
    rates = [warm_up(optimizer, 2.0, update, 4) for update in range(6)]
    assert rates == [0.5, 1.0, 1.5, 2.0, 2.0, 2.0]
    assert optimizer.param_groups[0]["lr"] == 2.0
    assert warm_up(optimizer, 2.0, 0, 0) == 2.0
