import json

import pytest

from workshop.appendices.samples import show_samples

ROW = {
    "prompt": "1+2=?",
    "answer": "<answer>3</answer>",
    "expected": "3",
    "correct": True,
    "reward": 1.0,
    "truncated": False,
    "tokens": 4,
    "staleness": 0,
}
ROWS = [
    ROW | {"step": 1, "answer": "<answer>4</answer>", "correct": False, "reward": -1.0},
    ROW | {"step": 1, "answer": "1+2=<b>", "correct": False, "truncated": True, "staleness": 2},
    ROW | {"step": 2},
    ROW | {"step": 3, "prompt": "2+2=?", "expected": "4", "answer": "<answer>4</answer>"},
]


@pytest.fixture
def run(tmp_path):
    (tmp_path / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return tmp_path


def test_an_answer_stands_under_its_prompt_with_what_was_said_of_it(run):
    text = show_samples(run, updates=(2, 2)).plain
    assert text == (
        "1+2=?  (3)    update 2 · reward +1 · 4 tokens · staleness 0\n"
        "  ✓ right   <answer>3</answer>"
    )


@pytest.mark.parametrize(
    ("how", "shown"),
    [
        ({}, ["✗ wrong", "✗ cut off", "✓ right", "✓ right"]),
        ({"verdict": "right"}, ["✓ right", "✓ right"]),
        ({"verdict": "cut off"}, ["✗ cut off"]),
        ({"updates": (2, 3)}, ["✓ right", "✓ right"]),
        ({"limit": 1, "updates": (1, 1)}, ["✗ cut off"]),
    ],
)
def test_filters(run, how, shown):
    text = show_samples(run, **how).plain
    found = [line for line in text.splitlines() if line.startswith(("  ✓", "  ✗"))]
    assert len(found) == len(shown)
    assert all(line.startswith(f"  {mark} ") for line, mark in zip(found, shown, strict=True))


def test_what_a_policy_writes_is_no_html_of_ours(run):
    assert "&lt;b&gt;" in show_samples(run).html and "<b>" not in show_samples(run).plain[-30:]


def test_a_filter_that_leaves_nothing_says_so(run):
    assert show_samples(run, "wrong", (2, 3)).plain == "no answer is left by these filters"


def test_wrong_words_are_refused(run, tmp_path):
    with pytest.raises(ValueError, match="choose one of all, right, wrong, cut off"):
        show_samples(run, "bad")
    with pytest.raises(FileNotFoundError, match=r"launch\.shown"):
        show_samples(tmp_path / "nowhere")
