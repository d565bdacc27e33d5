"""The rivals of chapters 04 and 13: what is asked, of whom, and what is trained on it."""

import copy
from itertools import islice

import pytest
import torch

from rlbook.rewards import Preference
from workshop.ch04 import experiments as rivals
from workshop.ch04.experiments import Annotated, Directly
from workshop.ch13.experiments import Untrained
from workshop.experiments import EXPERIMENTS

SMALL = {"prompts": 2, "group_size": 2, "max_new_tokens": 32, "minibatches": 1}


def config(experiment: str, label: str, **changes):
    found = next(one.config for one in EXPERIMENTS[experiment].arms if one.label == label)
    return found.replace(**changes)


def weights(model) -> list[torch.Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def same(left, right) -> bool:
    return all((p == q).all() for p, q in zip(left, right, strict=True))


def test_one_prompt_stays_the_same_one_and_seeds_have_their_own():
    trained = [
        EXPERIMENTS["one_prompt"].world(config("one_prompt", "one prompt, habits", seed=seed))
        for seed in (0, 1)
    ]
    asked = [
        {r.problem.id for seed in (7, 8) for r in trainer.collect(seed)} for trainer in trained
    ]
    assert all(len(ids) == 1 for ids in asked) and asked[0] != asked[1]


def test_the_cold_base_stays_the_base():
    trainer = Untrained(config("cold", "T = 0.3, habits"))
    before = weights(trainer.model)
    row = trainer.learn(trainer.collect())
    assert same(before, weights(trainer.model)) and row["step"] == 1


def small(label: str, monkeypatch) -> Annotated:
    monkeypatch.setattr(rivals, "PAIRS", 4)
    monkeypatch.setattr(rivals, "ROUND", 2)
    monkeypatch.setattr(rivals, "ROUNDS", 2)
    return Annotated(config("fresh_pairs", label, **SMALL, lr=3e-3, steps=6))


def test_pairs_are_asked_for_in_rounds_and_the_reward_model_learns_from_all(monkeypatch):
    trainer = small("its own pairs, five times", monkeypatch)
    models, counts = [], []
    for _ in range(5):
        trainer.learn(trainer.collect())
        models.append(trainer.source.rewards[0].model)
        counts.append(len(trainer.pairs))
    assert counts == [4, 4, 8, 8, 8]
    assert models[0] is models[1] and models[1] is not models[2] and models[2] is models[4]


def test_the_null_arm_asks_about_the_bases_answers(monkeypatch):
    arms = ("its own pairs, five times", "the base's pairs, five times")
    own, null = (small(label, monkeypatch) for label in arms)
    assert [p.chosen.text for p in own.fresh_pairs()] == [p.chosen.text for p in null.fresh_pairs()]
    for trainer in (own, null):
        with torch.no_grad():
            trainer.model.lm_head.weight.mul_(0.3)
    texts = [{p.chosen.text for p in trainer.fresh_pairs()} for trainer in (own, null)]
    assert texts[0] != texts[1]


def test_a_policy_of_one_worth_only_gives_fewer_pairs(monkeypatch):
    trainer = small("its own pairs, five times", monkeypatch)
    monkeypatch.setattr(rivals, "ASKED_AT_MOST", 6)
    monkeypatch.setattr(rivals, "expert", lambda rollout: 0.0)
    assert trainer.fresh_pairs() == []


def test_steps_are_passes():
    settings = config("told_directly", "256 written answers", steps=2, lr=1e-3)
    trainer = Directly(settings)
    model = copy.deepcopy(trainer.model)
    for _ in range(2):
        trainer.learn(trainer.collect())
    updates, a_pass = rivals.from_written(Directly(settings))
    assert a_pass == 8 and trainer.step == 2
    assert len(list(updates)) == 16
    by_hand = Directly(settings)
    list(rivals.from_written(by_hand)[0])
    assert same(weights(by_hand.model), weights(trainer.model))
    assert not same(weights(model), weights(trainer.model))


def test_picking_trains_nothing_and_the_best_of_one_is_any(monkeypatch):
    trainer = Directly(config("told_directly", "best of n"))
    before = weights(trainer.model)
    trainer.learn(trainer.collect())
    assert same(before, weights(trainer.model))

    class ByTruth:
        def scores(self, answers):
            return torch.tensor([float(r.correct) for r in answers])

    monkeypatch.setattr(rivals, "reward_model", lambda pairs, seed: ByTruth())
    some = list(islice(trainer.collect(), 2)) * 2048
    monkeypatch.setattr(rivals, "answers_of_the_base", lambda: some)
    found = rivals.picked(trainer)
    assert found["truth_1"] == pytest.approx(sum(r.correct for r in some) / len(some))
    assert found["truth_64"] >= found["truth_1"]


def test_a_committee_gives_the_smallest_score_above_what_each_gives_the_base(monkeypatch):
    class Always:
        def __init__(self, base, now):
            self.values = [base, now]

        def scores(self, answers):
            return torch.full((len(answers),), self.values[answers[0] == "now"])

    monkeypatch.setattr(rivals, "held_out", lambda: [Preference("then", "then")])
    found = rivals.Committee([Always(5.0, 7.0), Always(-9.0, -8.0), Always(0.0, 3.0)])(
        ["now", "now"]
    )
    assert found == {"proxy": [1.0, 1.0]}
