r"""References that no answer can meet are told from sound ones, and by their kind."""

from fractions import Fraction

import pytest

from rlbook.tasks import references
from rlbook.tasks.dataset import problem_of
from rlbook.tasks.references import fault, meaning
from rlbook.tasks.values import Group, Number, Unreadable, Word

FAULTS = {
    "To find it, we add 2 and 3, which gives 5.\n\nTherefore, Jungkook has 5 apples": "sentence",
    "Adding them up, we get 5 apples": "sentence",
    "This is clearly true, as everybody sees who looks at it for long enough": "sentence",
    '{"inputs": ["1\\n"], "outputs": ["2\\n"]}': "program",
    '[{"input": "1", "output": "2"}]': "program",
    "def f(x):\n    return x + 1": "program",
    "assert f(1) == 2": "program",
    "nan": "missing",
    "N/A": "missing",
    "#REF!": "missing",
    "not found": "missing",
    "proof": "missing",
    "3-5": "span",
    "9" * 1001: "unreadable",
    "?": "missing",
    "(1, 2": "unreadable",
}
SOUND = (
    *("17", "-3", "1-x", "3/4", "3 - x", "0.5", r"2^{10}-1", "x^2+1", "[0,1)", "{1,2}", "(1, 2)"),
    *("x=1 or x=2", "5 km", "3:30 PM", r"\text{(A)}", "2:3", "a/b/c"),
    *("Tuesday", "Na", "no real solutions", "北京", "red balls, green balls, blue balls"),
    "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday",
    "King Henry VIII, Queen Anne Boleyn",
    r"\begin{pmatrix}1&2\\3&4\end{pmatrix}",
)


@pytest.mark.parametrize("text", FAULTS)
def test_a_reference_that_no_answer_can_meet_is_named(text):
    assert fault(text)[0] == FAULTS[text]


@pytest.mark.parametrize("text", SOUND)
def test_sound_references_have_no_fault(text):
    assert fault(text) is None


def test_a_range_is_named_with_what_it_is_read_as():
    assert fault("3-5") == ("span", "is read as the number -2")


@pytest.mark.parametrize("text", ["2024-01-10", "10/01/2024", "March 1, 2023", "3-Apr", "1.2.2024"])
def test_a_date_is_named_unless_it_is_read_as_one(text, monkeypatch):
    monkeypatch.setattr(references, "read", lambda text: Number(Fraction(2013)))
    assert fault(text) == ("span", "is read as the number 2013")
    for value in (Group("date", ()), Word(text)):
        monkeypatch.setattr(references, "read", lambda text, value=value: value)
        assert fault(text) is None


@pytest.mark.parametrize("text", ["Thus it is $48$, as we see.", "Thus it is $48$."])
def test_a_worked_solution_without_a_mark_says_so(text):
    worked = problem_of({"problem": "q", "solution": text}, "here").answer
    assert fault(worked) == ("unmarked", "no box, no ####, no `the answer is`")


def test_what_the_reader_cannot_get_through_is_unreadable(monkeypatch):
    def overflows(text):
        raise RecursionError("too deep")

    monkeypatch.setattr(references, "read", overflows)
    assert fault("((1))") == ("unreadable", "reading it raised RecursionError")
    monkeypatch.undo()
    assert meaning("Tuesday") == Word("tuesday")
    assert isinstance(meaning("1" * 1001), Unreadable)
