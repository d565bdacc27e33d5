"""Running sums: generator, verifier, strategies."""

import ast
import itertools
import operator
import subprocess
import sys
import time
from collections import Counter

import pytest

from rlbook.tasks import (
    Problem,
    SumsTask,
    Verdict,
    corrects_itself,
    get_task,
    is_lost,
    strategy_of,
)
from workshop.bases.demonstrations import MEAN_HMM, demonstrations

TASK = SumsTask()
PROBLEM = Problem(id="37+8-5", prompt="37+8-5=?", answer="40", level=3)
DEMOS = list(itertools.islice(demonstrations(7), 3000))


def left_to_right(expression: str) -> list[int]:
    """Partial sums through Python's own parser, independent of the task's."""
    operators = {ast.Add: operator.add, ast.Sub: operator.sub}

    def walk(node) -> list[int]:
        if isinstance(node, ast.Constant):
            return [node.value]
        partial = walk(node.left)
        return [*partial, operators[type(node.op)](partial[-1], node.right.value)]

    return walk(ast.parse(expression, mode="eval").body)


def test_problems_have_the_promised_ranges_and_answers():
    for problem in TASK.sample(3, 600):
        assert problem.prompt.endswith("=?")
        partial = left_to_right(problem.prompt[:-2])
        assert str(partial[-1]) == problem.answer
        assert len(partial) == problem.level
        assert all(0 <= value <= 99 for value in partial)


def test_sampling_is_a_pure_function_with_stable_prefixes():
    first = TASK.sample(5, 50)
    assert first == TASK.sample(5, 50) == TASK.sample(5, 80)[:50]
    assert first != TASK.sample(6, 50)
    assert hash(first[0]) == hash(TASK.sample(5, 1)[0])
    assert [p.level for p in TASK.sample(1, 20, levels=[4])] == [4] * 20


def test_these_problems_never_change():
    """The same seed must give the same problems on every machine and version."""
    prompts = [p.prompt for p in TASK.sample(0, 3)]
    assert prompts == ["30-3+5=?", "53+5+3+6=?", "28+3=?"]


def test_levels_are_uniform():
    counts = Counter(p.level for p in TASK.sample(0, 6000))
    assert set(counts) == set(TASK.levels)
    assert all(900 < n < 1100 for n in counts.values())


@pytest.mark.parametrize("levels", [[], [1], [8], [2, 9]])
def test_unknown_levels_are_named(levels):
    with pytest.raises(ValueError, match="levels"):
        TASK.sample(0, 1, levels=levels)


RIGHT = Verdict(True, True, "40", "ok")
HOSTILE = {
    "plain": ("<think></think><answer>40</answer>", RIGHT),
    "white space inside": ("<think></think><answer> \n40\t</answer>", RIGHT),
    "white space after": ("<think></think><answer>40</answer> \n", RIGHT),
    "wrong": ("<think></think><answer>41</answer>", Verdict(False, True, "41", "wrong")),
    "negative": ("<think></think><answer>-40</answer>", Verdict(False, True, "-40", "wrong")),
    "no think block": ("<answer>40</answer>", Verdict(True, False, "40", "ok")),
    "unclosed think": ("<think>x<answer>40</answer>", Verdict(True, False, "40", "ok")),
    "text before": ("x<think></think><answer>40</answer>", Verdict(True, False, "40", "ok")),
    "empty": ("", Verdict(False, False, None, "no_answer")),
    "number without tags": ("<think></think>40", Verdict(False, False, None, "no_answer")),
    "upper case tags": ("<ANSWER>40</ANSWER>", Verdict(False, False, None, "no_answer")),
    "full-width tags": ("＜answer＞40＜/answer＞", Verdict(False, False, None, "no_answer")),
    "only opened": ("<answer>40", Verdict(False, False, None, "unclosed_answer")),
    "only closed": ("40</answer>", Verdict(False, False, None, "unclosed_answer")),
    "reversed tags": ("</answer>40<answer>", Verdict(False, False, None, "unclosed_answer")),
    "two equal answers": ("<answer>40</answer>" * 2, Verdict(False, False, None, "two_answers")),
    "two guesses": (
        "<think></think><answer>39</answer><answer>40</answer>",
        Verdict(False, False, None, "two_answers"),
    ),
    "nested": ("<answer><answer>40</answer></answer>", Verdict(False, False, None, "two_answers")),
    "answer in the thought": (
        "<think><answer>39</answer></think><answer>40</answer>",
        Verdict(False, False, None, "two_answers"),
    ),
    "trailing text": (
        "<think></think><answer>40</answer>?",
        Verdict(False, False, None, "trailing_text"),
    ),
    "answer only inside the thought": (
        "<think><answer>40</answer></think>",
        Verdict(False, False, None, "trailing_text"),
    ),
}
NOT_INTEGERS = {
    "plus": "+40",
    "leading zero": "040",
    "many zeros": "0" * 10_000 + "40",
    "minus zero": "-0",
    "decimal": "40.0",
    "exponent": "4e1",
    "underscore": "4_0",
    "hexadecimal": "0x28",
    "expression": "37+8-5",
    "call": "__import__('os').getpid()",
    "two numbers": "40 40",
    "list of guesses": "39,40,41",
    "Arabic digits": "٤٠",
    "Devanagari digits": "४०",
    "full-width digits": "４０",
    "superscript": "4⁰",
    "minus sign U+2212": "\u221240",
    "right-to-left mark": "\u200f40",
    "right-to-left override": "\u202e04",
    "zero-width space": "4\u200b0",
    "NUL": "40\x00",
    "NUL inside": "4\x000",
    "lone surrogate": "\ud80040",
    "newline inside": "4\n0",
    "huge": "9" * 19_000,
    "twenty digits": "9" * 20,
    "empty": "",
    "blank": "  ",
    "another tag": "<b>40</b>",
    "special token": "40<eos>",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_verdicts(name):
    completion, verdict = HOSTILE[name]
    assert TASK.verify(PROBLEM, completion) == verdict


@pytest.mark.parametrize("name", NOT_INTEGERS)
def test_what_is_not_an_integer(name):
    completion = f"<think></think><answer>{NOT_INTEGERS[name]}</answer>"
    format_ok = "<" not in NOT_INTEGERS[name]
    assert TASK.verify(PROBLEM, completion) == Verdict(False, format_ok, None, "not_an_integer")


@pytest.mark.parametrize(
    "completion",
    ["9" * 10**6, "<answer>" + "9" * 10**6 + "</answer>", "<think>" * 10**5, "<" * 10**6],
)
def test_long_completions_are_refused_unread(completion):
    assert TASK.verify(PROBLEM, completion) == Verdict(False, False, None, "too_long")


@pytest.mark.parametrize(
    "piece", ["<answer>", "</answer>", "<think>", "< ", " ", "<think></think>"]
)
def test_repeated_pieces_are_judged_quickly(piece):
    start = time.process_time()
    verdict = TASK.verify(PROBLEM, piece * (19_000 // len(piece)))
    assert not verdict.correct
    assert time.process_time() - start < 2


def test_an_unfinished_completion_has_no_answer():
    complete = "<think></think><answer>40</answer>"
    assert TASK.verify(PROBLEM, complete, finished=False).reason == "truncated"


def test_zero_is_an_answer():
    problem = Problem(id="2-2", prompt="2-2=?", answer="0", level=2)
    assert TASK.verify(problem, "<think></think><answer>0</answer>").correct


def test_verdicts_on_demonstrations_agree_with_arithmetic():
    for demo in DEMOS:
        truth = left_to_right(demo.problem.prompt[:-2])[-1]
        parts = demo.completion.split("<answer>")
        written = parts[1].removesuffix("</answer>") if len(parts) == 2 else ""
        expected = written.isdecimal() and int(written) == truth
        assert TASK.verify(demo.problem, demo.completion).correct == expected


def test_strategy_names_agree_with_the_generator():
    agree = sum(strategy_of(demo.completion) == demo.strategy for demo in DEMOS)
    assert agree >= 0.99 * len(DEMOS)
    assert strategy_of(DEMOS[0].completion, finished=False) == "truncated"
    assert strategy_of("") == strategy_of("<think>" * 9) == "broken"


def test_corpus_is_a_pure_function_of_the_seed():
    again = list(itertools.islice(demonstrations(7), 50))
    assert again == DEMOS[:50]
    assert again != list(itertools.islice(demonstrations(8), 50))


def test_demonstrations_show_their_strategies():
    correct = {
        name: [TASK.verify(d.problem, d.completion).correct for d in DEMOS if d.strategy == name]
        for name in ("direct", "terse", "careful", "broken")
    }
    rate = {name: sum(values) / len(values) for name, values in correct.items()}
    assert rate["direct"] == 1.0
    assert rate["broken"] < 0.3 < rate["terse"] < 0.7 < 0.85 < rate["careful"]
    careful = [d for d in DEMOS if d.strategy == "careful"]
    assert len(careful) < 0.07 * len(DEMOS)
    assert sum(corrects_itself(d.completion) for d in careful) > 0.3 * len(careful)


def test_lost_demonstrations_are_wrong_and_of_free_length():
    lost = [d for d in DEMOS if is_lost(d.completion)]
    correct = sum(TASK.verify(d.problem, d.completion).correct for d in lost)
    counts = [d.completion.count("hmm ") for d in lost]
    mean = sum(counts) / len(counts)
    variance = sum((n - mean) ** 2 for n in counts) / len(counts)
    assert correct < 0.06 * len(lost)
    assert abs(mean - MEAN_HMM) < 0.2 * MEAN_HMM
    assert 0.6 < variance / (mean * (mean - 1)) < 1.4


def test_stuck_steps_are_tried_again_or_given_up():
    for demo in DEMOS:
        pieces = demo.completion.split("=?;")[1:]
        assert all(piece.startswith(("wait ", "hmm ")) for piece in pieces)


def test_get_task():
    assert get_task("sums").name == "sums"
    with pytest.raises(ValueError, match=r"unknown task 'sudoku'.*sums"):
        get_task("sudoku")


def test_tasks_do_not_need_torch():
    """A verifier may run in a small process of its own; `rlbook.tasks` must stay light."""
    script = (
        "import sys, rlbook.tasks, rlbook.tasks.sandbox.worker; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0
