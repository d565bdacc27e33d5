r"""Data sets of questions and answers: sources, parts, references, hostile rows."""

import json
import sys
from types import SimpleNamespace

import pytest

from rlbook.tasks import Problem, get_task, held_out_problems
from rlbook.training.chat import encode

GSM8K = {
    "question": "Natalia sold clips to 48 of her friends in April, and half as many in May.",
    "answer": "Natalia sold 48/2 = <<48/2=24>>24 clips in May.\n#### 1,072",
}
MATH = {
    "problem": r"What is $\frac12+\frac14$?",
    "solution": r"Two: \boxed{1}, no: \boxed{\frac34}.",
}


def write(path, rows):
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return path


def numbered(start, stop):
    return [{"question": f"What is {i} + 1?", "answer": str(i + 1)} for i in range(start, stop)]


@pytest.fixture
def sums(tmp_path):
    return get_task(f"dataset:{write(tmp_path / 'sums.jsonl', numbered(0, 400))}")


def test_answers_of_gsm8k_and_math_are_understood(tmp_path):
    write(tmp_path / "train.jsonl", [GSM8K, {**MATH, "level": "Level 5"}, ""])
    write(tmp_path / "test.jsonl", [{"prompt": "1+1?", "answer": 2, "level": 1}])
    task = get_task(f"dataset:{tmp_path}")
    found = {p.level: p for p in task.sample(0, 2)}
    assert (found[0].answer, found[5].answer) == ("1072", r"\frac34")
    assert task.levels == (0, 5)
    assert found[0].prompt.startswith(GSM8K["question"]) and r"\boxed{}" in found[0].prompt
    assert [p.answer for p in held_out_problems(task, 1)] == ["2"]
    assert task.verify(found[5], r"It is \boxed{0.75}").reason == "ok"
    assert task.verify(found[5], r"It is \boxed{0.7}").reason == "wrong"
    assert task.verify(found[0], "1072").reason == "no_answer"
    assert task.verify(found[0], r"\boxed{1072}", finished=False).reason == "truncated"


def test_sampling_is_a_pure_function_with_stable_prefixes(sums, tmp_path):
    first = sums.sample(3, 20)
    again = get_task(sums.name)
    assert first == again.sample(3, 20) == again.sample(3, 60)[:20]
    assert first != sums.sample(4, 20)
    assert len({p.id for p in sums.sample(0, 300)}) == 300


def test_what_is_held_out_depends_on_the_question_alone(sums, tmp_path):
    held_out = {p.id for p in sums.parts[1]}
    assert 20 <= len(held_out) <= 60
    assert not held_out & {p.id for p in sums.parts[0]}
    reordered = write(tmp_path / "more.jsonl", numbered(200, 800)[::-1] + numbered(0, 200))
    assert held_out <= {p.id for p in get_task(f"dataset:{reordered}").parts[1]}


def test_a_question_of_both_parts_is_not_trained_on(tmp_path):
    write(tmp_path / "train.jsonl", numbered(0, 5) + numbered(0, 5))
    write(tmp_path / "validation.jsonl", numbered(3, 6))
    train, held_out = get_task(f"dataset:{tmp_path}").parts
    assert [p.answer for p in train] == ["1", "2", "3"]
    assert [p.answer for p in held_out] == ["4", "5", "6"]


def test_a_benchmark_is_held_out_as_a_whole(tmp_path):
    file = write(tmp_path / "sums.jsonl", numbered(0, 30))
    task = get_task(f"benchmark:{file}")
    assert task.name == f"benchmark:{file}"
    assert len({problem.id for problem in task.held_out(30)}) == 30
    with pytest.raises(ValueError, match="has 0 training problems"):
        task.sample(0, 1)
    assert task.levels == get_task(f"dataset:{file}").levels


def test_levels_select(tmp_path):
    rows = [{**row, "level": i % 3} for i, row in enumerate(numbered(0, 90))]
    write(tmp_path / "train.jsonl", rows)
    write(tmp_path / "test.jsonl", numbered(100, 101))
    task = get_task(f"dataset:{tmp_path}")
    assert {p.level for p in task.sample(0, 30, levels=[2])} == {2}
    with pytest.raises(ValueError, match=r"30 training problems of levels \(2,\), 31 are asked"):
        task.sample(0, 31, levels=[2])


HOSTILE = {
    "no answer": ({"question": "1+1?"}, r"line 2: no answer .*it has \['question'\].*rename"),
    "no question": ({"answer": "2", "text": "1+1?"}, "line 2: no question"),
    "blank": ({"question": "  ", "answer": "2"}, "line 2: no question"),
    "list": ({"question": ["1+1?"], "answer": "2"}, "line 2: no question"),
    "null": ({"question": "1+1?", "answer": None}, "line 2: no answer"),
    "empty reference": ({"question": "1+1?", "answer": "two ####"}, "line 2: the answer is empty"),
    "level": ({"question": "1+1?", "answer": "2", "level": "hard"}, "line 2: level 'hard'"),
    "surrogate": (r'{"question": "\ud800?", "answer": "2"}', "line 2: question has half"),
    "not JSON": ("question,answer", "line 2: not JSON"),
    "array": ("[1, 2]", "line 2: expected"),
    "deep": ("[" * 100_000, "line 2: not JSON"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_rows_are_named_with_file_line_and_fix(name, tmp_path):
    row, message = HOSTILE[name]
    path = write(tmp_path / "bad.jsonl", [numbered(1, 2)[0], row])
    with pytest.raises(ValueError, match=f"{path}, {message}"):
        get_task(f"dataset:{path}").sample(0, 1)


def test_hostile_files(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere\.jsonl.*check the path"):
        get_task(f"dataset:{tmp_path / 'nowhere.jsonl'}")
    with pytest.raises(FileNotFoundError, match=r"no train\.jsonl \(it has: nothing\)"):
        get_task(f"dataset:{tmp_path}").sample(0, 1)
    (tmp_path / "latin.jsonl").write_bytes('{"question": "é"}'.encode("latin-1"))
    with pytest.raises(ValueError, match="save it as UTF-8"):
        get_task(f"dataset:{tmp_path / 'latin.jsonl'}").sample(0, 1)


def test_an_unreadable_reference_is_a_verdict_not_a_crash(sums):
    problem = Problem("x", "?", r"\text{}")
    assert sums.verify(problem, r"\boxed{3}").reason == "bad_reference"


class Hub:
    """Stands for the `datasets` library: one data set with a train and a test part."""

    def __init__(self):
        self.loaded = []

    def get_dataset_split_names(self, path, config=None):
        if path != "openai/gsm8k":
            raise FileNotFoundError(f"Dataset '{path}' doesn't exist on the Hub")
        return ["train", "test"]

    def load_dataset(self, path, config=None, split=None):
        self.loaded.append((path, config, split))
        return numbered(0, 20) if split == "train" else numbered(20, 30)


def test_hub_names_go_through_the_datasets_library(monkeypatch):
    hub = Hub()
    monkeypatch.setitem(sys.modules, "datasets", hub)
    task = get_task("dataset:openai/gsm8k:main")
    assert {int(p.answer) for p in task.sample(0, 20)} == set(range(1, 21))
    assert {int(p.answer) for p in task.held_out(10)} == set(range(21, 31))
    assert hub.loaded == [("openai/gsm8k", "main", "train"), ("openai/gsm8k", "main", "test")]
    backwards = get_task("dataset:openai/gsm8k:main:test")
    assert {int(p.answer) for p in backwards.parts[0] + backwards.parts[1]} == set(range(21, 31))
    with pytest.raises(FileNotFoundError, match=r"nobody/nothing.*local JSONL"):
        get_task("dataset:nobody/nothing").sample(0, 1)
    with pytest.raises(ValueError, match="<config>"):
        get_task("dataset:a:b:c:d")


def test_the_missing_library_is_named_with_the_fix(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match=r"pip install -e '\.\[datasets\]'"):
        get_task("dataset:openai/gsm8k:main").sample(0, 1)


@pytest.mark.wrong_on_purpose
def test_chat_templates_wrap_messages_only(sums):
    problem = sums.sample(0, 1)[0]
    tokenizer = Characters()
    assert encode(tokenizer, problem) == tokenizer(problem.prompt).input_ids
    tokenizer.chat_template = "any"
    message = f"<user>{problem.prompt}<assistant>"
    assert encode(tokenizer, problem) == list(map(ord, message))
    plain = Problem("x", "1+1=?", "2")
    assert encode(tokenizer, plain) == list(map(ord, "^1+1=?"))


class Characters:
    """A tokenizer of characters that puts "^" in front; its template adds its own tokens."""

    chat_template = None

    def __call__(self, text, add_special_tokens=True):
        return SimpleNamespace(input_ids=list(map(ord, "^" * add_special_tokens + text)))

    def apply_chat_template(self, messages, tokenize, add_generation_prompt):
        assert not tokenize and add_generation_prompt
        return "".join(f"<{m['role']}>{m['content']}" for m in messages) + "<assistant>"
