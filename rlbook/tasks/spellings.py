r"""True spellings and near misses of a reference, to try a verifier on."""

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

from rlbook.tasks.exact import latex
from rlbook.tasks.values import Expression, Group, Number, Region, Value, Word, merged

LAST_GREEK = 0x3FF


def spellings(value: Value, text: str) -> list[str]:
    """Other ways to write an answer that is right."""
    text = text.strip().rstrip(".").strip("$")
    everyday = [text, f" {text} ", rf"\textcolor{{red}}{{{text}}}", f"${text}$"]
    return list(dict.fromkeys([*everyday, *TRUE.get(type(value), nothing)(value)]))


def near_misses(value: Value, text: str) -> list[str]:
    """Answers that are nearly right: another sign, digit, power of ten, end, order or member."""
    return list(dict.fromkeys(FALSE.get(type(value), nothing)(value)))


def nothing(value: Value) -> Iterator[str]:
    """No spelling is known of this type."""
    yield from ()


def true_numbers(value: Number) -> Iterator[str]:
    """A fraction in several notations, with thousands, as a mixed number, as a decimal."""
    if isinstance(value.value, float):
        return
    x, size = value.value, abs(value.value)
    sign = "-" * (x < 0)
    yield from (
        latex(x),
        f"{x}",
        f"x = {latex(x)}",
        rf"\mathbf{{{latex(x)}}}",
        f"−{size}" if x < 0 else f"+{x}",
    )
    if x.denominator == 1:
        yield from (f"{x}.0", rf"\frac{{{2 * x.numerator}}}{{2}}", f"{x}.")
        if size >= 1000:
            plain = f"{x.numerator:,}"
            yield from (
                plain,
                plain.replace(",", r"\,"),
                plain.replace(",", "{,}"),
                plain.replace(",", " "),
            )
        return
    yield from (
        latex(x).replace("frac", "dfrac"),
        rf"\frac{{{7 * x.numerator}}}{{{7 * x.denominator}}}",
    )
    whole, rest = divmod(size, 1)
    if whole:
        yield f"{sign}{whole}\\frac{{{rest.numerator}}}{{{rest.denominator}}}"
        yield f"{sign}{whole} {rest.numerator}/{rest.denominator}"
    if places := decimals(x):
        yield (
            f"{sign}{size.numerator * 10**places // size.denominator:0{places + 1}d}"[:-places]
            + "."
            + (f"{size.numerator * 10**places // size.denominator:0{places + 1}d}"[-places:])
        )


def decimals(x: Fraction) -> int:
    """Places after the point, 0 if there are none or endlessly many (or more than 30)."""
    return next((n for n in range(1, 31) if 10**n % x.denominator == 0), 0)


def false_numbers(value: Number) -> Iterator[str]:
    """Another sign, a step more or less, another power of ten, two answers, a denial."""
    if isinstance(value.value, float):
        return
    x, step = value.value, value.step or Fraction(1)
    for other in (x + step, x - step, x + 10 * step, -x, 10 * x, x / 1000, 1 / x if x else x + 2):
        if other not in (x, x / 100, 100 * x if value.percent else x):
            yield latex(other)
    yield from (rf"{latex(x)} \text{{ or }} {latex(x + 1)}", rf"\text{{not }} {latex(x)}")
    yield from (f"{latex(x)}, {latex(x + step)}", rf"{latex(x)} + 10^{{-12}}")


def true_words(value: Word) -> Iterator[str]:
    """Other case and font; of a choice its letter."""
    text = value.choice or value.text
    yield from (
        rf"\text{{{text}}}",
        text.upper(),
        rf"\textbf{{{text.title()}}}",
        rf"\text{{{text}.}}",
    )


def false_words(value: Word) -> Iterator[str]:
    """A denial, the next letter, the word backwards."""
    if value.choice:
        yield from (chr((ord(value.choice) - ord("a") + i) % 10 + ord("A")) for i in (1, 2, 9))
        return
    yield from (rf"\text{{not {value.text}}}", rf"\text{{{value.text} or none}}")
    if value.text != value.text[::-1]:
        yield rf"\text{{{value.text[::-1]}}}"


def true_groups(value: Group) -> Iterator[str]:
    """Other spaces and brackets; another order where that does not count."""
    if not (parts := parts_of(value)):
        return
    if value.kind == "tuple":
        yield from (rf"\left({', '.join(parts)}\right)", f"({','.join(parts)})")
    else:
        yield from (
            ", ".join(parts[::-1]),
            rf"\{{{', '.join(parts)}\}}",
            r" \text{ and } ".join(parts),
        )


def false_groups(value: Group) -> Iterator[str]:
    """A member less, more or other; of a tuple another order."""
    if not (parts := parts_of(value)):
        return
    opening, closing = ("(", ")") if value.kind == "tuple" else (r"\{", r"\}")
    others = [parts[1:], [*parts, "987654"], ["987654", *parts[1:]]]
    if value.kind == "tuple" and parts != parts[::-1]:
        others.append(parts[::-1])
    yield from (f"{opening}{', '.join(other)}{closing}" for other in others if other)


def parts_of(value: Group) -> list[str]:
    """The members, if all of them are numbers of which nothing but the value counts."""
    numbers = [i.value for i in value.items if isinstance(i, Number) and not i.percent]
    known = [latex(number) for number in numbers if isinstance(number, Fraction)]
    whole = len(known) == len(value.items) > 1 and value.kind in ("tuple", "list", "set")
    return known if whole else []


def true_regions(value: Region) -> Iterator[str]:
    """One interval as an inequality."""
    for low, has_low, high, has_high in (merged(value) or [])[:1] if len(value.parts) == 1 else []:
        if isinstance(low, Fraction) and isinstance(high, Fraction):
            signs = [r"\le" if closed else "<" for closed in (has_low, has_high)]
            yield f"{latex(low)} {signs[0]} x {signs[1]} {latex(high)}"
            brackets = "[" if has_low else "(", "]" if has_high else ")"
            yield rf"\left{brackets[0]}{latex(low)},{latex(high)}\right{brackets[1]}"


def false_regions(value: Region) -> Iterator[str]:
    """An end that belongs and should not, or the other way round; an end elsewhere."""
    for low, has_low, high, has_high in (merged(value) or [])[:1] if len(value.parts) == 1 else []:
        if isinstance(low, Fraction) and isinstance(high, Fraction):
            for a, x, b, y in (
                *((low, not has_low, high, has_high), (low, has_low, high, not has_high)),
                *((low, has_low, high + 1, has_high), (low - 1, has_low, high, has_high)),
            ):
                yield f"{'[' if x else '('}{latex(a)}, {latex(b)}{']' if y else ')'}"


def true_expressions(value: Expression) -> Iterator[str]:
    """With a name before it, in brackets, with 0 added."""
    if not is_formula(value.text):
        return
    yield from (f"y = {value.text}", rf"\left({value.text}\right)", f"{value.text} + 0")


def false_expressions(value: Expression) -> Iterator[str]:
    """One more, twice as much, the other sign."""
    if not is_formula(value.text):
        return
    yield from (f"{value.text} + 1", f"2({value.text})", f"-({value.text})")


def is_formula(text: str) -> bool:
    """Whether all letters are Latin or Greek: 北京 is a word, whatever it was read as."""
    return all(ord(character) <= LAST_GREEK for character in text if character.isalpha())


Spell = Callable[[Any], Iterator[str]]
TRUE: dict[type, Spell] = {
    Number: true_numbers,
    Word: true_words,
    Group: true_groups,
    Region: true_regions,
    Expression: true_expressions,
}
FALSE: dict[type, Spell] = {
    Number: false_numbers,
    Word: false_words,
    Group: false_groups,
    Region: false_regions,
    Expression: false_expressions,
}
