"""Length after learning, and what comes before RL: the arms do what their names say."""

import random

import pytest

from rlbook.policy import load_policy
from rlbook.tasks import SumsTask, get_task
from rlbook.training import Rollout, Trainer
from workshop.ch14 import brevity, pupils
from workshop.ch14.brevity import LIMITS, FallingLimit, ShorterBetter, with_filler
from workshop.ch14.pupils import BeginsRight
from workshop.experiments import EXPERIMENTS

SMALL = {"prompts": 2, "group_size": 2, "max_new_tokens": 24, "minibatches": 1}


def config(experiment: str, label: str):
    return next(one.config for one in EXPERIMENTS[experiment].arms if one.label == label)


def answered(length: int, correct: bool, group: int = 0) -> Rollout:
    (problem,) = SumsTask().sample(0, 1)
    return Rollout(
        problem=problem,
        group=group,
        prompt_ids=[1],
        token_ids=[2] * length,
        logps=[0.0] * length,
        versions=[0] * length,
        finish_reason="stop",
        text="",
        correct=correct,
    )


def test_the_goal_is_the_shortest_right_answer_and_the_mean_where_none_is_right():
    group = [answered(4, False), answered(20, True), answered(30, True)]
    hopeless = [answered(10, False, 1), answered(30, False, 1)]
    parts = ShorterBetter(0.01)([*group, *hopeless])
    assert parts["answer"] == [0, 1, 1, 0, 0]
    assert parts["length"] == pytest.approx([-0.16, 0, -0.1, -0.1, -0.1])


def test_the_limit_falls_by_quarters_and_cuts_right_answers_off():
    settings = config("length_padded", "falling limit").replace(**SMALL, steps=8)
    policy = load_policy("tiny")
    trainer, seen = FallingLimit(settings, policy), []
    for step in range(8):
        trainer.step = step
        rollouts = trainer.collect()
        (limit,) = {reward.limit for reward in trainer.source.rewards[:1]}
        assert all(r.reward == (r.correct and r.length <= limit) for r in rollouts)
        seen.append(limit)
    assert seen == sorted((*LIMITS, *LIMITS), reverse=True)
    rule = brevity.Within(24)
    assert rule([answered(24, True), answered(25, True)]) == {"answer": [1.0, 0.0]}


def test_filler_makes_an_answer_longer_and_leaves_it_right():
    (problem,) = SumsTask().sample(3, 1, levels=(2,))
    text = f"<think>{problem.prompt.removesuffix('?')}{problem.answer};</think>"
    text += f"<answer>{problem.answer}</answer>"
    longer = with_filler(text, random.Random(0))
    assert SumsTask().verify(problem, longer).correct
    assert 8 <= longer.count("ok ") <= 20 and longer.replace("ok ", "") == text


def test_half_of_a_group_of_squares_begins_right_and_nothing_else_does():
    policy, task = load_policy("tiny-habits"), get_task("habits")
    problems = [task.sample(1, 1, levels=(level,))[0] for level in (6, 2)]
    settings = config("pupils", "squares begun, RL").replace(**SMALL)
    trainer = Trainer(settings, policy, engine=BeginsRight(*policy))
    groups = [trainer.sample([problem], n=4, seed=0) for problem in problems]
    square, other = groups
    assert [bool(r.forced) for r in square] == [False, False, True, True]
    begun = square[2]
    assert begun.text.startswith(f"<think>{problems[0].meta['right']}=")
    assert task.label(problems[0], begun.text) == "right"
    assert not any(r.forced for r in other)


def test_what_comes_before_rl_moves_the_policy_and_is_counted(monkeypatch):
    monkeypatch.setattr(pupils, "SINGLE", {"prompts": 2, "group_size": 1})
    for label, answers in (("distilled, then RL", 64 * 20), ("48 examples, then RL", 0)):
        trainer = pupils.pupil(config("pupils", label).replace(**SMALL))
        base = load_policy("tiny-habits")[0]
        pairs = zip(base.parameters(), trainer.model.parameters(), strict=True)
        assert any((p != q).any() for p, q in pairs)
        assert trainer.step == 0
        assert pupils.sampled(trainer, []) == {"answers_sampled": answers}
