"""Templates, format reward, and the extraction of answers from text."""

import time

import pytest

from rlbook.tasks.formats import boxed_answers, format_reward, r1_prompt, tagged_answer

GOOD = "<think>2+2</think><answer>4</answer>"


@pytest.mark.parametrize(
    ("completion", "reward"),
    [
        (GOOD, 1.0),
        (" <think>a\nb</think>\n <answer>4</answer>\n", 1.0),
        ("<think></think><answer></answer>", 1.0),
        ("<think>1 < 2</think><answer>4</answer>", 1.0),
        ("", 0.0),
        ("4", 0.0),
        ("<answer>4</answer>", 0.0),
        ("<answer>4</answer><think>2+2</think>", 0.0),
        ("<think>2+2<answer>4</answer></think>", 0.0),
        ("<think>2+2</think>4<answer>4</answer>", 0.0),
        ("Sure! " + GOOD, 0.0),
        (GOOD + " done", 0.0),
        (GOOD + GOOD, 0.0),
        ("<think><think></think><answer>4</answer>", 0.0),
        ("<think>2+2</think><answer>4", 0.0),
        ("<THINK>2+2</THINK><answer>4</answer>", 0.0),
    ],
)
def test_format_reward(completion, reward):
    assert format_reward(completion) == reward


def test_format_reward_when_the_prompt_opened_the_thought():
    assert format_reward("2+2</think><answer>4</answer>", think_opened=True) == 1.0
    assert format_reward(GOOD, think_opened=True) == 0.0


@pytest.mark.parametrize("piece", ["<think>", "</think>", "\n", "<answer></answer>", "\\boxed{"])
def test_long_texts_are_judged_quickly(piece):
    text = piece * (200_000 // len(piece))
    start = time.process_time()
    assert format_reward(text) == 0.0
    assert format_reward("<think>" + text.replace("<", "") + "</think>") == 0.0
    boxed_answers(text)
    tagged_answer(text)
    assert time.process_time() - start < 20


def test_r1_prompt_holds_the_question_once_and_ends_at_the_assistant():
    prompt = r1_prompt("What is 2+2?")
    assert prompt.count("What is 2+2?") == 1
    assert prompt.endswith("Assistant: ")
    assert "<think>" in prompt and "<answer>" in prompt


@pytest.mark.parametrize(
    ("text", "answers"),
    [
        (r"so \boxed{4}", ["4"]),
        (r"\boxed{\frac{1}{2}}", [r"\frac{1}{2}"]),
        (r"\boxed{1} and \boxed{2}", ["1", "2"]),
        (r"\boxed{\{1,2\}}", [r"\{1,2\}"]),
        (r"\boxed{\boxed{3}}", [r"\boxed{3}"]),
        (r"\boxed{4", []),
        (r"\boxed{1}\boxed{4", ["1"]),
        (r"\boxed 4 or \boxed {5}", ["4", "5"]),
        ("boxed{4}", []),
        (r"\boxed{}", [""]),
        ("", []),
    ],
)
def test_boxed_answers(text, answers):
    assert boxed_answers(text) == answers


@pytest.mark.parametrize(
    ("text", "answer", "fault"),
    [
        ("<answer> a b </answer>", "a b", ""),
        ("x<answer></answer>", "", ""),
        ("x", None, "no_answer"),
        ("<answer>x", None, "unclosed_answer"),
        ("<answer>x</answer><answer>x</answer>", None, "two_answers"),
        ("<answer>x</answer>.", None, "trailing_text"),
    ],
)
def test_tagged_answer(text, answer, fault):
    assert tagged_answer(text) == (answer, fault)
