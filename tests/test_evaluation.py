"""One way to measure a policy, against enumeration and against the problems it may not see."""

import json
from itertools import combinations

import numpy as np
import pytest

from rlbook.evaluation import doubling, evaluate, held_out_rollouts, right_counts, summary
from rlbook.policy import Completion, Sampler
from rlbook.tasks import Problem, get_task, held_out_problems
from rlbook.training import Rollout, RunConfig, Trainer, collect_rollouts


def rollouts_of(table):
    """Rollouts of problems whose completions are right (1) or wrong (0)."""
    return [
        Rollout(
            problem=Problem(f"p{group}", "?", "yes"),
            group=group,
            prompt_ids=[1],
            token_ids=[5] * (3 + right),
            logps=[0.0] * (3 + right),
            versions=[0] * (3 + right),
            finish_reason="stop" if right else "length",
            text="yes" if right else "no",
            correct=bool(right),
            format_ok=bool(right) or group == 0,
        )
        for group, row in enumerate(table)
        for right in row
    ]


TABLE = [[1, 0, 0, 0, 0], [1, 1, 0, 1, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]]


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5])
def test_pass_at_k_is_the_share_of_choices_of_k_that_hold_a_right_one(k):
    chosen = [[any(choice) for choice in combinations(row, k)] for row in TABLE]
    expected = np.mean([np.mean(row) for row in chosen])
    row = summary(rollouts_of(TABLE), ks=[k])
    assert row[f"pass@{k}"] == pytest.approx(expected)
    assert [key for key in row if key.startswith("pass@") and "_" not in key] == [f"pass@{k}"]


def test_the_rest_of_a_summary_is_counted_by_hand():
    row = summary(rollouts_of(TABLE))
    assert row["problems"] == 4
    assert row["samples"] == 5
    assert row["format_ok"] == 13 / 20  # 9 right, and 4 wrong of the first problem
    assert row["length"] == 3 + 9 / 20
    assert row["truncated"] == 11 / 20
    assert {key for key in row if key.startswith("pass@")} == {
        "pass@1",
        "pass@2",
        "pass@4",
        "pass@1_low",
        "pass@1_high",
    }


def test_the_unit_of_the_interval_is_the_problem():
    """Two problems of rates 0 and 1: a resample has the mean 0, ½ or 1. With 50 times as many
    completions of the same problems the interval stays what it is."""
    for copies in (2, 100):
        row = summary(rollouts_of([[0] * copies, [1] * copies]))
        assert (row["pass@1_low"], row["pass@1"], row["pass@1_high"]) == (0.0, 0.5, 1.0)
    many = summary(rollouts_of([[0, 0], [1, 1]] * 200))
    half = 1.96 * 0.5 / np.sqrt(400)
    assert many["pass@1_low"] == pytest.approx(0.5 - half, abs=0.01)
    assert many["pass@1_high"] == pytest.approx(0.5 + half, abs=0.01)


def test_one_problem_has_no_interval():
    row = summary(rollouts_of([[1, 0]]))
    assert row["pass@1"] == 0.5
    assert "pass@1_low" not in row


@pytest.mark.parametrize(
    ("table", "ks", "message"),
    [
        ([[1, 0], [1]], None, r"groups of one size, got sizes \[1, 2\]"),
        ([], None, r"groups of one size, got sizes \[\]"),
        (TABLE, [1, 6], "pass@k of 5 completions a problem needs k from 1 to 5"),
        (TABLE, [0], "needs k from 1 to 5"),
    ],
)
def test_what_has_no_pass_at_k_is_refused(table, ks, message):
    with pytest.raises(ValueError, match=message):
        summary(rollouts_of(table), ks)


def test_counts_are_in_the_order_of_the_problems():
    assert right_counts(rollouts_of(TABLE)).tolist() == [1, 3, 0, 5]


@pytest.mark.parametrize(("n", "ks"), [(1, [1]), (5, [1, 2, 4]), (8, [1, 2, 4, 8])])
def test_doubling_ends_at_the_group_size(n, ks):
    assert doubling(n) == ks


class Oracle:
    """An engine that knows the answers of the problems it is asked, every second time."""

    def __init__(self, tokenizer, task, prompts):
        answers = {p.prompt: p.answer for p in held_out_problems(task, prompts)}
        self.known = {
            tuple(tokenizer(prompt).input_ids): tokenizer.encode(
                f"<think></think><answer>{answer}</answer>", add_special_tokens=False
            )
            for prompt, answer in answers.items()
        }

    def generate(self, prompts, *, n, max_new_tokens, temperature, seed):
        said = [self.known[tuple(p)] if i % 2 else [9] for p in prompts for i in range(n)]
        return [Completion([*ids, 2], [0.0] * (len(ids) + 1), "stop") for ids in said]


def test_evaluate_asks_the_held_out_problems_of_the_task(little_policy):
    policy, task = little_policy(), get_task("sums")
    oracle = Oracle(policy[1], task, 6)
    row = evaluate(policy, task, prompts=6, n=4, engine=oracle)
    assert row["pass@1"] == 0.5
    assert row["pass@2"] == pytest.approx(1 - 1 / 6)  # of six pairs one has both wrong
    assert (row["problems"], row["samples"]) == (6, 4)
    assert (row["share_direct"], row["share_broken"]) == (0.5, 0.5)


def test_the_same_evaluation_gives_the_same_answers_and_another_seed_others(little_policy, parity):
    first, again, other = (
        [r.text for r in held_out_rollouts(little_policy(), parity, 4, 2, **how)]
        for how in ({}, {}, {"seed": 1})
    )
    assert first == again
    assert first != other


@pytest.fixture
def dataset(tmp_path):
    path = tmp_path / "problems.jsonl"
    rows = [{"question": f"{i}+{i}=?", "answer": str(2 * i)} for i in range(60)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"dataset:{path}"


def test_held_out_problems_are_never_asked_in_training(dataset, little_policy):
    task = get_task(dataset)
    held_out = {p.id for p in held_out_problems(task, len(task.parts[1]))}
    assert len(held_out) > 2
    settings = {"method": "rloo", "max_new_tokens": 4, "minibatches": 1, "group_size": 2}
    for pool, at_least in ((None, 40), (60 - len(held_out), 60 - len(held_out))):
        config = RunConfig(task=dataset, prompts=20, steps=6, pool=pool, **settings)
        trainer = Trainer(config, little_policy())
        asked = set()
        for _ in range(6):
            asked |= {r.problem.id for r in trainer.collect()}
            trainer.step += 1
        assert len(asked) >= at_least
        assert not asked & held_out
    measured = held_out_rollouts(little_policy(), task, len(held_out), 1, max_new_tokens=4)
    assert {r.problem.id for r in measured} == held_out


def test_a_trainer_evaluates_the_policy_as_it_is_now(little_policy, parity, little):
    config = RunConfig(
        method="rloo",
        **little,
        sync_every=9,
        temperature=0.7,
        levels=(2,),
        evaluation={"prompts": 6},
    )
    trainer = Trainer(config, little_policy(), task=parity)
    before = trainer.evaluate()
    assert (before["problems"], before["samples"]) == (6, 4)
    for _ in range(3):
        trainer.train_one()
    after = trainer.evaluate()
    assert after != before
    policy = (trainer.model, trainer.tokenizer)
    how = {"max_new_tokens": 12, "temperature": 0.7, "levels": (2,)}
    assert after == evaluate(policy, parity, 6, 4, **how)
    assert trainer.evaluate(n=2, prompts=3)["samples"] == 2
    assert trainer.step == 3


def test_evaluation_at_intervals_adds_the_held_out_accuracy(little_policy, parity, little):
    config = RunConfig(
        method="rloo", **little, steps=4, every=2, evaluation={"prompts": 5, "samples": 3}
    )
    trainer = Trainer(config, little_policy(), task=parity)
    quiet = Trainer(config.replace(every=0), little_policy(), task=parity)
    for metrics, plain in zip(trainer, quiet, strict=True):
        if trainer.step % 2 == 0:
            assert metrics.pop("heldout") == trainer.evaluate()["pass@1"]
        assert metrics == pytest.approx(plain, nan_ok=True)  # measuring does not change the run


def test_rollouts_of_training_can_be_summarised_too(little_policy, parity):
    model, tokenizer = little_policy()
    engine = Sampler(model, tokenizer.eos_token_id)
    rollouts = collect_rollouts(engine, tokenizer, parity, parity.sample(0, 5), 4, max_new_tokens=8)
    row = summary(rollouts, task=parity)
    assert row["pass@1"] == np.mean([len(r.text) % 2 == 0 for r in rollouts])
    assert row["share_short"] + row.get("share_long", 0) == 1
