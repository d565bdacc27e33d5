"""Chapter 11's checks name each likely mistake; nbval shows that they accept the solutions."""

import pytest

from rlbook.objectives import DivergencePenalty, RatioClip, Weights, binary_divergence
from workshop.ch11 import checks as ch11


def test_nothing_attempted(said):
    for check in (ch11.check_stopped, ch11.check_out_of_reach, ch11.check_pair, ch11.check_spo):
        assert said(check, None) == "not attempted yet"
    assert said(ch11.check_keep_kl, lambda *_: None) == "not attempted yet"


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
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
        (([0.3, 0.7], [0.3, 0.7]), "two lists of three"),
        (([0.3, 0.69, 0.01], [0.35, 0.2, 0.45]), "no entry below"),
        (([0.3, 0.6, 0.1], [0.3, 0.2, 0.5]), "has not risen"),
        (([0.3, 0.6, 0.1], [0.5, 0.4, 0.1]), "binary TV stops it"),
        (([0.3, 0.6, 0.1], [0.35, 0.55, 0.1]), "the list sees only"),
    ],
)
def test_pair(said, answer, verdict):
    assert verdict in said(ch11.check_pair, answer)


def spo(shape):
    """SPO with another weight; `shape` of ρ and the sign of the advantage."""

    def region(tokens):
        return Weights(shape(tokens.ratio, tokens.advantages.sign()), tokens.mask)

    return region


def slope(scale):
    return lambda rho, sign: rho * (1 - scale * sign * (rho - 1))


@pytest.mark.parametrize(
    ("region", "verdict"),
    [
        (spo(lambda rho, sign: rho * (1 - 5 * (rho - 1))), "needs |Â|"),
        (spo(slope(-5)), "outwards"),
        (spo(slope(0)), "without its penalty"),
        (spo(slope(10)), "a factor 2"),
        (spo(slope(1)), "left out the ε"),
        (spo(lambda rho, sign: slope(5)(rho, sign) / rho), "d/d log π of ρ is ρ"),
        (RatioClip(0.2, 0.2), "a wall"),
        (DivergencePenalty(0.2), "that is DRPO"),
        (spo(slope(2)), "differentiate"),
        (lambda tokens: slope(5)(tokens.ratio, tokens.advantages.sign()), "returns Weights"),
        (lambda tokens: None, "returns Weights"),
    ],
)
def test_spo(said, region, verdict):
    assert verdict in said(ch11.check_spo, region)


def test_spo_with_a_wall(said):
    def with_a_wall(tokens):
        weight, _ = spo(slope(5))(tokens)
        return Weights(weight, weight > 0)

    assert "`keep` is about" in said(ch11.check_spo, with_a_wall)


def test_no_check_shows_its_answer(said):
    """What a wrong answer is told does not contain the right one."""
    told = said(ch11.check_stopped, ("", "")) + said(ch11.check_out_of_reach, (0, 0))
    assert "abc" not in told and "0.78" not in told and "0.85" not in told
