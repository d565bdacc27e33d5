r"""Questions and answers from a file, a folder or the Hugging Face hub as a task."""

import hashlib
import random
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import cast

from rlbook.extras import require
from rlbook.grouping import group_by
from rlbook.tasks.base import Problem, Verdict
from rlbook.tasks.math_answers import contradict, verify_math
from rlbook.tasks.references import UNMARKED, fault
from rlbook.tasks.rows import (
    READERS,
    Reading,
    kind_of,
    level_of,
    part_files,
    read_row,
    rows_of,
)

HELD_OUT_SPLITS = ("test", "validation")
MAX_FAULTY = 0.05  # share of references that no answer can meet, before it is an error
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

    - a file: JSONL, JSON, CSV (also with .gz) or parquet; a tenth of its questions is held out,
      chosen by their text alone;
    - a folder with `train.…` and, held out, `test.…` or `validation.…`, or one as the hub lays it
      out (`data/train-00000-of-00002.parquet`);
    - `<hub id>[:<config>][:<split>]`, loaded with the `datasets` library; its test or validation
      part is held out.

    A row has a question (`QUESTIONS` of `rlbook.tasks.rows`; of messages, also written out as text,
    the user's last; what it is about, `CONTEXTS`, is asked with it), an answer (`ANSWERS`; of a
    worked solution the last box, GSM8K's "… #### 42" means 42) and, if there is one, a level.
    Prompts ask for the answer in a box and are a user's message where the tokenizer has a chat
    template. A training question that differs from a held-out one in case, spaces or punctuation is
    left out; so are, with a warning, references that no answer can meet and questions with two
    different answers, and more than a twentieth of either is an error. `rlbook audit` tells all of
    it beforehand.

    Reasons of a verdict are those of `verify_math`, and ``bad_reference`` if the data set's own
    answer cannot be read. Raises `FileNotFoundError` for a missing source and `ValueError` naming
    file, line and fix for a row that lacks something, `ImportError` without `datasets`.
    Chapter 18.
    """

    def __init__(self, source: str, seconds: float = 3.0) -> None:
        require("tasks", "math_verify")  # now, not at the first answer that needs it
        self.name, self.seconds = f"dataset:{source}", seconds
        self.source = find_source(source)

    @property
    def levels(self) -> tuple[int, ...]:
        """Levels of the training part, in order."""
        return tuple(sorted({problem.level for problem in self.parts[0]}))

    @cached_property
    def parts(self) -> tuple[list[Problem], list[Problem]]:
        """Problems to train on and problems held out, read at first use."""
        found = read(self.source)
        if "train" not in found:
            raise FileNotFoundError(
                f"{self.name} has no train.jsonl, only a part to evaluate on: use benchmark:…"
            )
        problems = usable(self.name, found["train"], self.seconds)
        if "held out" not in found:
            return divide(problems)
        held_out = usable(self.name, found["held out"], self.seconds)
        known = {likeness(p) for p in held_out}
        return [p for p in problems if likeness(p) not in known], held_out

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
        problems = [problem for part in read(self.source).values() for problem in part]
        return [], usable(self.name, unique(problems), self.seconds)


def find_source(text: str) -> Path | HubSource:
    """What the part after "dataset:" means; anything that is not a path is a hub name."""
    path = Path(text).expanduser()
    if path.exists():
        return path
    if text.startswith((".", "/", "~")) or kind_of(path) in READERS:
        raise FileNotFoundError(f"no data set at {path}: check the path (relative to {Path.cwd()})")
    hub, *rest = text.split(":")
    if len(rest) > 2:
        raise ValueError(f"dataset:{text}: write <hub id>[:<config>][:<split>]")
    config, split = (*rest, None, None)[:2]
    return HubSource(hub, config or None, split or None)


def read(source: Path | HubSource) -> dict[str, list[Problem]]:
    """The problems of each part of a data set: "train" and, if there is one, "held out"."""
    return {
        part: unique(problem_of(row, where) for where, row in rows)
        for part, rows in rows_by_part(source).items()
    }


def rows_by_part(source: Path | HubSource) -> dict[str, Iterator[tuple[str, object]]]:
    """The rows of each part, and where each stands."""
    if isinstance(source, HubSource):
        return hub_rows(source)
    files = {"train": [source]} if source.is_file() else part_files(source)
    if not files:
        found = ", ".join(sorted(p.name for p in source.iterdir())[:8]) or "nothing"
        raise FileNotFoundError(
            f"{source} has no train.jsonl (it has: {found}); looked for train, test, validation "
            f"with {', '.join(READERS)} or .gz, also in its folder data"
        )
    return {part: chain.from_iterable(map(rows_of, paths)) for part, paths in files.items()}


def hub_rows(source: HubSource) -> dict[str, Iterator[tuple[str, object]]]:
    """The rows of a data set on the hub."""
    datasets = _require_datasets()
    try:
        splits = datasets.get_dataset_split_names(source.name, source.config)
        train = source.split or ("train" if "train" in splits else splits[0])
        test = next((name for name in HELD_OUT_SPLITS if name in splits and name != train), None)
        named = {"train": train} | ({"held out": test} if test else {})
        load = {
            part: datasets.load_dataset(source.name, source.config, split=name)
            for part, name in named.items()
        }
    except (OSError, ValueError) as error:
        raise FileNotFoundError(
            f"cannot load data set {source.name!r} from the hub ({error}): check name, config and "
            "network, or give a local JSONL file"
        ) from error
    return {
        part: ((f"{source.name} {named[part]}, row {i}", row) for i, row in enumerate(rows))
        for part, rows in load.items()
    }


def problem_of(row: object, where: str) -> Problem:
    """The problem in a row; `where` is for messages."""
    return problem_in(read_row(row, where), where)


def problem_in(reading: Reading, where: str) -> Problem:
    """The problem that was read in a row."""
    return Problem(
        id=question_id(reading.question),
        prompt=TEMPLATE.format(question=reading.question),
        answer=reading.answer,
        level=level_of(reading.level, where),
        meta={"chat": True, "source": where},
    )


def question_id(question: str) -> str:
    """A name that depends on the question's text alone: equal questions are one problem."""
    return hashlib.sha256(question.encode()).hexdigest()[:16]


def unique(problems: Iterable[Problem]) -> list[Problem]:
    """The first problem of each question and answer."""
    found: dict[tuple[str, str], Problem] = {}
    for problem in problems:
        found.setdefault((problem.id, problem.answer), problem)
    return list(found.values())


BETWEEN = re.compile(r"[\s\"'$`_?]+|[.,;:]+(?!\d)|(?<!\d)[.,;:]+")  # not 1.5, not a sign


def likeness(problem: Problem) -> str:
    """What near duplicates have in common: the question without case, spaces, punctuation.

    Whatever counts in a formula stays.
    """
    return BETWEEN.sub("", problem.prompt.casefold())


def usable(name: str, problems: list[Problem], seconds: float) -> list[Problem]:
    """One problem of each question, with a reference that an answer can be compared with.

    The others are left out with a warning; `ValueError` if one kind is more than a twentieth.
    """
    for what, find in (
        ("references can be met by no answer", unreadable),
        ("rows have a question with different answers", contradictory),
    ):
        if not (faults := find(problems, seconds)):
            continue
        some = [f"{shown(p)} ({p.meta['source']}: {faults[p]})" for p in [*faults][:3]]
        text = f"{name}: {len(faults)} of {len(problems)} {what}: {'; '.join(some)}"
        if len(faults) > MAX_FAULTY * len(problems):
            raise ValueError(f"{text}: mend or drop these rows (`rlbook audit` lists them)")
        warnings.warn(f"{text}; left out", stacklevel=2)
        problems = [p for p in problems if p not in faults]
    return list({p.id: p for p in problems[::-1]}.values())[::-1]


def unreadable(problems: Iterable[Problem], seconds: float) -> dict[Problem, str]:
    """The problems whose references cannot be read, and why."""
    return {
        problem: found[1] or found[0] for problem in problems if (found := fault(problem.answer))
    }


def contradictory(problems: Iterable[Problem], seconds: float) -> dict[Problem, str]:
    """The problems whose question, or nearly so, has another answer elsewhere, and which."""
    found = dict[Problem, str]()
    for first, *others in group_by(problems, likeness).values():
        differ = [one for one in others if contradict(first.answer, one.answer, seconds)]
        if differ:
            why = f"{shown(first)} and {shown(differ[0])}"
            found |= dict.fromkeys((first, *others), why)
    return found


def shown(problem: Problem) -> str:
    """Its reference as messages show it."""
    return repr(problem.answer.removesuffix(UNMARKED)[:60])


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
