"""Few-shot prompts of any generator, and answers that end with the line."""

import pytest

from rlbook.evaluation import ask
from rlbook.policy import Completion, Sampler, StopTexts, load_policy, load_tokenizer
from rlbook.tasks import Example, FewShotTask, HeldOut, Problem, Task
from rlbook.training import RunConfig, Trainer
from rlbook.training.chat import text_of


def doubled(rng, level):
    n = rng.randint(10**level, 10 ** (level + 1) - 1)
    return Example(f"double {n}", f"{n} + {n} = {2 * n}", str(2 * n))


@pytest.fixture
def task():
    return FewShotTask("doubles", doubled, levels=(1, 2), shots=(1, 2), kept=60)


def test_worked_examples_stand_before_every_question(task):
    problems = task.sample(0, 6)
    assert isinstance(task, Task) and isinstance(task, HeldOut)
    first, second, asked = problems[0].prompt.split("\n")
    for shot, digits in ((first, 2), (second, 3)):
        question, worked, answer = shot.split(" = ")
        n = question.removeprefix("double ")
        assert len(n) == digits and worked == f"{n} + {n}" and int(answer) == 2 * int(n)
    assert asked.startswith("double ") and asked.endswith(" =")
    assert {p.prompt.rpartition("\n")[0] for p in problems} == {f"{first}\n{second}"}
    assert [p.level for p in problems] == [1, 2, 1, 2, 1, 2]
    assert task.sample(0, 2) == problems[:2] != task.sample(1, 2)


def test_nothing_held_out_is_trained_on(task):
    kept = {p.id for p in task.held_out(60)}
    assert len(kept) == 60 and kept.isdisjoint(p.id for p in task.sample(5, 500))
    assert all(p.level == 2 for p in task.held_out(9, (2,)))
    for call in (lambda: task.held_out(61), lambda: task.sample(0, 1, (3,))):
        with pytest.raises(
            ValueError, match=r"holds 60 .* out, not 61|levels \(1, 2\), got \(3,\)"
        ):
            call()
    with pytest.raises(ValueError, match="different problems: lower kept"):
        FewShotTask("few", lambda rng, level: Example("1", "1", "1"), kept=2).sample(0, 1)


@pytest.mark.parametrize(
    ("completion", "finished", "reason"),
    [
        (" 24", True, "ok"),
        (" 12 + 12 = 24\ndouble 7 = 15", False, "ok"),
        (" 24.", True, "ok"),
        (" 024", True, "ok"),
        (" 25", True, "wrong"),
        (" 24 apples", True, "no_answer"),
        (" 0.24", True, "no_answer"),
        ("", True, "no_answer"),
        (" 24", False, "truncated"),
    ],
)
def test_the_last_integer_of_the_line_counts(completion, finished, reason, task):
    verdict = task.verify(Problem("double 12", "double 12 =", "24"), completion, finished)
    assert verdict.reason == reason
    assert verdict.correct == (reason == "ok")
    assert verdict.format_ok == (verdict.answer is not None) == (reason in ("ok", "wrong"))


def test_stop_texts_end_an_answer_wherever_tokens_are_cut():
    """The tiny model writes character by character: a text of several tokens is one as well."""
    model, tokenizer = load_policy()
    prompt = tokenizer("37+8-5=?").input_ids
    (free,) = Sampler(model, tokenizer.eos_token_id).generate([prompt], 1, 80, 0)
    written = tokenizer.decode(free.token_ids)
    text = "</think>"
    stop = StopTexts(tokenizer, (text, "never"))
    (ended,) = Sampler(model, tokenizer.eos_token_id, stop).generate([prompt], 1, 80, 0)
    assert ended.finish_reason == "stop" and text in written
    assert free.token_ids[: len(ended.token_ids)] == ended.token_ids
    assert tokenizer.decode(ended.token_ids).endswith(text)
    assert text_of(tokenizer, ended, (text,)) == written.partition(text)[0]
    with pytest.raises(ValueError, match="empty stop text"):
        StopTexts(tokenizer, ("",))


def test_text_behind_a_stop_text_in_its_token_is_not_read():
    tokenizer = load_tokenizer()
    ids = tokenizer("4+5=97", add_special_tokens=False).input_ids
    ended = Completion(ids, [0.0] * len(ids), "stop")
    cut = Completion(ids, [0.0] * len(ids), "length")
    assert text_of(tokenizer, ended, ("?", "9")) == "4+5="
    assert text_of(tokenizer, cut, ("9",)) == "4+5=97"


def test_a_task_s_own_stop_reaches_the_sampler(little_policy, little):
    """A run's setting comes before it."""
    policy = little_policy()
    task = FewShotTask("digits", lambda rng, level: Example(str(rng.random()), "1", "1"))
    task.stop = ("7", "a")
    asked = ask(policy, task, task.sample(0, 8), 4, max_new_tokens=12)
    run = Trainer(RunConfig(**little), policy, task=task).collect()
    for rollouts in (asked, run):
        closing = [policy[1].decode(r.token_ids[-1:]) for r in rollouts if not r.truncated]
        assert {"7", "a"} & set(closing)
        assert not any("7" in r.text or "a" in r.text for r in rollouts)
    changed = Trainer(RunConfig(**little, stop=("8",)), policy, task=task).collect()
    assert any("7" in r.text for r in changed) and not any("8" in r.text for r in changed)
