"""The rows of `FIELD`: what is new in each against numbers worked by hand, sums and slopes."""

import tomllib
from dataclasses import replace
from itertools import product
from math import inf, log, sqrt

import pytest
import torch

from rlbook.objectives import (
    FIELD,
    METHODS,
    Method,
    SamplerCorrection,
    Tokens,
    best_of_group,
    gdpo,
    group_normalize,
    imitation_weights,
    length_adaptive_gae,
    policy_loss,
    weigh,
)
from rlbook.paths import data_dir
from rlbook.training import RunConfig, Trainer
from rlbook.training.prepare import parts_of

EXACT = {"rtol": 1e-12, "atol": 1e-13}


def double(*values):
    return torch.tensor([*values], dtype=torch.float64)


def test_names_are_those_of_no_row_of_the_book_and_read_from_files():
    assert not FIELD.keys() & METHODS.keys()
    for name, row in FIELD.items():
        assert Method.from_dict(name) == row == Method.from_dict(row.to_dict())
    changed = Method.from_dict({"name": "glm5", "trust_region": {"high": 0.28}})
    assert (changed.trust_region.low, changed.trust_region.high) == (0.2, 0.28)


def test_every_rows_paper_is_in_the_bibliography():
    papers = tomllib.loads((data_dir() / "bibliography.toml").read_text(encoding="utf-8"))
    assert {row.paper for row in [*METHODS.values(), *FIELD.values()]} <= papers.keys()


def one_of_four(rollouts):
    return {"answer": [float(i % 4 == 0) for i in range(len(rollouts))]}


@pytest.mark.parametrize("name", sorted(FIELD))
def test_every_row_of_the_field_trains(name, little_policy, parity, little):
    config = RunConfig(method=name, **{"steps": 2} | little)
    trained = Trainer(config, little_policy(), task=parity, reward=one_of_four)
    before = [p.detach().clone() for p in trained.model.parameters()]
    metrics = trained.train_one()
    assert metrics["skipped_updates"] == 0
    after = trained.model.parameters()
    assert not all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


# One answer of three tokens with π_old/μ = 0.4, 1 and 6: product 2.4, geometric mean 1.34.
WEIGHTS = {
    "tis": [0.4, 1, 2],
    "icepop": [0, 1, 0],
    "sequence_tis": [2.4] * 3,
    "mis": [2.4] * 3,
    "geometric_mask": [0] * 3,
    "m2po": [0, 1, 0],  # squares 0.84, 0 and 3.2: the first two have a mean of 0.42
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_of_a_sampler_that_is_not_the_policy(name):
    old, mask = torch.full((1, 3), -1.0, dtype=torch.float64), torch.ones(1, 3, dtype=torch.bool)
    weights = FIELD[name].sampler_correction(old, old - double(0.4, 1, 6).log(), mask)
    torch.testing.assert_close(weights, double(*WEIGHTS[name])[None])


def test_a_whole_answer_beyond_the_cap_is_truncated_or_dropped():
    old, mask = torch.full((1, 3), -1.0, dtype=torch.float64), torch.ones(1, 3, dtype=torch.bool)
    seen = {
        name: FIELD[name].sampler_correction(old, old - log(2), mask).unique().tolist()
        for name in ("sequence_tis", "mis")
    }
    assert seen == {"sequence_tis": [5], "mis": [0]}  # 2 · 2 · 2


def test_the_second_moment_is_kept_below_its_bound_by_the_calmest_tokens():
    """Squares 1, 4, 9 and 16 hundredths: means of the first ones 1, 2.5, 4.67 and 7.5."""
    moved = double(-0.3, 0.1, 0.4, 0.2, 9.0)[None]
    mask = torch.tensor([[True, True, True, True, False]])
    for moment, kept in ((0.005, []), (0.02, [1]), (0.025, [1, 3]), (0.05, [0, 1, 3])):
        weights = SamplerCorrection(inf, moment=moment + 1e-12)(moved, 0 * moved, mask)[0]
        assert [t for t in range(4) if weights[t] > 0] == kept
        torch.testing.assert_close(weights[kept], moved[0, kept].exp())
        assert weights[4] == 1  # outside the mask
    with pytest.raises(ValueError, match="moment is a mean"):
        SamplerCorrection(inf, moment=-1.0)


def weights_of(name, moved, advantage):
    """Weights of the tokens of one answer that have moved by these log-ratios."""
    row, moved = FIELD[name], double(*moved)[None]
    old = torch.full_like(moved, -5.0)
    tokens = Tokens.of(old + moved, old, torch.full_like(moved, advantage), None, row.ratio)
    return weigh(row.trust_region, tokens).weight[0].tolist()


@pytest.mark.parametrize(
    ("name", "moved", "good", "bad"),
    [
        *((n, [log(0.79), 0, log(1.21)], [0, 1, 0], [0, 1, 0]) for n in ("glm5", "sao")),
        ("topr", [log(2), log(0.25)], [1, 1], [0.5, 0.5]),
        ("vespo", [log(2), log(0.25)], [0.25 * 2.718281828**1.5] * 2, [0.125 * 2.718281828] * 2),
        ("deepseek_v32", [-0.3, -0.1], [0.740818221, 0.904837418], [0, 0]),
        ("m2po", [log(3)], [3], [3]),
        ("kl_cov", [log(3)], [3], [3]),
        ("vapo", [log(1.3), log(0.7)], [0, 0.7], [1.3, 0]),
    ],
)
def test_weights_worked_by_hand(name, moved, good, bad):
    """Of a good and a bad answer: clips, windows and ratios of the whole answer (0.5)."""
    assert weights_of(name, moved, 1.0) == pytest.approx(good)
    assert weights_of(name, moved, -1.0) == pytest.approx(bad)


def test_rows_that_are_another_row_but_for_one_choice():
    def differ(name, base):
        ours, theirs = FIELD[name].to_dict(), replace(base, kl=None).to_dict()
        return {k for k in ours if ours[k] != theirs[k]} - {"name", "paper", "note"}

    assert differ("luspo", METHODS["gspo"]) == {"aggregation"}
    assert differ("top_entropy", METHODS["dapo"]) == {"selection"}
    assert differ("sdpo", METHODS["opd"]) == set()
    assert differ("gdpo", METHODS["grpo"]) == {"advantage"}
    assert differ("sao", METHODS["ppo"]) == {"trust_region", "old_logprobs"}
    assert differ("tis", METHODS["grpo"]) == {"sampler_correction"}


def test_a_long_answer_weighs_as_much_per_token_as_a_short_one_with_luspo():
    """GSPO's average divides by the length what LUSPO leaves: 1/(N|y|) and 1/N."""
    mask = torch.tensor([[1, 1, 1], [1, 0, 0]], dtype=torch.bool)
    logp = torch.full((2, 3), -1.0, dtype=torch.float64)
    shares = {}
    for name, row in (("gspo", METHODS["gspo"]), ("luspo", FIELD["luspo"])):
        x = logp.clone().requires_grad_()
        policy_loss(row, x, logp, double(-1.0, -1.0), mask).loss.backward()
        shares[name] = x.grad
    assert shares["gspo"][:, 0].tolist() == pytest.approx([1 / 6, 1 / 2])
    assert shares["luspo"][:, 0].tolist() == pytest.approx([1 / 2, 1 / 2])


def test_dro_has_the_slope_of_its_objective():
    """−A log π + β/2 (log π/π_old)², averaged over the tokens, by central differences."""
    row, beta = FIELD["dro"], FIELD["dro"].selection.beta
    old, mask = double(-1.0, -2.0)[None], torch.ones(1, 2, dtype=torch.bool)
    x = double(-1.4, -1.1)[None].requires_grad_()
    everything = row.selection(old, old, torch.ones_like(old), mask)
    assert everything.all()
    policy_loss(row, x, old, double(0.7), mask, selected=everything).loss.backward()

    def objective(logp):
        return (-0.7 * logp + beta / 2 * (logp - old) ** 2).mean().item()

    for t, h in product(range(2), [1e-6]):
        step = h * torch.nn.functional.one_hot(torch.tensor(t), 2).double()[None]
        slope = (objective(x.detach() + step) - objective(x.detach() - step)) / (2 * h)
        assert x.grad[0, t].item() == pytest.approx(slope, rel=1e-7)


@pytest.mark.parametrize("n", [2, 3, 4])
def test_the_best_answers_surplus_is_the_gradient_of_the_best_of_n(n):
    """Σ over all 3^n groups, against the derivative of E[max r], ties included."""
    logits, reward = double(0.3, -0.8, 0.1), double(1.0, 0.2, 0.2)

    def best(logits):
        p = logits.softmax(0)
        chosen = product(range(3), repeat=n)
        return sum(p[list(c)].prod() * reward[list(c)].max() for c in chosen)

    wanted = torch.autograd.functional.jacobian(best, logits)
    total = torch.zeros(3, dtype=torch.float64)
    p = logits.softmax(0)
    for c in map(list, product(range(3), repeat=n)):
        advantages = best_of_group(reward[c], torch.zeros(n, dtype=torch.long))
        scores = torch.eye(3, dtype=torch.float64)[c] - p
        total += p[c].prod() * (advantages[:, None] * scores).sum(0)
    torch.testing.assert_close(total, wanted, **EXACT)


def test_the_best_answer_of_each_prompt_alone_learns():
    rewards = double(0, 1, 0.25, 7, 7, 3, 5)
    groups = torch.tensor([4, 4, 4, 9, 9, 9, 2])
    assert best_of_group(rewards, groups).tolist() == [0, 0.75, 0, 0, 0, 0, 0]


def test_parts_are_told_apart_whose_sum_is_not():
    """Right alone, and right in the right format: GRPO on the sums calls both the same.

    z of two answers is ±1/√2; the sums of z are ±1/√2 and ±2/√2, with a variance of 5/3.
    """
    parts, groups = double([1, 0], [0, 0], [1, 1], [0, 0]), torch.tensor([0, 0, 1, 1])
    assert group_normalize(parts.sum(1), groups, eps=0).abs().unique().numel() == 1
    half, whole = sqrt(0.5) / sqrt(5 / 3), sqrt(2) / sqrt(5 / 3)
    assert gdpo(parts, groups, eps=0).tolist() == pytest.approx([half, -half, whole, -whole])
    # the scale of a part is nothing, its weight is: without the second part all are alike
    scaled = parts * double(1, 100)
    torch.testing.assert_close(gdpo(scaled, groups, eps=0), gdpo(parts, groups, eps=0), **EXACT)
    assert gdpo(parts, groups, (1.0, 0.0), eps=0).abs().unique().numel() == 1
    assert (gdpo(torch.ones(4, 2), groups) == 0).all()


def test_a_trainer_offers_the_parts_of_its_rewards(little_policy, parity, little):
    """Format and answer as two parts; what a row gets from the trainer is `gdpo` of these."""
    trained = Trainer(
        RunConfig(method={"name": "gdpo", "format_bonus": 0.5}, **{"steps": 2} | little),
        little_policy(),
        task=parity,
    )
    rollouts = trained.collect()
    parts = parts_of(rollouts)
    assert parts.shape == (len(rollouts), 2) and set(parts[:, 1].tolist()) <= {0.0, 0.5}
    batch = trained.learner.builder.make_batch(rollouts)
    groups = torch.tensor([r.group for r in rollouts])
    torch.testing.assert_close(batch.advantages, gdpo(parts, groups))


def test_vapos_decay_follows_the_length():
    """A reward of 1 at the end, no values: A is λ to the distance; half of it at 40 tokens."""
    mask = torch.arange(40) < torch.tensor([40, 10])[:, None]
    rewards, zero = torch.zeros(2, 40), torch.zeros(2, 40)
    rewards[0, 39] = rewards[1, 9] = 1.0
    advantages, returns = length_adaptive_gae(rewards, zero, mask)
    assert advantages[0, 36:].tolist() == [0.125, 0.25, 0.5, 1.0]
    assert advantages[1, 8:10].tolist() == [0, 1]  # λ = 1 − 1/(0.05 · 10) is below 0
    assert torch.equal(returns, mask.float())


def test_vapos_critic_learns_the_reward_and_ppos_the_returns_of_its_own_decay(
    little_policy, parity, little
):
    """With values of 0.5 everywhere and λ = 0 PPO's critic would learn from itself alone."""
    targets = {}
    for name in ("vapo", "ppo"):
        config = RunConfig(method=name, lam=0.0, **little)
        trained = Trainer(config, little_policy(), task=parity, reward=one_of_four)
        torch.nn.init.constant_(trained.learner.critic.head.bias, 0.5)
        batch = trained.learner.prepare(trained.collect())
        first = batch.mask & (batch.mask.cumsum(1) == 1) & (batch.mask.sum(1, keepdim=True) > 1)
        rewards = batch.rewards[:, None].expand_as(batch.mask)
        targets[name] = batch.returns[first], rewards[first]
    torch.testing.assert_close(*targets["vapo"])
    torch.testing.assert_close(targets["ppo"][0], torch.full_like(targets["ppo"][1], 0.5))


def test_the_likelihood_is_a_mean_over_tokens_of_right_answers():
    """A = 0 leaves the term alone: −0.1 times the mean of log π over four of nine tokens."""
    mask = torch.arange(4) < torch.tensor([3, 4, 1, 1])[:, None]
    right = torch.tensor([True, False, True, False])
    logp = -torch.arange(1.0, 17.0, dtype=torch.float64).view(4, 4)
    imitated = imitation_weights(right, mask).double()
    loss = policy_loss(FIELD["vapo"], logp, logp, double(0, 0, 0, 0), mask, imitated=imitated).loss
    assert loss.item() == pytest.approx(0.1 * (1 + 2 + 3 + 9) / 4)
    assert not imitation_weights(~right & False, mask).any()
    with pytest.raises(ValueError, match=r"imitated=imitation_weights\(right, mask\)"):
        policy_loss(FIELD["vapo"], logp, logp, double(0, 0, 0, 0), mask)


def test_vapo_makes_right_answers_likelier_whatever_their_advantage(little_policy, parity, little):
    """With nothing to gain, every reward being 1, the likelihood alone moves the policy."""
    row = replace(FIELD["vapo"], advantage=FIELD["gdpo"].advantage, likelihood=0.1)
    for method, moves in ((row, True), (replace(row, likelihood=0.0), False)):
        trained = Trainer(
            RunConfig(method=method, **{"minibatches": 1} | little), little_policy(), task=parity,
            reward=lambda rollouts: {"answer": [1.0] * len(rollouts)},
        )  # fmt: skip
        rollouts = trained.collect()
        for rollout in rollouts:
            rollout.correct = True
        batch = trained.learner.prepare(rollouts)
        before = trained.learner.logprobs(batch)[batch.mask].mean()
        trained.learner.updates(batch)
        after = trained.learner.logprobs(batch)[batch.mask].mean()
        assert (after > before + 1e-4) == moves and moves == (not torch.equal(before, after))
