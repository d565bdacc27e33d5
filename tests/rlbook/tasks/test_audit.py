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
from rlbook.tasks.audit import audit, dispute, remark
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
