"""Chapter 01's checks name each likely mistake; nbval shows that they accept the solutions."""

from math import inf, log

import pytest
import torch

from rlbook.stats import pass_at_k
from workshop.ch01 import checks as ch01


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, "not attempted"),
        (0.8, "upside down"),
        (1.0833, "a mean"),
        (4.3333, "a sum"),
        (1.0574, "geometric"),
        (0.2231, "logarithm"),
        (2.0, "multiply"),
    ],
)
def test_path_ratio(answer, words, said):
    assert words in said(ch01.check_path_ratio, answer)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "not attempted"),
        (", ".join(map(str, range(100))), "between them"),
        ("0123456789", "82 of the answers from 0 to 99"),
    ],
)
def test_substring_attack(text, words, said):
    assert words in said(ch01.check_substring_attack, text)


def test_a_row_too_many_is_named(said):
    def unshifted(policy, ids, mask):
        return ch01.picked(policy(ids).logits.log_softmax(-1), ids, mask)

    assert "one row too many" in said(ch01.check_log_prob, unshifted)


def test_a_failure_of_another_kind_is_told_as_it_is(said):
    assert "RuntimeError: lost" in said(ch01.check_log_prob, failing)


def failing(*_):
    raise RuntimeError("lost")


def loop(policy, prompts, eos, limit, fault):
    ids = torch.tensor(prompts)
    mask = torch.full(ids.shape, fault == "prompt")
    alive = torch.ones(len(ids), dtype=torch.bool)
    for _ in range(limit):
        token = policy(input_ids=ids).logits[:, -1].argmax(-1)
        ids = torch.cat([ids, token[:, None]], dim=1)
        on = alive & (token != eos) if fault == "no end" else alive
        on = torch.ones_like(alive) if fault == "after" else on
        mask = torch.cat([mask, on[:, None]], dim=1)
        alive = alive & (token != eos)
        if not alive.any() and fault != "no stop":
            break
    return ids, mask


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("prompt", "tokens of the prompt"),
        ("no end", "leaves out a token"),
        ("after", "after the end"),
        ("no stop", "writes on"),
    ],
)
def test_sampling_loop(fault, words, said):
    def repaired(policy, prompts, eos, limit):
        return loop(policy, prompts, eos, limit, fault)

    assert words in said(ch01.check_sampling_loop, repaired)


def top_p(probs, token, p, crossing=True, normalised=True, sort=True, shift=0.0):
    order = sorted(range(len(probs)), key=lambda i: -probs[i]) if sort else range(len(probs))
    kept, total = [], 0.0
    for i in order:
        if total >= p or (not crossing and total + probs[i] > p):
            break
        kept, total = [*kept, i], total + probs[i]
    if token not in kept:
        return -inf
    return log(probs[token] / (total if normalised else 1.0)) + shift


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        ({"crossing": False}, "reaches p is kept"),
        ({"normalised": False}, "add up to 1"),
        ({"sort": False}, "order"),
        ({"shift": 0.1}, "the set is the right one"),
    ],
)
def test_top_p(mistake, words, said):
    assert words in said(ch01.check_top_p, lambda *args: top_p(*args, **mistake))


def test_top_p_of_a_token_that_is_never_drawn(said):
    def lenient(probs, token, p):
        return log(max(probs[token], 0.25) / 0.75)

    assert "never be drawn" in said(ch01.check_top_p, lenient)
    assert "not attempted" in said(ch01.check_top_p, lambda *args: None)


@pytest.mark.parametrize(
    ("estimate", "words"),
    [
        (lambda n, c, k: None, "not attempted"),
        (lambda n, c, k: (c / n) ** k, "upwards"),
        (pass_at_k, "at least one"),
        (lambda n, c, k: c / n, "its expectation is 0.400"),
    ],
)
def test_all_at_k(estimate, words, said):
    assert words in said(ch01.check_all_at_k, estimate)


def odds(p, power):
    return p**power / (p**power + (1 - p) ** power)


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (lambda p, t: None, "not attempted"),
        (lambda p, t: p ** (1 / t), "add up to 1"),
        (lambda p, t: odds(p, t), "which way round"),
        (lambda p, t: p * t, "odds"),
        (lambda p, t: 0.5, "nothing may change"),
    ],
)
def test_cooled_share(share, words, said):
    assert words in said(ch01.check_cooled_share, share)
