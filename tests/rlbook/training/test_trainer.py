import math
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import wraps

import pytest
import torch

from rlbook.objectives import (
    METHODS,
    DivergenceMask,
    PromptFilter,
    SamplerCorrection,
    gae,
    group_center,
)
from rlbook.policy import Sampler
from rlbook.training import RolloutSource, RunConfig, Trainer, collate
from rlbook.training.metrics import update_metrics


@pytest.mark.parametrize(
    ("method", "silent"),
    [("grpo", True), ("rloo", True), ("reinforce_batch_mean", False), ("reinforce", False)],
)
def test_groups_of_one_are_said_where_answers_are_compared(trainer, method, silent, recwarn):
    trainer(method, group_size=1)
    assert any("group_size=1" in str(one.message) for one in recwarn) == silent


@pytest.fixture
def trainer(little_policy, parity, little):
    """`trainer(method, **settings)` trains the little policy on parity."""

    def make(method="grpo", kind=Trainer, reward=None, **changes):
        config = RunConfig(method=method, **{"steps": 4} | little | changes)
        return kind(config, little_policy(), task=parity, reward=reward)

    return make


def weights(*models):
    return torch.cat([p.detach().flatten() for m in models for p in m.parameters()])


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_row_trains_what_it_has(name, trainer):
    trained = trainer(name)
    models = [m for m in (trained.model, trained.learner.critic) if m is not None]
    before = weights(*models)
    frozen = None if trained.learner.reference is None else weights(trained.learner.reference)
    metrics = trained.train_one()
    assert metrics["skipped_updates"] == 0
    assert not torch.equal(weights(*models), before)
    assert frozen is None or torch.equal(weights(trained.learner.reference), frozen)
    assert (trained.learner.critic is not None) == (name == "ppo")


def test_first_update_is_exactly_on_policy(trainer):
    metrics = trainer(minibatches=1, temperature=0.7).train_one()
    assert metrics["ratio_min"] == pytest.approx(1, abs=1e-5)
    assert metrics["ratio_max"] == pytest.approx(1, abs=1e-5)
    assert metrics["kl"] == pytest.approx(0, abs=1e-8)
    assert metrics["staleness"] == 0


def test_recomputed_log_probs_agree_with_the_sampler(trainer):
    trained = trainer(temperature=0.7)
    batch = collate(trained.collect())
    recomputed = trained.learner.logprobs(batch)
    torch.testing.assert_close(recomputed, batch.logp_sampler, rtol=0, atol=1e-5)


def test_truncated_answers_count_in_the_baseline_but_are_not_trained_on(trainer, make_rollout):
    method = replace(METHODS["dr_grpo"], reward_shaping="overlong_filter")
    trained = trainer(method)
    rollouts = [make_rollout(reward=r) for r in (1.0, 0.0)]
    rollouts += [make_rollout(reward=0.0, finish_reason="length") for _ in range(2)]
    batch = trained.learner.prepare(rollouts)
    assert batch.advantages.tolist() == pytest.approx([0.75, -0.25, -0.25, -0.25])
    assert batch.mask.sum(1).tolist() == [3, 3, 0, 0]
    before = weights(trained.model)
    trained.learner.update(batch)
    assert not torch.equal(weights(trained.model), before)
    trained.learner.update(trained.learner.prepare(rollouts[2:]))  # nothing left to train on


def test_a_stale_sampler_is_reported_and_does_not_move(trainer):
    trained = trainer(sync_every=3)
    stale = []
    for metrics in trained:
        same = torch.equal(weights(trained.source.weights), weights(trained.model))
        stale.append((metrics["staleness"], same))
    assert stale == [(0, False), (2, False), (4, True), (0, False)]


def test_non_finite_rewards_are_named_and_left_out(trainer):
    trained = trainer()
    rollouts = trained.collect()
    rollouts[5].rewards = {"answer": float("nan")}
    with pytest.warns(RuntimeWarning, match=r"not finite, {'answer': nan}"):
        batch = trained.learner.prepare(rollouts)
    assert len(batch) == 15
    assert torch.isfinite(batch.advantages).all()


def test_greedy_rewards_stay_with_their_rollouts_when_one_is_left_out(trainer, make_rollout):
    trained = trainer("remax")
    rollouts = [make_rollout(group=g, reward=r) for g, r in ((0, 1.0), (0, math.nan), (1, 0.5))]
    for rollout, greedy in zip(rollouts, (0.25, 0.25, 2.0), strict=True):
        rollout.greedy_reward = greedy
    with pytest.warns(RuntimeWarning, match="p0 is skipped"):
        batch = trained.learner.prepare(rollouts)
    drift = trained.method.kl.beta * (batch.logp_old - batch.logp_ref).sum(1)
    expected = torch.tensor([1.0 - 0.25, 0.5 - 2.0]) - drift
    torch.testing.assert_close(batch.advantages, expected, rtol=0, atol=1e-5)


def test_the_greedy_baseline_is_the_reward_of_the_greedy_completion(trainer, parity, monkeypatch):
    trained, asked = trainer("remax"), []
    generate = Sampler.generate

    def recorded(self, prompts, **how):
        asked.append((len(prompts), how["n"], how["temperature"]))
        return generate(self, prompts, **how)

    monkeypatch.setattr(Sampler, "generate", recorded)
    rollouts = trained.collect()
    assert asked == [(4, 4, 1.0), (4, 1, 0)]
    greedy = torch.tensor([r.greedy_reward for r in rollouts])
    assert len(set(greedy.tolist())) == 2
    for rollout, reward in zip(rollouts, greedy.tolist(), strict=True):
        ids = list(rollout.prompt_ids)
        said = []
        for _ in range(12):
            with torch.no_grad():
                said.append(int(trained.model(torch.tensor([ids + said])).logits[0, -1].argmax()))
            if said[-1] == trained.tokenizer.eos_token_id:
                break
        text = trained.tokenizer.decode([t for t in said if t != 2])
        assert reward == float(parity.verify(rollout.problem, text).correct)


def test_no_finite_reward_at_all_is_an_error(trainer):
    trained = trainer()
    rollouts = trained.collect()
    for rollout in rollouts:
        rollout.rewards = {"answer": float("inf")}
    with pytest.warns(RuntimeWarning), pytest.raises(ValueError, match="no rollout has a finite"):
        trained.learner.prepare(rollouts)


def test_kl_in_the_reward_reaches_the_advantages(trainer, make_rollout):
    rollouts = [make_rollout(tokens=(4, 5, 2), reward=r) for r in (1.0, 1.0)]
    rollouts[0].logps = [-1.0, -1.0, -1.0]
    trained = trainer("rloo")
    batch = trained.learner.prepare(rollouts)
    drift = torch.where(batch.mask, batch.logp_old - batch.logp_ref, 0.0).sum(1)
    expected = float(trained.method.kl.beta * (drift[1] - drift[0]))
    assert abs(expected) > 0.01
    assert batch.advantages.tolist() == pytest.approx([expected, -expected], rel=1e-4)


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (0.5, 1.0), (1.0, 0.25), (0.5, 0.25)])
def test_gae_discounts_with_the_runs_gamma_and_lambda(gamma, lam, trainer, make_rollout):
    """A new critic says 0 everywhere, so A_t = (γλ)^(T−t) r."""
    method = replace(METHODS["ppo"], name="gae", advantage=gae)
    trained = trainer(method, gamma=gamma, lam=lam)
    batch = trained.learner.prepare([make_rollout(tokens=(4, 5, 2), reward=2.0)])
    decay = gamma * lam
    expected = [2 * decay**2, 2 * decay, 2.0]
    assert batch.advantages[batch.mask].tolist() == pytest.approx(expected)
    assert batch.returns[batch.mask].tolist() == pytest.approx(expected)
    assert trained.learner.prepare(trained.collect()).values_old.abs().max() == 0


def test_a_correction_of_the_sampler_reaches_the_loss(trainer):
    """Three steps behind, the sampler is another policy: weights are min(π_old/μ, 2), token by
    token, and the update is another one than without."""
    method = replace(METHODS["dapo"], prompt_filter=None, sampler_correction=SamplerCorrection(2.0))
    trained = trainer(method, sync_every=9)
    for _ in range(3):
        trained.train_one()
    batch = trained.learner.prepare(trained.collect())
    ratio = (trained.learner.logprobs(batch) - batch.logp_sampler).exp()[batch.mask]
    assert (ratio > 2).sum() > 3
    assert (ratio < 0.5).sum() > 3
    weight = batch.correction[batch.mask]
    torch.testing.assert_close(weight, ratio.clamp(max=2), rtol=1e-3, atol=1e-4)
    gradients = []
    for correction in (batch.correction, torch.ones_like(batch.correction)):
        again = trainer(method, max_grad_norm=1e9)
        again.model.load_state_dict(trained.model.state_dict())
        part = replace(batch, correction=correction)
        gradients.append(again.learner.update(part)["grad_norm"])
    assert gradients[0] != pytest.approx(gradients[1], rel=0.05)


def test_topk_divergences_reach_the_trust_region(trainer):
    """With δ = 0, a first update masks nothing and a later one every token that moved away."""
    region = DivergenceMask("tv", 0.0, 0.0, top_k=3)
    trained = trainer(replace(METHODS["dppo"], trust_region=region), lr=1e-4)
    batch = trained.learner.prepare(trained.collect())
    assert batch.topk_ids.shape == (*batch.mask.shape, 4)
    trained.learner.update(batch)
    away = (trained.learner.logprobs(batch) - batch.logp_old) * batch.advantages[:, None] > 0
    signal = batch.mask & (batch.advantages != 0)[:, None]
    metrics = trained.learner.update(batch)
    share = float((away & signal).sum() / signal.sum())
    assert 0.5 < share < 1
    assert metrics["clip_fraction"] == pytest.approx(share, abs=0.02)


def test_updates_are_counted_over_epochs_and_minibatches(trainer):
    trained = trainer("ppo", epochs=3, minibatches=2)
    trained.train_one()
    assert trained.version == 6
    assert trained.train_one()["staleness"] == 0


def test_every_epoch_trains_every_group_in_another_order(trainer, make_rollout):
    trained = trainer("grpo", prompts=8, minibatches=4, epochs=3, seed=1)
    order = []
    trained.learner.update = lambda part: order.append(part.groups.unique().tolist()) or {}
    trained.learner.updates(
        trained.learner.prepare([make_rollout(group=i // 2, reward=i % 2) for i in range(16)])
    )
    epochs = [[g for groups in order[start : start + 4] for g in groups] for start in (0, 4, 8)]
    assert len(order) == 12
    assert all(sorted(epoch) == list(range(8)) for epoch in epochs)
    assert len(set(map(tuple, epochs))) == 3
    trained.step, order[:] = 1, []
    trained.learner.updates(
        trained.learner.prepare([make_rollout(group=i // 2, reward=i % 2) for i in range(16)])
    )
    assert [g for groups in order[:4] for g in groups] not in epochs


def test_the_metrics_of_updates_are_means_extremes_and_counts():
    parts = [
        {"loss": 1.0, "ratio_min": 0.5, "ratio_max": 2.0, "skipped_updates": 1},
        {"loss": 4.0, "ratio_min": 0.75, "ratio_max": 1.5, "skipped_updates": 1},
        {"loss": math.nan, "ratio_min": 0.9, "ratio_max": 3.0, "skipped_updates": 0},
    ]
    expected = {"loss": 2.5, "ratio_min": 0.5, "ratio_max": 3.0, "skipped_updates": 2}
    assert update_metrics(parts) == expected


def test_explained_variance_is_of_the_reward_by_the_values_at_rollout_time(trainer, make_rollout):
    trained = trainer("ppo", minibatches=1)
    rollouts = [make_rollout(group=g, tokens=(4, 2), reward=float(g)) for g in range(2)]
    batch = trained.learner.prepare(rollouts)
    values = torch.tensor([[0.0] * 3 + [0.25, 0.25], [0.0] * 3 + [0.5, 0.5]])
    metrics = trained.learner.updates(replace(batch, values_old=values))
    # rewards 0, 0, 1, 1 with errors −¼, −¼, ½, ½: 1 − (3/8)² / (1/2)²
    assert metrics["explained_variance"] == pytest.approx(1 - 0.75**2)
    assert metrics["value_loss"] > 0


def test_rewards_per_token_are_part_of_the_reward_that_values_explain(trainer, make_rollout):
    trained = trainer("ppo", minibatches=1)
    rollouts = [make_rollout(group=g, tokens=(4, 2), reward=0.0) for g in range(2)]
    rollouts[1].token_rewards = {"process": [0.25, 0.75]}
    values = torch.tensor([[0.0] * 3 + [0.5, 0.5], [0.0] * 3 + [0.5, 0.5]])
    batch = replace(trained.learner.prepare(rollouts), values_old=values)
    assert trained.learner.updates(batch)["explained_variance"] == pytest.approx(0.0, abs=1e-6)
    perfect = replace(batch, values_old=torch.tensor([[0.0] * 5, [0.0] * 3 + [1.0, 1.0]]))
    assert trained.learner.updates(perfect)["explained_variance"] == pytest.approx(1.0)


class Rounds(RolloutSource):
    """A source whose rounds are given: two completions per prompt, 1 for right, 0 for wrong."""

    rounds, make, asked = (), None, None

    def sample(self, problems, n=None, **how):
        number = len(self.asked)
        self.asked.append(tuple(p.id for p in problems))
        pairs = self.rounds[number] if number < len(self.rounds) else [(0, 0), (0, 0)]
        return [
            self.make(group=how["first_group"] + i, reward=float(r), correct=bool(r))
            for i, pair in enumerate(pairs)
            for r in pair
        ]


@pytest.mark.parametrize(
    ("rounds", "asked", "trained"),
    [
        ([[(0, 1), (1, 0)]], 1, [0, 1]),
        ([[(0, 1), (1, 1)], [(0, 0), (0, 1)]], 2, [0, 3]),
        ([[(0, 0), (0, 1)], [(0, 1), (1, 0)]], 2, [1, 2]),  # the surplus is cut
        ([[(0, 0), (1, 1)]], 10, []),  # nothing to learn from: give up, do not hang
    ],
)
def test_dynamic_sampling_draws_other_prompts_until_the_batch_is_full(
    rounds, asked, trained, little_policy, parity, make_rollout
):
    config = RunConfig(method="dapo", prompts=2, group_size=2, minibatches=1, max_new_tokens=12)
    loop, learned = Trainer(config, little_policy(), task=parity), []
    source = loop.source = Rounds(config, parity, loop.source.rewards, little_policy())
    source.rounds, source.make, source.asked = rounds, make_rollout, []
    learn = loop.learner.learn

    def learned_from(used, fresh):
        learned.extend(sorted({r.group for r in used}))
        return learn(used, fresh)

    loop.learner.learn = learned_from
    with nullcontext() if trained else pytest.warns(RuntimeWarning, match="no update"):
        metrics = loop.train_one()
    assert len(source.asked) == len(set(source.asked)) == asked
    assert learned == trained
    assert metrics["completions"] == 4 * asked
    assert loop.step == 1


def test_a_step_trains_no_more_than_its_prompts(trainer, make_rollout):
    """What other rounds brought beyond the batch is not used, with a filter or without."""
    trained = trainer(replace(METHODS["dapo"], advantage=group_center))
    rollouts = [make_rollout(group=i // 4, correct=bool(i % 2), reward=i % 2) for i in range(24)]
    seen = []
    trained.learner.updates = lambda batch: seen.append(batch.groups.tolist()) or {}
    trained.learn(rollouts)
    assert seen == [[i // 4 for i in range(16)]]


def brevity(rollouts):
    return {"brevity": [-float(r.length) for r in rollouts]}


@pytest.mark.parametrize(
    ("reward", "fix"),
    [(brevity, r'chosen by brevity: prompt_filter=PromptFilter\(by="reward"\)'), (None, "levels")],
)
def test_a_run_that_stands_still_says_why_and_stops(reward, fix, trainer, make_rollout):
    """The verifier calls nothing right, so that a filter by correctness keeps nothing."""
    trained = trainer("cispo", minibatches=1, reward=reward)
    rollouts = [make_rollout(group=i // 4, correct=False, reward=float(i)) for i in range(8)]
    with pytest.warns(
        RuntimeWarning, match=f"cispo, by correct, .* 0 of 8 answers .*{fix}"
    ) as said:
        for _ in range(4):
            trained.learn(rollouts)
    assert len(said) == 1 and trained.version == 0
    with pytest.raises(RuntimeError, match=f"no update in 5 steps: .*{fix}.*patience to null"):
        trained.learn(rollouts)
    again = trainer(replace(METHODS["cispo"], prompt_filter=PromptFilter("reward")), minibatches=1)
    assert "loss" in again.learn(rollouts)


def test_a_method_that_cannot_be_saved_fails_when_the_run_is_made(trainer):
    unnamed = replace(METHODS["grpo"], advantage=lambda rewards, groups: rewards)
    copied = replace(METHODS["grpo"], advantage=wraps(group_center)(lambda r, g: r))
    for method in (unnamed, copied):
        with pytest.raises(ValueError, match="at the top of a module"):
            trainer(method)


def test_a_step_in_which_a_filter_leaves_nothing_takes_no_update(trainer, make_rollout):
    trained = trainer("scalerl")
    before = weights(trained.model)
    with pytest.warns(RuntimeWarning, match="scalerl, by reward, leaves nothing"):
        metrics = trained.learn([make_rollout(group=g, correct=True) for g in range(4)])
    assert metrics["updates"] == 0 and math.isnan(metrics["loss"]) and metrics["reward"] == 1
    assert (trained.step, trained.version) == (1, 0)
    assert torch.equal(weights(trained.model), before)


@pytest.mark.parametrize("row", ["scalerl", "ppo", "grpo", "dppo_kl", "opo"])
def test_a_silent_step_has_the_columns_of_every_other(row, trainer, make_rollout):
    """What it cannot know is NaN: whoever reads a table by its columns finds them all."""
    method = replace(METHODS[row], prompt_filter=PromptFilter(by="reward"))
    trained = trainer(method)
    spoken = trained.learn([make_rollout(group=i // 2, reward=i % 2) for i in range(8)])
    with pytest.warns(RuntimeWarning, match="leaves nothing"):
        silent = trained.learn([make_rollout(group=i // 2, reward=1) for i in range(8)])
    assert silent.keys() == spoken.keys()
    known = {name for name, value in silent.items() if not math.isnan(value)}
    assert {"reward", "accuracy", "updates", "skipped_updates"} <= known
    assert not known & {"loss", "entropy", "grad_norm", "kl", "mismatch", "clip_fraction"}


def test_a_null_arm_may_be_silent_for_as_long_as_it_likes(trainer, make_rollout):
    trained = trainer(replace(METHODS["rloo"], prompt_filter=PromptFilter("reward")), patience=None)
    with pytest.warns(RuntimeWarning, match="leaves nothing") as said:
        for _ in range(9):
            trained.learn([make_rollout(group=i // 2, reward=1) for i in range(8)])
    assert len(said) == 1 and (trained.step, trained.version) == (9, 0)


def test_warm_up_rises_to_the_rate_and_stays(trainer):
    trained = trainer("ppo", warmup=4, lr=0.08, critic_lr=0.4)
    rates = []
    for _ in range(3):
        trained.train_one()
        rates.append([o.param_groups[0]["lr"] for o in trained.learner.optimizers.values()])
    # two updates a step: the rate of the second, the fourth, and of any after that
    assert rates == [pytest.approx(r) for r in ([0.04, 0.2], [0.08, 0.4], [0.08, 0.4])]


def test_rounds_of_a_pool_and_of_a_task_differ_from_step_to_step(trainer):
    endless, pool = trainer(), trainer(pool=8)
    for trained in (endless, pool):
        asked = [frozenset(r.problem.id for r in trained.collect()) for trained.step in (0, 1)]
        assert asked[0].isdisjoint(asked[1])
    assert len(pool.source.pool.memory) == 8


def test_a_policy_update_that_is_skipped_counts_although_the_critic_makes_its_own(trainer):
    trained = trainer("ppo")
    batch = trained.learner.prepare(trained.collect())
    diverged = replace(batch, advantages=batch.advantages * math.inf)
    with pytest.warns(RuntimeWarning, match="update skipped"):
        metrics = trained.learner.update(diverged)
    assert metrics["skipped_updates"] == 1 and math.isfinite(metrics["value_loss"])
    assert trained.learner.update(batch)["skipped_updates"] == 0


@dataclass(frozen=True)
class Draws:
    """A selection that picks every token and keeps the seeds it was given."""

    seeds: list = field(default_factory=list)

    def __call__(self, logp, entropy, advantages, mask, seed=0):
        self.seeds.append(seed)
        return mask

    def apply(self, learned, chosen, logp, old):
        return learned


def test_a_selection_draws_anew_for_other_tokens_and_alike_for_the_same(trainer, make_rollout):
    trained = trainer()
    draws = Draws()
    trained.learner.builder.method = replace(METHODS["grpo"], kl=None, selection=draws)
    for tokens in ((4, 5, 2), (4, 6, 2), (4, 5, 2)):
        trained.learner.prepare([make_rollout(tokens=tokens), make_rollout(reward=0.0)])
    one, other, again = draws.seeds
    assert one == again != other
