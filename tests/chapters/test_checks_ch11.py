"""The checks of chapter 11: the right answer passes, each likely mistake is named."""

import pytest
import torch

from rlbook.book.checks import ch11
from rlbook.objectives import DivergencePenalty, RatioClip, Surrogate, binary_divergence


def test_nothing_attempted(said):
    for check in (ch11.check_stopped, ch11.check_out_of_reach, ch11.check_pair, ch11.check_spo):
        assert said(check, None) == "not attempted yet"
    assert said(ch11.check_keep_kl, lambda *_: None) == "not attempted yet"


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        ((["a", "b", "c"], "cd"), "right"),
        (("cd", "abc"), "the clip's set comes first"),
        (("abcd", "cd"), "starts at 0.8"),
        (("abc", "acd"), "by how much has a risen"),
        (("abc", "bcd"), "b doubled"),
        (("ab", "c"), "is π/μ > 1.28"),
    ],
)
def test_who_is_stopped(said, answer, verdict):
    assert verdict in said(ch11.check_stopped, answer)


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        ((0.78, 0.85), "right"),
        ((1 / 1.28, 0.85), "right"),
        ((0.72, 0.85), "bounds a ratio"),
        ((0.85, 0.78), "comes first"),
        ((0.78, 0.87), "bounds a difference"),
        ((0.78, 0.15), "is to rise"),
        ((0.5, 0.5), "at most 1"),
    ],
)
def test_out_of_reach(said, answer, verdict):
    assert verdict in said(ch11.check_out_of_reach, answer)


def keep_kl(logp, log_mu, advantages):
    running_away = (logp - log_mu) * advantages > 0
    return ~(running_away & (binary_divergence(logp, log_mu, "kl") > 0.05))


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (keep_kl, "right"),
        (lambda new, old, push: ~keep_kl(new, old, push), "True where a token is stopped"),
        (lambda new, old, _: binary_divergence(new, old, "kl") <= 0.05, "on their way back"),
        (lambda new, old, push: keep_kl(new, old, -push), "mind the sign"),
        (lambda new, old, push: keep_kl(old, new, push), "swapped"),
        (lambda new, old, push: keep_kl(new, old, push) | (push < 0), "only one sign"),
        (lambda new, old, push: (new - old) * push <= 0, "not how far"),
        (lambda new, *_: new, "combine"),
        (lambda new, *_: new[0], "shape of logp"),
    ],
)
def test_keep_kl(said, answer, verdict):
    assert verdict in said(ch11.check_keep_kl, answer)


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (([0.3, 0.6, 0.1], [0.35, 0.2, 0.45]), "right"),
        (([0.3, 0.7], [0.3, 0.7]), "two lists of three"),
        (([0.3, 0.69, 0.01], [0.35, 0.2, 0.45]), "no entry below"),
        (([0.3, 0.6, 0.1], [0.3, 0.2, 0.5]), "has not risen"),
        (([0.3, 0.6, 0.1], [0.5, 0.4, 0.1]), "binary TV stops it"),
        (([0.3, 0.6, 0.1], [0.35, 0.55, 0.1]), "the list sees only"),
    ],
)
def test_pair(said, answer, verdict):
    assert verdict in said(ch11.check_pair, answer)


def spo(penalty, weight=None):
    """SPO with another penalty; `weight` overrides what is reported."""

    def region(logp, logp_old, ratio, advantages, divergence=None):
        loss = -(ratio * advantages - penalty(ratio, advantages, logp, logp_old))
        factor = ratio * (1 - advantages.sign() * (ratio - 1) / 0.2)
        reported = factor if weight is None else weight(factor)
        return Surrogate(loss, torch.ones_like(loss).bool(), reported.detach())

    return region


def square(scale):
    return lambda r, a, *_: scale * a.abs() * (r - 1) ** 2


@pytest.mark.parametrize(
    ("region", "verdict"),
    [
        (spo(square(2.5)), "right"),
        (spo(lambda r, a, *_: 2.5 * a * (r - 1) ** 2), "needs |Â|"),
        (spo(square(-2.5)), "outwards"),
        (spo(square(0)), "without its penalty"),
        (spo(square(5)), "a factor 2"),
        (spo(square(0.5)), "left out the ε"),
        (RatioClip(0.2, 0.2), "a wall"),
        (DivergencePenalty(0.2), "that is DRPO"),
        (spo(square(1)), "differentiate"),
        (spo(square(2.5), weight=torch.ones_like), "must be the factor"),
        (lambda *_: None, "returns a Surrogate"),
    ],
)
def test_spo(said, region, verdict):
    assert verdict in said(ch11.check_spo, region)


def test_spo_without_the_ratio_in_front_and_with_a_wall(said):
    def without_ratio(logp, logp_old, ratio, advantages, divergence=None):
        weight = (1 - advantages.sign() * (ratio - 1) / 0.2).detach()
        return Surrogate(-weight * advantages * logp, torch.ones_like(logp).bool(), weight)

    def with_a_wall(*args):
        result = spo(square(2.5))(*args)
        return result._replace(keep=result.weight > 0)

    assert "d/d log π of ρ is ρ" in said(ch11.check_spo, without_ratio)
    assert "`keep` is about" in said(ch11.check_spo, with_a_wall)


def test_no_check_shows_its_answer(said):
    """What a wrong answer is told does not contain the right one."""
    told = said(ch11.check_stopped, ("", "")) + said(ch11.check_out_of_reach, (0, 0))
    assert "abc" not in told and "0.78" not in told and "0.85" not in told
