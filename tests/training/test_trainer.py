import math
from dataclasses import replace

import pytest
import torch

from rlbook.objectives import METHODS
from rlbook.tiny.model import build_model, build_tokenizer
from rlbook.training import TrainConfig, Trainer, collate
from rlbook.training.checkpoint import pack_optimizer
from rlbook.training.collect import RolloutSource

SMALL = {"prompts": 4, "group_size": 4, "minibatches": 2, "steps": 4, "max_new_tokens": 12}


def small_policy():
    torch.manual_seed(0)
    return build_model().eval(), build_tokenizer()


class ParityTrainer(Trainer):
    """Rewards an even sum of token ids: a random policy has something to learn from."""

    def collect(self):
        rollouts = super().collect()
        for rollout in rollouts:
            rollout.correct = sum(rollout.token_ids) % 2 == 0
            rollout.rewards = {"even": float(rollout.correct)}
        return rollouts


def small_trainer(method="grpo", **changes):
    return ParityTrainer(TrainConfig(method=method, **SMALL | changes), policy=small_policy())


def weights(trainer):
    models = trainer.models.values()
    return torch.cat([p.detach().flatten() for m in models for p in m.parameters()])


@pytest.mark.parametrize(
    ("name", "changes"),
    [("reinforce_ema", {}), ("ppo", {}), ("grpo", {}), ("grpo", {"pool": 3, "retire_at": 0.9})],
)
def test_resume_is_bit_identical(name, changes, tmp_path):
    whole = small_trainer(name, **changes)
    expected = list(whole)

    first = small_trainer(name, **changes)
    half = [first.train_one(), first.train_one()]
    first.save(tmp_path)
    second = ParityTrainer.resume(tmp_path, policy=small_policy())
    rest = list(second)

    assert [m["step"] for m in half + rest] == [1, 2, 3, 4]
    for got, want in zip(half + rest, expected, strict=True):
        assert got.keys() == want.keys()
        for key in want:
            assert got[key] == want[key] or (math.isnan(got[key]) and math.isnan(want[key])), key
    assert torch.equal(weights(second), weights(whole))
    for key in whole.optimizers:
        ours, theirs = pack_optimizer(second.optimizers[key]), pack_optimizer(whole.optimizers[key])
        assert ours[1] == theirs[1]
        assert all(torch.equal(ours[0][k], theirs[0][k]) for k in theirs[0])


def test_an_interrupted_save_leaves_the_previous_checkpoint(tmp_path, monkeypatch):
    trainer = small_trainer()
    trainer.train_one()
    trainer.save(tmp_path)
    saved = weights(trainer).clone()
    trainer.train_one()

    def disk_full(*args, **kwargs):
        raise OSError("No space left on device")

    monkeypatch.setattr("rlbook.training.checkpoint.os.replace", disk_full)
    with pytest.raises(OSError, match="No space"):
        trainer.save(tmp_path)
    monkeypatch.undo()
    assert torch.equal(weights(Trainer.resume(tmp_path, policy=small_policy())), saved)


def test_missing_checkpoint_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="no checkpoint in"):
        Trainer.resume(tmp_path / "nowhere")


def test_first_update_is_exactly_on_policy():
    metrics = small_trainer(minibatches=1, temperature=0.7).train_one()
    assert metrics["ratio_min"] == pytest.approx(1, abs=1e-5)
    assert metrics["ratio_max"] == pytest.approx(1, abs=1e-5)
    assert metrics["kl"] == pytest.approx(0, abs=1e-8)
    assert metrics["staleness"] == 0


def test_recomputed_anchor_agrees_with_the_sampler():
    trainer = small_trainer(temperature=0.7)
    rollouts = trainer.collect()
    sampled = collate(rollouts).logp_old
    recomputed = trainer.scorer.logprobs(trainer.model, collate(rollouts))
    torch.testing.assert_close(recomputed, sampled, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["remax", "dapo", "scalerl", "reinforce_plus_plus", "dr_grpo"])
def test_rows_with_special_needs_train(name):
    trainer = small_trainer(name)
    before = weights(trainer).clone()
    metrics = trainer.train_one()
    assert metrics["skipped_updates"] == 0
    assert not torch.equal(weights(trainer), before)


def test_truncated_answers_count_in_the_baseline_but_are_not_trained_on(make_rollout):
    method = replace(METHODS["dr_grpo"], reward_shaping="overlong_filter")
    trainer = Trainer(TrainConfig(method="dr_grpo", **SMALL), method, small_policy())
    rollouts = [make_rollout(reward=r) for r in (1.0, 0.0)]
    rollouts += [make_rollout(reward=0.0, finish_reason="length") for _ in range(2)]
    batch = trainer.prepare(rollouts)
    assert batch.advantages.tolist() == pytest.approx([0.75, -0.25, -0.25, -0.25])
    assert batch.mask.sum(1).tolist() == [3, 3, 0, 0]
    before = weights(trainer)
    trainer.update(batch)
    assert not torch.equal(weights(trainer), before)
    trainer.update(trainer.prepare(rollouts[2:]))  # nothing left to train on


def test_stale_sampler_is_reported():
    trainer = small_trainer(sampler_refresh=3)
    assert [m["staleness"] for m in trainer] == [0, 2, 4, 0]


def test_non_finite_rewards_are_named_and_left_out():
    trainer = small_trainer()
    rollouts = trainer.collect()
    rollouts[5].rewards = {"answer": float("nan")}
    with pytest.warns(RuntimeWarning, match=r"not finite, {'answer': nan}"):
        batch = trainer.prepare(rollouts)
    assert len(batch) == 15
    assert torch.isfinite(batch.advantages).all()


def test_no_finite_reward_at_all_is_an_error():
    trainer = small_trainer()
    rollouts = trainer.collect()
    for rollout in rollouts:
        rollout.rewards = {"answer": float("inf")}
    with pytest.warns(RuntimeWarning), pytest.raises(ValueError, match="no rollout has a finite"):
        trainer.prepare(rollouts)


def test_kl_in_the_reward_reaches_the_advantages(make_rollout):
    method = METHODS["rloo"]
    rollouts = [make_rollout(tokens=(4, 5, 2), reward=r) for r in (1.0, 1.0)]
    rollouts[0].logps = [-1.0, -1.0, -1.0]
    trainer = small_trainer("rloo")
    batch = trainer.prepare(rollouts)
    drift = torch.where(batch.mask, batch.logp_old - batch.logp_ref, 0.0).sum(1)
    expected = method.kl.beta * (drift[1] - drift[0])
    assert batch.advantages.tolist() == pytest.approx([float(expected), -float(expected)], rel=1e-4)


def test_unknown_method_lists_the_choices():
    with pytest.raises(ValueError, match=r"unknown method 'gpro'; choose from .*grpo"):
        Trainer(TrainConfig(method="gpro"), policy=small_policy())


class Rounds(RolloutSource):
    """A source whose rounds are given: two completions per prompt, 1 right and 0 wrong."""

    rounds = ()

    def sample(self, seed, version, round_):
        self.asked.append(round_)
        pairs = self.rounds[round_] if round_ < len(self.rounds) else [(0, 0), (0, 0)]
        make, first = self.make, 2 * round_
        return [
            make(group=first + i, reward=float(r), correct=bool(r))
            for i, pair in enumerate(pairs)
            for r in pair
        ]


@pytest.mark.parametrize(
    ("rounds", "asked", "trained"),
    [
        ([[(0, 1), (1, 0)]], [0], [0, 1]),
        ([[(0, 1), (1, 1)], [(0, 0), (0, 1)]], [0, 1], [0, 3]),
        ([[(0, 0), (0, 1)], [(0, 1), (1, 0)]], [0, 1], [1, 2]),  # the surplus is cut
        ([[(0, 0), (1, 1)]], list(range(10)), []),  # nothing to learn from: give up, do not hang
    ],
)
def test_dynamic_sampling_draws_other_prompts_until_the_batch_is_full(
    rounds, asked, trained, make_rollout, monkeypatch
):
    config = TrainConfig(method="dapo", prompts=2, group_size=2, minibatches=1, steps=1)
    trainer = Trainer(config, policy=small_policy())
    parts = (trainer.source.engine, trainer.tokenizer, trainer.task, trainer.method, config)
    trainer.source = Rounds(*parts)
    monkeypatch.setattr(Rounds, "rounds", rounds)
    monkeypatch.setattr(Rounds, "asked", [], raising=False)
    monkeypatch.setattr(Rounds, "make", staticmethod(make_rollout), raising=False)
    learned = []
    monkeypatch.setattr(trainer, "learn", lambda used: learned.extend(used) or [])
    metrics = trainer.train_one()
    assert Rounds.asked == asked
    assert sorted({r.group for r in learned}) == trained
    assert metrics["completions"] == 4 * len(asked)
