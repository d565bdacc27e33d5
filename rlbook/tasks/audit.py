"""`rlbook audit`: a data set and its verifier judged before a policy is trained on them."""

import hashlib
import html
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from textwrap import indent
from time import monotonic

from rlbook.tasks.base import Problem, Verdict
from rlbook.tasks.dataset import find_source, likeness, problem_in, rows_by_part, shown
from rlbook.tasks.math_answers import contradict, verify_math
from rlbook.tasks.questions import (
    bare,
    formulas_in,
    other_form_in,
    picture_in,
    template_in,
    told_in,
)
from rlbook.tasks.references import MISSING, UNMARKED, fault, meaning
from rlbook.tasks.rows import Reading, read_row
from rlbook.tasks.sandbox.bounded import WORKER
from rlbook.tasks.spellings import is_formula, near_misses, spellings
from rlbook.tasks.values import Expression, Word, type_of

MOST_EXPRESSIONS = 200  # references that need math-verify and are tried
MOST_FORMULAS = 3  # of a question that are tried as its answer
SHOWN = 200  # characters at either end of a prompt in the report
MOST_READ = 20_000  # characters at the end of a question that are looked through
TIME_UP = "when the time was up (--limit)"
LEAST_ROWS = 10  # from which on one answer to all questions is a fault
MAY_MISS = 0.02  # share of true spellings that may fail
SUSPECT = 0.05  # share of near misses that pass, from which on their kind is looked for
TRIED = ("true", "false", "formulas", "answers", "without an answer")
RATES = {
    "missed": ("false negatives", "true", "true spellings"),
    "passed": ("false positives", "false", "near misses"),
    "restated": ("restated", "formulas", "formulas of the questions"),
    "disputed": ("disputed", "answers", "answers of the policy"),
}
QUICK = {"integer", "fraction", "decimal", "word", "interval", "tuple", "list", "set", "base-n"}
SPOILING = {  # rewards or questions, the gravest first
    "raises": "errors that the verifier raised in the place of every verdict",
    "empty": "parts without rows",
    "shape": "rows without question or answer",
    "unreadable": "references that no answer can meet",
    "unmarked": "solutions in which no answer is marked",
    "sentence": "references that are sentences",
    "program": "references that are programs, tests or records",
    "missing": "questions or references that stand for a missing one",
    "span": "dates or ranges that are read as something else",
    "contradictory": "questions with two different answers",
    "disagreeing": "rows whose columns hold two different answers",
    "leaked": "held-out questions that stand in the training part as well",
    "told": "questions that tell their answer",
    "constant": "one answer to all questions",
    "passed": "near misses that the verifier calls right",
    "templated": "questions that carry a chat template and get another",
    "pictured": "questions with a picture that is not asked",
}
KINDS = SPOILING | {
    "missed": "true spellings that the verifier calls wrong",
    "other form": "questions that ask for another form than the box that is read",
    "mixed": "numbers among words that are not read: only the very same text is right",
    "boxes": "solutions with several boxes, of which the last counts",
    "restated": "formulas of the question that pass as its answer",
    "repeated": "questions that occur again, word for word",
    "near": "questions that differ in case, spaces or punctuation only",
    "disputed": "verdicts on a policy's answers that math-verify alone does not share",
}
READINGS: dict[str, Callable[[str, str], bool]] = {  # of answer and reference, by bad verifiers
    "their first digit": lambda one, other: digits(one)[:1] == digits(other)[:1],
    "their digits, without sign and point": lambda one, other: digits(one) == digits(other),
    "the answer for the text of the reference": lambda one, other: other in one,
}
RAISED = "it raised "
Verify = Callable[[str, str], object]  # of a completion and a reference: a verdict, or a truth


def digits(text: str) -> str:
    """Its digits in order."""
    return re.sub(r"\D", "", text)


@dataclass
class Audit:
    """What was found in a data set: rows by part, references by type, findings by kind.

    `columns` counts what "question" and "answer" were read from, and what was "not read"; `unasked`
    has an example of what a conversation holds besides. `untried` counts what there was no time
    for, `example` is a prompt and its answer.
    """

    name: str
    rows: dict[str, int] = field(default_factory=dict)
    columns: dict[str, dict[str, int]] = field(
        default_factory=lambda: {"question": {}, "answer": {}, "not read": {}}
    )
    unasked: dict[str, str] = field(default_factory=dict)
    example: tuple[str, str] | None = None
    types: dict[str, int] = field(default_factory=dict)
    tried: dict[str, int] = field(default_factory=lambda: dict.fromkeys(TRIED, 0))
    untried: dict[str, int] = field(default_factory=dict)
    raised: dict[str, int] = field(default_factory=dict)
    alike: dict[str, int] = field(default_factory=lambda: dict.fromkeys(READINGS, 0))
    findings: dict[str, list[str]] = field(default_factory=lambda: {kind: [] for kind in KINDS})

    def rate(self, kind: str) -> float:
        """Share of what was tried that the verifier misjudges, or that is disputed."""
        return len(self.findings[kind]) / max(1, self.tried[RATES[kind][1]])

    @property
    def false_negatives(self) -> float:
        """Share of true spellings that the verifier calls wrong."""
        return self.rate("missed")

    @property
    def false_positives(self) -> float:
        """Share of near misses that the verifier calls right."""
        return self.rate("passed")

    @property
    def readings(self) -> list[str]:
        """What the verifier seems to compare: all but a twentieth of its verdicts say so."""
        most = (1 - SUSPECT) * self.tried["false"]
        return [how for how, n in self.alike.items() if n > most] * (self.rate("passed") > SUSPECT)

    @property
    def passed(self) -> bool:
        """Whether nothing was found that spoils rewards; repeated questions do not."""
        return not any(self.spoils(kind) for kind in KINDS)

    def spoils(self, kind: str) -> bool:
        """Whether what was found of a kind has to be mended before a policy is trained."""
        if kind == "missed":
            return self.false_negatives > MAY_MISS
        return kind in SPOILING and bool(self.findings[kind])


@dataclass(frozen=True)
class Row:
    """A row that has a question and an answer."""

    part: str
    reading: Reading
    problem: Problem
    fault: tuple[str, str] | None

    @property
    def where(self) -> str:
        """File and line."""
        return str(self.problem.meta["source"])


def audit(
    source: str, seconds: float = 3.0, verify: Verify | None = None, limit: float = 60.0
) -> Audit:
    """Read a data set (a file, a folder, a hub id) as `DatasetTask` does and try its verifier.

    `verify` may be one's own: of a completion and a reference, a `Verdict` or whether it is right.
    Every reference is spelled truly and nearly in several ways (`rlbook.tasks.spellings`); of
    those that need math-verify, `MOST_EXPRESSIONS` are tried. After `limit` seconds nothing more is
    compared, and what is left is counted in `Audit.untried`. Chapter 05.
    """
    found = Audit(source)
    rows = list(readable(found, rows_by_part(find_source(source))))
    begun = monotonic()
    for row in rows:
        note(found, row)
    compare_columns(found, rows, seconds, begun + limit / 4)
    compare_questions(found, rows, seconds, begun + limit / 2)
    verify = verify or partial(verify_math, seconds=seconds)
    try_references(found, rows, verify, begun + limit)
    try_formulas(found, rows, verify, begun + limit)
    calls = sum(found.tried[what] for what in ("true", "false", "formulas"))
    if calls and sum(found.raised.values()) == calls:
        found.findings["raises"] = [f"{error} ({n} times)" for error, n in found.raised.items()]
    return found


def readable(found: Audit, parts: Mapping[str, Iterable[tuple[str, object]]]) -> Iterator[Row]:
    """The rows with a question and an answer; the others are findings."""
    for part, rows in parts.items():
        found.rows[part] = every = 0
        for where, row in rows:
            every += 1
            try:
                reading = read_row(row, where)
                problem = problem_in(reading, where)
            except ValueError as error:
                found.findings["shape"].append(str(error))
            except Exception as error:
                found.findings["shape"].append(f"{where}: reading it raised {said(error)}")
            else:
                found.rows[part] += 1
                yield Row(part, reading, problem, fault(problem.answer))
        if not every:
            found.findings["empty"].append(part)


def note(found: Audit, row: Row) -> None:
    """What one row says by itself."""
    reading, findings = row.reading, found.findings
    count(found.columns["question"], " + ".join(reading.asked))
    count(found.columns["answer"], " + ".join(reading.answered))
    for column in reading.ignored:
        count(found.columns["not read"], column)
    found.unasked = {**reading.unasked, **found.unasked}
    found.example = found.example or (row.problem.prompt, reading.answer.removesuffix(UNMARKED))
    if row.fault:
        kind, why = row.fault
        findings[kind].append(f"{row.where}: {shown(row.problem)}" + (why and f", {why}"))
    question = reading.question[-MOST_READ:]
    told = told_in(question, reading.answer)
    for kind, what in (
        ("missing", question if MISSING.fullmatch(question) and not row.fault else ""),
        ("told", told),
        ("templated", template_in(question)),
        ("pictured", picture_in(question)),
        ("other form", "" if told else other_form_in(question)),
        ("boxes", ", ".join(reading.boxes)),
        ("mixed", "" if row.fault else number_among_words(reading.answer)),
    ):
        if what:
            findings[kind].append(f"{row.where}: {what[:80]!r}")


def number_among_words(answer: str) -> str:
    """An answer with digits among letters that are neither Latin nor Greek, if it is no number."""
    words = isinstance(meaning(answer), Word | Expression) and not is_formula(answer)
    return answer if words and digits(answer) else ""


def count(counts: dict[str, int], name: str) -> None:
    """One more of these."""
    counts[name] = counts.get(name, 0) + 1


def compare_columns(found: Audit, rows: Iterable[Row], seconds: float, until: float) -> None:
    """Rows of which two columns hold two different answers."""
    for row in rows:
        for column, other in () if row.fault else row.reading.others.items():
            if monotonic() > until:
                count(found.untried, f"pairs of columns {TIME_UP}")
            elif of_one_sort(other, row) and differ(other, row.problem.answer, seconds):
                first = row.reading.answered[0]
                answers = f"{shown(row.problem)} in {first} and {other[:60]!r} in {column}"
                found.findings["disagreeing"].append(f"{row.where}: {answers}")
                break


def of_one_sort(other: str, row: Row) -> bool:
    """Whether another answer can be compared with that of the row: a letter stands for a text."""
    letters = [bool(getattr(meaning(text), "choice", "")) for text in (other, row.problem.answer)]
    return letters[0] == letters[1] and not fault(other)


def differ(one: str, other: str, seconds: float) -> bool:
    """`contradict`, where what cannot be compared does not contradict."""
    try:
        return contradict(one, other, seconds)
    except Exception:
        return False


def compare_questions(found: Audit, rows: Sequence[Row], seconds: float, until: float) -> None:
    """Repeated, nearly repeated, contradictory and leaked questions; one answer to all."""
    first: dict[str, Row] = {}
    known: dict[tuple[str, str], bool] = {}
    for row in rows:
        other = first.setdefault(likeness(row.problem), row)
        if other is row:
            continue
        both = f"{other.where} and {row.where}"
        if other.part != row.part:
            found.findings["leaked"].append(both)
        pair = (other.problem.answer, row.problem.answer)
        if pair not in known and monotonic() < until:
            known[pair] = differ(*pair, seconds)
        if pair not in known:
            count(found.untried, f"pairs of answers {TIME_UP}")
        if known.get(pair):
            texts = f"{shown(other.problem)} and {shown(row.problem)}"
            found.findings["contradictory"].append(f"{both}: {texts}")
        elif other.part == row.part:
            same = other.problem.id == row.problem.id
            found.findings["repeated" if same else "near"].append(both)
    answers = {row.problem.answer for row in rows}
    if len(rows) >= LEAST_ROWS and len(answers) == 1 and not rows[0].fault:
        found.findings["constant"].append(shown(rows[0].problem))


def try_references(found: Audit, rows: Iterable[Row], verify: Verify, until: float) -> None:
    """Types of the references, and the verifier's word on spellings of each; quick ones first."""
    kinds = [("unreadable" if row.fault else reference_type(row), row) for row in rows]
    found.types = dict(Counter(kind for kind, _ in kinds).most_common())
    each = {row.problem.answer: (kind, row) for kind, row in kinds if not row.fault}
    tried: Counter[str] = Counter()
    for kind, row in sorted(each.values(), key=lambda one: one[0] not in QUICK):
        tried[kind] += 1
        if kind not in QUICK and tried[kind] > MOST_EXPRESSIONS:
            count(found.untried, f"references beyond {MOST_EXPRESSIONS} of their type")
            continue
        value, answer = meaning(row.problem.answer), row.problem.answer
        texts = [(text, True) for text in spellings(value, answer)]
        for text, truth in texts + [(text, False) for text in near_misses(value, answer)]:
            if monotonic() > until:
                count(found.untried, f"references {TIME_UP}")
                break
            try_one(found, row.problem, text, truth, verify)


def reference_type(row: Row) -> str:
    """The type of its reference."""
    return type_of(meaning(row.problem.answer))


def try_formulas(found: Audit, rows: Iterable[Row], verify: Verify, until: float) -> None:
    """How often a formula of the question, which states the task, is a right answer to it."""
    for row in rows:
        answer = row.problem.answer
        formulas = [f for f in formulas_in(row.reading.question) if bare(f) != bare(answer)]
        for formula in () if row.fault else formulas[:MOST_FORMULAS]:
            if monotonic() > until:
                count(found.untried, f"formulas {TIME_UP}")
                continue
            right, _ = ask(found, verify, formula, answer)
            found.tried["formulas"] += 1
            if right:
                line = f"{row.where}: {formula[:60]!r} for {shown(row.problem)}"
                found.findings["restated"].append(line)


def try_one(found: Audit, problem: Problem, text: str, truth: bool, verify: Verify) -> None:
    """One spelling: a finding if the verifier does not see what it is."""
    right, reason = ask(found, verify, text, problem.answer)
    found.tried["true" if truth else "false"] += 1
    if not truth:
        for how, alike in READINGS.items():
            found.alike[how] += alike(text, problem.answer) is right
    if right is not truth:
        line = f"{problem.meta['source']}: {text!r} for {problem.answer!r} ({reason})"
        found.findings["missed" if truth else "passed"].append(line)


def ask(found: Audit, verify: Verify, answer: str, reference: str) -> tuple[bool, str]:
    """What a verifier says to a boxed answer, and why; errors are counted."""
    right, reason = word(verify, rf"\boxed{{{answer}}}", reference)
    if reason.startswith(RAISED):
        count(found.raised, reason.removeprefix(RAISED))
    return right, reason


def said(error: Exception) -> str:
    """An error in a line."""
    return f"{type(error).__name__}: {error}"


def word(verify: Verify, completion: str, reference: str) -> tuple[bool, str]:
    """What a verifier says, and why; a verifier that fails has not said that it is right."""
    try:
        verdict = verify(completion, reference)
    except Exception as error:
        return False, RAISED + said(error)
    if isinstance(verdict, Verdict):
        return verdict.correct, verdict.reason
    return bool(verdict), f"it returned {verdict!r:.40}"


def dispute(
    found: Audit, answers: Iterable[tuple[Problem, str | None, bool]], seconds: float = 3.0
) -> None:
    """Compare verdicts on answers, (problem, answer, right?), with those of math-verify alone."""
    for problem, answer, correct in answers:
        if answer is None:
            found.tried["without an answer"] += 1
            continue
        request = {"scorer": "math", "answer": answer, "reference": problem.answer}
        try:
            other = bool(WORKER.call(request, seconds)["correct"])
        except (TimeoutError, RuntimeError):
            continue
        found.tried["answers"] += 1
        if other is not correct:
            where = problem.meta.get("source", problem.id)
            line = (
                f"{where}: {answer!r} for {problem.answer!r} is {'right' if correct else 'wrong'}"
            )
            found.findings["disputed"].append(line)


def as_text(found: Audit) -> str:
    """The report for a terminal."""
    rows = ", ".join(f"{n} rows to {part}" for part, n in found.rows.items())
    lines = [f"{found.name}: {rows}"]
    raises = found.findings["raises"]
    kinds = [k for k, rows in found.findings.items() if rows and not (raises and k == "missed")]
    grave = [finding(found, kind) for kind in kinds if found.spoils(kind)]
    light = [finding(found, kind) for kind in kinds if not found.spoils(kind)]
    sound = "nothing speaks against it" + ", as far as it was tried" * bool(found.untried)
    lines += ["", "mend this first:" if grave else sound, *grave]
    lines += ["", "look at this as well:", *light] if light else []
    lines += ["", *verdicts(found), "", *what_was_read(found)]
    return "\n".join(lines)


def finding(found: Audit, kind: str) -> str:
    """The findings of a kind in a line: how many, and the first of them."""
    rows = found.findings[kind]
    return f"  {KINDS[kind]}: {len(rows)}{', first' * (len(rows) > 1)}: {rows[0]}"


def verdicts(found: Audit) -> list[str]:
    """What the verifier was asked, and how often it erred."""
    lines = ["references  " + ", ".join(f"{n} {kind}" for kind, n in found.types.items())]
    for kind, (name, tried, what) in RATES.items():
        if (kind in ("missed", "passed") or found.tried[tried]) and not found.findings["raises"]:
            share = f"{len(found.findings[kind])} of {found.tried[tried]:,} {what}"
            lines.append(f"{name}  {found.rate(kind):.2%} ({share})")
    if silent := found.tried["without an answer"]:
        lines.append(f"{silent} answers of the policy have no answer in a box")
    if found.untried:
        left = ", ".join(f"{n:,} {what}" for what, n in found.untried.items())
        lines.append(f"not tried  {left}")
    return lines + [f"the verifier seems to compare {how}" for how in found.readings]


def what_was_read(found: Audit) -> list[str]:
    """The columns, what was left out, and one prompt with its answer."""
    if not found.example:
        return []
    total = sum(found.rows.values())
    lines = []
    for what, columns in found.columns.items():
        names = [name + f" ({n} of {total})" * (n < total) for name, n in columns.items()]
        lines += [f"{what:<8}  " + ", ".join(names)] if names else []
    lines += [f"not asked {what}, such as {text[:60]!r}" for what, text in found.unasked.items()]
    prompt, answer = found.example
    if len(prompt) > 2 * SHOWN:
        prompt = f"{prompt[:SHOWN]} … {prompt[-SHOWN:]}"
    return [*lines, "", "a prompt", indent(prompt.rstrip(), "  "), "its answer", f"  {answer[:80]}"]


def as_html(found: Audit) -> str:
    """The report as a page of its own, every finding in it."""
    rows = "".join(
        f"<h2>{KINDS[kind]}: {len(lines)}</h2><ol>"
        + "".join(f"<li><code>{html.escape(line)}</code></li>" for line in lines)
        + "</ol>"
        for kind, lines in found.findings.items()
        if lines
    )
    title = html.escape(f"Audit of {found.name}")
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        "<style>body{font:16px/1.5 system-ui;max-width:60rem;margin:2rem auto}"
        "pre{white-space:pre-wrap}</style>"
        f"<h1>{title}</h1><pre>{html.escape(as_text(found))}</pre>{rows}</html>\n"
    )


def record(found: Audit) -> Path:
    """Keep the result, so that a run can say whether its data were audited."""
    path = record_path(found.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(found) | {"passed": found.passed}))
    return path


def record_path(source: str) -> Path:
    """Where the result for a data set is kept; another name once its files have changed."""
    path = Path(source).expanduser()
    files = sorted(path.rglob("*")) if path.is_dir() else [path] if path.is_file() else []
    stamps = [(str(f.resolve()), f.stat().st_size, f.stat().st_mtime_ns) for f in files]
    name = hashlib.sha256(repr(stamps or source).encode()).hexdigest()[:24]
    cache = Path(os.environ.get("RLBOOK_CACHE") or Path.home() / ".cache" / "rlbook")
    return cache / "audits" / f"{name}.json"


def remark(task: str) -> str:
    """Whether the data of a task were audited, in a line; "" for a task that is no data set."""
    family, _, source = task.partition(":")
    if family not in ("dataset", "benchmark"):
        return ""
    path = record_path(source)
    if not path.is_file():
        return f"the data were not audited: rlbook audit {source}"
    found = json.loads(path.read_text())
    count = sum(map(len, found["findings"].values()))
    return f"the data were audited: {count} findings" + (
        "" if found["passed"] else ", mend these first"
    )
