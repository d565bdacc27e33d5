r"""References that no answer can meet, and which kind of text each of them is."""

import json
import re
from contextlib import suppress

from rlbook.tasks.answers import MAX_WORDS, read
from rlbook.tasks.math_answers import MAX_ANSWER_CHARS
from rlbook.tasks.values import Group, Number, Unreadable, Value, Word, type_of, unread

UNMARKED = " ####"  # ends a reference in which no answer is marked: it cannot be read
PHRASE = 3  # words from which on a member of a list is part of a sentence
MISSING = re.compile(  # what spreadsheets, pandas and NuminaMath write where there is nothing
    r"(?-i:#?N/?A)|n/a|<na>|-?nan|null|#(?:ref|value|div/0|name|num)[!?]?|[-?.…]+|"
    r"proof|not ?found|unknown|tbd|todo",
    re.I,
)
PROGRAM = re.compile(
    r"^\s*(?:```|def \w+ ?\(|class \w+.*[:{]|import \w|from \S+ import |assert\b.+[=(]|#include\b|"
    r"function \w+ ?\()",
    re.M,
)
WORDS = re.compile(r"(?<![\\\w])[^\W\d_]{2,}")  # not the name of a command
MONTH = r"(?:Jan|Feb|Mar|Apr|May|June?|July?|Aug|Sept?|Oct|Nov|Dec)[a-z]*\.?"
SPAN = re.compile(  # numbers that no arithmetic is meant with: 2024-01-10, 10/1/2024, 3-5, 3-Apr
    r"\d+(?: ?[-–] ?\d+)+|\d+(?:/\d+){2,}|\d+(?:\.\d+){2,}|"
    rf"\d{{1,2}}[ -]{MONTH}(?:[ ,-]+\d{{2,4}})?|{MONTH} \d{{1,2}}(?:st|nd|rd|th)?(?:,? \d{{4}})?"
)


def meaning(text: str) -> Value:
    """`read`, where a text that is too long or too deep for it is `Unreadable`, whatever it is."""
    if len(text) > MAX_ANSWER_CHARS:
        return Unreadable(text, f"it is longer than any answer may be, {MAX_ANSWER_CHARS:,}")
    try:
        return read(text)
    except Exception as error:
        return Unreadable(text, f"reading it raised {type(error).__name__}")


def fault(text: str) -> tuple[str, str] | None:
    """The kind of a reference that no answer can meet, and why where the kind does not say it.

    Kinds are those of `rlbook.tasks.audit.KINDS`.
    """
    if text.endswith(UNMARKED):
        return "unmarked", "no box, no ####, no `the answer is`"
    if MISSING.fullmatch(text):
        return "missing", ""
    if is_program(text):
        return "program", ""
    value = meaning(text)
    if is_sentence(value, text):
        return "sentence", ""
    if SPAN.fullmatch(text) and isinstance(value, Group | Number) and type_of(value) != "date":
        as_what = f"the number {value.value}" if isinstance(value, Number) else f"a {value.kind}"
        return "span", f"is read as {as_what}"
    nothing = next(unread(value), None)
    return ("unreadable", nothing.why) if nothing else None


def is_program(text: str) -> bool:
    """Whether it is source code, or a JSON object (or several) such as a program's tests."""
    if text[:1] in ("{", "["):
        with suppress(ValueError, RecursionError):
            document = json.loads(text)
            inside = document if isinstance(document, list) else [document]
            return any(isinstance(one, dict) and one for one in inside)
    return PROGRAM.search(text[:MAX_ANSWER_CHARS]) is not None


def is_sentence(value: Value, text: str) -> bool:
    """Whether it is prose, also such as was read for a list because there are commas in it."""
    if isinstance(value, Unreadable):
        return value.why == "it is a sentence" or len(WORDS.findall(text)) > MAX_WORDS
    small = [word for word in WORDS.findall(text) if word[0].islower()]  # of names few are
    return isinstance(value, Group) and len(small) >= MAX_WORDS and any(map(is_phrase, value.items))


def is_phrase(value: Value) -> bool:
    """Whether it is words, more than a name has."""
    return isinstance(value, Word) and len(value.text.split()) >= PHRASE
