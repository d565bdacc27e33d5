"""Chapter 06's checks name each likely mistake; nbval shows that they accept the solutions."""

import pytest
import torch

from rlbook.objectives import leave_one_out
from rlbook.policy import logprobs
from workshop.ch06 import checks as ch06


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, "not attempted"),
        ((1, 0, -1), "group mean"),
        ((1, -1, -3), "divide it by their number"),
        ((-1.5, 0, 1.5), "the sign"),
        ((2, 1, 0), "the other two"),
    ],
)
def test_three_siblings(answer, words, said):
    assert words in said(ch06.check_three_siblings, answer)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, "not attempted"),
        (7 / 6, "learn from all 8"),
        (1.0, "equal only"),
        (8 / 7, "prices the greedy completion only"),
        (0.75, "upside down"),
        (2.0, "E[Â²]"),
    ],
)
def test_budget(answer, words, said):
    assert words in said(ch06.check_budget, answer)


def rows(table, fault):
    marked = ~table.isnan()
    if fault == "nan":
        return table - table.nanmean(1, keepdim=True)
    known = torch.where(marked, table, 0.0)
    count = torch.full_like(known, 4.0) if fault == "all" else marked.sum(1, keepdim=True)
    others = known.sum(1, keepdim=True) - (0 if fault == "self" else known)
    a = known - others / (count - (0 if fault == "self" else 1)).clamp(min=1)
    a = a if fault == "no mark" else torch.where(marked, a, 0.0)
    return a if fault in ("no mark", "single") else torch.where(count > 1, a, 0.0)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("nan", "NaN is left"),
        ("self", "the full row is wrong"),
        ("no mark", "an answer without a mark"),
        ("all", "a crashed answer is no sibling"),
        ("single", "its row must be 0"),
    ],
)
def test_rows(fault, words, said):
    assert words in said(ch06.check_rows, lambda table: rows(table, fault))


def test_rows_not_attempted(said):
    assert "not attempted" in said(ch06.check_rows, lambda table: None)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"A", "D "}, "right"),
        (None, "not attempted"),
        ({"a", "b"}, "contains the answer"),
        ({"a", "e"}, "looks at the length"),
        ({"a"}, "need not be a mean"),
        ({"f"}, "from a to e"),
    ],
)
def test_unbiased(answer, words, said):
    assert words in said(ch06.check_unbiased, answer)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((2, 1.333, 1.067, 1.008), "right"),
        (None, "not attempted"),
        ((0.5, 0.75, 0.9375, 0.992), "share the group mean keeps"),
        ((1, 0.333, 0.067, 0.008), "add the answer's own"),
        ((0.5, 0.25, 0.0625, 0.0078), "where is the answer"),
        ((1, 1, 1, 1), "in units of v"),
    ],
)
def test_noise(answer, words, said):
    assert words in said(ch06.check_noise, answer)


def step(model, optimizer, sampled, fault):
    if fault == "nothing":
        return
    logp = torch.where(sampled.mask, logprobs(model, sampled.ids, sampled.mask), 0.0)
    whole = logp.sum(1) / (sampled.mask.sum(1) if fault == "length" else 1)
    a = (
        sampled.rewards
        if fault == "no baseline"
        else leave_one_out(sampled.rewards, sampled.groups)
    )
    a = a.flip(0) if fault == "shuffled" else a
    loss = (a * whole).mean() * (1 if fault == "sign" else -1)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("nothing", "not attempted"),
        ("sign", "downhill"),
        ("no baseline", "who are the siblings"),
        ("length", "summed, not averaged"),
        ("shuffled", "another way"),
    ],
)
def test_step(fault, words, said):
    assert words in said(ch06.check_step, lambda *given: step(*given, fault))


RESULTS = {"k = 2": 0.58, "k = 16": 0.66, "k = 128": 0.45}


@pytest.mark.parametrize(
    ("order", "words"),
    [
        (("k = 16", "k = 2", "k = 128"), "right"),
        (None, "not attempted"),
        (("k = 128", "k = 16", "k = 2"), "a batch of one prompt"),
        (("k = 2", "k = 16", "k = 128"), "one answer's reward"),
        (("k = 16", "k = 2"), "order these"),
    ],
)
def test_order(order, words, said):
    assert words in said(ch06.check_order, order, RESULTS)


def test_runs_that_are_close_have_no_order(said):
    close = {"k = 2": 0.65, "k = 16": 0.66, "k = 128": 0.45}
    assert "right" in said(ch06.check_order, ("k = 2", "k = 16", "k = 128"), close)
