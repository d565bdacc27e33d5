r"""Data sets of questions and answers: sources, parts, references, hostile rows."""

import gzip
import json
import sys
from types import SimpleNamespace

import pytest

from rlbook.tasks import Problem, get_task, held_out_problems
from rlbook.tasks.dataset import likeness, problem_of
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


HASHES = "#### Step 1\nadd\n#### Step 2\nso "
TALK = [{"role": "system", "content": "Think."}, {"role": "user", "content": "q"}]
SHAPES = {  # what is shipped, and the reference in it
    "GSM8K": ({"question": "q", "answer": "a <<1+1=2>>2\n#### $70,000"}, "70000"),
    "a pair after the mark": ({"question": "q", "answer": "x\n#### (1,2)"}, "(1,2)"),
    "a remark after it": ({"question": "q", "answer": "x\n#### 42\n(see above)"}, "42"),
    "headings": ({"problem": "q", "solution": HASHES + r"\boxed{42}."}, "42"),
    "MATH, level unknown": ({"problem": "q", "level": "Level ?", "solution": r"\boxed 4"}, "4"),
    "two boxes": ({"problem": "q", "solution": r"$\boxed{1}$ and $\boxed{2}$"}, "1, 2"),
    "AIME": ({"ID": "2024-I-1", "Problem": "q", "Solution": "s", "Answer": 204}, "204"),
    "DAPO, verl": ({"prompt": TALK, "reward_model": {"ground_truth": "34", "style": "rule"}}, "34"),
    "Nemotron": ({"problem": "q", "expected_answer": "4"}, "4"),
    "SimpleRL": ({"question": "q", "gt_answer": "4", "level": 3}, "4"),
    "OpenRLHF": ({"input": "q", "label": "4"}, "4"),
    "Open-Reasoner-Zero": (
        [{"from": "human", "value": "q"}, {"from": "assistant", "ground_truth": {"value": "4"}}],
        "4",
    ),
    "a small float": ({"question": "q", "answer": 1e-07}, "0.0000001"),
    "a whole float": ({"question": "q", "answer": 12.0}, "12"),
    "a sentence": ({"question": "q", "answer": "The answer is 4."}, "4"),
    "null beside a solution": ({"question": "q", "answer": None, "solution": r"\boxed{13}"}, "13"),
    "Alpaca": ({"instruction": "q", "output": "It is 4, so the answer is 4."}, "4"),
    "an instruction and its input": ({"instruction": "q", "input": "2+2", "output": "4"}, "4"),
    "a list of one, written out": (
        {"prompt": "q", "reward_model": {"ground_truth": '["34"]'}},
        "34",
    ),
    "an index among choices": ({"question": "q", "choices": ["a", "b", "c"], "answer": 2}, "C"),
    "a letter under its key": (
        {"question": "q", "choices": {"text": ["a", "b"], "label": ["A", "B"]}, "answerKey": "B"},
        "B",
    ),
    "names with spaces": ({"Question": "q", "Final Answer": "7"}, "7"),
    "both sides in messages": (
        {"messages": [*TALK, {"role": "assistant", "content": r"So \boxed{5}"}]},
        "5",
    ),
    "ShareGPT": (
        {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "5"}]},
        "5",
    ),
    "tags": ({"prompt": TALK, "solution": "<think>1</think><answer>9</answer>"}, "9"),
    "SkyRL": ({"prompt": TALK, "reward_spec": {"ground_truth": "34"}}, "34"),
    "an inner row as text": ({"prompt": TALK, "reward_model": '{"ground_truth": "34"}'}, "34"),
    "a list of one truth": ({"prompt": TALK, "reward_model": {"ground_truth": ["34"]}}, "34"),
    "verl's extra_info": ({"prompt": TALK, "extra_info": {"answer": "x #### 34"}}, "34"),
    "prompt and completion": ({"prompt": "q", "completion": "3"}, "3"),
    "a prompt written out as JSON": ({"prompt": json.dumps(TALK), "answer": "3"}, "3"),
    "a prompt as Python writes it": ({"prompt": repr(TALK), "answer": "3"}, "3"),
    "messages written out": ({"messages": json.dumps(TALK), "answer": "3"}, "3"),
    "an answer that is not there": ({"question": "q", "answer": float("nan"), "target": 3}, "3"),
    "a message in pieces": (
        {"prompt": [{"role": "user", "content": [{"type": "text", "text": "q"}]}], "answer": "3"},
        "3",
    ),
}


def test_choices_and_the_story_of_a_question_stand_in_the_prompt():
    row = {"question": "Which?", "options": ["red", "blue"], "answer": "B"}
    assert problem_of(row, "row 0").prompt.startswith("Which?\n(A) red\n(B) blue\n")
    told = {"Body": "There are 3 dogs.", "Question": "How many legs?", "Answer": 12.0}
    assert problem_of(told, "row 0").prompt.startswith("There are 3 dogs.\n\nHow many legs?\n")
    shown = {"question": "Which? (A) red (B) blue", "options": ["red", "blue"], "answer": "B"}
    assert problem_of(shown, "row 0").prompt.count("red") == 1


@pytest.mark.parametrize(
    "row",
    [
        {"context": "There are 3 dogs.", "question": "How many legs?"},
        {"passage": "There are 3 dogs.", "prompt": [{"role": "user", "content": "How many legs?"}]},
        {"question": "There are 3 dogs.", "input": "How many legs?"},
        {"context": "3 dogs", "question": "There are 3 dogs.\n\nHow many legs?"},
    ],
)
def test_what_a_question_is_about_is_asked_with_it(row):
    problem = problem_of({**row, "answer": "12"}, "here")
    assert problem.prompt.startswith("There are 3 dogs.\n\nHow many legs?\n\nReason")


def test_brackets_in_a_question_are_no_conversation():
    for question in ("[{1, 2}, {3}]: how many sets?", '{"a": 1}["a"]?', "[{'a': 1}]"):
        assert problem_of({"question": question, "answer": "1"}, "here").prompt.startswith(question)


@pytest.mark.parametrize("name", SHAPES)
def test_rows_as_they_are_shipped(name):
    row, reference = SHAPES[name]
    problem = problem_of(row, "here")
    assert (problem.answer, problem.prompt.split("\n")[0]) == (reference, "q")


def test_files_as_they_are_shipped(tmp_path):
    rows = numbered(0, 3)
    lines = "\n".join(map(json.dumps, rows))
    files = {
        "rows.json": json.dumps(rows),
        "data.json": json.dumps({"data": rows}),
        "lines.json": lines,
        "rows.csv": "question,answer\n" + "\n".join(f"{r['question']},{r['answer']}" for r in rows),
        "columns.json": json.dumps({k: [row[k] for row in rows] for k in rows[0]}),
        "numbered.json": json.dumps(dict(enumerate(rows))),
        "rows.tsv": "question\tanswer\n"
        + "\n".join(f"{r['question']}\t{r['answer']}" for r in rows),
        "commas.jsonl": lines.replace("\n", ",\r\n"),
        "rows.jsonl.gz": gzip.compress(lines.encode()),
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        found = get_task(f"benchmark:{tmp_path / name}").held_out(3)
        assert sorted(p.answer for p in found) == ["1", "2", "3"], name


def test_parquet_is_read_by_pyarrow(tmp_path):
    parquet = pytest.importorskip(
        "pyarrow.parquet", reason="comes with the extra datasets: 55 MB, too much for every clone"
    )
    from pyarrow import Table

    rows = [
        {
            "prompt": [{"role": "user", "content": f"q {i}"}],
            "reward_model": {"ground_truth": f"{i}"},
        }
        for i in range(3)
    ]
    (tmp_path / "data").mkdir()
    file = tmp_path / "data" / "train-00000-of-00001.parquet"
    parquet.write_table(Table.from_pylist(rows), file)
    for source in (file, tmp_path):
        found = get_task(f"benchmark:{source}").held_out(3)
        assert sorted(p.answer for p in found) == ["0", "1", "2"]
    file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(ValueError, match=r"no whole parquet file .*fetch it again"):
        get_task(f"benchmark:{file}").held_out(3)


def test_parquet_without_pyarrow_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "rows.parquet").write_bytes(b"PAR1 and more")
    with pytest.raises(ImportError, match=r"pyarrow reads: pip install -e '\.\[datasets\]'.*JSONL"):
        get_task(f"dataset:{tmp_path / 'rows.parquet'}").sample(0, 1)


def test_a_folder_as_the_hub_lays_it_out(tmp_path):
    (tmp_path / "data").mkdir()
    for number in range(2):
        part = numbered(10 * number, 10 * number + 5)
        write(tmp_path / f"data/train-0000{number}-of-00002.jsonl", part)
    write(tmp_path / "data/test-00000-of-00001.jsonl", numbered(30, 33))
    (tmp_path / "README.md").write_text("# A data set")
    assert [len(part) for part in get_task(f"dataset:{tmp_path}").parts] == [10, 3]
    (tmp_path / "only").mkdir()
    write(tmp_path / "only/test.jsonl", numbered(0, 4))
    assert len(get_task(f"benchmark:{tmp_path / 'only'}").parts[1]) == 4
    with pytest.raises(FileNotFoundError, match="use benchmark"):
        get_task(f"dataset:{tmp_path / 'only'}").sample(0, 1)


def test_references_that_no_answer_can_meet_are_left_out_or_refused(tmp_path):
    proof = {"problem": "Prove it.", "solution": "Clearly true."}
    few, many = tmp_path / "few.jsonl", tmp_path / "many.jsonl"
    with pytest.warns(UserWarning, match=r"1 of 41 references .*Clearly true.*line 41"):
        train, held_out = get_task(f"dataset:{write(few, [*numbered(0, 40), proof])}").parts
    assert len(train) + len(held_out) == 40
    with pytest.raises(ValueError, match=r"1 of 5 references .*mend or drop these rows"):
        get_task(f"dataset:{write(many, [*numbered(0, 4), proof])}").sample(0, 1)


def test_questions_with_two_answers_are_left_out_or_refused(tmp_path):
    other = {"question": "what is 3 + 1", "answer": "5"}
    same = {"question": "What is 4 + 1?", "answer": "5.0"}
    few = write(tmp_path / "few.jsonl", [*numbered(0, 60), other, same])
    with pytest.warns(UserWarning, match=r"2 of 62 rows .*different answers: '4' .*'4' and '5'"):
        task = get_task(f"benchmark:{few}")
        assert len(task.parts[1]) == 59
    many = write(tmp_path / "many.jsonl", [*numbered(0, 4), other])
    with pytest.raises(ValueError, match=r"2 of 5 rows .*mend or drop these rows"):
        get_task(f"dataset:{many}").sample(0, 1)


ALIKE = [("What is $2+3$?", "what is  2 + 3"), ("Find x, y.", "find x y"), ("Say 'a'", "Say a")]
UNLIKE = [("2+3?", "2-3?"), ("x<1?", "x>1?"), ("1.5?", "15?"), ("3!?", "3?"), ("x^2?", "x2?")]


@pytest.mark.parametrize(("one", "other"), ALIKE + UNLIKE)
def test_near_duplicates_differ_in_nothing_that_counts_in_a_formula(one, other):
    first, second = (problem_of({"question": q, "answer": "1"}, "here") for q in (one, other))
    assert (likeness(first) == likeness(second)) == ((one, other) in ALIKE)


def test_near_duplicates_of_held_out_questions_are_not_trained_on(tmp_path):
    write(
        tmp_path / "train.jsonl", [{"question": t, "answer": "4"} for t in ("What is  2+2 ?", "b")]
    )
    write(tmp_path / "test.jsonl", [{"question": "what is 2+2", "answer": "4"}])
    assert [p.prompt[0] for p in get_task(f"dataset:{tmp_path}").parts[0]] == ["b"]


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
    "no answer": (
        {"question": "1+1?"},
        r"line 2: no answer; looked for .*ground_truth.*it has question \(str\).*rename",
    ),
    "no question": ({"answer": "2", "text": "1+1?"}, "line 2: no question"),
    "blank": ({"question": "  ", "answer": "2"}, "line 2: no question"),
    "list": ({"question": ["1+1?"], "answer": "2"}, "line 2: no question"),
    "null": ({"question": "1+1?", "answer": None}, "line 2: no answer"),
    "empty reference": ({"question": "1+1?", "answer": "two ####"}, "line 2: the answer is empty"),
    "level": ({"question": "1+1?", "answer": "2", "level": "hard"}, "line 2: level 'hard'"),
    "two answers": (
        {"question": "1+1?", "answer": ["2", "3"]},
        "line 2: no answer, answer is a list",
    ),
    "empty answer": ({"question": "1+1?", "answer": ""}, "line 2: no answer, answer is empty"),
    "not a number": ('{"question": "1+1?", "answer": NaN}', "line 2: no answer, answer is nan"),
    "picture": (
        {
            "prompt": [
                {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "q"}]}
            ]
        },
        r"line 2: no question, prompt is a list of 1",
    ),
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


def test_hostile_tables(tmp_path):
    old_mac = tmp_path / "mac.csv"
    old_mac.write_bytes(b"question,answer\r1+1?,2\r2+2?,4\r")
    assert len(get_task(f"benchmark:{old_mac}").held_out(2)) == 2
    commas = tmp_path / "commas.csv"
    commas.write_text("question,answer\n1,000 + 1?,1,001\n")
    with pytest.raises(ValueError, match=r"line 2: 4 values under 2 names: put quotes"):
        get_task(f"dataset:{commas}").sample(0, 1)
    commas.write_text('question,answer\n"' + "1" * 200_000 + '",2\n')
    with pytest.raises(ValueError, match=r"commas\.csv, after line .*limit.*save it as JSONL"):
        get_task(f"dataset:{commas}").sample(0, 1)
    for name in ("missing.csv", "missing.parquet", "missing.jsonl.gz"):
        with pytest.raises(FileNotFoundError, match=r"no data set at .*check the path"):
            get_task(f"dataset:{name}")


def test_hostile_files(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere\.jsonl.*check the path"):
        get_task(f"dataset:{tmp_path / 'nowhere.jsonl'}")
    with pytest.raises(FileNotFoundError, match=r"no train\.jsonl \(it has: nothing\)"):
        get_task(f"dataset:{tmp_path}").sample(0, 1)
    (tmp_path / "latin.jsonl").write_bytes('{"question": "é"}'.encode("latin-1"))
    with pytest.raises(ValueError, match="save it as UTF-8"):
        get_task(f"dataset:{tmp_path / 'latin.jsonl'}").sample(0, 1)
    for data, message in (
        (b"version https://git-lfs.github.com/spec/v1\n", "a pointer of Git LFS.*git lfs pull"),
        (b"PK\x03\x04", "a zip archive: unpack it"),
    ):
        (tmp_path / "train.parquet").write_bytes(data)
        with pytest.raises(ValueError, match=message):
            get_task(f"dataset:{tmp_path / 'train.parquet'}").sample(0, 1)


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

    def apply_chat_template(self, messages, tools, tokenize, add_generation_prompt):
        assert not tools and not tokenize and add_generation_prompt
        return "".join(f"<{m['role']}>{m['content']}" for m in messages) + "<assistant>"
