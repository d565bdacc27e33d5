r"""Whether two answers are the same, type by type; a computer algebra system for what is left.

Two exact numbers are compared exactly. Against a decimal reference an exact number without finite
decimals, such as 2/3 or π, is right if it rounds to the reference's own digits, three at least. A
decimal against an exact reference has to be exactly it: 0.333 is not 1/3.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

from rlbook.tasks.answers import read
from rlbook.tasks.exact import latex
from rlbook.tasks.units import in_same_units
from rlbook.tasks.values import (
    Based,
    Expression,
    Group,
    Named,
    Number,
    Region,
    Relation,
    Unreadable,
    Value,
    Word,
    as_region,
    merged,
)

Ask = Callable[[str, str, Fraction | None], bool]  # equal? within a tolerance, if there is one
Compare = Callable[[Value, Value, Ask], bool]

LEAST_DIGITS = 3  # of a decimal that an exact number may round to
ROUGHLY = Fraction(1, 20)  # of the value: how far the two sides of ≈ may be apart
MOST_ITEMS = 100  # of a list whose order is free


def same(answer: Value, reference: Value, ask: Ask) -> bool:
    """Whether an answer is the reference. `ask(answer, reference, tolerance)` judges expressions.

    Both in LaTeX; it is asked only where neither side could be read as something more exact.
    """
    sides = (answer, reference)
    if any(isinstance(side, Unreadable) for side in sides):
        return False
    for kind, compare in COMPARATORS:
        if any(isinstance(side, kind) for side in sides):
            return compare(answer, reference, ask)
    return same_expression(answer, reference, ask)


def same_named(answer: Value, reference: Value, ask: Ask) -> bool:
    """An assignment by its value, an equation of two sides by a computer algebra system."""
    sides = (answer, reference)
    if any(isinstance(side, Named) and not holds(side, ask) for side in sides):
        return False
    if any(isinstance(side, Relation) for side in sides):
        return same_relation(answer, reference, ask)
    if isinstance(reference, Named):
        meant = reference.links if reference.rough else reference.links[-1:]
        return any(same(answer, link, ask) for link in meant)
    return isinstance(answer, Named) and any(same(link, reference, ask) for link in answer.links)


def holds(chain: Named, ask: Ask) -> bool:
    """Whether every link of a chain of equalities is true; ≈ may be a twentieth off."""
    return all(
        near(a, b) if chain.rough else same(exactly(a), exactly(b), ask)
        for a, b in pairwise(chain.links)
    )


def exactly(value: Value) -> Value:
    """A number without the freedom of its last digit."""
    return replace(value, step=None) if isinstance(value, Number) else value


def near(a: Value, b: Value) -> bool:
    """Whether two numbers are about the same; anything else has to be taken on trust."""
    if not isinstance(a, Number) or not isinstance(b, Number):
        return True
    one, other = a.value, b.value
    if isinstance(one, float) or isinstance(other, float):
        return one == other
    return abs(one - other) <= ROUGHLY * max(abs(one), abs(other))


def same_relation(answer: Value, reference: Value, ask: Ask) -> bool:
    """Two equations or inequalities."""
    if not isinstance(answer, Relation | Named) or not isinstance(reference, Relation | Named):
        return False
    return squeezed(answer) == squeezed(reference) or ask(answer.text, reference.text, None)


def same_word(answer: Value, reference: Value, ask: Ask) -> bool:
    """Words as they are spelled; a choice by its letter or by what it stands for."""
    if isinstance(answer, Word) and isinstance(reference, Word):
        if answer.choice and reference.choice:
            return answer.choice == reference.choice
        return bool({answer.text, answer.choice} & {reference.text, reference.choice} - {""})
    word, other = (answer, reference) if isinstance(answer, Word) else (reference, answer)
    assert isinstance(word, Word)
    if isinstance(other, Expression):
        text = squeezed(other).casefold()
        chosen = word.choice if other is answer else ""
        return text in (chosen, squeezed(word)) and (len(text) > 1 or other is answer)
    if word.choice == word.text or not word.choice:
        return False
    stands_for = read(word.text)
    return same(stands_for, other, ask) if word is answer else same(other, stands_for, ask)


def same_digits(answer: Value, reference: Value, ask: Ask) -> bool:
    """Numbers in a base by value; digits without a base as if it were the other's."""
    if isinstance(answer, Based) and isinstance(reference, Based):
        return answer.value is not None and answer.value == reference.value
    based, other = (answer, reference) if isinstance(answer, Based) else (reference, answer)
    assert isinstance(based, Based)
    if isinstance(other, Number) and based is answer and other.value == based.value:
        return True
    return squeezed(other).casefold() == based.digits


def same_region(answer: Value, reference: Value, ask: Ask) -> bool:
    """The same real numbers; an end that is no rational number by a computer algebra system."""
    one, other = as_region(answer), as_region(reference)
    if one is None or other is None:
        return False
    if (mine := merged(one)) is not None and (theirs := merged(other)) is not None:
        return mine == theirs

    def equal(a: tuple[Value, bool, Value, bool], b: tuple[Value, bool, Value, bool]) -> bool:
        return a[1::2] == b[1::2] and same(a[0], b[0], ask) and same(a[2], b[2], ask)

    return matched(one.parts, other.parts, equal)


def same_group(answer: Value, reference: Value, ask: Ask) -> bool:
    """Several values: in order where that counts, else as a list or a set."""
    if not isinstance(answer, Group) or not isinstance(reference, Group):
        return same_lone(answer, reference, ask)
    kinds = {answer.kind, reference.kind}
    if kinds <= {"ratio", "clock"}:
        return same_ratio(answer, reference, clock=kinds == {"clock"})
    if len(kinds) > 1 and (
        kinds & {"ratio", "clock", "matrix", "residue"} or kinds == {"tuple", "set"}
    ):
        return False
    mine, theirs = (distinct(g.items) if "set" in kinds else g.items for g in (answer, reference))
    if kinds & {"tuple", "matrix", "residue"}:
        pairs = zip(mine, theirs, strict=False)
        return len(mine) == len(theirs) and all(same(a, b, ask) for a, b in pairs)
    return matched(mine, theirs, lambda a, b: same(a, b, ask))


def distinct(items: Sequence[Value]) -> tuple[Value, ...]:
    """The members of a set, each once as far as that can be read."""
    return tuple(dict.fromkeys(items))


def same_lone(answer: Value, reference: Value, ask: Ask) -> bool:
    """One value against several: a set of one, the quotient of a ratio, 1,234 as two numbers."""
    several, one = (answer, reference) if isinstance(answer, Group) else (reference, answer)
    assert isinstance(several, Group)
    if several.kind == "ratio" and len(several.items) == 2 and isinstance(one, Number):
        return same_ratio(several, Group("ratio", (one, Number(Fraction(1)))), clock=False)
    if several.kind == "residue" or (len(several.items) == 1 and several.kind in ("set", "list")):
        pair = (several.items[0], one)
    elif isinstance(one, Number) and isinstance(parts := read(one.text, False), Group):
        pair = (several, parts)
    else:
        return False
    return same(*(pair if several is answer else pair[::-1]), ask)


def same_ratio(answer: Group, reference: Group, clock: bool) -> bool:
    """Proportional numbers; two times of day have to be the same."""
    if answer.unit and reference.unit and answer.unit != reference.unit:
        return False
    mine, theirs = (
        [item.value for item in group.items if isinstance(item, Number)]
        for group in (answer, reference)
    )
    if clock or len(mine) < len(answer.items) or len(mine) != len(theirs):
        return answer.items == reference.items
    return all(a * theirs[0] == b * mine[0] for a, b in zip(mine, theirs, strict=True))


def matched(one: Sequence[object], other: Sequence[object], equal: Callable[..., bool]) -> bool:
    """Whether each of the one has its own partner among the other."""
    left = list(other)
    if len(one) != len(other) or len(one) > MOST_ITEMS:
        return False
    for value in one:
        partner = next((i for i, candidate in enumerate(left) if equal(value, candidate)), None)
        if partner is None:
            return False
        del left[partner]
    return True


def same_number(answer: Value, reference: Value, ask: Ask) -> bool:
    """Numbers exactly, a percentage as its number or its hundredth, units where both have one."""
    if not isinstance(answer, Number) or not isinstance(reference, Number):
        return same_expression(answer, reference, ask)
    if (pair := in_same_units(answer, reference)) is None:
        return False
    one, other = (side for side in pair if isinstance(side, Number))
    return any(agree(a, r, other) for a in worths(one, other) for r in worths(other, one))


def worths(number: Number, other: Number) -> list[Fraction | float]:
    """What a number may stand for: 28 % is 28 and 0.28, except beside another percentage."""
    hundredth = [number.value / 100] if number.percent and not other.percent else []
    return [number.value, *hundredth]


def agree(a: Fraction | float, r: Fraction | float, reference: Number) -> bool:
    """Equal, or endless decimals that round to those of the reference."""
    if a == r or isinstance(a, float) or isinstance(r, float):
        return a == r
    odd = a.denominator
    for prime in (2, 5):
        while odd % prime == 0:
            odd //= prime
    return odd > 1 and abs(a - r) <= (tolerance(reference) or 0)


def tolerance(reference: Value) -> Fraction | None:
    """Half the worth of the last digit of a decimal, if it has digits enough."""
    if not isinstance(reference, Number) or reference.step is None:
        return None
    enough = abs(reference.value) >= reference.step * 10 ** (LEAST_DIGITS - 1)
    return reference.step / 2 if enough else None


def same_expression(answer: Value, reference: Value, ask: Ask) -> bool:
    """What is left goes to a computer algebra system, every number exactly."""
    mine, theirs = spelled(answer), spelled(reference)
    if not mine or not theirs:
        return False
    one, other = squeezed(answer), squeezed(reference)
    if one.casefold() == other.casefold():  # math-verify does not tell x from X
        return one == other
    return ask(mine, theirs, tolerance(reference))


def spelled(value: Value) -> str:
    """A number or expression in LaTeX; "" for anything else, and for ±∞."""
    if isinstance(value, Number):
        return latex(value.value) if isinstance(value.value, Fraction) else ""
    return value.text if isinstance(value, Expression) else ""


def squeezed(value: Value) -> str:
    """The text of a value without spaces."""
    return str(getattr(value, "text", "")).replace(" ", "")


COMPARATORS: tuple[tuple[type, Compare], ...] = (
    (Named, same_named),
    (Relation, same_relation),
    (Region, same_region),
    (Group, same_group),
    (Word, same_word),
    (Based, same_digits),
    (Number, same_number),
)
