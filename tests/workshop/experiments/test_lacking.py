"""What claims lack, as arms: each pair differs in the one thing that it is to decide."""

import pytest

from rlbook.training.resume import differences
from workshop.experiments import EXPERIMENTS, lacking
from workshop.experiments.lacking import LACKING, Imitation, LatePrice

SMALL = {"prompts": 2, "group_size": 2, "max_new_tokens": 16, "minibatches": 1}


def config(experiment: str, label: str):
    return next(one.config for one in LACKING[experiment].arms if one.label == label)


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


def test_the_new_rates_lie_beyond_the_old_ones():
    rates = [
        {variant.values["lr"] for one in EXPERIMENTS[name].arms for variant in one.tried}
        for name in ("process_rewards_above", "process_rewards")
    ]
    assert min(rates[0]) > max(rates[1])


def test_dynamic_sampling_and_grpo_share_a_budget_of_answers():
    experiment = LACKING["equal_answers"]
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
    monkeypatch.setattr(lacking, "WAIT", 1)
    trainer = lacking.priced(config("late_price", "after 12 batches").replace(**SMALL, steps=2))
    assert isinstance(trainer, LatePrice)
    first = trainer.collect()
    assert all(r.reward in (0, 1) for r in first)
    trainer.learn(first)
    priced = trainer.collect()
    assert [r.reward for r in priced] == pytest.approx(
        [r.correct - 0.02 * r.length for r in priced]
    )
