"""`rlbook audit`: a data set and its verifier judged before a policy is trained on them."""

import hashlib
import html
import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rlbook.tasks.answers import read
from rlbook.tasks.base import Problem
from rlbook.tasks.dataset import find_source, likeness, problems_by_part
from rlbook.tasks.math_answers import verify_math
from rlbook.tasks.sandbox.bounded import WORKER
from rlbook.tasks.spellings import near_misses, spellings
from rlbook.tasks.values import type_of, unread

SHOWN = 5  # findings of a kind in the report
MOST_EXPRESSIONS = 200  # references that need math-verify and are tried
MAY_MISS = 0.02  # share of true spellings that may fail
QUICK = {"integer", "fraction", "decimal", "word", "interval", "tuple", "list", "set", "base-n"}
KINDS = {
    "shape": "rows without question or answer",
    "unreadable": "references that no answer can meet",
    "contradictory": "questions with two different answers",
    "repeated": "questions that occur again, word for word",
    "near": "questions that differ in case, spaces or punctuation only",
    "leaked": "held-out questions that stand in the training part as well",
    "missed": "true spellings that the verifier calls wrong",
    "passed": "near misses that the verifier calls right",
    "disputed": "verdicts on a policy's answers that math-verify alone does not share",
}


@dataclass
class Audit:
    """What was found in a data set: rows by part, references by type, findings by kind."""

    name: str
    rows: dict[str, int] = field(default_factory=dict)
    types: dict[str, int] = field(default_factory=dict)
    tried: dict[str, int] = field(default_factory=lambda: {"true": 0, "false": 0, "answers": 0})
    findings: dict[str, list[str]] = field(default_factory=lambda: {kind: [] for kind in KINDS})

    @property
    def false_negatives(self) -> float:
        """Share of true spellings that the verifier calls wrong."""
        return len(self.findings["missed"]) / max(1, self.tried["true"])

    @property
    def false_positives(self) -> float:
        """Share of near misses that the verifier calls right."""
        return len(self.findings["passed"]) / max(1, self.tried["false"])

    @property
    def passed(self) -> bool:
        """Whether nothing was found that spoils rewards; repeated questions do not."""
        spoils = ("shape", "unreadable", "contradictory", "leaked", "passed")
        return not any(self.findings[kind] for kind in spoils) and self.false_negatives <= MAY_MISS


def audit(source: str, seconds: float = 3.0) -> Audit:
    """Read a data set (a file, a folder, a hub id) as `DatasetTask` does and try its verifier.

    Every reference is spelled truly and nearly in several ways (`rlbook.tasks.spellings`); of
    those that need math-verify, `MOST_EXPRESSIONS` are tried. Chapter 05.
    """
    found, problems = Audit(source), list[tuple[str, Problem]]()
    for part, problem in problems_by_part(find_source(source)):
        if isinstance(problem, str):
            found.findings["shape"].append(problem)
        else:
            problems.append((part, problem))
    found.rows = dict(Counter(part for part, _ in problems))
    compare_questions(found, problems)
    try_references(found, [problem for _, problem in problems], seconds)
    return found


def compare_questions(found: Audit, problems: Sequence[tuple[str, Problem]]) -> None:
    """Repeated, nearly repeated, contradictory and leaked questions."""
    first: dict[str, tuple[str, Problem]] = {}
    for part, problem in problems:
        before, other = first.setdefault(likeness(problem), (part, problem))
        if other is problem:
            continue
        rows = f"{other.meta['source']} and {problem.meta['source']}"
        if before != part:
            found.findings["leaked"].append(rows)
        if read(other.answer) != read(problem.answer):
            answers = f"{other.answer[:40]!r} and {problem.answer[:40]!r}"
            found.findings["contradictory"].append(f"{rows}: {answers}")
        elif before == part:
            found.findings["repeated" if other.id == problem.id else "near"].append(rows)


def try_references(found: Audit, problems: Iterable[Problem], seconds: float) -> None:
    """Types of the references, and the verifier's word on spellings of each."""
    types: Counter[str] = Counter()
    for problem in {problem.answer: problem for problem in problems}.values():
        value, where = read(problem.answer), problem.meta["source"]
        kind = "unreadable" if (fault := next(unread(value), None)) else type_of(value)
        types[kind] += 1
        if fault:
            found.findings["unreadable"].append(f"{where}: {problem.answer[:60]!r}, {fault.why}")
        elif kind in QUICK or types[kind] <= MOST_EXPRESSIONS:
            for truth, texts in ((True, spellings), (False, near_misses)):
                for text in texts(value, problem.answer):
                    try_one(found, problem, text, truth, seconds)
    kinds = (
        type_of(read(p.answer)) if not [*unread(read(p.answer))] else "unreadable" for p in problems
    )
    found.types = dict(Counter(kinds).most_common())


def try_one(found: Audit, problem: Problem, text: str, truth: bool, seconds: float) -> None:
    """One spelling: a finding if the verifier does not see what it is."""
    verdict = verify_math(rf"\boxed{{{text}}}", problem.answer, seconds=seconds)
    found.tried["true" if truth else "false"] += 1
    if verdict.correct is not truth:
        line = f"{problem.meta['source']}: {text!r} for {problem.answer!r} ({verdict.reason})"
        found.findings["missed" if truth else "passed"].append(line)


def dispute(
    found: Audit, answers: Iterable[tuple[Problem, str | None, bool]], seconds: float = 3.0
) -> None:
    """Compare verdicts on answers, (problem, answer, right?), with those of math-verify alone."""
    for problem, answer, correct in answers:
        if answer is None:
            continue
        found.tried["answers"] += 1
        request = {"scorer": "math", "answer": answer, "reference": problem.answer}
        try:
            other = bool(WORKER.call(request, seconds)["correct"])
        except (TimeoutError, RuntimeError):
            continue
        if other is not correct:
            where = problem.meta.get("source", problem.id)
            line = (
                f"{where}: {answer!r} for {problem.answer!r} is {'right' if correct else 'wrong'}"
            )
            found.findings["disputed"].append(line)


def as_text(found: Audit) -> str:
    """The report for a terminal."""
    lines = [f"{found.name}: " + ", ".join(f"{n} rows to {part}" for part, n in found.rows.items())]
    lines += ["", "references  " + ", ".join(f"{n} {kind}" for kind, n in found.types.items())]
    rates = (
        ("false negatives", found.false_negatives, "missed", "true", "true spellings"),
        ("false positives", found.false_positives, "passed", "false", "near misses"),
    )
    for name, rate, kind, tried, what in rates:
        count = f"{len(found.findings[kind])} of {found.tried[tried]} {what}"
        lines.append(f"{name}  {rate:.2%} ({count})")
    for kind, rows in found.findings.items():
        if rows:
            more = [f"  … and {len(rows) - SHOWN} more"] if len(rows) > SHOWN else []
            lines += [
                "",
                f"{len(rows)} {KINDS[kind]}",
                *(f"  {row}" for row in rows[:SHOWN]),
                *more,
            ]
    return "\n".join(
        [*lines, "", "nothing speaks against it" if found.passed else "mend this first"]
    )


def as_html(found: Audit) -> str:
    """The report as a page of its own, every finding in it."""
    rows = "".join(
        f"<h2>{len(lines)} {KINDS[kind]}</h2><ol>"
        + "".join(f"<li><code>{html.escape(line)}</code></li>" for line in lines)
        + "</ol>"
        for kind, lines in found.findings.items()
        if lines
    )
    title = html.escape(f"Audit of {found.name}")
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        "<style>body{font:16px/1.5 system-ui;max-width:60rem;margin:2rem auto}</style>"
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
