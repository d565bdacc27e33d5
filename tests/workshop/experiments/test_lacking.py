"""What claims lack, as arms: each pair differs in the one thing that it is to decide."""

import pytest
import torch

from rlbook.training.resume import differences
from workshop.ch14 import experiments as lacking
from workshop.ch14.experiments import Imitation, LatePrice
from workshop.ch15.experiments import CREDITS, SETTINGS, unreliable_tool
from workshop.experiments import EXPERIMENTS
from workshop.shared.design import arm
from workshop.shared.experiments import RLOO

SMALL = {"prompts": 2, "group_size": 2, "max_new_tokens": 16, "minibatches": 1}


def config(experiment: str, label: str):
    return next(one.config for one in EXPERIMENTS[experiment].arms if one.label == label)


def changed(experiment: str, label: str, beside: str) -> set[str]:
    pair = (config(experiment, name).to_dict() for name in (beside, label))
    return {path.removeprefix("method.").split(".")[0] for path in differences(*pair)}


def test_a_pair_differs_in_what_it_is_to_decide():
    assert changed("habits_sigma", "GRPO, no σ", "GRPO") == {"advantage"}
    weight = changed("habits_sigma", "MaxRL, mean over tokens", "RLOO, mean over tokens")
    assert weight - {"name", "paper", "note"} == {"advantage"}
    assert changed("head_room", "batch mean", "LitePPO") == {"advantage"}
    assert changed("switches_hard", "overlong filter", "LitePPO") == {"reward_shaping"}
    assert changed("late_price", "at once", "no price") == {"data"}
    assert changed("late_price", "after 12 batches", "no price") == {"name"}


def test_dapo_is_taken_apart_one_part_at_a_time():
    arms = EXPERIMENTS["all_troubles"].arms
    parts = [changed("all_troubles", one.label, "DAPO") for one in arms[2:]]
    assert all(len(part) == 1 for part in parts)
    lost = set().union(*parts)
    assert lost == {"trust_region", "prompt_filter", "aggregation", "reward_shaping"}
    assert lost < changed("all_troubles", "GRPO", "DAPO")


def test_whitened_credit_has_the_scale_of_one_and_prime_s_order():
    small = {"prompts": 4, "group_size": 8, "levels": (1,), "max_new_tokens": 48}
    settings = SETTINGS | small | {"minibatches": 1}
    found = []
    for label in ("PRIME", "PRIME, whitened"):
        config = arm(label, RLOO, reward=CREDITS[label], **settings).config
        trainer = unreliable_tool(0.5)(config)
        rollouts = trainer.collect(seed=0)
        found.append([value for rollout in rollouts for value in rollout.token_rewards["credit"]])
    plain, whitened = map(torch.tensor, found)
    assert whitened.mean().abs() < 1e-4 and (whitened.std() - 1).abs() < 1e-3
    assert torch.equal(plain.argsort(stable=True), whitened.argsort(stable=True))
    assert 0 < plain.std() < 0.8  # of a right or wrong less its siblings' mean


def test_the_new_rates_lie_beyond_the_old_ones():
    rates = [
        {variant.values["lr"] for one in EXPERIMENTS[name].arms for variant in one.tried}
        for name in ("process_rewards_above", "process_rewards")
    ]
    assert min(rates[0]) > max(rates[1])


def test_dynamic_sampling_and_grpo_share_a_budget_of_answers():
    experiment = EXPERIMENTS["equal_answers"]
    assert experiment.answers == 62 * 128
    assert config("equal_answers", "GRPO").steps * 128 == experiment.answers


def test_imitation_moves_the_policy_by_the_examples_alone():
    settings = config("teacher_null", "48 examples").replace(**SMALL, steps=6, lr=1e-3)
    trainer = lacking.examples_or_rl(settings)
    assert isinstance(trainer, Imitation)
    rollouts = trainer.collect()
    before = [p.clone() for p in trainer.model.parameters()]
    row = trainer.learn(rollouts)
    assert (row["step"], row["completions"]) == (1, 4)
    assert any((p != q).any() for p, q in zip(before, trainer.model.parameters(), strict=True))
    again = lacking.examples_or_rl(settings)
    again.learn(again.collect(seed=5))  # other answers, which teach nothing
    pairs = zip(trainer.model.parameters(), again.model.parameters(), strict=True)
    assert all((p == q).all() for p, q in pairs)


def test_a_late_price_is_not_paid_before_it_is_due(monkeypatch):
    monkeypatch.setattr(lacking, "UNPRICED", 1)
    trainer = lacking.priced(config("late_price", "after 12 batches").replace(**SMALL, steps=2))
    assert isinstance(trainer, LatePrice)
    first = trainer.collect()
    assert all(r.reward in (0, 1) for r in first)
    trainer.learn(first)
    priced = trainer.collect()
    assert [r.reward for r in priced] == pytest.approx(
        [r.correct - 0.02 * r.length for r in priced]
    )
