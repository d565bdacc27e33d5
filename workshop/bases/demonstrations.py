"""How the base model was taught to answer: a mixture of strategies for running sums.

Demonstrations of unequal quality give reinforcement learning something to choose between.
The opening token after `<think>` announces most strategies:

========  =========================================================  =======================
strategy  what it writes                                             weakness
========  =========================================================  =======================
direct    nothing: the answer at once                                fails on long sums
terse     `37+8=45;45-5=40;`                                         slips, gets stuck
verbose   `so 37+8=45;so 45-5=40;ok ok `                             the same, longer
careful   `check 37+8=?;wait 37+8=45;check 45-5=40;`                 rare
ramble    a terse chain, then `again ` and the chain anew            often truncated
broken    a chain, then a malformed answer                           rarely counts
========  =========================================================  =======================

A step can go wrong in two ways. A *slip* is a wrong result, taken for right. A *stuck* step ends
in `=?;`: the text shows that something is missing. Then the demonstration tries again
(`wait 37+8=45;`, always right), or it is *lost*: it says `hmm ` a random number of times and
answers with the last sum it knows, which is almost always wrong. So a lost policy can know that
it is lost, and how long it goes on is its own choice.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from rlbook.tasks.base import Problem
from rlbook.tasks.sums import LARGEST_SUM, LEVELS, draw_problem, terms_of

WORDS = ("so ", "ok ", "check ", "again ", "wait ", "hmm ")


@dataclass(frozen=True)
class Habit:
    """How often a strategy is used; how often a step slips or is stuck; how it then goes on.

    `give_up` is the probability of getting lost once stuck; otherwise it tries again.
    """

    share: float
    slip: float = 0.0
    stuck: float = 0.0
    give_up: float = 0.0


HABITS = {
    "direct": Habit(share=0.35),
    "terse": Habit(share=0.25, slip=0.12, stuck=0.12, give_up=0.7),
    "verbose": Habit(share=0.15, slip=0.12, stuck=0.12, give_up=0.6),
    "careful": Habit(share=0.05, slip=0.02, stuck=0.15),
    "ramble": Habit(share=0.12, slip=0.18),
    "broken": Habit(share=0.08, slip=0.18),
}
MEAN_HMM, MEAN_OK, THIRD_PASS = 18, 3, 0.5
SLIPS = (-10, -2, -1, 1, 2, 10)


@dataclass(frozen=True)
class Demonstration:
    """A problem with one answer to imitate, right or wrong."""

    problem: Problem
    completion: str
    strategy: str


def demonstrations(seed: int) -> Iterator[Demonstration]:
    """The endless pretraining corpus: a pure function of the seed."""
    rng = random.Random(f"sums demonstrations {seed}")
    names = list(HABITS)
    shares = [habit.share for habit in HABITS.values()]
    while True:
        problem = draw_problem(rng, rng.choice(LEVELS))
        strategy = rng.choices(names, shares)[0]
        yield Demonstration(problem, demonstrate(problem, strategy, rng), strategy)


def demonstrate(problem: Problem, strategy: str, rng: random.Random) -> str:
    """One completion (EOS excluded) in the given strategy."""
    habit, terms = HABITS[strategy], terms_of(problem)
    if strategy == "direct":
        return _closed("", problem.answer)
    between = {"verbose": "so ", "careful": "check "}.get(strategy, "")
    text, total, lost = _chain(terms, habit, between, rng)
    if strategy == "ramble":
        for _ in range(1 + (rng.random() < THIRD_PASS)):
            repeated, total, _ = _chain(terms, habit, between, rng)
            text += "again " + repeated
    if strategy == "verbose" and not lost:
        text += "ok " * _geometric(MEAN_OK, rng)
    return _malformed(text, total, rng) if strategy == "broken" else _closed(text, total)


def _chain(terms: list[int], habit: Habit, between: str, rng) -> tuple[str, int, bool]:
    """Steps of one pass, where it arrived, and whether it gave up on the way."""
    text, total = "", terms[0]
    for i, term in enumerate(terms[1:], start=1):
        text, result = text + between, total + term
        if rng.random() < habit.stuck:
            text += _step(total, term, "?")
            if rng.random() < habit.give_up:
                return text + "hmm " * _geometric(MEAN_HMM, rng), total, True
            text += "wait "
        elif rng.random() < habit.slip:
            result += rng.choice(_possible_slips(result, terms[i + 1 :]) or [0])
        text += _step(total, term, result)
        total = result
    return text, total, False


def _step(total: int, term: int, result: int | str) -> str:
    return f"{total}{term:+d}={result};"


def _possible_slips(result: int, later_terms: list[int]) -> list[int]:
    """Errors after which the remaining partial sums still lie between 0 and `LARGEST_SUM`."""
    low = high = partial = 0
    for term in later_terms:
        partial += term
        low, high = min(low, partial), max(high, partial)
    return [s for s in SLIPS if result + s + low >= 0 and result + s + high <= LARGEST_SUM]


def _geometric(mean: float, rng: random.Random) -> int:
    """1, 2, 3, … with the given mean and no memory."""
    count = 1
    while rng.random() > 1 / mean:
        count += 1
    return count


def _closed(thought: str, answer: int | str) -> str:
    return f"<think>{thought}</think><answer>{answer}</answer>"


def _malformed(thought: str, answer: int, rng: random.Random) -> str:
    return rng.choice(
        (
            f"<think>{thought}</think>{answer}",
            f"<think>{thought}<answer>{answer}</answer>",
            f"<think>{thought}</think><answer></answer>",
            f"<think>{thought}</think><answer>{answer}</answer><answer>{answer}</answer>",
        )
    )
