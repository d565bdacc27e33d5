r"""Questions and answers from a file, a folder or the Hugging Face hub as a task."""

import hashlib
import json
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from rlbook.tasks.base import Problem, Verdict
from rlbook.tasks.formats import boxed_answers
from rlbook.tasks.math_answers import verify_math

QUESTION_FIELDS, ANSWER_FIELDS = ("question", "prompt", "problem"), ("answer", "solution")
HELD_OUT_SPLITS = ("test", "validation")
ONE_IN = 10  # questions held out where the data have no test part of their own

TEMPLATE = "{question}\n\nReason step by step, then write the final answer in \\boxed{{}}.\n"


@dataclass(frozen=True)
class HubSource:
    """A data set on the hub, and which of its configurations and splits to take."""

    name: str
    config: str | None = None
    split: str | None = None


class DatasetTask:
    r"""A data set of questions with one mathematical answer each, judged in `\boxed{…}`.

    `source` is one of

    - a JSONL file; a tenth of its questions is held out, chosen by their text alone;
    - a folder with `train.jsonl` and, held out, `test.jsonl` or `validation.jsonl`;
    - `<hub id>[:<config>][:<split>]`, loaded with the `datasets` library; its test or validation
      part is held out.

    A row has a `question` (or `prompt`, `problem`), an `answer` (or `solution`: its last box) and,
    if there is one, a `level`. GSM8K's "… #### 42" means 42. Prompts ask for the answer in a box
    and are a user's message where the tokenizer has a chat template.

    Reasons of a verdict are those of `verify_math`, and ``bad_reference`` if the data set's own
    answer cannot be read. Raises `FileNotFoundError` for a missing source and `ValueError` naming
    file, line and fix for a row that lacks something, `ImportError` without `datasets`.
    Chapter 17.
    """

    def __init__(self, source: str, seconds: float = 3.0) -> None:
        self.name, self.seconds = f"dataset:{source}", seconds
        self.source = find_source(source)

    @property
    def levels(self) -> tuple[int, ...]:
        """Levels of the training part, in order."""
        return tuple(sorted({problem.level for problem in self.parts[0]}))

    @cached_property
    def parts(self) -> tuple[list[Problem], list[Problem]]:
        """Problems to train on and problems held out, read at first use."""
        train, held_out = read(self.source)
        known = {p.id for p in held_out}
        return [p for p in train if p.id not in known], held_out

    def sample(self, seed: int, n: int, levels: Sequence[int] | None = None) -> list[Problem]:
        """`n` different training problems; the first ones do not depend on `n`."""
        return self._draw(self.parts[0], f"dataset {seed}", n, levels)

    def held_out(self, n: int, levels: Sequence[int] | None = None) -> list[Problem]:
        """`n` different problems that `sample` never returns, always the same ones."""
        return self._draw(self.parts[1], "held out", n, levels)

    def verify(self, problem: Problem, completion: str, finished: bool = True) -> Verdict:
        """Compare the last box with the reference by value."""
        try:
            return verify_math(completion, problem.answer, finished, seconds=self.seconds)
        except ValueError:
            return Verdict(False, False, None, "bad_reference")

    def _draw(
        self, problems: list[Problem], seed: str, n: int, levels: Sequence[int] | None
    ) -> list[Problem]:
        if levels is not None:
            problems = [p for p in problems if p.level in set(levels)]
        if n > len(problems):
            which = "" if levels is None else f" of levels {tuple(levels)}"
            part = "held-out" if seed == "held out" else "training"
            raise ValueError(
                f"{self.name} has {len(problems)} {part} problems{which}, {n} are asked for: "
                "ask for fewer, or add data"
            )
        order = list(range(len(problems)))
        random.Random(seed).shuffle(order)
        return [problems[i] for i in order[:n]]


class BenchmarkTask(DatasetTask):
    """A data set to evaluate on: all questions of the source, or split, are held out."""

    def __init__(self, source: str, seconds: float = 3.0) -> None:
        super().__init__(source, seconds)
        self.name = f"benchmark:{source}"

    @property
    def levels(self) -> tuple[int, ...]:
        """Levels of its questions, in order."""
        return tuple(sorted({problem.level for problem in self.parts[1]}))

    @cached_property
    def parts(self) -> tuple[list[Problem], list[Problem]]:
        """Nothing to train on, and everything."""
        train, held_out = super().parts
        return [], [*train, *held_out]


def find_source(text: str) -> Path | HubSource:
    """What the part after "dataset:" means; anything that is not a path is a hub name."""
    path = Path(text).expanduser()
    if path.exists():
        return path
    if text.startswith((".", "/", "~")) or path.suffix in (".jsonl", ".json"):
        raise FileNotFoundError(f"no data set at {path}: check the path (relative to {Path.cwd()})")
    hub, *rest = text.split(":")
    if len(rest) > 2:
        raise ValueError(f"dataset:{text}: write <hub id>[:<config>][:<split>]")
    config, split = (*rest, None, None)[:2]
    return HubSource(hub, config or None, split or None)


def read(source: Path | HubSource) -> tuple[list[Problem], list[Problem]]:
    """The training part and the held-out part of a data set."""
    return read_hub(source) if isinstance(source, HubSource) else read_folder(source)


def read_folder(folder: Path) -> tuple[list[Problem], list[Problem]]:
    """The two parts of a local file or folder."""
    if folder.is_file():
        return divide(read_problems(folder))
    train = folder / "train.jsonl"
    if not train.is_file():
        found = ", ".join(sorted(p.name for p in folder.iterdir())[:8]) or "nothing"
        raise FileNotFoundError(f"{folder} has no train.jsonl (it has: {found})")
    tests = [folder / f"{name}.jsonl" for name in HELD_OUT_SPLITS]
    test = next((path for path in tests if path.is_file()), None)
    return (read_problems(train), read_problems(test)) if test else divide(read_problems(train))


def read_problems(path: Path) -> list[Problem]:
    """Problems of a JSONL file; blank lines are skipped."""
    return unique(problem_of(row, where) for where, row in json_rows(path))


def json_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each row of a JSONL file with where it stands."""
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text ({error}): save it as UTF-8") from None
    for number, line in enumerate(lines, 1):
        where = f"{path}, line {number}"
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (json.JSONDecodeError, RecursionError) as error:
            raise ValueError(f"{where}: not JSON ({error}): one object per line") from None
        if not isinstance(row, dict):
            raise ValueError(f'{where}: expected {{"question": …, "answer": …}}, got {line[:40]!r}')
        yield where, row


def read_hub(source: HubSource) -> tuple[list[Problem], list[Problem]]:
    """The two parts of a data set on the hub."""
    datasets = _require_datasets()
    try:
        splits = datasets.get_dataset_split_names(source.name, source.config)
        train = source.split or ("train" if "train" in splits else splits[0])
        test = next((name for name in HELD_OUT_SPLITS if name in splits and name != train), None)
        load = {
            name: datasets.load_dataset(source.name, source.config, split=name)
            for name in (train, test)
            if name
        }
    except (OSError, ValueError) as error:
        raise FileNotFoundError(
            f"cannot load data set {source.name!r} from the hub ({error}): check name, config and "
            "network, or give a local JSONL file"
        ) from error
    parts = {
        name: unique(
            problem_of(row, f"{source.name} {name}, row {index}") for index, row in enumerate(rows)
        )
        for name, rows in load.items()
    }
    return (parts[train], parts[test]) if test else divide(parts[train])


def problem_of(row: dict[str, Any], where: str) -> Problem:
    """The problem in a row; `where` is for messages."""
    question = field_of(row, QUESTION_FIELDS, where)
    answer = final_answer(field_of(row, ANSWER_FIELDS, where))
    if not answer:
        raise ValueError(f"{where}: the answer is empty")
    return Problem(
        id=question_id(question),
        prompt=TEMPLATE.format(question=question),
        answer=answer,
        level=level_of(row.get("level"), where),
        meta={"chat": True, "source": where},
    )


def field_of(row: dict[str, Any], names: Sequence[str], where: str) -> str:
    """The first of these fields that a row has, as text."""
    for name in names:
        if isinstance(value := row.get(name), str | int | float) and (text := str(value).strip()):
            if any("\ud800" <= character <= "\udfff" for character in text):
                raise ValueError(f"{where}: {name} has half a surrogate pair: write valid Unicode")
            return text
    raise ValueError(
        f"{where}: no {names[0]} (text in {' or '.join(map(repr, names))}); it has "
        f"{sorted(map(str, row))[:8]}: add the field or rename it"
    )


def final_answer(text: str) -> str:
    r"""The reference: what follows GSM8K's "####", else the last `\boxed{…}`, else all of it."""
    if "####" in text:
        return text.rsplit("####", 1)[1].strip().replace(",", "")
    boxes = boxed_answers(text)
    return boxes[-1].strip() if boxes else text


def level_of(value: object, where: str) -> int:
    """A level as an integer: 3, "3" or "Level 3"; 0 if there is none."""
    if value is None:
        return 0
    found = re.search(r"\d{1,9}", str(value))
    if not found:
        raise ValueError(f"{where}: level {value!r} has no number: use 1, 2, 3, …")
    return int(found[0])


def question_id(question: str) -> str:
    """A name that depends on the question's text alone: equal questions are one problem."""
    return hashlib.sha256(question.encode()).hexdigest()[:16]


def unique(problems: Iterable[Problem]) -> list[Problem]:
    """The first problem of each id."""
    found: dict[str, Problem] = {}
    for problem in problems:
        found.setdefault(problem.id, problem)
    return list(found.values())


def divide(problems: list[Problem]) -> tuple[list[Problem], list[Problem]]:
    """Training and held-out problems: about one in `ONE_IN` is held out, by its id."""
    held_out = [int(p.id, 16) % ONE_IN == 0 for p in problems]
    train = [p for p, out in zip(problems, held_out, strict=True) if not out]
    return train, [p for p, out in zip(problems, held_out, strict=True) if out]


def _require_datasets() -> ModuleType:
    try:
        import datasets
    except ImportError:
        raise ImportError(
            "data sets from the hub need the datasets library: pip install -e '.[datasets]' "
            "(a local JSONL file needs nothing)"
        ) from None
    return cast(ModuleType, datasets)
