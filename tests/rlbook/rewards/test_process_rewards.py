"""Credit for steps, by hand on written answers, and through the trainer."""

from dataclasses import replace

import pytest
import torch

from rlbook.objectives import METHODS, leave_one_out
from rlbook.objectives.process import token_credit
from rlbook.policy import Completion, Sampler, load_policy
from rlbook.rewards.judges import habits_on_track
from rlbook.rewards.process import (
    PrimeCredit,
    SiblingCredit,
    Steps,
    VerdictCredit,
    VineCredit,
)
from rlbook.tasks import Problem, get_task
from rlbook.tasks.habits import HabitsTask
from rlbook.training import RunConfig, Trainer
from rlbook.training.judge import judged, rollouts_of

PROBLEM = Problem("40-(8-3)", "40-(8-3)=?", "35", 2, {"right": "8-3", "wrong": "40-8"})
ANSWERS = (  # right; right rule, then a slip; the misconception, twice
    "<think>8-3=5;40-5=35;</think><answer>35</answer>",
    "<think>8-3=5;40-5=36;</think><answer>36</answer>",
    "<think>40-8=32;32-3=29;</think><answer>29</answer>",
    "<think>40-8=32;32-3=29;</think><answer>29</answer>",
)


@pytest.fixture(scope="module")
def policy():
    return load_policy("tiny-habits")


@pytest.fixture
def rollouts(policy):
    return [written(policy[1], text) for text in ANSWERS]


def written(tokenizer, text, group=0):
    ids = [*tokenizer(text, add_special_tokens=False).input_ids, tokenizer.eos_token_id]
    one, prompt = Completion(ids, [0.0] * len(ids), "stop"), tokenizer(PROBLEM.prompt).input_ids
    answers = rollouts_of(tokenizer, [PROBLEM], [prompt], [one], 1, first_group=group)
    return judged(answers, HabitsTask())[0]


def per_step(steps, rollout, credit):
    """The credit of each step; every token of a step has the same."""
    found = {}
    for step, value in zip(steps.numbers(rollout.token_ids), credit, strict=True):
        found.setdefault(step, set()).add(round(value, 6))
    assert all(len(values) == 1 for values in found.values())
    return [values.pop() for values in found.values()]


def test_steps_are_what_is_computed_its_result_and_the_rest(policy, rollouts):
    steps = Steps.after(policy[1])
    texts = [policy[1].decode(list(p)) for p in steps.prefixes(rollouts[0])]
    assert texts == [
        "",
        "<think>8-3=",
        "<think>8-3=5;",
        "<think>8-3=5;40-5=",
        "<think>8-3=5;40-5=35;",
    ]
    assert Steps.after(policy[1], ";").starts(rollouts[0].token_ids) == [0, 7, 15]


def test_an_answer_that_ends_with_a_step_has_no_empty_one(policy):
    semicolon = policy[1].convert_tokens_to_ids(";")
    assert Steps.after(policy[1]).starts([5, semicolon]) == [0]


def test_siblings_at_the_same_place_are_the_baseline(policy, rollouts):
    """Rewards 1, 0, 0, 0. First step: RLOO's 1 and −1/3. Then the two by the right rule meet only
    each other, and after the slip each stands alone: the mean of the other three."""
    steps = Steps.after(policy[1])
    credit = SiblingCredit(steps)(rollouts)["credit"]
    first, second, third, _ = (per_step(steps, r, c) for r, c in zip(rollouts, credit, strict=True))
    assert first == pytest.approx([1, 1, 1, 1, 1])
    assert second == pytest.approx([-1 / 3, -1, -1, -1, -1 / 3], abs=1e-6)
    assert third == pytest.approx([-1 / 3, 0, 0, 0, 0], abs=1e-6)


def test_a_judge_pays_the_right_rule_and_blames_the_slip(policy, rollouts):
    """On track before each step: T T T T T, T T T T F, T F F F F (twice).
    Means over siblings in the same state, the answer itself left out."""
    steps = Steps.after(policy[1])
    reward = VerdictCredit(steps, habits_on_track, policy[1])
    assert reward.verdicts(rollouts[1]) == [True, True, True, True, False]
    credit = reward(rollouts)["credit"]
    first, second, third, _ = (per_step(steps, r, c) for r, c in zip(rollouts, credit, strict=True))
    assert first == pytest.approx([2 / 3, 0, 0, 1, 1])
    assert second == pytest.approx([2 / 3, 0, 0, -1, 0])
    assert third == pytest.approx([-2 / 3, 0, 0, 0, 0], abs=1e-6)


def test_judges_of_habits():
    on_track = {
        "<think>8-3=": True,
        "<think>8-3=5;": True,
        "<think>8-3=4;": False,
        "<think>8-3=5;40-5=": True,
        "<think>8-3=5;40-5=36;": False,
        "<think>40-8=": False,
        "<think>": False,
    }
    assert {text: habits_on_track(PROBLEM, text) for text in on_track} == on_track


class Scripted:
    """An engine that completes every prefix with the same tokens, and remembers what was asked."""

    def __init__(self, token_ids):
        self.token_ids, self.asked = token_ids, []

    def generate(self, prompts, *, n, **_):
        self.asked += prompts
        logps = [0.0] * len(self.token_ids)
        return [Completion(self.token_ids, logps, "stop") for _ in prompts for _ in range(n)]


def test_vine_values_come_from_answers_that_go_on_from_the_prefix(policy, rollouts):
    """Whatever stands there, the script closes with 35: right where the tags are still open."""
    tokenizer = policy[1]
    end = tokenizer("</think><answer>35</answer>", add_special_tokens=False).input_ids
    engine = Scripted([*end, tokenizer.eos_token_id])
    steps = Steps.after(tokenizer)
    vine = VineCredit(engine, tokenizer, HabitsTask(), steps, k=2)
    values = vine.values(rollouts)
    assert values[0] == [0.25, 1, 1, 1, 1, 1] and values[2] == [0.25, 1, 1, 1, 1, 0]
    credit = vine(rollouts)["credit"]
    assert per_step(steps, rollouts[2], credit[2]) == pytest.approx([0.75, 0, 0, 0, -1])
    distinct = {p for r in rollouts for p in steps.prefixes(r)[1:]}
    assert len(engine.asked) == 2 * len(distinct)  # two calls, each shared prefix asked once


def test_vine_does_not_count_what_the_limit_would_have_cut_off(policy, rollouts):
    end = policy[1]("</think><answer>35</answer>", add_special_tokens=False).input_ids
    engine = Scripted([*end, policy[1].eos_token_id])
    vine = VineCredit(engine, policy[1], HabitsTask(), Steps.after(policy[1]), k=2, limit=16)
    assert vine.values(rollouts)[0][1:3] == [1, 1] and vine.values(rollouts)[0][4] == 0


def test_credit_of_single_steps_is_rloo_through_the_trainer():
    """With the whole answer as one step, the credit is RLOO's advantage, and so is the update."""
    config = RunConfig(
        method=replace(METHODS["rloo"], kl=None),
        policy="tiny-habits", task="habits", levels=(1, 2), prompts=4, group_size=8, minibatches=1,
    )  # fmt: skip
    plain = Trainer(config)
    rollouts = plain.collect()
    stepwise = replace(config.method, advantage=token_credit)
    whole = SiblingCredit(Steps(frozenset()))
    credited = Trainer(config.replace(method=stepwise), reward=whole)
    batches = plain.learner.prepare(rollouts), credited.learner.prepare(credited.collect())
    expected = leave_one_out(batches[0].rewards, batches[0].groups)[:, None] * batches[0].mask
    torch.testing.assert_close(batches[1].advantages, expected)
    for trainer, batch in zip((plain, credited), batches, strict=True):
        trainer.learner.updates(batch)
    pairs = zip(plain.model.parameters(), credited.model.parameters(), strict=True)
    apart = torch.cat([(a - b).abs().flatten() for a, b in pairs])
    # Adam's first step has the length lr whatever the gradient: rounding decides where that is ~0
    assert apart.mean() < 0.01 * config.optimizer.lr


def test_prime_learns_to_tell_right_answers_from_wrong_ones(policy):
    """Before the first update every token reward is 0; after some, right answers score higher."""
    task, prime = get_task("habits"), PrimeCredit(policy[0], lr=1e-3)
    config = RunConfig(
        policy="tiny-habits", task="habits", levels=(1, 2), prompts=8, group_size=8, minibatches=1
    )
    trainer = Trainer(config, policy, task=task, engine=Sampler(policy[0], policy[1].eos_token_id))
    rollouts = trainer.collect()
    assert float(prime.learn(rollouts).abs().max()) < 1e-5
    for _ in range(6):
        rewards = prime.learn(rollouts).sum(1)
    right = torch.tensor([r.correct for r in rollouts])
    assert rewards[right].mean() > rewards[~right].mean() + 0.05
