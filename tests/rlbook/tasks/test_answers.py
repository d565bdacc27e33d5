"""Answers as people write them: both error rates of the verifier over three files of cases.

`answers/reported.jsonl` holds small inputs made of public reports (`source` names the thread),
`answers/further.jsonl` others of the same kinds, written before the code was tried on them, and, as
"later", some that were written afterwards. `answers/outside.jsonl` has what somebody found who did
not know the code, with as many cases of the same kinds again. A `convention` is a matter of taste
and is not counted.
"""

import json
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from time import process_time

import pytest

from rlbook.tasks.answers import read
from rlbook.tasks.compare import same
from rlbook.tasks.math_answers import verify_math
from rlbook.tasks.notation import plain
from rlbook.tasks.values import Number, Region, type_of

CASES = Path(__file__).parent / "answers"


def judged(name):
    for line in (CASES / name).read_text().splitlines():
        case = json.loads(line)
        text = case.get("text") or rf"So the answer is \boxed{{{case.get('answer', '')}}}."
        verdict = verify_math(text, case["reference"], case.get("finished", True), seconds=2)
        if not case.get("convention"):
            yield case, verdict.correct


@pytest.mark.parametrize(
    ("name", "least", "may_miss"),
    [("reported", 300, 0.02), ("further", 500, 0.02), ("outside", 130, 0)],
)
def test_error_rates_over_the_case_files(name, least, may_miss, capsys):
    pytest.importorskip("math_verify")
    rows = list(judged(f"{name}.jsonl"))
    wrongly_right = [case for case, said in rows if said and not case["right"]]
    missed = [case for case, said in rows if case["right"] and not said]
    wrong, right = (sum(case["right"] is truth for case, _ in rows) for truth in (False, True))
    with capsys.disabled():
        print(
            f"\n{name}: {len(wrongly_right)} of {wrong} wrong answers pass, "
            f"{len(missed)} of {right} right ones do not"
        )
    assert len(rows) >= least
    assert wrongly_right == []
    assert len(missed) <= may_miss * right, missed


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        *(("-17", "integer"), (r"\frac{3}{4}", "fraction"), ("0.25", "decimal")),
        ("x = 5", "integer"),
        *(("1011_2", "base-n"), ("(0, 1]", "interval"), ("x > 3", "interval"), ("(1, 2)", "tuple")),
        *((r"\{1, 2\}", "set"), ("1, 2", "list"), (r"\text{Tuesday}", "word"), ("2:3", "ratio")),
        *((r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", "matrix"), ("x + y = 3", "equation")),
        *(("x^2 + 1", "expression"), ("12:30", "clock"), (r"\mathbb{R}", "interval")),
        *(("", "unreadable"), (r"\frac{1", "unreadable"), ("7 7", "unreadable")),
        ("Clearly this holds for all numbers, by induction.", "unreadable"),
        ("We add 1 and 4, which gives 5. Therefore, Tom has 5 apples.", "unreadable"),
        *(("red, blue", "list"), ("Anna, Bob and Carl", "list"), ("北京", "word")),
        *(("2024-01-10", "word"), ("nine", "integer"), ("[[1,2],[3,4]]", "list")),
    ],
)  # fmt: skip
def test_types(text, kind):
    assert type_of(read(text)) == kind


@pytest.mark.parametrize("top", [-12345, -7, 0, 1, 3, 1234567])
@pytest.mark.parametrize("bottom", [1, 2, 8, 12, 125])
def test_spellings_of_a_fraction_have_its_value(top, bottom):
    value, sign, size = Fraction(top, bottom), "-" * (top < 0), abs(top)
    spellings = [rf"{sign}\frac{{{size}}}{{{bottom}}}", f"{top}/{bottom}", rf"{top} \div {bottom}"]
    spellings += [
        rf"\dfrac{{{top}}}{{{bottom}}}",
        rf"$\mathbf{{{top}}}/{bottom}$",
        f"({top})/({bottom})",
    ]
    whole, rest = divmod(size, bottom)
    if whole and rest:
        part = Fraction(rest, bottom)
        spellings += [rf"{sign}{whole}\frac{{{part.numerator}}}{{{part.denominator}}}"]
        spellings += [f"{sign}{whole} {part.numerator}/{part.denominator}"]
    if bottom in (1, 2, 8, 125):
        spellings += [f"{top / bottom:.9f}", f"{top / bottom:.12e}"]
    if bottom == 1:
        spellings += [
            f"{top:,}",
            f"{top:,}".replace(",", r"\,"),
            f"{top:,}".replace(",", " "),
            f"{top:,}.00",
        ]
    assert {text: read(text).value for text in spellings} == dict.fromkeys(spellings, value)


def nobody(*question):
    raise AssertionError(f"a computer algebra system was asked {question}")


@pytest.mark.parametrize("low", [Fraction(-1), Fraction(1, 3)])
def test_intervals_are_equal_where_their_members_are(low):
    """Membership of the ends and of points around them decides, for every pair of 16 intervals."""

    def holds(region, x):
        return any(
            (a.value < x or (a.value == x and has_a)) and (x < b.value or (x == b.value and has_b))
            for a, has_a, b, has_b in region.parts
        )

    points = [low + Fraction(i, 4) for i in range(-1, 10)]
    texts = [
        f"{a}{low}, {low + 1}{b} \\cup {c}{start}, {low + 2}{d}"
        for a in "([" for b in ")]" for c in "([" for d in "])"
        for start in (low + 1, low + Fraction(3, 2))
    ]  # fmt: skip
    for one in texts:
        for other in texts:
            mine, theirs = read(one), read(other)
            assert isinstance(mine, Region)
            alike = [holds(mine, x) for x in points] == [holds(theirs, x) for x in points]
            assert same(mine, theirs, nobody) == alike, (one, other)


def test_reading_takes_bounded_time_and_never_raises():
    for text in (
        "{" * 900,
        "(" * 900,
        "9" * 900,
        "^" * 900,
        r"\frac" * 180,
        "1," * 450,
        "10^{9}!" * 9,
        "a=" * 400,
    ):
        assert type_of(read(text)) in {"unreadable", "expression", "integer", "list", "equation"}


@pytest.mark.parametrize(
    "missing", ["proof", "not found", "N/A", "n/a", "NaN", "None", "null", "?", "-", r"\text{N/A}"]
)
def test_a_placeholder_is_no_reference(missing):
    with pytest.raises(ValueError, match="cannot read the reference"):
        verify_math(rf"\boxed{{{missing}}}", missing)
    assert not verify_math(rf"\boxed{{{missing}}}", "5").correct


def nested(opening, inside, closing, times):
    return opening * times + inside + closing * times


@pytest.mark.parametrize(
    "text",
    [
        *(nested(o, "1", c, 200) for o, c in ("()", "[]", ("-(", ")"), "{}", ("(1,", ")"))),
        *(nested("(", "x", ")", 480), nested("(1:", "2", ")", 190), nested("[", "1", "]", 330)),
        *("|" * 200, "|" * 900, r"\sqrt" * 190, r"\frac" * 190, "A) " * 320, "()" * 490),
        *("(x)" * 300, "7 (seven)" * 100, "1 and a half" + " and a half" * 80, "9" * 999),
        *("3 hours " * 100 + "20 minutes", "twenty " * 140, "北" * 900, r"\text{a}" * 120),
    ],
)
def test_degenerate_texts_are_wrong_at_once(text):
    started = process_time()
    assert not verify_math(rf"\boxed{{{text}}}", "5", seconds=1).correct
    with suppress(ValueError):  # no reference
        assert not verify_math(r"\boxed{5}", text, seconds=1).correct
    assert process_time() - started < 2


def test_nesting_that_people_write_is_read():
    assert read(nested("(", "7", ")", 20)) == read("7")
    assert type_of(read(nested(r"1+\frac{1}{", "x", "}", 12))) == "expression"


@pytest.mark.parametrize("text", ["9" * 20_000, "(" * 100_000, "1.1" * 5_000, "1,234" * 20_000])
def test_long_texts_are_not_read(text):
    started = process_time()
    assert type_of(read(text)) == "unreadable"
    assert process_time() - started < 0.1


def test_plain_is_a_normal_form():
    for text in (
        r"\textcolor{red}{1\,234\tfrac12}",
        "½ + √2",
        r"\text{ 5 cm }",
        "x**2 + pi/2",
        "२३",
    ):
        assert plain(plain(text)) == plain(text)
    assert read("0.50") == Number(Fraction(1, 2), Fraction(1, 100))
