r"""The audit: planted faults are found, sound data pass, spellings mean what they say."""

import json

import pytest

from rlbook.cli import main
from rlbook.tasks import audit as module
from rlbook.tasks.answers import read
from rlbook.tasks.audit import audit, dispute, remark
from rlbook.tasks.base import Problem, Verdict
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


PLANTED = {
    "contradictory": {"question": "Question 0 of 18?", "answer": "18"},
    "repeated": {"question": "Question 1 of 18?", "answer": "1234"},
    "near": {"question": "question 2, of 18", "answer": "3/4"},
    "unreadable": {"problem": "Prove it.", "solution": "Clearly this is true."},
    "shape": {"question": "No answer?"},
}
GSM8K = [
    {"question": f"How many, {i}?", "answer": f"So {i}.\n#### {1000 + i:,}"} for i in range(18)
]
VERL = [
    {
        "prompt": [{"role": "user", "content": f"Question {i} of 18?"}],
        "reward_model": {"ground_truth": row["answer"]},
    }
    for i, row in enumerate(sound(18))
]


@pytest.mark.parametrize("rows", [sound(18), VERL], ids=["plain", "verl"])
def test_planted_faults_are_found(rows, tmp_path):
    write(tmp_path / "train.jsonl", [*rows, *PLANTED.values()])
    write(tmp_path / "test.jsonl", [{"question": "Question 5 of 18 ?", "answer": "[0,1)"}])
    found = audit(str(tmp_path))
    counts = {kind: len(lines) for kind, lines in found.findings.items()}
    ours = dict.fromkeys((*PLANTED, "leaked"), 1)
    assert {kind: counts[kind] for kind in ours} == ours, counts
    assert not found.passed and "line 19" in found.findings["contradictory"][0]


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
    write(path, [*rows, PLANTED["shape"]])
    assert "not audited" in remark(f"dataset:{path}")
    with pytest.raises(SystemExit) as ended:
        main(["audit", str(path)])
    assert ended.value.code == 1


def test_a_verifier_that_reads_the_first_digit_is_found_out(tmp_path, monkeypatch):
    def first_digit(completion, reference, seconds):
        right = reference.strip("-")[0] in completion
        return Verdict(right, True, None, "ok" if right else "wrong")

    monkeypatch.setattr(module, "verify_math", first_digit)
    found = audit(str(write(tmp_path / "rows.jsonl", GSM8K)))
    assert found.false_positives > 0.5 and not found.passed


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
