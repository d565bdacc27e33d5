r"""The audit: planted faults are found, sound data pass, spellings mean what they say."""

import json
import re

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from rlbook.cli import main
from rlbook.tasks.answers import read
from rlbook.tasks.audit import as_text, audit, dispute, remark
from rlbook.tasks.base import Problem
from rlbook.tasks.compare import same
from rlbook.tasks.spellings import near_misses, spellings

pytest.importorskip("math_verify")


def write(path, rows):
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def nobody(*question):
    raise AssertionError(f"a computer algebra system was asked {question}")


def sound(count):
    answers = ("17", "1,234", r"\frac{3}{4}", "2.5", "(1, 2)", "[0, 1)", "Tuesday", "C", "2, 3")
    return [
        {"question": f"Question {i} of {count}?", "answer": answers[i % len(answers)]}
        for i in range(count)
    ]


SHAPES = {  # a row as each set has it, of a question and an answer
    "GSM8K": lambda q, a: {"question": q, "answer": f"First <<1+1=2>>2.\n#### {a}"},
    "verl": lambda q, a: {
        "data_source": "some/set",
        "prompt": [{"role": "user", "content": q}],
        "reward_model": {"style": "rule", "ground_truth": a},
    },
    "MATH": lambda q, a: {"problem": q, "level": "Level 3", "solution": rf"Thus \boxed{{{a}}}."},
}
SENTENCE = "This is clearly true, as everybody sees who looks at it for long enough"
PLANTED = {
    "contradictory": ("Question 0 of 18?", "18"),
    "repeated": ("Question 1 of 18?", "1234"),
    "near": ("question 2, of 18", r"\frac{6}{8}"),
    "sentence": ("Prove it.", SENTENCE),
}
GSM8K = [
    {"question": f"How many, {i}?", "answer": f"So {i}.\n#### {1000 + i:,}"} for i in range(18)
]


@pytest.mark.parametrize("shape", SHAPES)
def test_planted_faults_are_found(shape, tmp_path):
    row = SHAPES[shape]
    rows = [row(one["question"], one["answer"]) for one in sound(18)]
    rows += [row(*planted) for planted in PLANTED.values()]
    *others, last = row("Another?", "4").items()
    wrong_field = {**dict(others), "anwser": last[1]}
    write(tmp_path / "train.jsonl", [*rows, wrong_field])
    write(tmp_path / "test.jsonl", [row("Question 5 of 18 ?", "[0,1)")])
    found = audit(str(tmp_path))
    counts = {kind: len(lines) for kind, lines in found.findings.items()}
    planted = dict.fromkeys((*PLANTED, "leaked", "shape"), 1)
    assert counts == dict.fromkeys(counts, 0) | planted
    assert not found.passed and "line 19" in found.findings["contradictory"][0]
    assert "line 23" in found.findings["shape"][0] and "anwser" in found.findings["shape"][0]


def found_in(tmp_path, rows, **how):
    """The audit of these rows, and its findings that are not empty."""
    found = audit(str(write(tmp_path / "rows.jsonl", rows)), **how)
    return found, {kind: lines for kind, lines in found.findings.items() if lines}


def test_one_row_that_cannot_be_read_does_not_end_the_audit(tmp_path, monkeypatch):
    def fails(text):
        if text == "deep":
            raise RecursionError("too deep")
        return read(text)

    monkeypatch.setattr("rlbook.tasks.references.read", fails)
    path = tmp_path / "rows.jsonl"
    rows = [*GSM8K, {"question": "Deep?", "answer": "deep"}]
    path.write_text("\n".join([*map(json.dumps, rows), '{"question": "Broken?"']))
    found = audit(str(path))
    assert found.rows == {"train": 19} and found.tried["true"] > 100
    assert "line 20: not JSON" in found.findings["shape"][0]
    assert "line 19: 'deep', reading it raised RecursionError" in found.findings["unreadable"][0]


def test_a_part_without_rows_is_a_fault(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("RLBOOK_CACHE", str(tmp_path / "cache"))
    write(tmp_path / "train.jsonl", GSM8K)
    (tmp_path / "test.jsonl").write_text("")
    with pytest.raises(SystemExit) as ended:
        main(["audit", str(tmp_path)])
    assert ended.value.code == 1
    assert "parts without rows: 1: held out" in capsys.readouterr().out


def numbered(answers):
    return [{"question": f"q {i}?", "answer": answer} for i, answer in enumerate(answers)]


BOXES = r"First \boxed{3}, then \boxed{4}."
NAMED = {  # of a kind: rows, how many of them are found, whether it speaks against the data
    "sentence": (numbered(["To find it, we add 1 and 2, which gives 3."] * 3), 3, True),
    "missing": (numbered(["7", "not found", "not found"]), 2, True),
    "told": ([{"question": "How many? (Answer: 26)", "answer": "26"}], 1, True),
    "constant": (numbered(["42"] * 10), 1, True),
    "disagreeing": ([{"problem": "q", "answer": "5", "solution": r"\boxed{6}"}], 1, True),
    "templated": ([{"prompt": "<|im_start|>user\n1+1?", "answer": "2"}], 1, True),
    "pictured": ([{"prompt": "<image> How many?", "answer": "2"}], 1, True),
    "other form": ([{"prompt": 'Write 1+1 after "####".', "answer": "2"}], 1, False),
    "boxes": ([{"problem": "q", "solution": BOXES}], 1, False),
    "restated": ([{"question": r"Compute $11\times 37$.", "answer": "407"}], 1, False),
    "mixed": (numbered(["甲12乙"]), 1, False),
}


@pytest.mark.parametrize("kind", NAMED)
def test_what_a_reader_should_know_is_named(kind, tmp_path):
    rows, count, spoils = NAMED[kind]
    found, findings = found_in(tmp_path, rows)
    assert {kind: len(lines) for kind, lines in findings.items()} == {kind: count}
    assert found.passed is not spoils


AGREE = [
    {"problem": "q", "answer": "0.5", "solution": r"So \boxed{\frac12}"},
    {"problem": "q", "answer": "C", "solution": r"So \boxed{12}"},
    {"problem": "q", "answer": "5", "solution": "So it is clear."},
    {"problem": "q", "answer": "5", "label": 1},
    {"problem": "q", "solution": r"$\boxed{1}$ and $\boxed{2}$"},
]


@pytest.mark.parametrize("row", AGREE)
def test_columns_that_hold_no_other_answer_do_not_disagree(row, tmp_path):
    assert found_in(tmp_path, [row])[1] == {}


def test_words_of_another_alphabet_are_no_formulas(tmp_path):
    found, findings = found_in(tmp_path, numbered(["北京", "上海"]))
    assert findings == {} and found.tried["true"] > 0


def test_what_was_read_and_what_was_not_is_said(tmp_path):
    talk = [{"role": "system", "content": "Use base 8."}, {"role": "user", "content": "1+1?"}]
    row = {"context": "A sum.", "prompt": talk, "answer": "2", "source": "me", "note": None}
    found, _ = found_in(tmp_path, [row, {"question": "2+2?", "answer": "4"}])
    text = as_text(found)
    assert "question  context + prompt (1 of 2), question (1 of 2)\n" in text
    assert "answer    answer\nnot read  source (1 of 2)\n" in text
    assert "not asked system message, such as 'Use base 8.'" in text
    assert "  A sum.\n\n  1+1?\n" in text and text.endswith("its answer\n  2")


def test_earlier_turns_are_named_and_pieces_of_a_message_are_none(tmp_path):
    pieces = [{"type": "text", "text": "Look."}, {"type": "text", "text": "1+1?"}]
    asked = {"role": "user", "content": pieces}
    talk = [{"role": "user", "content": "Hi!"}, {"role": "assistant", "content": "Yes?"}, asked]
    found, _ = found_in(tmp_path, [{"messages": [asked], "answer": "2"}])
    assert found.example[0].startswith("Look.\n1+1?\n") and found.unasked == {}
    found, _ = found_in(tmp_path, [{"messages": talk, "answer": "2"}])
    assert found.unasked == {"earlier turns": "Hi!"}


def test_comparisons_end_after_the_limit(tmp_path):
    asked = []
    rows = [*numbered(["x+1", "x^2", "5"]), {"question": "q 0?", "answer": "1+x"}]
    found, _ = found_in(tmp_path, rows, verify=lambda *sides: asked.append(sides), limit=0)
    late = "when the time was up (--limit)"
    assert asked == []
    assert f"not tried  1 pairs of answers {late}, 4 references {late}\n" in as_text(found)


@pytest.mark.parametrize("rows", [sound(18), GSM8K], ids=["plain", "GSM8K"])
def test_sound_data_pass_and_the_run_is_told(rows, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("RLBOOK_CACHE", str(tmp_path / "cache"))
    path = write(tmp_path / "rows.jsonl", rows)
    assert "not audited" in remark(f"dataset:{path}")
    main(["audit", str(path), "--html", str(tmp_path / "page.html")])
    said = capsys.readouterr().out
    assert "nothing speaks against it" in said and "18 rows to train" in said
    assert "<h1>Audit of" in (tmp_path / "page.html").read_text()
    assert remark(f"dataset:{path}") == "the data were audited: 0 findings"
    assert remark("sums") == ""
    write(path, [*rows, {"question": "No answer?"}])
    assert "not audited" in remark(f"dataset:{path}")
    with pytest.raises(SystemExit) as ended:
        main(["audit", str(path)])
    assert ended.value.code == 1


BAD = {
    "first digit": "digits(completion)[:1] == digits(reference)[:1]",
    "without sign and point": "digits(completion) == digits(reference)",
    "text of the reference": "reference in completion",
}


@pytest.mark.parametrize("kind", BAD)
def test_what_a_bad_verifier_compares_is_said(kind, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("RLBOOK_CACHE", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(tmp_path)
    name = f"bad_{kind.replace(' ', '_')}"
    (tmp_path / f"{name}.py").write_text(
        "from rlbook.tasks.audit import digits\n"
        f"verify = lambda completion, reference: {BAD[kind]}\n"
    )
    rows = [{"question": f"How many, {i}?", "answer": str(131 + 7 * i)} for i in range(18)]
    path = write(tmp_path / "rows.jsonl", rows)
    with pytest.raises(SystemExit):
        main(["audit", str(path), "--verifier", f"{name}:verify"])
    said = capsys.readouterr().out
    (line,) = (line for line in said.splitlines() if "seems to compare" in line)
    assert kind in line


def test_a_verifier_that_raises_has_not_said_right(tmp_path):
    def fails(completion, reference):
        raise KeyError("gold")

    found = audit(str(write(tmp_path / "rows.jsonl", GSM8K)), verify=fails)
    assert found.false_negatives == 1 and found.false_positives == 0
    assert "it raised KeyError" in found.findings["missed"][0]
    (line,) = (line for line in as_text(found).splitlines() if "every verdict" in line)
    assert "KeyError: 'gold' (" in line and "false negatives" not in as_text(found)


@pytest.fixture
def boxing_policy(tmp_path):
    """A policy that boxes at random 4, 5 or an order that math-verify takes for another."""
    texts = ["<unk>", "</s>", r"\boxed{4}", r"\boxed{5}", r"\boxed{CAB}"]
    words = {text: number for number, text in enumerate(texts)}
    spelling = Tokenizer(WordLevel(words, unk_token="<unk>"))
    spelling.pre_tokenizer = WhitespaceSplit()
    special = {"unk_token": "<unk>", "eos_token": "</s>", "pad_token": "</s>"}
    PreTrainedTokenizerFast(tokenizer_object=spelling, **special).save_pretrained(tmp_path / "p")
    size = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "eos_token_id": 1, "vocab_size": len(words)}
    LlamaForCausalLM(LlamaConfig(**size, **heads)).save_pretrained(tmp_path / "p")
    return tmp_path / "p"


def test_answers_of_a_policy_are_judged_twice(boxing_policy, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("RLBOOK_CACHE", str(tmp_path / "cache"))
    rows = [{"question": f"q {i}", "answer": "ABC"} for i in range(4)]
    path = write(tmp_path / "rows.jsonl", rows)
    main(["audit", str(path), "--policy", str(boxing_policy), "--samples", "16"])
    said = capsys.readouterr().out
    count, of = map(int, re.search(r"disputed .*\((\d+) of (\d+) answers", said).groups())
    assert 0 < count < of <= 64 and re.search(
        rf"verdicts on a policy's answers .*: {count}, first", said
    )
    assert "'CAB' for 'ABC' is wrong" in said


@pytest.mark.parametrize("text", ["-17", "1234567", "-7/3", "0.125", "22/7", "0", "3.10", r"28\%"])
def test_spellings_have_the_value_and_near_misses_have_not(text):
    value = read(text)
    right, wrong = spellings(value, text), near_misses(value, text)
    assert len(right) >= 8 and len(wrong) >= 7
    assert [one for one in right if not same(read(one), value, nobody)] == []
    assert [one for one in wrong if same(read(one), value, nobody)] == []


def test_a_second_comparator_disputes_verdicts(tmp_path):
    found = audit(str(write(tmp_path / "rows.jsonl", GSM8K)))
    problem = Problem("p", "?", "42")
    dispute(found, [(problem, "42", True), (problem, "42", False), (problem, None, False)])
    assert found.tried["answers"] == 2 and len(found.findings["disputed"]) == 1
