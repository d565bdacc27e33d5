"""Chapter 16's checks name each likely mistake; nbval shows that they accept the solutions."""

import pytest

from rlbook.tasks import Problem, Reply, Session, Verdict
from workshop.ch16 import checks as ch16
from workshop.ch16.worlds import Guessing


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, "not attempted"),
        ((7 / 13, 3 / 5, 1 / 5), "right"),
        ((7 / 13, 3 / 5, 3 / 5), "still costs a turn"),
        ((7 / 13, 1 / 2, 1 / 6), "how many numbers"),
        ((3 / 13, 2 / 5, 1 / 5), "halving does better"),
        ((1, 1, 1), "not thirteen"),
        ((0.5, 0.5), "3 numbers"),
    ],
)
def test_worths(answer, words, said):
    assert words in said(ch16.check_worths, answer)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, "not attempted"),
        ((1 / 2, -1, 1 / 3), "right"),
        ((1 / 3, -1, 1 / 3), "own baseline"),
        ((1 / 4, -3 / 4, 1 / 4), "with itself"),
        ((1 / 2, -1, 1 / 2), "two visits"),
        ((1, 0, 1), "is missing"),
    ],
)
def test_beside(answer, words, said):
    assert words in said(ch16.check_beside, answer)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, "not attempted"),
        (5 / 6, "right"),
        (3 / 4, "may be right"),
        (1.0, "honest"),
        (2 / 3, "a coin"),
        (1 / 2, "added"),
    ],
)
def test_liar(answer, words, said):
    assert words in said(ch16.check_liar, answer)


class Coin(Session):
    """A world of one turn, whose luck is nobody's."""

    luck = iter(range(9))

    def turn(self, text, finished=True):
        return Reply(str(next(self.luck)), done=True)

    def verdict(self):
        return Verdict(False)


class Coins:
    name, levels = "coins", (1,)

    def sample(self, seed, n, levels=None):
        return [Problem(f"{i}", "?", "") for i in range(n)]

    def begin(self, problem, seed):
        return Coin()


@pytest.mark.parametrize(
    ("world", "turns", "words"),
    [
        (None, (), "not attempted"),
        (Guessing(), ("08", "12", "10", "11"), "right"),
        (Guessing(), ("99",), "not come to the end"),
        (object(), ("1",), "an environment has"),
        (Coins(), ("1",), "told different things"),
    ],
)
def test_the_labs_world(world, turns, words, said):
    assert words in said(ch16.check_world, world, turns)
