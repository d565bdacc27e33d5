r"""What a unit is worth, and two quantities in the same units.

`measure("km/h")` is m¹ s⁻¹ and 1000/3600. A unit that is not listed is worth itself: beside a
listed one it is another, beside one that is not listed it decides nothing.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache

from rlbook.tasks.exact import latex
from rlbook.tasks.values import Expression, Number, Value

WORTHS = """
m: m meter metre 米; 0.001 m: mm millimeter millimetre 毫米; 0.01 m: cm centimeter centimetre 厘米
1000 m: km kilometer kilometre 千米 公里; 0.0254 m: in inch inche; 0.3048 m: ft foot feet
0.9144 m: yd yard; 1609.344 m: mi mile; 10000 m^2: ha hectare
s: s sec second 秒; 0.001 s: ms millisecond; 60 s: min minute 分钟; 3600 s: h hr hour 小时
86400 s: day 天; 604800 s: week; month: month; 12 month: yr year
g: g gram 克; 0.001 g: mg milligram; 1000 g: kg kilogram 千克 公斤
28.349523125 g: oz ounce; 453.59237 g: lb pound; cent: cent penny pennie; 100 cent: dollar usd
0.001 m^3: l liter litre 升; 0.000001 m^3: ml milliliter millilitre 毫升
0.003785411784 m^3: gal gallon; 0.000946352946 m^3: qt quart; 0.000473176473 m^3: pt pint
1609.344 m/h: mph; 1000 m/h: kph kmh; 1 /s: hz hertz; 1000 /s: khz kilohertz
j: j joule; 1000 j: kj kilojoule; 3600000 j: kwh; 1 j/s: w watt; 1000 j/s: kw kilowatt
n: n newton; pa: pa pascal; 1000 pa: kpa kilopascal
celsius: c celsius; fahrenheit: f fahrenheit; percent: percent
"""
UNITS = {
    name: worth.strip()
    for line in re.split("[;\n]", WORTHS.strip())
    for worth, names in [line.split(":")]
    for name in names.split()
}
PART = re.compile(
    r"(?P<per>per\b|an?\b|/)|(?P<before>square|sq|cubic)\b|"
    r"(?P<word>[^\W\d_]+)(?: ?\^? ?(?P<power>-? ?\d)| (?P<after>squared|cubed)\b)?"
)
POWERS = {"square": 2, "sq": 2, "squared": 2, "cubic": 3, "cubed": 3}
PREPOSITION = re.compile("of|in|at|for|from|to|with|on|by|after")  # ends a unit: 5 cm in height
Measure = tuple[frozenset[tuple[str, int]], Fraction]


@lru_cache(maxsize=4096)
def measure(unit: str) -> Measure:
    """The units a unit is made of, each with its power, and its worth in these."""
    powers, worth = Counter[str](), Fraction(1)
    side, ahead, known, awaited = 1, 1, False, True
    for found in PART.finditer(re.sub("([平立])方", spelled_out, unit)):
        word = found["word"]
        if found["per"]:
            side, awaited = -1, True
        elif found["before"]:
            ahead = POWERS[found["before"]]
        elif not awaited and (PREPOSITION.fullmatch(word) or (known and not unit_named(word))):
            break
        else:
            named = unit_named(word) if known or awaited else ""
            after = int((found["power"] or "1").replace(" ", ""))
            power = side * ahead * POWERS.get(found["after"] or "", after)
            parts, one = definition(named) if named else ({stem(word): 1}, Fraction(1))
            for name, exponent in parts.items():
                powers[name] += power * exponent
            worth *= one**power
            ahead, known, awaited = 1, known or bool(named), False
    return frozenset((name, power) for name, power in powers.items() if power), worth


def spelled_out(found: re.Match[str]) -> str:
    """The Chinese words for square and cubic."""
    return "square " if found[1] == "平" else "cubic "


def unit_named(word: str) -> str:
    """The name in the table of a unit in the singular or plural; "" if it is not there."""
    return next((name for name in (word, word.removesuffix("s")) if name in UNITS), "")


def definition(name: str) -> tuple[dict[str, int], Fraction]:
    """The units that a listed one is defined by, and its worth in them."""
    number, _, unit = UNITS[name].rpartition(" ")
    if unit == name or not number:
        return {unit: 1}, Fraction(1)
    parts, worth = measure(unit)
    return dict(parts), Fraction(number) * worth


def stem(word: str) -> str:
    """A word without its plural: cookie and cookies, glass and glasses, berry and berries."""
    return re.sub("y$", "i", re.sub("(?:(?<!s)s|es|e)$", "", word))


def same_kind(one: Measure, other: Measure) -> bool:
    """Whether two units measure the same, as far as that is known; "units" are any.

    Two words that are no units decide nothing: 12 pupils are 12 students.
    """
    mine, theirs = dict(one[0]), dict(other[0])
    if mine == theirs:
        return True
    if {"unit"} in (set(mine), set(theirs)):
        return list(mine.values()) == list(theirs.values())
    return not UNITS.keys() & {*mine, *theirs}


def unit_of_value(value: Value) -> str:
    """The unit beside a number or an expression; "" if there is none."""
    if isinstance(value, Number):
        return "percent" if value.percent else value.unit
    return value.unit if isinstance(value, Expression) else ""


def in_base(value: Value, scale: bool) -> Value:
    """A quantity without its unit, if to `scale` as the number of those that define its own."""
    worth = measure(unit_of_value(value))[1] if scale else Fraction(1)
    if isinstance(value, Number):
        step = value.step and value.step * worth
        return replace(value, value=value.value * worth, step=step, unit="")
    if isinstance(value, Expression):
        text = value.text if worth == 1 else f"{latex(worth)}({value.text})"
        return replace(value, text=text, unit="")
    return value


def in_same_units(one: Value, other: Value) -> tuple[Value, Value] | None:
    """Two quantities as numbers of the same unit, if both have one; None if they differ in kind.

    A whole number beside a percentage is a number of per cent: 50 is 50 % and not 5000 %.
    """
    mine, theirs = unit_of_value(one), unit_of_value(other)
    if mine == theirs:
        return one, other
    if not mine or not theirs:
        return percents(one, other), percents(other, one)
    if not same_kind(measure(mine), measure(theirs)):
        return None
    scale = measure(mine)[0] == measure(theirs)[0]
    return in_base(one, scale), in_base(other, scale)


def percents(value: Value, other: Value) -> Value:
    """A percentage that may not be a share, if what it stands beside is none."""
    if isinstance(value, Number) and value.percent and isinstance(other, Number):
        return replace(value, percent=other.value % 1 != 0 or -1 <= other.value <= 1)
    return value


def total(items: Sequence[Value]) -> Number | None:
    """The sum of 3 hours and 20 minutes in the smaller unit; each part is less than one before."""
    measures = [measure(unit) for item in items if (unit := unit_of_value(item))]
    if len(measures) < len(items) or len(items) < 2 or len({kind for kind, _ in measures}) > 1:
        return None
    worths = [worth for _, worth in measures]
    numbers = [i.value for i in items if isinstance(i, Number) and isinstance(i.value, Fraction)]
    sizes = [number * worth for number, worth in zip(numbers, worths, strict=False)]
    if len(sizes) < len(items) or not all(
        0 <= a < b for a, b in zip(sizes[1:], worths, strict=False)
    ):
        return None
    return Number(sum(sizes, Fraction(0)) / worths[-1], unit=unit_of_value(items[-1]))
