r"""Questions that say too much or lack something."""

import pytest

from rlbook.tasks.questions import (
    formulas_in,
    other_form_in,
    picture_in,
    template_in,
    told_in,
)

DAPO = "The last line should be of the form Answer: $Answer (without quotes). What is 2+3?"


@pytest.mark.parametrize(
    ("question", "answer", "where"),
    [
        ("How many? (Answer: 26)", "26", "Answer: 26)"),
        ("How many? The answer is 26. Explain it.", "26", "answer is 26. Explain it."),
        (r"How many? We get \boxed{26}", "26", r"\boxed{26}"),
        ("How many? #### 26", "26", "#### 26"),
        ("How many? (Answer: 260)", "26", ""),
        ("Answer: A, B, C or D?", "A", ""),
        (r"Put it in \boxed{}.", "26", ""),
        ("There are 26 coins. How many?", "26", ""),
        (DAPO, "5", ""),
    ],
)
def test_a_question_that_tells_its_answer(question, answer, where):
    assert told_in(question, answer) == where


def test_other_forms_than_a_box():
    assert "Answer: $Answer" in other_form_in(DAPO)
    assert "####" in other_form_in('Output the final answer after "####".')
    assert other_form_in(r"Give the answer: write it in \boxed{}.") == ""
    assert other_form_in("What is the answer to everything?") == ""


def test_templates_and_pictures():
    assert template_in("<|im_start|>user\n1+1?<|im_end|>") == "<|im_start|>"
    assert template_in("[INST] 1+1? [/INST]") == "[INST]"
    assert template_in("<｜User｜>1+1?") == "<｜User｜>"
    assert template_in("Is 0<|x|>1, |x|<|y| or |a|>|b|?") == ""
    assert picture_in("See <image> here") == "<image>"
    assert picture_in("See ![](https://a.b/c.png)") == "![](https://a.b/c.png)"
    assert picture_in("[asy] draw((0,0)--(1,1)); [/asy] Is 3!=(2)?") == ""


def test_formulas():
    question = r"Compute $11\times 37$ for $x$ and \(2+3\), \[4^2\], worth $5 or $6."
    assert formulas_in(question) == [r"11\times 37", "2+3", "4^2"]
