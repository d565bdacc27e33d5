r"""Rows of data sets as they are shipped: kinds of files, and where question and answer stand.

GSM8K, MATH, AIME, DAPO and every file for verl, Nemotron, SimpleRL, Open-Reasoner-Zero, OpenRLHF.
"""

import ast
import csv
import gzip
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from math import isnan
from pathlib import Path
from typing import Any, NamedTuple, cast

from rlbook.tasks.formats import answer_in_boxes, box_spans, boxed_answers
from rlbook.tasks.references import UNMARKED, is_sentence, meaning
from rlbook.tasks.values import Unreadable, Word


class Cell(NamedTuple):
    """A value of a row, and the columns that it is from."""

    value: Any
    columns: tuple[str, ...]


NOTHING = Cell(None, ())
Row = dict[str, Cell]  # by lower-case names

TALKS = ("messages", "conversations", "conversation")  # both sides of one
QUESTIONS = (
    "question",
    "prompt",
    "problem",
    "query",
    "source_prompt",
    "input",
    "instruction",
    "said",
)
WORKED = ("solution", "output", "response", "completion", "replied")  # not the answer alone
ANSWERS = (
    *("answer", "final_answer", "expected_answer", "gt_answer", "ground_truth", "target", "label"),
    *("reference_answer", *WORKED),
)
INNER = ("reward_model", "reward_spec", "verification_info", "extra_info")  # may hold the answer
CHECKED = (  # whose answers are the same in a sound row
    *("answer", "final_answer", "expected_answer", "gt_answer", "ground_truth", "target"),
    *("reference_answer", "solution"),
)
CONTEXTS = ("body", "context", "passage", "background", "instruction", "input")  # of a question
NESTED = (*TALKS, *QUESTIONS, *INNER)  # may be written out as text
SIDES = {"human": "user", "gpt": "assistant", "model": "assistant"}
PARTS = {"train": ("train",), "held out": ("test", "validation", "valid", "val", "dev", "eval")}
SENTENCE = re.compile(r"(?i:answer)(?i: is|:| =)+\s*(.+?)\.?\s*$")


@dataclass(frozen=True)
class Reading:
    """What was read in a row, the columns that question and answer are from, and what was not read.

    `others` are further answers in it, by column; `unasked` is what a conversation holds besides,
    `boxes` are several of which only the last was taken.
    """

    question: str
    answer: str
    asked: tuple[str, ...]
    answered: tuple[str, ...]
    ignored: tuple[str, ...] = ()
    others: Mapping[str, str] = field(default_factory=dict)
    unasked: Mapping[str, str] = field(default_factory=dict)
    boxes: tuple[str, ...] = ()
    level: object = None


def read_row(row: object, where: str) -> Reading:
    """A row; `ValueError` that says what was looked for and what stands there."""
    if isinstance(row, ValueError):  # a line that is no row
        raise row
    found = flat(row)
    question, name, asked = field_of(found, QUESTIONS, where, row)
    question, beside = with_context(found, name, question)
    answer, source, answered = field_of(found, ANSWERS, where, row)
    reference = final_answer(answer, worked=source in WORKED)
    if not reference:
        raise ValueError(f"{where}: the answer is empty")
    boxes = tuple(boxed_answers(answer))
    texts = {name: text_of(found[name].value) for name in CHECKED if name in found}
    others = {
        found[name].columns[0]: final_answer(text, worked=name in WORKED)
        for name, text in texts.items()
        if text and not set(found[name].columns) & set(answered)
    }
    given = row if isinstance(row, dict) else {}
    level = found.get("level", NOTHING)
    used = {*asked, *beside, *answered, *level.columns}
    return Reading(
        question,
        reference,
        (*beside, *asked),
        answered,
        tuple(str(name) for name, v in given.items() if name not in used and v not in (None, "")),
        others,
        unasked([found[c].value for c in found if set(found[c].columns) & set(asked)]),
        boxes if len(set(boxes)) > 1 and reference == boxes[-1].strip() else (),
        level.value,
    )


def with_context(row: Row, name: str, question: str) -> tuple[str, tuple[str, ...]]:
    """The question of column `name` with what it is about, and the columns of that."""
    used: tuple[str, ...] = ()
    for beside in CONTEXTS:
        text = text_of(row[beside].value) if beside in row and beside != name else ""
        if text and text not in question and question not in text:
            parts = (question, text) if beside == "input" else (text, question)
            question, used = "\n\n".join(parts), (*used, *row[beside].columns)
    return question, used


def flat(row: object) -> Row:
    """A row by lower-case names, with what its inner fields and its conversation hold."""
    assert isinstance(row, dict | list)
    given = row if isinstance(row, dict) else {TALKS[0]: row}
    names = {str(name): re.sub(r"[\s-]+", "_", str(name).strip().lower()) for name in given}
    small = {
        names[str(name)]: Cell(written_out(v) if names[str(name)] in NESTED else v, (str(name),))
        for name, v in given.items()
    }
    lone = {
        name: small[name]._replace(value=small[name].value[0])
        for name in ANSWERS
        if name in small and is_lone(small[name].value)
    }
    inner = [small[name] for name in INNER if name in small and isinstance(small[name].value, dict)]
    truth = [
        Cell(alone(cell.value[name]), cell.columns)
        for name in ("ground_truth", "answer")
        for cell in inner
        if name in cell.value
    ]
    asked = [Cell(c.value["question"], c.columns) for c in inner if "question" in c.value]
    talk = next((small[name] for name in TALKS if name in small), NOTHING)
    found = {name: Cell(v, talk.columns) for name, v in conversation(talk.value).items()}
    found |= {"question": asked[0]} if asked else {}
    found |= {"ground_truth": truth[0]} if truth else {}
    return found | small | lone | offered(found | small)


def offered(row: Row) -> Row:
    """The question with the choices that stand beside it, and the letter of the right one."""
    offer = row.get("choices", row.get("options", NOTHING))
    question, right = row.get("question", NOTHING), row.get("answerkey", row.get("answer", NOTHING))
    texts = offer.value.get("text") if isinstance(offer.value, dict) else offer.value
    asked, letters = text_of(question.value), "ABCDEFGHIJ"
    if not isinstance(texts, list) or not texts or not all(isinstance(t, str) for t in texts):
        return {}
    key = right.value
    if isinstance(key, int) and not isinstance(key, bool) and 0 <= key < len(texts):
        key = letters[key]
    if not asked or key not in list(letters[: len(texts)]):
        return {}
    listed = "\n".join(f"({letter}) {t}" for letter, t in zip(letters, texts, strict=False))
    whole = asked if texts[0] in asked else f"{asked}\n{listed}"
    columns = (*question.columns, *offer.columns)
    return {"answer": Cell(key, right.columns), "question": Cell(whole, columns)}


def alone(value: Any) -> Any:
    """An answer out of the list of one that it is in, which may be written out as JSON."""
    if isinstance(value, str) and value.startswith('["'):
        with suppress(json.JSONDecodeError):
            value = json.loads(value)
    return value[0] if is_lone(value) else value


def is_lone(value: object) -> bool:
    """Whether an answer is in a list of its own."""
    return isinstance(value, list) and len(value) == 1


def written_out(value: object) -> object:
    """A conversation or an inner row that stands there as text, in JSON or as Python writes it."""
    if isinstance(value, str) and value.lstrip().startswith(("[{", "{")):
        for reader in (json.loads, ast.literal_eval):
            with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
                found = reader(value)
                if isinstance(found, dict) or (isinstance(found, list) and is_spoken(found)):
                    return found
    return value


def is_spoken(row: list[object]) -> bool:
    """Whether each turn says who speaks."""
    return is_talk(row) and all({"role", "from"} & set(cast(dict[str, Any], t)) for t in row)


def conversation(turns: object) -> dict[str, Any]:
    """What a user said last and what was replied to it, or what should have been."""
    found: dict[str, Any] = {}
    for side, text, turn in spoken(turns):
        if side == "user":
            found = {"said": text}
        elif side == "assistant":
            found |= {"replied": text}
            found |= {name: turn[name] for name in ("ground_truth",) if name in turn}
    return found


def spoken(turns: object) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Who speaks in each turn of a conversation, and what."""
    for turn in turns if isinstance(turns, list) and is_talk(turns) else ():
        side = str(turn.get("role", turn.get("from", "user")))
        yield SIDES.get(side, side), turn.get("content", turn.get("value")), turn


def unasked(values: Iterable[object]) -> dict[str, str]:
    """What a conversation holds besides the last question: its system message, earlier ones."""
    found: dict[str, str] = {}
    for turns in values:
        known = isinstance(turns, list) and is_spoken(turns)  # not the pieces of one message
        said = [(side, text_of(text)) for side, text, _ in spoken(turns if known else None)]
        questions = [text for side, text in said if side == "user"]
        orders = [text for side, text in said if side == "system"]
        for what, texts in (("system message", orders), ("earlier turns", questions[:-1])):
            found |= {what: texts[0]} if texts else {}
    return found


def field_of(
    row: Row, names: Sequence[str], where: str, given: object
) -> tuple[str, str, tuple[str, ...]]:
    """The first of these fields that holds a text, its name and columns; `given` is the raw row."""
    for name in names:
        if name in row and (text := text_of(row[name].value)):
            if any("\ud800" <= character <= "\udfff" for character in text):
                raise ValueError(f"{where}: {name} has half a surrogate pair: write valid Unicode")
            return text, name, row[name].columns
    if cell := next((row[name] for name in names if name in row), None):
        what = " + ".join(cell.columns) + f" is {described(cell.value)}"
        raise ValueError(f"{where}: no {names[0]}, {what}: one text is read")
    there = given if isinstance(given, dict) else {"a list": given}
    found = ", ".join(f"{name} ({type(value).__name__})" for name, value in there.items())[:300]
    raise ValueError(
        f"{where}: no {names[0]}; looked for a text in {', '.join(names[:-1])}, in {TALKS[0]} or "
        f"in {', '.join(INNER)}; it has {found}: add the field or rename it"
    )


def described(value: object) -> str:
    """What stands where a text should."""
    if isinstance(value, str):
        return "empty"
    if isinstance(value, list):
        kinds = {str(one.get("type", "message")) for one in value if isinstance(one, dict)}
        return f"a list of {len(value)}" + (f" ({', '.join(sorted(kinds))})" if kinds else "")
    if isinstance(value, dict):
        return f"an object of {', '.join(map(str, value))}"[:80]
    return "null" if value is None else str(value)


def text_of(value: object) -> str:
    """Text, a number, one of them under "value" or "text", or the last thing that a user said."""
    if isinstance(value, float):
        if isnan(value):
            return ""
        return str(int(value)) if value.is_integer() else format(Decimal(repr(value)), "f")
    if isinstance(value, str | int):
        return str(value).strip()
    if isinstance(value, dict):
        return text_of(value.get("value", value.get("text")))
    if not isinstance(value, list) or not is_talk(value):
        return ""
    if all("text" in piece for piece in value):  # a message in pieces
        return "\n".join(filter(None, map(text_of, value)))
    return text_of(conversation(value).get("said"))


def final_answer(text: str, worked: bool = False) -> str:
    r"""The reference in an answer, or in a `worked` solution.

    Of what is in `<answer>` tags, or of all: boxes that follow everything else, else the line of a
    "####" that ends the text, else what "the answer is", else the text; of a worked solution
    without any of these, nothing that is in words.
    """
    if tagged := re.findall(r"<answer>(.*?)</answer>", text, re.S):
        text = tagged[-1].strip()
    before, mark, line = text.rpartition("####")
    if mark and not box_spans(line) and not before.endswith("#"):
        line, _, rest = line.partition("\n")
        meant = line.strip()
        if not rest.strip() or (meant and not isinstance(meaning(meant), Word | Unreadable)):
            return unseparated(meant)
    if boxes := box_spans(text):
        return answer_in_boxes(text, boxes)
    if found := SENTENCE.search(text):
        text = found[1]
    elif worked and is_wordy(text):
        return text + UNMARKED
    return unseparated(text.strip().rstrip("."))


def is_wordy(text: str) -> bool:
    """Whether a text is no value but words."""
    value = meaning(text)
    return isinstance(value, Word | Unreadable) or is_sentence(value, text)


def unseparated(text: str) -> str:
    """A number in thousands without its commas; every other comma separates something."""
    number = re.fullmatch(r"(-?)\\?\$?(\d{1,3}(?:,\d{3})+(?:\.\d+)?)", text)
    return number[1] + number[2].replace(",", "") if number else text


def level_of(value: object, where: str) -> int:
    """A level as an integer: 3, "3" or "Level 3"; 0 if there is none or it is "Level ?"."""
    found = re.search(r"\d{1,9}", str(value))
    if value is None or (not found and "?" in str(value)):
        return 0
    if not found:
        raise ValueError(f"{where}: level {value!r} has no number: use 1, 2, 3, …")
    return int(found[0])


def part_files(folder: Path) -> dict[str, list[Path]]:
    """The files of each part of a folder, or of its folder `data`, as the hub lays them out."""
    known = [
        p for p in sorted([*folder.glob("*"), *folder.glob("data/*")]) if kind_of(p) in READERS
    ]
    found = {
        part: [p for p in known if re.split(r"[^a-z]", p.name.lower())[0] == name]
        for part, names in PARTS.items()
        for name in names[::-1]
        if any(re.split(r"[^a-z]", p.name.lower())[0] == name for p in known)
    }
    return found or ({"train": known} if len(known) == 1 else {})


def kind_of(path: Path) -> str:
    """The kind of a file, by its name without ".gz"."""
    return Path(path.name.removesuffix(".gz")).suffix.lower()


def rows_of(path: Path) -> Iterator[tuple[str, object]]:
    """Each row of a file with where it stands; for one that is none, the `ValueError` it is."""
    data = path.read_bytes()
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    if data[:4] == b"PAR1":
        yield from parquet_rows(path, data)
        return
    for head, what, fix in NO_DATA:
        if data.startswith(head):
            raise ValueError(f"{path} is {what}: {fix}")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text ({error}): save it as UTF-8") from None
    yield from READERS.get(kind_of(path), json_lines)(path, text)


NO_DATA = (
    (b"version https://git-lfs", "a pointer of Git LFS, not the data", "fetch it, git lfs pull"),
    (b"PK\x03\x04", "a zip archive", "unpack it"),
    (b"\x28\xb5\x2f\xfd", "compressed by zstd", "unpack it"),
    (b"ARROW1", "an Arrow file", "save it as parquet or JSONL"),
)


def json_lines(path: Path, text: str) -> Iterator[tuple[str, object]]:
    """One object on each line; blank lines are skipped."""
    for number, line in enumerate(text.split("\n"), 1):
        where = f"{path}, line {number}"
        if not line.strip():
            continue
        try:
            row = json.loads(line.strip().rstrip(","))
        except (json.JSONDecodeError, RecursionError) as error:
            row = ValueError(f"{where}: not JSON ({error}): one object per line")
        else:
            if not isinstance(row, dict) and not (isinstance(row, list) and is_talk(row)):
                told = f'expected {{"question": …, "answer": …}}, got {line[:40]!r}'
                row = ValueError(f"{where}: {told}")
        yield where, row


def is_talk(row: list[object]) -> bool:
    """Whether a list is a conversation."""
    return bool(row) and all(isinstance(turn, dict) for turn in row)


def json_list(path: Path, text: str) -> Iterator[tuple[str, object]]:
    """A list of objects, also under a name such as "data"; else one object on each line."""
    try:
        rows = json.loads(text)
    except (json.JSONDecodeError, RecursionError):
        rows = None
    if isinstance(rows, dict):
        rows = listed(rows)
    if not isinstance(rows, list) or not all(isinstance(row, dict | list) for row in rows):
        yield from json_lines(path, text)
        return
    yield from ((f"{path}, row {index}", row) for index, row in enumerate(rows))


def listed(whole: dict[str, Any]) -> object:
    """The rows of a document that is no list: one of its lists, its columns, or its values."""
    values = list(whole.values())
    lists = [value for value in values if isinstance(value, list)]
    if len(lists) > 1 and len({*map(len, lists)}) == 1 and not any(map(is_talk, lists)):
        names = [name for name, value in whole.items() if isinstance(value, list)]
        return [dict(zip(names, row, strict=True)) for row in zip(*lists, strict=True)]
    every = len(values) > 1 and all(isinstance(value, dict) for value in values)
    return values if every else next(iter(lists), None)


def table(path: Path, text: str) -> Iterator[tuple[str, object]]:
    """Values under a line of names, with commas, semicolons or tabs between them."""
    mark = max(",;\t", key=text.partition("\n")[0].count)
    lines = csv.DictReader(io.StringIO(text, newline=None), delimiter=mark)
    try:
        for number, row in enumerate(lines, 2):
            where = f"{path}, line {number}"
            if beyond := row.pop(None, ()):
                many = f"{len(row) + len(beyond)} values under {len(row)} names"
                fix = f"put quotes around what holds {mark!r}"
                yield where, ValueError(f"{where}: {many}: {fix}")
            else:
                yield where, row
    except csv.Error as error:
        raise ValueError(
            f"{path}, after line {lines.line_num}: {error}: save it as JSONL"
        ) from None


def parquet_rows(path: Path, data: bytes) -> Iterator[tuple[str, object]]:
    """The rows of a parquet file."""
    try:
        from pyarrow import parquet
    except ImportError:
        raise ImportError(
            f"{path} is parquet, which pyarrow reads: pip install -e '.[datasets]' (or give JSONL)"
        ) from None
    try:
        rows = parquet.read_table(io.BytesIO(data)).to_pylist()
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} is no whole parquet file ({error}): fetch it again") from None
    yield from ((f"{path}, row {index}", row) for index, row in enumerate(rows))


READERS: dict[str, Callable[[Path, str], Iterator[tuple[str, object]]]] = {
    **{".jsonl": json_lines, ".ndjson": json_lines, ".json": json_list, ".csv": table},
    ".tsv": table,
    ".parquet": json_lines,  # never as text
}
