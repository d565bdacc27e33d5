r"""What an answer is: text read as a value of one of a dozen types.

`read(r"\frac{1}{2}")` is `Number(Fraction(1, 2))`, `read("(0,1]")` a region. Numbers are exact.
What is left for a computer algebra system is an `Expression` or a `Relation`; what no comparison
could be made with is `Unreadable`.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from math import inf

from rlbook.tasks.exact import DEEPEST, exact, latex
from rlbook.tasks.notation import plain
from rlbook.tasks.spoken import numeric_date, spoken, worded_date
from rlbook.tasks.units import in_same_units, total
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
    common,
    merged,
    reals,
)

MAX_CHARS = 2_000
MAX_WORDS = 5  # of an answer in words; longer ones are sentences
PLACEHOLDER = re.compile(  # of an answer that is not there
    r"(?:\\text\{)?(?:n/a|proof|not (?:found|available|given))\}?|nan|none|null|[-?]+", re.I
)
HEDGES = re.compile(
    r"\b(or|any|not|other|except|anything|than|but|least|most|about|if|when|where|only|unless|more|"
    r"fewer|between|either|neither|maybe|possibly|approximately|is|are|или|не|более|менее|больше|"
    r"меньше|около|примерно)\b"
)
NO_UNIT = re.compile(
    HEDGES.pattern + "|[或和与不非约多少至超余未]|左右|以上|以下|以内|또는|이상|이하|약"
)
CLAUSE = re.compile(  # words and full stops that make a sentence out of a list
    r"\b(?:we|he|she|they|it|which|that|this|there|therefore|thus|hence|so|then|has|have|had|was|"
    r"were|will|can|gives?|gets?)\b|(?:[a-z]{3,}|[a-z] \d+)[.!?] [A-Z]|所以|因此|因为"
)
MAGNITUDES = {"hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9}
FUNCTIONS = re.compile("sin|cos|tan|cot|sec|csc|log|ln|exp|max|min|gcd|lcm|mod|det|lim")
SHORT_WORDS = {"yes", "no", "odd", "up", "all", "nan", "none", "one", "two", "six", "ten"}
SHORT_UNITS = re.compile(
    "([cmk]?m|[mk]?g|m[Ll]|ft|in|yd|mi|lb|oz|sq|hr?s?|min|sec|mph|rad)s?|"
    "USD|EUR|GBP|[kM]?Hz|[kM]?W|kWh|[kM]?J|k?Pa|mol"
)
SYNONYMS = {
    **dict.fromkeys(["no solutions", "no real solution", "no real solutions"], "no solution"),
    **dict.fromkeys(["all reals", "real numbers", "all real x"], "all real numbers"),
    "dne": "does not exist",
}
FLIPPED = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le", r"\ne": r"\ne"}
OPENING, CLOSING = {"(", "[", "{", r"\{", r"\langle"}, {")", "]", "}", r"\}", r"\rangle"}
TOKEN = re.compile(
    r"\\text\{[^{}]*\}|\\(?:begin|end)\{\w+\*?\}|\\mathbb ?\{?[A-Z]\}?|\d+\.?\d*|\.\d+|"
    r"\\[A-Za-z]+|\\.|[^\W\d_]+|\S"
)
ARITHMETIC = re.compile(r"(?:[\d+\-/^!(){}. ]|\\(?:frac|cdot|times|sqrt|binom))+")
Tokens = Sequence[re.Match[str]]


@lru_cache(maxsize=8192)
def read(text: str, thousands: bool = True) -> Value:
    """The value a text stands for; `thousands` says whether 1,234 is one number."""
    if re.fullmatch(r"-?\d{1,18}", text):
        return Number(Fraction(int(text)), text=text)
    if len(text) > MAX_CHARS:
        return Unreadable(text, "it is too long")
    if thousands and "," in text:
        text = THOUSANDS.sub(lambda found: re.sub(r"(?<=\d),(?=\d)", "", found[0]), text.strip())
    text = plain(text)
    if letter := re.fullmatch(r"\(?([A-J])[).]?", text):
        return Word(letter[1].casefold(), letter[1].casefold())
    tokens = list(TOKEN.finditer(text))
    if len(tokens) > DEEPEST and depth([token[0] for token in tokens]) > DEEPEST:
        return Unreadable(text, "it is nested too deeply")
    try:
        value = read_tokens(text, tokens)
    except RecursionError:
        return Unreadable(text, "it is nested too deeply")
    if not isinstance(value, Number) and PLACEHOLDER.fullmatch(text):
        return Unreadable(text, "it stands for an answer that is not there")
    return value


GROUPED = r"\d{1,3}(?:,\d{3})+"
CLOTHES = r"\\[A-Za-z]+(?:{[a-z]+})?{"  # a font, a colour
THOUSANDS = re.compile(  # all of the text but its clothes, or in a list with spaces
    rf"^(?:[^\d(\[{{]|{CLOTHES})*{GROUPED}(?=\.\d|[^\d,(\[{{]*$)|(?<![\d,]){GROUPED}(?=, )|"
    rf"(?<=, ){GROUPED}(?![\d,])"
)


def read_tokens(text: str, tokens: Tokens) -> Value:
    """The value of some tokens of a text."""
    whole, names = slice_of(text, tokens), [token[0] for token in tokens]
    if not names or not balanced(names) or {"?", "#"} & set(names):
        return Unreadable(whole, "it is no expression" if names else "it is empty")
    if any(a[0].isdigit() and b[0].isdigit() and c != "_" for a, b, c in neighbours(names)):
        return Unreadable(whole, "two numbers stand side by side")
    if ARITHMETIC.fullmatch(whole):
        if whole[0].isdigit() and (day := numeric_date(whole)):
            return Word(day)
        if (number := numeral(text, tokens)) is not None:
            return number
    for reader in READERS:
        if (value := reader(text, tokens)) is not None:
            return value
    return in_words(whole, names) or Expression(exact_decimals(whole))


def depth(names: Sequence[str]) -> int:
    """How many brackets at most are open at a time; a bar may open or close."""
    steps = ((name in OPENING) - (name in CLOSING) for name in names)
    return max(accumulate(steps), default=0) + names.count("|") // 2


def neighbours(names: list[str]) -> Iterator[tuple[str, str, str]]:
    """Each token, the next one, and the one before both."""
    return zip(names, names[1:], ["", *names], strict=False)


def slice_of(text: str, tokens: Tokens) -> str:
    """The text of some tokens."""
    return text[tokens[0].start() : tokens[-1].end()] if tokens else ""


def balanced(names: Sequence[str]) -> bool:
    """Whether as many brackets open as close; round and square ones may be mixed, as in [0,1)."""
    pairs = (("{", "}"), (r"\{", r"\}"), ("([", ")]"))
    return all(sum(n in a for n in names) == sum(n in b for n in names) for a, b in pairs)


def split(tokens: Tokens, at: Callable[[str], bool]) -> tuple[list[Tokens], list[str]]:
    """Cut at tokens outside of all brackets; the pieces and what they were cut at."""
    pieces: list[list[re.Match[str]]] = [[]]
    cuts, depth = [], 0
    for token in tokens:
        name = token[0]
        depth += name in OPENING or name.startswith(r"\begin")
        depth -= name in CLOSING or name.startswith(r"\end")
        if depth == 0 and name not in CLOSING and at(name):
            cuts.append(name)
            pieces.append([])
        else:
            pieces[-1].append(token)
    return list(pieces), cuts


def said(name: str) -> str:
    """The words of a token, without case and punctuation."""
    inside = name[6:-1] if name.startswith(r"\text{") else name
    return re.sub(r"[^\w/^ -]", "", inside).strip().casefold()


# From the loosest bond to the tightest: each reader takes what is its own, or leaves it.


def in_letters(text: str, tokens: Tokens) -> Value | None:
    """An integer in words, or a date with the name of its month."""
    whole = " ".join(re.sub(r"\\text\{([^{}]*)\}", r" \1 ", slice_of(text, tokens)).split())
    if (number := spoken(whole.casefold())) is not None:
        return Number(Fraction(number), text=whole)
    day = worded_date(whole)
    return Word(day) if day else None


def because(text: str, tokens: Tokens) -> Value | None:
    """What stands before a reason."""
    for i, token in enumerate(tokens):
        if i and said(token[0]).split(" ")[0] in ("because", "since", "as"):
            return read_tokens(text, tokens[:i])
    return None


def half(text: str, tokens: Tokens) -> Value | None:
    """A number and a half."""
    if said(tokens[-1][0]) == "and a half":
        number = read_tokens(text, tokens[:-1])
        if isinstance(number, Number):
            return replace(number, value=number.value + Fraction(1, 2))
    return None


def glossed(text: str, tokens: Tokens) -> Value | None:
    """A quantity and, in brackets, the same in other words: 7 (seven), 120 minutes (2 hours)."""
    names = [token[0] for token in tokens]
    if names[-1] != ")" or "(" not in names[1:]:
        return None
    start = len(names) - 1 - names[::-1].index("(")
    if not any(map(str.isalpha, (said(name) for name in names[start:]))):
        return None
    gloss = read_tokens(text, tokens[start + 1 : -1])
    if not isinstance(gloss, Number):
        return None
    value = read_tokens(text, tokens[:start])
    pair = in_same_units(value, gloss) if isinstance(value, Number) else None
    if pair and not one_value(pair):
        return Unreadable(slice_of(text, tokens), "two numbers stand side by side")
    return value if pair else None


def summed(text: str, tokens: Tokens) -> Value | None:
    """A quantity in two units, side by side."""
    starts = [
        i
        for i, token in enumerate(tokens)
        if token[0][0].isdigit() and (i == 0 or said(tokens[i - 1][0])[-1:].isalpha())
    ]
    if len(starts) < 2 or starts[0]:
        return None
    ends = [*starts[1:], len(tokens)]
    return total([read_tokens(text, tokens[a:b]) for a, b in zip(starts, ends, strict=True)])


def several(text: str, tokens: Tokens) -> Value | None:
    """A list, the values of several names, or regions of which all or one have to hold."""
    pieces, cuts = split(tokens, lambda n: n in (",", ";") or said(n) in ("and", "or"))
    pieces = [piece for piece in pieces if piece]
    if not cuts or not pieces:
        return None
    if CLAUSE.search(whole := slice_of(text, tokens)):
        return Unreadable(whole, "it is a sentence")
    items = [item for piece in pieces for item in members(read_tokens(text, piece))]
    if any(isinstance(i, Unreadable) or (isinstance(i, Word) and hedged(i.text)) for i in items):
        return Unreadable(whole, "it is no list")
    if "or" not in map(said, cuts) and (quantity := total(items)):
        return quantity
    either, regions = "or" in map(said, cuts), [i for i in items if isinstance(i, Region)]
    if len(regions) == len(items):
        both = None if either else common(regions)
        if both and ("," not in cuts or merged(both)):
            return both
        return Region(tuple(part for region in regions for part in region.parts))
    named = {item.name: item.links[-1] for item in items if isinstance(item, Named)}
    if len(named) == len(items) > 1:
        return Group("tuple", tuple(named[name] for name in sorted(named)))
    if len(items) == 1 or (either and one_value(items)):
        return items[0]
    return Group("list", tuple(items))


def one_value(items: Sequence[Value]) -> bool:
    """Whether these are one number, written in several ways."""
    numbers = [item.value for item in items if isinstance(item, Number)]
    return len(numbers) == len(items) and len(set(numbers)) == 1


def members(value: Value) -> tuple[Value, ...]:
    """The values that a part adds to a list."""
    return value.items if isinstance(value, Group) and value.kind == "list" else (value,)


def related(text: str, tokens: Tokens) -> Value | None:
    """Equalities and inequalities."""
    pieces, cuts = split(tokens, lambda n: n in ("=", r"\approx", r"\sim", r"\in", *FLIPPED))
    if not cuts:
        return None
    if len(cuts) == 1 and (not pieces[0] or (cuts == [r"\in"] and is_name(pieces[0]))):
        signs = ("=", r"\in", r"\approx", r"\sim")
        return read_tokens(text, pieces[1]) if cuts[0] in signs else None
    if not all(pieces):
        return Unreadable(slice_of(text, tokens), "it is half a relation")
    if set(cuts) <= {"=", r"\approx", r"\sim"}:
        return chain(text, tokens, pieces, rough=set(cuts) != {"="})
    return between(text, pieces, cuts) or statement(text, tokens)


def statement(text: str, tokens: Tokens) -> Value:
    """A relation, unless there are words in it."""
    whole = slice_of(text, tokens)
    words = in_words(whole, [token[0] for token in tokens])
    return words or Relation(exact_decimals(whole))


def chain(text: str, tokens: Tokens, pieces: list[Tokens], rough: bool) -> Value:
    """`x = 2 + 3 = 5`: a name and links, or an equation of two sides."""
    if is_name(pieces[-1]) and not is_name(pieces[0]):
        pieces = pieces[::-1]
    first, whole = is_name(pieces[0]), slice_of(text, tokens)
    links = tuple(read_tokens(text, piece) for piece in pieces[first:])
    if any(isinstance(link, Unreadable) for link in links):
        return Unreadable(whole, "it is no equation")
    if first or rough or len(links) > 2 or constant(tokens):
        name = slice_of(text, pieces[0]) if first else ""
        return Named(name, links, exact_decimals(whole), rough)
    return statement(text, tokens)


def constant(tokens: Tokens) -> bool:
    """Whether no variable occurs."""
    return all(t[0] in ("e", "i") or not re.fullmatch("[A-Za-z]+", t[0]) for t in tokens)


LETTERS = (
    r"(?:\\vec\{?[A-Za-z]+\}?|[^\W\da-zA-Z_]+|[A-Za-z]|[A-Z]{2,}|[A-Za-z]{4,}|\\text\{[^{}]*\}|"
    r"\\[a-zA-Z]{2,}(?:\{?[A-Z]+\}?)?)"
)
NAME = re.compile(
    rf"\({LETTERS}(?:,{LETTERS})+\)|{LETTERS}'*(?:_(?:\w|\{{\w+\}}))?(?:\([^()=]{{1,12}}\))?"
)


def is_name(tokens: Tokens) -> bool:
    r"""Whether a value gets assigned to this: x, a_n, f(x), AB, a word, \angle ABC, (x, y)."""
    text = "".join(token[0] for token in tokens)
    constants = (r"\infty", r"\emptyset", r"\pi", "e", "i")
    return bool(NAME.fullmatch(text)) and text not in constants


def between(text: str, pieces: list[Tokens], cuts: list[str]) -> Value | None:
    """An inequality about one variable as a region."""
    if not set(cuts) <= set(FLIPPED):
        return None
    if len(cuts) == 1 and is_name(pieces[1]):
        pieces, cuts = pieces[::-1], [FLIPPED[cuts[0]]]
    size = re.fullmatch(r"\| ?[a-z] ?\|", slice_of(text, pieces[0]))
    if len(cuts) == 1 and (is_name(pieces[0]) or size) and constant(pieces[1]):
        return beyond(cuts[0], read_tokens(text, pieces[1]), bool(size))
    if len(cuts) != 2 or not is_name(pieces[1]) or not constant([*pieces[0], *pieces[2]]):
        return None
    low, high = read_tokens(text, pieces[0]), read_tokens(text, pieces[2])
    if cuts[0] in (">", r"\ge"):
        low, high, cuts = high, low, [FLIPPED[cut] for cut in cuts[::-1]]
    if not set(cuts) <= {"<", r"\le"}:
        return None
    return Region(((low, cuts[0] == r"\le", high, cuts[1] == r"\le"),))


def beyond(sign: str, bound: Value, size: bool) -> Value | None:
    """The numbers x with x < bound, or |x| < bound, or another sign."""
    closed = sign in (r"\le", r"\ge")
    least = Number(-inf)
    if size:
        if not isinstance(bound, Number):
            return None
        least = replace(bound, value=-bound.value)
    above = (bound, closed, Number(inf), False)
    if sign in ("<", r"\le"):
        return Region(((least, closed and size, bound, closed),))
    if sign in (">", r"\ge"):
        return Region(((Number(-inf), False, least, closed), above) if size else (above,))
    return reals(bound.value) if isinstance(bound, Number) and not size else None


def united(text: str, tokens: Tokens) -> Value | None:
    """Unions and intersections of regions, the real numbers, and these without some points."""
    pieces, cuts = split(tokens, lambda n: n in (r"\cup", r"\cap", r"\setminus"))
    if not cuts:
        whole = slice_of(text, tokens).replace(" ", "")
        word = " ".join(said(token[0]) for token in tokens[: MAX_WORDS + 1])
        word = SYNONYMS.get(word, word)
        nothing = whole == r"\emptyset" or word in ("no solution", "empty set")
        if whole == r"\mathbb{R}" or word == "all real numbers":
            return reals()
        return Group("set", ()) if nothing else None
    if len(set(cuts)) > 1 or not all(pieces):
        return None
    values = [read_tokens(text, piece) for piece in pieces]
    if cuts == [r"\setminus"] and values[0] == reals() and isinstance(values[1], Group):
        points = [item.value for item in values[1].items if isinstance(item, Number)]
        return reals(*points) if len(points) == len(values[1].items) else None
    regions = [region for value in values if (region := as_region(value))]
    if len(regions) < len(values) or cuts[0] == r"\setminus":
        return None
    every = Region(tuple(part for region in regions for part in region.parts))
    return common(regions) if cuts[0] == r"\cap" else every


def compared(text: str, tokens: Tokens) -> Value | None:
    """A ratio, 2:3 or 2 to 3, or a time of day."""
    unit = re.sub("[^apm]", "", said(tokens[-1][0]).replace(" ", ""))
    unit = unit if unit in ("am", "pm") else ""
    tokens = tokens[:-1] if unit else tokens
    pieces, cuts = split(tokens, lambda name: name == ":" or said(name) == "to")
    if not cuts or not all(pieces):
        return None
    items = tuple(read_tokens(text, piece) for piece in pieces)
    if not all(isinstance(item, Number | Expression) for item in items):
        return None
    whole = slice_of(text, tokens).replace(" ", "")
    clock = re.fullmatch(r"\d{1,2}(:[0-5]\d){1,2}", whole)
    return Group("clock" if clock else "ratio", items, unit)


def residue(text: str, tokens: Tokens) -> Value | None:
    """A number or expression modulo another, whatever it is congruent to."""
    pieces, cuts = split(tokens, lambda name: name in (r"\pmod", r"\mod", r"\equiv"))
    if not cuts or cuts[-1] == r"\equiv" or len(pieces) < 2 or not all(pieces[-2:]):
        return None
    return Group("residue", tuple(read_tokens(text, piece) for piece in pieces[-2:]))


def both_signs(text: str, tokens: Tokens) -> Value | None:
    """± as the list of both."""
    if [token[0] for token in tokens].count(r"\pm") != 1:
        return None
    whole = slice_of(text, tokens)
    return Group("list", tuple(read(whole.replace(r"\pm", sign)) for sign in "+-"))


def based(text: str, tokens: Tokens) -> Value | None:
    """Digits with a base below them."""
    whole = slice_of(text, tokens).replace(" ", "")
    found = re.fullmatch(r"(?:\\text\{)?\(?([0-9A-Fa-f]+)\)?\}?_\{?(\d+)\}?", whole)
    if not found or not 2 <= int(found[2]) <= 36 or re.fullmatch("[A-Za-z]", found[1]):
        return None
    return Based(found[1].casefold(), int(found[2]))


CHOICE = re.compile(r"(?:\\text\{)?\(?([A-J])(?:\)[.:]?\}?|[.:]\}|[.:](?= )|\})[ .:]*(.*)", re.S)


def chosen(text: str, tokens: Tokens) -> Value | None:
    """A letter of a choice, with or without what it stands for."""
    whole = slice_of(text, tokens)
    found = CHOICE.fullmatch(whole)
    if not found:
        return Word(whole.casefold(), whole.casefold()) if re.fullmatch("[A-J]", whole) else None
    return Word(plain(found[2]) or found[1].casefold(), found[1].casefold())


def grouped(text: str, tokens: Tokens) -> Value | None:
    """What stands in brackets: a tuple, set, list, interval or matrix."""
    first, last, inside = tokens[0][0], tokens[-1][0], tokens[1:-1]
    if first.startswith(r"\begin{") and last == first.replace("begin", "end"):
        return matrix(text, inside) if re.search("[^vV]matrix", first) else None
    if (first, last) != ("]", "[") and not (first in OPENING and closes(tokens)):
        return None
    if first == r"\{":
        return braced(text, inside)
    pieces, cuts = split(inside, lambda name: name in (",", ";"))
    items = tuple(read_tokens(text, piece) for piece in pieces)
    if not all(pieces) or any(isinstance(item, Unreadable) for item in items):
        return None
    if not cuts:
        return items[0]
    ends = not any(isinstance(item, Region | Group) for item in items)
    if len(items) == 2 and ends and first + last in ("[]", "[)", "(]", "]["):
        return Region(((items[0], first == "[", items[1], last == "]"),))
    return Group("list" if first + last == "[]" else "tuple", items)


def closes(tokens: Tokens) -> bool:
    """Whether the first bracket is closed by the last token."""
    depth = 0
    for i, token in enumerate(tokens):
        depth += (token[0] in OPENING) - (token[0] in CLOSING)
        if depth == 0:
            return i == len(tokens) - 1
    return False


def braced(text: str, inside: Tokens) -> Value | None:
    r"""A set by its members, or by what holds for them: \{x : x > 2\}."""
    pieces, cuts = split(inside, lambda name: name in (":", "|"))
    if len(cuts) == 1 and is_name(split(pieces[0], lambda name: name == r"\in")[0][0]):
        return read_tokens(text, pieces[1])
    pieces, _ = split(inside, lambda name: name in (",", ";"))
    items = [read_tokens(text, piece) for piece in pieces if piece]
    if any(isinstance(item, Unreadable) for item in items):
        return None
    return Group("set", tuple(one for item in items for one in members(item)))


def matrix(text: str, inside: Tokens) -> Value | None:
    """Rows of values."""
    lines = [line for line in split(inside, lambda name: name == r"\\")[0] if line]
    cells = [split(line, lambda name: name == "&")[0] for line in lines]
    return Group(
        "matrix",
        tuple(Group("tuple", tuple(read_tokens(text, c) for c in row)) for row in cells),
    )


def numeral(text: str, tokens: Tokens) -> Value | None:
    """An exact number."""
    whole = slice_of(text, tokens).replace(" ", "")
    if re.fullmatch(r"[+-]?\\infty", whole):
        return Number(-inf if whole[0] == "-" else inf, text=whole)
    if (value := exact([token[0] for token in tokens])) is None:
        return None
    power = r"(?:\\(?:cdot|times)10\^\{?(-?\d+)\}?)?"
    found = re.fullmatch(rf"[+-]?\(?\d*\.(\d+){power}\)?", whole)
    step = Fraction(10) ** (int(found[2] or 0) - len(found[1])) if found else None
    return Number(value, step, text=whole)


def measured(text: str, tokens: Tokens) -> Value | None:
    """A number or expression with a unit, a percentage or degrees."""
    names = [token[0] for token in tokens]
    for i in range(1, len(tokens)):
        apart = text[tokens[i].start() - 1] == " "
        unit = "percent" if names[i:] == ["%"] else unit_of(names[i:], apart)
        worded = names[i].startswith(r"\text") or r"\text" in "".join(names[i : i + 4])
        if unit and (worded or names[i] == "%" or exact(names[:i]) is not None):
            return with_unit(read_tokens(text, tokens[:i]), unit)
    return None


SCALES = {"": "", "C": "celsius", "F": "fahrenheit", "K": "kelvin"}


def unit_of(names: list[str], apart: bool) -> str:
    """The unit that tokens are, "" if they are none; `apart` if a space stands before them."""
    whole = "".join(names)
    if scale := re.fullmatch(r"\^\{?\\circ\}?(?:\\text\{)?([CFK]?)\}?", whole):
        return f"degrees {SCALES[scale[1]]}".strip()
    if not all(
        re.fullmatch(r"\\text\{.*\}|[^\W\d_]+|\\frac|\\cdot|[{}/^.()-]|-?[23]", n) for n in names
    ):
        return ""
    over = re.sub(r"\\frac \{ (.*?) \} \{ (.*) \}", r"\1 / \2", " ".join(names))
    over = re.sub(r" ?\( ?s ?\)", "s", over)
    words = " ".join(re.sub(r"\\text|\\cdot|[{}().]", " ", over).split()).casefold()
    words = words.removesuffix(" and")
    letters = re.findall(r"[^\W\d_]+", words)
    if NO_UNIT.search(words) or not 0 < len(letters) <= 6:
        return ""
    if names[0] == r"\frac":
        return words if r"\text" in whole else ""
    apart = apart or not names[0].isascii()
    known = names[0].startswith(r"\text") or (apart and (is_word(names[0]) or names[0] == "of"))
    short = SHORT_UNITS.fullmatch(names[0]) and (apart or len(names) == 1)
    return words if known or short else ""


def with_unit(value: Value, unit: str) -> Value | None:
    """The same quantity with its unit; a million is no unit but a factor."""
    first, _, rest = unit.partition(" ")
    if isinstance(value, Number) and first in MAGNITUDES:
        value, unit = replace(value, value=value.value * MAGNITUDES[first], step=None), rest
    if isinstance(value, Number) and unit in ("percent", "per cent"):
        return replace(value, percent=True)
    return replace(value, unit=unit) if isinstance(value, Number | Expression) else None


READERS: tuple[Callable[[str, Tokens], Value | None], ...] = (
    *(in_letters, because, half, glossed, several, related, united, compared, residue, both_signs),
    *(based, chosen, grouped, numeral, summed, measured),
)


def is_word(name: str) -> bool:
    """Whether letters are a word, not a product of variables."""
    if not name.isalpha():
        return name.startswith(r"\text{")
    if not name.isascii():
        return True
    long = len(name) > 3 or name.casefold() in SHORT_WORDS or re.fullmatch("[A-Z][a-z]+", name)
    return bool(long) and not FUNCTIONS.fullmatch(name)


def in_words(whole: str, names: list[str]) -> Value | None:
    """A text that has words in it: an answer of a few words, or a sentence.

    So are three and more capital letters, or the letters of a figure: their order counts.
    """
    figure = re.fullmatch(
        r"\\(?:angle|triangle|overline)?\{?[A-Z]{2,}\}?|[A-Z]{3,}", "".join(names)
    )
    if not figure and not any(map(is_word, names)):
        return None
    text = re.sub(r"\\text\{([^{}]*)\}", r" \1 ", whole)
    text = " ".join(re.sub(r"[^\w\\^{}<>=+/*'() -]", " ", text).split()).casefold()
    text = re.sub(r"^(?:an?|the) ", "", text)
    short = len(text.split()) <= MAX_WORDS
    return Word(SYNONYMS.get(text, text)) if short else Unreadable(whole, "it is a sentence")


def hedged(text: str) -> bool:
    """Whether words take back what stands beside them."""
    return HEDGES.search(text) is not None


def exact_decimals(text: str) -> str:
    """Decimals as fractions; degrees inside of an expression as radians."""
    text = re.sub(r"(?<!\d)(\d+) ?\^ ?\{? ?\\circ ?\}?", r"\\frac{\1\\pi}{180}", text)
    decimal = r"(?<![\d.])\d*\.\d+|\d+\.(?!\d)"
    text = re.sub(decimal, lambda found: latex(Fraction(found[0].rstrip("."))), text)
    return re.sub(r"(?<![\d^_{/.])1(?=[a-z])", "", text)
