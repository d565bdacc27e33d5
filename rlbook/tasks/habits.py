"""Sums that pupils get wrong by habit: six families, each with a right rule and a misconception.

======  ============  ==========  =========================  =================================
level   family        problem     right rule                 misconception
======  ============  ==========  =========================  =================================
1       plain         `40-8+3=?`  from left to right         from right to left
2       bracket       `40-(8-3)`  the bracket first          brackets overlooked
3       double minus  `40--8+2`   minus minus is plus        one of them overlooked
4       precedence    `4+5*3`     times before plus          from left to right
5       power         `3+4^2`     four times four            four times two
6       square        `(2+3)^2`   the bracket, times itself  the sum of the two squares
======  ============  ==========  =========================  =================================

Right and wrong always differ, and the rule that an answer follows shows in its first step.
"""

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rlbook.tasks.base import Problem, Verdict
from rlbook.tasks.sums import verdict_on_integer

LARGEST_VALUE = 199
LONGER = 0.5  # share of problems with a further term at the end

Steps = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Worked:
    """A problem's text and two ways to a value, each as steps (what is computed, result)."""

    text: str
    right: Steps
    wrong: Steps

    def extended(self, sign: str, term: int) -> "Worked":
        """The same with a further term at the end, which both rules read alike."""
        right, wrong = (
            (*steps, (f"{steps[-1][1]}{sign}{term}", applied(steps[-1][1], sign, term)))
            for steps in (self.right, self.wrong)
        )
        return Worked(f"{self.text}{sign}{term}", right, wrong)

    @property
    def fits(self) -> bool:
        """Whether the rules disagree in the first step and the value, within the range."""
        results = [result for _, result in (*self.right, *self.wrong)]
        return (
            all(0 <= result <= LARGEST_VALUE for result in results)
            and self.right[0] != self.wrong[0]
            and self.right[-1][1] != self.wrong[-1][1]
        )


def applied(value: int, sign: str, term: int) -> int:
    """value + term or value − term."""
    return value + term if sign == "+" else value - term


def chain(start: int, *terms: tuple[str, int]) -> Steps:
    """The steps from left to right."""
    steps, value = [], start
    for sign, term in terms:
        steps.append((f"{value}{sign}{term}", applied(value, sign, term)))
        value = steps[-1][1]
    return tuple(steps)


def plain(rng: random.Random) -> Worked:
    """a ± b ± c; the habit takes the last two terms first."""
    a, b, c = rng.randint(10, 60), rng.randint(1, 9), rng.randint(1, 9)
    s, t = rng.choice("+-"), rng.choice("+-")
    tail = applied(b, t, c)
    wrong = ((f"{b}{t}{c}", tail), (f"{a}{s}{tail}", applied(a, s, tail)))
    return Worked(f"{a}{s}{b}{t}{c}", chain(a, (s, b), (t, c)), wrong)


def bracket(rng: random.Random) -> Worked:
    """a − (b ± c); the habit drops the bracket."""
    a, b, c, s = rng.randint(10, 60), rng.randint(1, 9), rng.randint(1, 9), rng.choice("+-")
    inside = applied(b, s, c)
    right = ((f"{b}{s}{c}", inside), (f"{a}-{inside}", a - inside))
    return Worked(f"{a}-({b}{s}{c})", right, chain(a, ("-", b), (s, c)))


def double_minus(rng: random.Random) -> Worked:
    """a − −b ± c; the habit takes two minus signs for one."""
    a, b, c, s = rng.randint(10, 60), rng.randint(1, 9), rng.randint(1, 9), rng.choice("+-")
    return Worked(f"{a}--{b}{s}{c}", chain(a, ("+", b), (s, c)), chain(a, ("-", b), (s, c)))


def precedence(rng: random.Random) -> Worked:
    """a + b · c; the habit goes from left to right."""
    a, b, c = rng.randint(1, 9), rng.randint(2, 9), rng.randint(2, 9)
    right = ((f"{b}*{c}", b * c), (f"{a}+{b * c}", a + b * c))
    return Worked(f"{a}+{b}*{c}", right, ((f"{a}+{b}", a + b), (f"{a + b}*{c}", (a + b) * c)))


def power(rng: random.Random) -> Worked:
    """a + b²; the habit doubles b."""
    a, b = rng.randint(1, 40), rng.randint(3, 9)
    right = ((f"{b}*{b}", b * b), (f"{a}+{b * b}", a + b * b))
    return Worked(f"{a}+{b}^2", right, ((f"{b}*2", 2 * b), (f"{a}+{2 * b}", a + 2 * b)))


def square(rng: random.Random) -> Worked:
    """(a + b)²; the habit squares each."""
    a, b = rng.randint(1, 8), rng.randint(1, 8)
    total, parts = a + b, a * a + b * b
    wrong = ((f"{a}*{a}", a * a), (f"{b}*{b}", b * b), (f"{a * a}+{b * b}", parts))
    return Worked(f"({a}+{b})^2", ((f"{a}+{b}", total), (f"{total}*{total}", total**2)), wrong)


FAMILIES: dict[str, Callable[[random.Random], Worked]] = {
    "plain": plain,
    "bracket": bracket,
    "double minus": double_minus,
    "precedence": precedence,
    "power": power,
    "square": square,
}
LEVELS = tuple(range(1, len(FAMILIES) + 1))


class HabitsTask:
    """Sums in which a misconception is the obvious thing to do; the level is the family.

    Answers are given and judged as in `SumsTask`, with the same reasons; `label` tells by the first
    step which rule an answer follows, whatever becomes of its arithmetic.
    """

    name = "habits"
    levels = LEVELS

    def sample(self, seed: int, n: int, levels: Sequence[int] | None = None) -> list[Problem]:
        """`n` problems with families drawn uniformly; the first ones do not depend on `n`."""
        levels = LEVELS if levels is None else tuple(levels)
        if not levels or not set(levels) <= set(LEVELS):
            raise ValueError(f"habits levels are a non-empty part of {LEVELS}, got {levels}")
        rng = random.Random(f"habits {seed}")
        return [draw_problem(rng, rng.choice(levels)) for _ in range(n)]

    def verify(self, problem: Problem, completion: str, finished: bool = True) -> Verdict:
        """Compare the one final answer with the reference as text; nothing is evaluated."""
        return verdict_on_integer(problem, completion, finished)

    def label(self, problem: Problem, completion: str, finished: bool = True) -> str:
        """ "right", "misconception" or "other": the rule of the first step."""
        first = re.match(r"<think>([^=<]*)=", completion)
        rules = {problem.meta["right"]: "right", problem.meta["wrong"]: "misconception"}
        return rules.get(first[1], "other") if first else "other"


def draw_problem(rng: random.Random, level: int) -> Problem:
    """A problem of one family."""
    return problem_of(draw(rng, level), level)


def problem_of(worked: Worked, level: int) -> Problem:
    """The problem as a task asks it; `meta` holds what each rule computes first."""
    return Problem(
        id=worked.text,
        prompt=f"{worked.text}=?",
        answer=str(worked.right[-1][1]),
        level=level,
        meta={"right": worked.right[0][0], "wrong": worked.wrong[0][0]},
    )


def draw(rng: random.Random, level: int) -> Worked:
    """A problem of a family with both ways to a value, half of them with a further term."""
    family = list(FAMILIES.values())[level - 1]
    while True:
        worked = family(rng)
        if rng.random() < LONGER:
            worked = worked.extended(rng.choice("+-"), rng.randint(1, 9))
        if worked.fits:
            return worked
