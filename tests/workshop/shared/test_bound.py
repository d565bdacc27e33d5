"""Numbers in the prose come from the run, and a run that shows others says so."""

import json

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from workshop.shared import bound
from workshop.shared.bound import bound_numbers, filled, hold, without_bindings
from workshop.tools import runner
from workshop.tools.hygiene import paragraphs

TEXT = 'ends at **0.77<!--{final["a, b"]:.2f}-->**, a gain of −3%<!--{x > 1 and -y:.0%}-->.'


def test_a_slot_is_a_number_an_expression_and_a_format():
    first, second = bound_numbers(TEXT)
    assert (first.shown, first.expression, first.form) == ("0.77", 'final["a, b"]', ".2f")
    assert (second.shown, second.value({"x": 2, "y": 0.051})) == ("−3%", "−5%")


def test_a_reader_sees_no_expression_and_no_word_is_counted_for_one():
    seen = "a gain of −3%."
    text = "a gain of −3%<!--{x > 1 and -y:.0%}-->."
    assert without_bindings(text) == seen and paragraphs(text) == [seen]


def test_values_are_written_in_front_of_their_expressions_and_nothing_else_changes():
    text = "from 1.0<!--{a:.1f}--> to 2<!--{len(b):d}-->; 3 stays"
    new = filled(text, {"a:.1f": "1.5", "len(b):d": "4"})
    assert without_bindings(new) == "from 1.5 to 4; 3 stays"
    assert filled(new, {"a:.1f": "1.0", "len(b):d": "2"}) == text


@pytest.fixture
def book(tmp_path, monkeypatch):
    (tmp_path / "chapters").mkdir()
    monkeypatch.setattr(bound, "ROOT", tmp_path)
    path = tmp_path / "chapters" / "99_try.ipynb"
    code = ["x = 0.25", f"import workshop.shared.bound as b; b.ROOT = b.Path({str(tmp_path)!r})"]
    cells = [
        new_markdown_cell("A quarter is 0.99<!--{x:.2f}-->."),
        *map(new_code_cell, code),
        new_code_cell("b.hold('99_try', globals())"),
    ]
    nbformat.write(new_notebook(cells=cells), path)
    return path


def test_executing_the_book_writes_the_numbers_of_the_run(book):
    runner.execute(book)
    first, *_, last = json.loads(book.read_text())["cells"]
    assert "".join(first["source"]) == "A quarter is 0.25<!--{x:.2f}-->."
    assert "1 numbers in the text are those of this run" in "".join(last["outputs"][0]["text"])


def test_a_run_of_ones_own_says_which_sentence_is_about_another(book, capsys):
    hold("99_try", {"x": 0.25})
    said = capsys.readouterr().out
    assert "0 of 1 numbers" in said and "the text says 0.99, this run 0.25: x" in said
    with pytest.raises(ValueError, match="x has no value at the end"):
        hold("99_try", {})


def test_numbers_that_no_cell_fills_are_refused(book):
    notebook = nbformat.read(book, as_version=4)
    with pytest.raises(ValueError, match="does not call `hold`"):
        runner.fill(notebook, {})


def test_a_binding_that_no_run_could_fill_again_is_refused():
    with pytest.raises(ValueError, match=r"<!--\{x\}--> binds no number"):
        list(bound_numbers("a quarter is 0.25<!--{x}-->"))
    (interval,) = bound_numbers("from 1 to 2<!--{x:}-->")
    with pytest.raises(ValueError, match="no single word: bind its parts"):
        interval.value({"x": "1 to 2"})
