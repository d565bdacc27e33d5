"""Running sums: `37+8-5+9=?`, two to seven operands, every partial sum between 0 and 99."""

import random
import re
from collections.abc import Sequence

from rlbook.tasks.base import Problem, Verdict
from rlbook.tasks.formats import tagged_answer

__all__ = ["SumsTask", "corrects_itself", "is_lost", "strategy_of"]

LEVELS = (2, 3, 4, 5, 6, 7)
LARGEST_START, LARGEST_TERM, LARGEST_SUM = 60, 9, 99
MAX_COMPLETION_CHARS = 20_000

_INTEGER = re.compile(r"-?[1-9][0-9]{0,18}|0")
_STRUCTURE = re.compile(r"<think>[^<]*</think><answer>[^<]*</answer>\s*")


class SumsTask:
    """Left-to-right sums of small integers; the level is the number of operands.

    The answer is one canonical integer between `<answer>` and `</answer>` at the very end of a
    finished completion. `Verdict.reason` is one of

    - ``ok``, ``wrong``: one answer was found and compared;
    - ``truncated``: the policy ran out of tokens; ``too_long``: more than 20,000 characters;
    - ``no_answer``: no answer block; ``unclosed_answer``: a tag without its partner;
    - ``two_answers``: more than one tag of a kind, even if they agree;
    - ``trailing_text``: something other than white space follows the block;
    - ``not_an_integer``: the block holds anything but ``0`` or ``-?[1-9][0-9]*`` (19 digits at
      most, ASCII, surrounding white space allowed): ``+5``, ``05``, ``-0``, ``5.0`` and
      ``५`` do not count.

    `format_ok` asks for `<think>…</think><answer>…</answer>` with no other `<` and nothing
    else. An answer may be correct without it.
    """

    name = "sums"
    levels = LEVELS

    def sample(self, seed: int, n: int, levels: Sequence[int] | None = None) -> list[Problem]:
        """`n` problems with levels drawn uniformly; the first ones do not depend on `n`."""
        levels = LEVELS if levels is None else tuple(levels)
        if not levels or not set(levels) <= set(LEVELS):
            raise ValueError(f"sums levels are a non-empty part of {LEVELS}, got {levels}")
        rng = random.Random(f"sums {seed}")
        return [draw_problem(rng, rng.choice(levels)) for _ in range(n)]

    def verify(self, problem: Problem, completion: str, finished: bool = True) -> Verdict:
        """Compare the one final answer with the reference as text; nothing is evaluated."""
        return verdict_on_integer(problem, completion, finished)

    def label(self, problem: Problem, completion: str, finished: bool = True) -> str:
        """The strategy that the completion follows."""
        return strategy_of(completion, finished)


def verdict_on_integer(problem: Problem, completion: str, finished: bool = True) -> Verdict:
    """The verdict on a completion whose answer is one integer; reasons as in `SumsTask`."""
    if len(completion) > MAX_COMPLETION_CHARS:
        return Verdict(False, False, None, "too_long")
    if not finished:
        return Verdict(False, False, None, "truncated")
    format_ok = _STRUCTURE.fullmatch(completion) is not None
    answer, fault = tagged_answer(completion)
    if answer is None:
        return Verdict(False, format_ok, None, fault)
    if not _INTEGER.fullmatch(answer):
        return Verdict(False, format_ok, None, "not_an_integer")
    correct = answer == problem.answer
    return Verdict(correct, format_ok, answer, "ok" if correct else "wrong")


def draw_problem(rng: random.Random, operands: int) -> Problem:
    """A sum whose partial sums all stay between 0 and `LARGEST_SUM`."""
    terms = [rng.randint(1, LARGEST_START)]
    while len(terms) < operands:
        term = rng.choice((-1, 1)) * rng.randint(1, LARGEST_TERM)
        if 0 <= sum(terms) + term <= LARGEST_SUM:
            terms.append(term)
    text = str(terms[0]) + "".join(f"{term:+d}" for term in terms[1:])
    return Problem(id=text, prompt=f"{text}=?", answer=str(sum(terms)), level=operands)


def terms_of(problem: Problem) -> list[int]:
    """The signed operands of a sum, the first one included."""
    return terms_in(problem.prompt)


def terms_in(text: str) -> list[int]:
    """The signed integers in a text."""
    return [int(term) for term in re.findall(r"[+-]?[0-9]+", text)]


def strategy_of(completion: str, finished: bool = True) -> str:
    """The strategy a completion follows, by its thought, or "truncated".

    "direct" has none; "verbose" begins with `so `, "careful" with `check `; a "ramble" says
    `again `, a "terse" one just writes the steps; "broken" is what has another form.
    """
    if not finished:
        return "truncated"
    match = re.fullmatch(r"<think>([^<]*)</think><answer>[^<]+</answer>\s*", completion)
    if not match:
        return "broken"
    thought = match[1]
    if not thought.strip():
        return "direct"
    if thought.startswith("so "):
        return "verbose"
    if thought.startswith("check "):
        return "careful"
    return "ramble" if "again " in thought else "terse"


def corrects_itself(completion: str) -> bool:
    """Whether the completion tries a step again."""
    return "wait " in completion


def is_lost(completion: str) -> bool:
    """Whether the completion gave up on a step."""
    return "hmm " in completion
