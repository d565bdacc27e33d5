r"""Arithmetic of rational numbers written in plain LaTeX: exact, and bounded in cost."""

import re
from collections.abc import Sequence
from fractions import Fraction
from math import comb, factorial, isqrt

LARGEST = 50_000  # bits of a number that is written out
LARGEST_FACTORIAL = 5_000
DEEPEST = 50  # brackets in brackets
CLOSED_BY = {"(": ")", "{": "}", "|": "|", r"\lfloor": r"\rfloor", r"\lceil": r"\rceil"}
FOLLOWERS = ("(", "{", r"\frac", r"\sqrt", r"\binom")  # factors without a sign before them


def latex(value: Fraction) -> str:
    """A fraction in LaTeX."""
    if value.denominator == 1:
        return str(value.numerator)
    return rf"{'-' * (value < 0)}\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"


def exact(names: Sequence[str]) -> Fraction | None:
    """The rational number that tokens of arithmetic stand for; None if they are anything else."""
    try:
        return Arithmetic(names).value()
    except (ArithmeticError, ValueError):
        return None


class Arithmetic:
    """Recursive descent over tokens; whatever is no arithmetic raises `ValueError`."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names, self.i, self.depth = [*names, ""], 0, 0

    def value(self) -> Fraction:
        """All of it."""
        total = self.sum()
        if self.names[self.i]:
            raise ValueError(self.names[self.i])
        return total

    def take(self, *names: str) -> str:
        """The next token, if it is one of these; "" if not."""
        found = self.names[self.i]
        if not found or (names and found not in names):
            return ""
        self.i += 1
        return found

    def sum(self) -> Fraction:
        """Terms with + and −; one sign may stand first."""
        sign = self.take("+", "-")
        total = -self.product() if sign == "-" else self.product()
        while sign := self.take("+", "-"):
            total += self.product() if sign == "+" else -self.product()
        return total

    def product(self) -> Fraction:
        """Factors."""
        total = self.power()
        while (sign := self.take(r"\cdot", r"\times", "/")) or self.names[self.i] in FOLLOWERS:
            factor = self.power()
            total = total / factor if sign == "/" else total * factor
        return total

    def power(self) -> Fraction:
        """An atom, its factorial and its exponent."""
        base = self.atom()
        if self.take("!"):
            base = Fraction(factorial(small(base)))
        if self.take("^"):
            exponent = self.atom()
            bits = max(base.numerator.bit_length(), base.denominator.bit_length())
            if exponent.denominator != 1 or abs(exponent) * bits > LARGEST:
                raise ValueError("a power too large")
            base **= int(exponent)
        return base

    def atom(self) -> Fraction:
        """A number, a bracket, a fraction, a root or a binomial coefficient."""
        name = self.take()
        if name in CLOSED_BY:
            return self.enclosed(name)
        if name == r"\frac":
            return self.atom() / self.atom()
        if name == r"\binom":
            return Fraction(comb(small(self.atom()), small(self.atom())))
        if name == r"\sqrt":
            return root(self.atom())
        return Fraction(name.rstrip(".")) + (self.mixed() if name.isdigit() else 0)

    def enclosed(self, opening: str) -> Fraction:
        """The inside of brackets, bars or floors."""
        self.depth += 1
        if self.depth > DEEPEST:
            raise ValueError("too many brackets")
        inside = self.sum()
        self.depth -= 1
        if not self.take(CLOSED_BY[opening]):
            raise ValueError("a bracket is open")
        if opening == r"\lfloor":
            return Fraction(inside // 1)
        if opening == r"\lceil":
            return Fraction(-(-inside // 1))
        return abs(inside) if opening == "|" else inside

    def mixed(self) -> Fraction:
        """The proper fraction of a mixed number; 0 if there is none."""
        text = "".join(self.names[self.i : self.i + 7])
        found = re.fullmatch(r"\\frac\{(\d+)\}\{(\d+)\}", text)
        if not found or not 0 < int(found[1]) < int(found[2]):
            return Fraction(0)
        self.i += 7
        return Fraction(int(found[1]), int(found[2]))


def small(value: Fraction) -> int:
    """An integer whose factorial can be written out."""
    if value.denominator != 1 or not 0 <= value <= LARGEST_FACTORIAL:
        raise ValueError("no small integer")
    return int(value)


def root(value: Fraction) -> Fraction:
    """The square root of a square."""
    found = Fraction(isqrt(max(0, value.numerator)), isqrt(value.denominator))
    if found**2 != value:
        raise ValueError("irrational")
    return found
