"""Answers as text: every word is in the plain text, HTML only colours it."""

import html
import re

import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgb

from rlbook.policy import Sampler, load_tokenizer
from rlbook.tasks import Problem
from rlbook.training import Rollout, collect_rollouts
from rlbook.viz.style import INK, luminance
from workshop.shared.texts import before_after, log_prob_change, show_answers, tint, token_texts

SUM = Problem("32-4=?", "32-4=?", "28", level=2)
RIGHT = "<think>32-4=28;</think><answer>28</answer>"


def rollout(text="", correct=True, tokens=4, group=0, problem=SUM, finish="stop"):
    ids = list(range(3, 3 + tokens))
    return Rollout(problem, group, [1], ids, [0.0] * tokens, [0] * tokens, finish, text, correct)


@pytest.fixture
def tokenizer():
    return load_tokenizer()


def spoken(panel):
    """The words of the HTML, without its tags."""
    text = html.unescape(re.sub(r"</?(?:pre|span|b)\b[^>]*>", "", panel.html))
    return "\n".join(line.rstrip() for line in text.split("\n"))


def test_answers_stand_under_their_prompt_with_verdicts():
    other = Problem("1+1=?", "1+1=?", "2")
    panel = show_answers(
        [
            rollout(RIGHT),
            rollout("<think></think><answer>7</answer>", correct=False),
            rollout("<think>1+1", correct=False, finish="length", group=1, problem=other),
        ],
        note=lambda r: f"{r.length} tokens",
    )
    assert repr(panel).split("\n") == [
        "32-4=?  (28)    1 of 2 right",
        f"  ✓ right   {RIGHT}   4 tokens",
        "  ✗ wrong   <think></think><answer>7</answer>   4 tokens",
        "",
        "1+1=?  (2)    0 of 1 right",
        "  ✗ cut off <think>1+1   4 tokens",
    ]
    assert spoken(panel) == panel.plain


def test_html_of_an_answer_is_shown_not_obeyed():
    panel = show_answers([rollout("<script>alert('a & b')</script>")])
    assert "<script>" not in panel.html and "<script>alert('a & b')</script>" in panel.plain
    assert spoken(panel) == panel.plain


def test_long_answers_go_on_below_and_lose_nothing():
    text = "12+3=15;" * 9 + "x" * 50 + "\nanother line"
    lines = show_answers([rollout(text)], width=30).plain.split("\n")[1:]
    assert all(line[:12] == " " * 12 and len(line) <= 42 for line in lines[1:])
    assert "".join(line[12:] for line in lines) == text.replace("\n", "")
    assert lines[0].endswith(";") and lines[-1] == " " * 12 + "another line"


def test_pushed_tokens_are_marked_tinted_and_numbered(tokenizer):
    was = rollout(tokens=5, correct=False)
    was.token_ids = [*tokenizer("12+3", add_special_tokens=False).input_ids, tokenizer.eos_token_id]
    was.text = "12+3"
    panel = before_after(SUM, was, rollout("28"), [3.0, 0.9, -1.0, 0.0, -3.0], tokenizer)
    assert token_texts(tokenizer, was) == ["1", "2", "+", "3", "<eos>"]
    assert panel.plain.split("\n") == [
        "32-4=?  (28)",
        "before: 0 of 1 right",
        "  ✗ wrong   12+3<eos>",
        "            + - -----",
        "after: 1 of 1 right",
        "  ✓ right   28",
        "push of a token: -3 to +3; marked from a third of the largest on:  + up  - down",
    ]
    assert spoken(panel) == panel.plain
    assert f'<span style="background:{tint(1)}" title="push +3">1</span>' in panel.html
    assert f'<span style="background:{tint(0.3)}" title="push +0.9">2</span>' in panel.html


def test_without_push_both_texts_stand_plain():
    panel = before_after(SUM, [rollout("1", False), rollout("2", False)], [rollout("28")])
    assert panel.plain.split("\n")[1] == "before: 0 of 2 right"
    assert "background" not in panel.html.removeprefix('<pre style="background')


@pytest.mark.parametrize("strength", [0.05, -0.05, 0.5, -0.5, 1.0, -1.0])
def test_text_on_a_tint_is_readable(strength):
    page = np.array(to_rgb(tint(strength)))
    assert (luminance(page) + 0.05) / (luminance(np.array(to_rgb(INK))) + 0.05) > 4.5
    assert (page[2] > page[0]) == (strength > 0)  # blue up, orange down


@pytest.mark.parametrize(
    ("push", "said"),
    [
        ([1.0], r"rows of \[4\], got \[1\]"),
        ([[1.0] * 4] * 2, r"got \[4, 4\]"),
        ([0.0, float("nan"), 0.0, 0.0], "not finite"),
    ],
)
def test_push_that_does_not_fit_is_named(push, said, tokenizer):
    with pytest.raises(ValueError, match=said):
        before_after(SUM, rollout(), rollout(), push, tokenizer)


def test_other_prompts_and_a_missing_tokenizer_are_named():
    stranger = rollout(problem=Problem("1+1=?", "1+1=?", "2"))
    with pytest.raises(ValueError, match="another problem"):
        before_after(SUM, rollout(), stranger)
    with pytest.raises(ValueError, match="tokenizer"):
        before_after(SUM, rollout(), rollout(), [0.0] * 4)


def test_change_of_log_prob_is_that_of_the_sampled_tokens(little_policy, parity):
    """Against the log-softmax of one unpadded row at a time."""
    (model, tokenizer), (other, _) = little_policy(seed=0), little_policy(seed=1)
    engine = Sampler(model, tokenizer.eos_token_id)
    rollouts = collect_rollouts(engine, tokenizer, parity, parity.sample(0, 2), 2, max_new_tokens=8)
    change = log_prob_change(rollouts, model, other)
    for r, row in zip(rollouts, change, strict=True):
        ids = torch.tensor([r.prompt_ids + r.token_ids])
        rows = torch.arange(len(r.prompt_ids), ids.shape[1])
        with torch.no_grad():
            new, old = (m(input_ids=ids).logits[0].log_softmax(-1) for m in (other, model))
        wanted = (new - old)[rows - 1, ids[0, rows]]
        torch.testing.assert_close(torch.tensor(row), wanted, atol=1e-4, rtol=0)
