"""The types of an answer, and what can be done with regions of the number line."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import pairwise
from math import inf


@dataclass(frozen=True)
class Number:
    """A rational number or ±∞. `step` is the worth of the last digit of one with a point."""

    value: Fraction | float
    step: Fraction | None = None
    percent: bool = False
    unit: str = ""
    text: str = field(default="", compare=False)


@dataclass(frozen=True)
class Word:
    """A few words without case, article and punctuation; `choice` is a letter before them."""

    text: str
    choice: str = ""


@dataclass(frozen=True)
class Based:
    """Digits in a base, such as 1011₂; `value` is None if a digit does not belong to it."""

    digits: str
    base: int

    @property
    def value(self) -> int | None:
        """The integer."""
        try:
            return int(self.digits, self.base)
        except ValueError:
            return None


@dataclass(frozen=True)
class Group:
    """Several values. `kind` says what counts: of a "tuple", "ratio", "clock", "residue" (and its
    modulus) or "matrix" (of rows) the order, of a "list" how often each occurs, of a "set" neither.
    """

    kind: str
    items: tuple["Value", ...]
    unit: str = ""


@dataclass(frozen=True)
class Region:
    """Real numbers: (low, does it belong, high, does it belong) of each interval."""

    parts: tuple[tuple["Value", bool, "Value", bool], ...]


@dataclass(frozen=True)
class Named:
    """`name = value`, or a chain of equalities with or without a name; `rough` if one is ≈."""

    name: str
    links: tuple["Value", ...]
    text: str
    rough: bool = False


@dataclass(frozen=True)
class Expression:
    """Mathematics without a relation, for a computer algebra system."""

    text: str
    unit: str = ""


@dataclass(frozen=True)
class Relation:
    """An equation or inequality, for a computer algebra system."""

    text: str


@dataclass(frozen=True)
class Unreadable:
    """What nothing can be compared with, and why."""

    text: str
    why: str


Value = Number | Word | Based | Group | Region | Named | Expression | Relation | Unreadable
Interval = tuple[Fraction | float, bool, Fraction | float, bool]


def type_of(value: Value) -> str:
    """One word for tables."""
    if isinstance(value, Number):
        whole = isinstance(value.value, Fraction) and value.value.denominator == 1
        return "decimal" if value.step else "integer" if whole else "fraction"
    if isinstance(value, Group):
        return value.kind
    if isinstance(value, Named) and len(value.links) == 1:
        return type_of(value.links[0])
    names = {Based: "base-n", Region: "interval", Named: "equation", Relation: "equation"}
    return names.get(type(value), type(value).__name__.lower())


def unread(value: Value) -> Iterator[Unreadable]:
    """The parts of a value that nothing can be compared with."""
    if isinstance(value, Unreadable):
        yield value
    inside = {Group: "items", Named: "links"}.get(type(value))
    for part in getattr(value, inside) if inside else ():
        yield from unread(part)


def as_region(value: Value) -> Region | None:
    """A pair read as an open interval, a set as its points."""
    if isinstance(value, Group) and value.kind == "tuple" and len(value.items) == 2:
        return Region(((value.items[0], False, value.items[1], False),))
    if isinstance(value, Group) and value.kind == "set":
        return Region(tuple((item, True, item, True) for item in value.items))
    return value if isinstance(value, Region) else None


def as_matrix(group: Group) -> Group:
    """A list of rows in square brackets as a matrix; anything else as it is."""
    rows = [row_of(item) for item in group.items]
    if group.kind != "list" or {()} == set(rows) or len({len(row) for row in rows}) != 1:
        return group
    return Group("matrix", tuple(Group("tuple", row) for row in rows))


def row_of(value: Value) -> tuple[Value, ...]:
    """The values in square brackets, two of which were read as an interval; () without any."""
    if isinstance(value, Group) and value.kind == "list":
        return value.items
    if isinstance(value, Region) and len(value.parts) == 1 and value.parts[0][1::2] == (True, True):
        return value.parts[0][::2]
    return ()


def twelve_hours(clock: Group) -> Group:
    """A time after noon or before one in the morning with am or pm; others as they are."""
    hour, *rest = clock.items
    if not isinstance(hour, Number) or clock.unit or 0 < hour.value <= 12:
        return clock
    hour, unit = (
        (replace(hour, value=hour.value - 12), "pm")
        if hour.value
        else (replace(hour, value=Fraction(12)), "am")
    )
    return replace(clock, items=(hour, *rest), unit=unit)


def merged(region: Region) -> list[Interval] | None:
    """Intervals in order, those that touch as one; None if an end is no number."""
    ends = [
        (low.value, not has_low, high.value, has_high)
        for low, has_low, high, has_high in region.parts
        if isinstance(low, Number) and isinstance(high, Number)
    ]
    found: list[Interval] = []
    for low, open_, high, closed in sorted(ends):
        if low > high or (low == high and (open_ or not closed)):
            continue
        last = found[-1] if found else None
        if last and (low < last[2] or (low == last[2] and (last[3] or not open_))):
            found[-1] = (*last[:2], *max(last[2:], (high, closed)))
        else:
            found.append((low, not open_, high, closed))
    return found if len(ends) == len(region.parts) else None


def common(regions: Sequence[Region]) -> Region | None:
    """The numbers in all of these; None if an end is no number."""
    parts: list[Interval] = [(-inf, False, inf, False)]
    for region in regions:
        if (others := merged(region)) is None:
            return None
        pairs = [(one, other) for one in parts for other in others]
        parts = [overlap(one, other) for one, other in pairs]
    return Region(tuple((Number(a), x, Number(b), y) for a, x, b, y in parts))


def overlap(one: Interval, other: Interval) -> Interval:
    """The numbers in both, an interval that may be empty."""
    low, open_ = max((one[0], not one[1]), (other[0], not other[1]))
    high, closed = min((one[2], one[3]), (other[2], other[3]))
    return low, not open_, high, closed


def reals(*without: Fraction | float) -> Region:
    """The real numbers except some."""
    ends = [-inf, *sorted(without), inf]
    return Region(tuple((Number(a), False, Number(b), False) for a, b in pairwise(ends)))
