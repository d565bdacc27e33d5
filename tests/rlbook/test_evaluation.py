"""One way to measure a policy, against enumeration and against the problems it may not see."""

import json
from itertools import combinations

import numpy as np
import pytest

from rlbook.cli import main
from rlbook.evaluation import (
    difficulty,
    difficulty_table,
    doubling,
    evaluate,
    evaluate_run,
    held_out_rollouts,
    pass_rates,
    right_counts,
    summary,
)
from rlbook.objectives import METHODS
from rlbook.policy import Completion, Sampler
from rlbook.tasks import Problem, get_task, held_out_problems
from rlbook.training import Rollout, RunConfig, Trainer, collect_rollouts, loop


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


def test_pass_rates_by_problem_and_by_any_other_key():
    rollouts = rollouts_of(TABLE)
    assert pass_rates(rollouts) == {"p0": 0.2, "p1": 0.6, "p2": 0.0, "p3": 1.0}
    assert pass_rates(rollouts, lambda r: r.group % 2) == {0: 0.1, 1: 0.8}


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
    before = evaluate_run(trainer)
    assert (before["problems"], before["samples"]) == (6, 4)
    for _ in range(3):
        trainer.train_one()
    after = evaluate_run(trainer)
    assert after != before
    policy = (trainer.model, trainer.tokenizer)
    how = {"max_new_tokens": 12, "temperature": 0.7, "levels": (2,)}
    assert after == evaluate(policy, parity, 6, 4, **how)
    assert evaluate_run(trainer, n=2, prompts=3)["samples"] == 2
    assert trainer.step == 3


def test_a_run_with_evaluations_needs_somebody_who_makes_them(little_policy, parity, little):
    with pytest.raises(ValueError, match=r"evaluation\.every: say how to measure"):
        Trainer(RunConfig(**little, every=2), little_policy(), task=parity).train_one()


def test_evaluation_at_intervals_adds_the_held_out_accuracy(little_policy, parity, little):
    config = RunConfig(
        method="rloo", **little, steps=4, every=2, evaluation={"prompts": 5, "samples": 3}
    )
    trainer = Trainer(config, little_policy(), task=parity, evaluate=evaluate_run)
    quiet = Trainer(config.replace(every=0), little_policy(), task=parity)
    for metrics, plain in zip(trainer, quiet, strict=True):
        if trainer.step % 2 == 0:
            assert metrics.pop("heldout") == evaluate_run(trainer)["pass@1"]
            assert metrics.pop("heldout_asked") == 0  # these seeds share no prompt
        assert metrics == pytest.approx(plain, nan_ok=True)  # measuring does not change the run


def test_rollouts_of_training_can_be_summarised_too(little_policy, parity):
    model, tokenizer = little_policy()
    engine = Sampler(model, tokenizer.eos_token_id)
    rollouts = collect_rollouts(engine, tokenizer, parity, parity.sample(0, 5), 4, max_new_tokens=8)
    row = summary(rollouts, task=parity)
    assert row["pass@1"] == np.mean([len(r.text) % 2 == 0 for r in rollouts])
    assert row["share_short"] + row.get("share_long", 0) == 1


@pytest.mark.parametrize("every", [1, 2])
def test_training_and_evaluation_end_an_answer_at_each_declared_token(
    little_policy, parity, little, every, monkeypatch
):
    policy = little_policy()
    ends = policy[0].generation_config.eos_token_id = [2, 5, 9]
    settings = little | {"prompts": 16, "sync_every": every}
    sampled = Trainer(RunConfig(**settings), policy, task=parity).source.collect(1)
    sampled += held_out_rollouts(policy, parity, 16, 8, max_new_tokens=8)
    by_loop = []

    def collect(*args, **how):
        by_loop.extend(collect_rollouts(*args, **how))
        return by_loop

    monkeypatch.setattr(loop, "collect_rollouts", collect)
    next(loop.train(*policy, parity, METHODS["reinforce"], steps=1))
    for rollouts in (sampled, by_loop):
        said = [(r.token_ids[:-1], r.token_ids[-1], r.truncated) for r in rollouts]
        assert not any(set(before) & set(ends) for before, _, _ in said)
        assert all((last in ends) != cut for _, last, cut in said)
        assert {last for _, last, cut in said if not cut} == set(ends)


# How hard problems are


def rows(*right, samples=4, level=2):
    return [{"right": n, "samples": samples, "level": level} for n in right]


def test_shares_of_problems():
    found = difficulty(rows(0, 1, 4, 3), group_size=2)
    assert (found["never"], found["mixed"], found["always"]) == (0.25, 0.5, 0.25)
    assert found["pass_rate"] == 0.5 and found["low"] <= 0.5 <= found["high"]


@pytest.mark.parametrize("right", range(6))
@pytest.mark.parametrize("size", [1, 2, 4, 5])
def test_mixed_groups_are_counted_over_all_groups_of_a_problems_answers(right, size):
    answers = [True] * right + [False] * (5 - right)
    groups = list(combinations(answers, size))
    mixed = sum(len(set(group)) == 2 for group in groups) / len(groups)
    found = difficulty(rows(right, samples=5), size)
    assert found["mixed_groups"] == pytest.approx(mixed)


def test_a_group_is_no_larger_than_what_was_sampled():
    with pytest.raises(ValueError, match="group_size 8: from 1 to the 4 samples"):
        difficulty(rows(1), group_size=8)


def test_the_table_has_a_line_for_every_level():
    table = difficulty_table([*rows(0, 4), *rows(2, level=3)], 2).splitlines()
    assert [line.split()[0] for line in table] == ["level", "2", "3", "all"]


def test_the_command_measures_the_tiny_model(tmp_path, capsys):
    out = tmp_path / "rates.jsonl"
    words = "passrate tiny evaluation.prompts=70 samples=4 group_size=4 levels=[2,6] --out"
    main([*words.split(), str(out)])
    found = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(found) == 70 and {row["level"] for row in found} == {2, 6}
    easy, hard = ([row["pass_rate"] for row in found if row["level"] == level] for level in (2, 6))
    assert sum(easy) / len(easy) > sum(hard) / len(hard)
    assert capsys.readouterr().out.splitlines()[0].endswith("mixed groups of 4")


def test_each_task_of_a_mixture_has_its_own_pass_rate():
    """3 of 4 right answers of one task, 1 of 4 of the other: pass@1 is a half, and each its own."""
    rollouts = rollouts_of([[1, 1], [1, 0], [0, 0], [1, 0]])
    for one in rollouts:
        task = "sums" if one.group < 2 else "words"
        one.problem = Problem(one.problem.id, "?", "yes", meta={"mixture": task})
    row = summary(rollouts)
    assert (row["pass@1"], row["pass@1_sums"], row["pass@1_words"]) == (0.5, 0.75, 0.25)
    assert "pass@1_sums" not in summary(rollouts_of([[1, 1], [1, 0]]))
