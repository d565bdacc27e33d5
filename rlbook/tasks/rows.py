r"""Rows of data sets as they are shipped: kinds of files, and where question and answer stand.

GSM8K, MATH, AIME, DAPO and every file for verl, Nemotron, SimpleRL, Open-Reasoner-Zero, OpenRLHF.
"""

import csv
import gzip
import io
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

from rlbook.tasks.answers import read
from rlbook.tasks.formats import answer_in_boxes, box_spans
from rlbook.tasks.values import Unreadable, Word

Row = dict[str, Any]

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
UNMARKED = " ####"  # ends a reference in which no answer is marked: it cannot be read
PARTS = {"train": ("train",), "held out": ("test", "validation", "valid", "val", "dev", "eval")}
SENTENCE = re.compile(r"(?i:answer)(?i: is|:| =)+\s*(.+?)\.?\s*$")


def question_and_answer(row: object, where: str) -> tuple[str, str]:
    """The two texts of a row; `ValueError` that says what was looked for and what stands there."""
    found = flat(row)
    question, _ = field_of(found, QUESTIONS, where, row)
    answer, name = field_of(found, ANSWERS, where, row)
    reference = final_answer(answer, worked=name in WORKED)
    if not reference:
        raise ValueError(f"{where}: the answer is empty")
    return question, reference


def flat(row: object) -> Row:
    """A row by lower-case names, with what its inner fields and its conversation hold."""
    assert isinstance(row, dict | list)
    given = row if isinstance(row, dict) else {TALKS[0]: row}
    small = {re.sub(r"[\s-]+", "_", str(name).strip().lower()): v for name, v in given.items()}
    lone = {name: v[0] for name, v in small.items() if name in ANSWERS and is_lone(v)}
    inner = [document(small.get(name)) for name in INNER]
    truth = [one[name] for name in ("ground_truth", "answer") for one in inner if name in one]
    asked = [one["question"] for one in inner if "question" in one]
    found = conversation(next((small[name] for name in TALKS if name in small), ()))
    found |= {"question": asked[0]} if asked else {}
    found |= {"ground_truth": alone(truth[0])} if truth else {}
    for first, then in (("instruction", "input"), ("body", "question")):
        if small.get(first) and small.get(then):
            found["said"] = f"{small.pop(first)}\n\n{small.pop(then)}"
    return found | small | lone | offered(found | small)


def offered(row: Row) -> Row:
    """The question with the choices that stand beside it, and the letter of the right one."""
    choices = row.get("choices", row.get("options"))
    texts = choices.get("text") if isinstance(choices, dict) else choices
    asked, letters = text_of(row.get("question")), "ABCDEFGHIJ"
    if not isinstance(texts, list) or not texts or not all(isinstance(t, str) for t in texts):
        return {}
    key = row.get("answerkey", row.get("answer"))
    if isinstance(key, int) and not isinstance(key, bool) and 0 <= key < len(texts):
        key = letters[key]
    if not asked or key not in list(letters[: len(texts)]):
        return {}
    listed = "\n".join(f"({letter}) {t}" for letter, t in zip(letters, texts, strict=False))
    return {"answer": key, "question": asked if texts[0] in asked else f"{asked}\n{listed}"}


def alone(value: Any) -> Any:
    """An answer out of the list of one that it is in, which may be written out as JSON."""
    if isinstance(value, str) and value.startswith('["'):
        with suppress(json.JSONDecodeError):
            value = json.loads(value)
    return value[0] if is_lone(value) else value


def is_lone(value: object) -> bool:
    """Whether an answer is in a list of its own."""
    return isinstance(value, list) and len(value) == 1


def document(value: object) -> Row:
    """An inner row, also one that is written out as JSON; nothing for anything else."""
    if isinstance(value, str) and value.startswith("{"):
        with suppress(json.JSONDecodeError):
            value = json.loads(value)
    return value if isinstance(value, dict) else {}


def conversation(turns: object) -> Row:
    """What a user said last and what was replied to it, or what should have been."""
    found: Row = {}
    for turn in turns if isinstance(turns, list) and is_talk(turns) else ():
        side = turn.get("role", turn.get("from", "user"))
        text = turn.get("content", turn.get("value"))
        if side in ("user", "human"):
            found = {"said": text}
        elif side in ("assistant", "gpt", "model"):
            found |= {"replied": text, "ground_truth": turn.get("ground_truth")}
    return found


def field_of(row: Row, names: Sequence[str], where: str, given: object) -> tuple[str, str]:
    """The first of these fields that holds a text, and its name; `given` is the row as it came."""
    for name in names:
        if text := text_of(row.get(name)):
            if any("\ud800" <= character <= "\udfff" for character in text):
                raise ValueError(f"{where}: {name} has half a surrogate pair: write valid Unicode")
            return text, name
    there = given if isinstance(given, dict) else {"a list": given}
    found = ", ".join(f"{name} ({type(value).__name__})" for name, value in there.items())[:300]
    raise ValueError(
        f"{where}: no {names[0]}; looked for a text in {', '.join(names[:-1])}, in {TALKS[0]} or "
        f"in {', '.join(INNER)}; it has {found}: add the field or rename it"
    )


def text_of(value: object) -> str:
    """Text, a number, one of them under "value" or "text", or the last thing that a user said."""
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else format(Decimal(repr(value)), "f")
    if isinstance(value, str | int):
        return str(value).strip()
    if isinstance(value, dict):
        return text_of(value.get("value", value.get("text")))
    if not isinstance(value, list) or not is_talk(value):
        return ""
    if "text" in value[0]:  # a message in pieces
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
        if not rest.strip() or (meant and not isinstance(read(meant), Word | Unreadable)):
            return unseparated(meant)
    if boxes := box_spans(text):
        return answer_in_boxes(text, boxes)
    if found := SENTENCE.search(text):
        text = found[1]
    elif worked and isinstance(read(text), Word):
        return text + UNMARKED
    return unseparated(text.strip().rstrip("."))


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
    """Each row of a file with where it stands."""
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
            raise ValueError(f"{where}: not JSON ({error}): one object per line") from None
        if not isinstance(row, dict) and not (isinstance(row, list) and is_talk(row)):
            raise ValueError(f'{where}: expected {{"question": …, "answer": …}}, got {line[:40]!r}')
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


def listed(whole: Row) -> object:
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
    for number, row in enumerate(csv.DictReader(io.StringIO(text), delimiter=mark), 2):
        yield f"{path}, line {number}", row


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
