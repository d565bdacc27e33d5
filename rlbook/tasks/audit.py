"""`rlbook audit`: a data set and its verifier judged before a policy is trained on them."""

import hashlib
import html
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from rlbook.tasks.answers import read
from rlbook.tasks.base import Problem, Verdict
from rlbook.tasks.dataset import find_source, likeness, problems_by_part, shown
from rlbook.tasks.math_answers import contradict, verify_math
from rlbook.tasks.sandbox.bounded import WORKER
from rlbook.tasks.spellings import near_misses, spellings
from rlbook.tasks.values import type_of, unread

SHOWN = 5  # findings of a kind in the report
MOST_EXPRESSIONS = 200  # references that need math-verify and are tried
MAY_MISS = 0.02  # share of true spellings that may fail
SUSPECT = 0.05  # share of near misses that pass, from which on their kind is looked for
TRIED = ("true", "false", "answers", "without an answer")
RATES = {
    "missed": ("false negatives", "true", "true spellings"),
    "passed": ("false positives", "false", "near misses"),
    "disputed": ("disputed", "answers", "answers of the policy"),
}
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
READINGS: dict[str, Callable[[str, str], bool]] = {  # of answer and reference, by bad verifiers
    "their first digit": lambda one, other: digits(one)[:1] == digits(other)[:1],
    "their digits, without sign and point": lambda one, other: digits(one) == digits(other),
    "the answer for the text of the reference": lambda one, other: other in one,
}
Verify = Callable[[str, str], object]  # of a completion and a reference: a verdict, or a truth


def digits(text: str) -> str:
    """Its digits in order."""
    return re.sub(r"\D", "", text)


@dataclass
class Audit:
    """What was found in a data set: rows by part, references by type, findings by kind."""

    name: str
    rows: dict[str, int] = field(default_factory=dict)
    types: dict[str, int] = field(default_factory=dict)
    tried: dict[str, int] = field(default_factory=lambda: dict.fromkeys(TRIED, 0))
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
        spoils = ("shape", "unreadable", "contradictory", "leaked", "passed")
        return not any(self.findings[kind] for kind in spoils) and self.false_negatives <= MAY_MISS


def audit(source: str, seconds: float = 3.0, verify: Verify | None = None) -> Audit:
    """Read a data set (a file, a folder, a hub id) as `DatasetTask` does and try its verifier.

    `verify` may be one's own: of a completion and a reference, a `Verdict` or whether it is right.
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
    verify = verify or partial(verify_math, seconds=seconds)
    try_references(found, [problem for _, problem in problems], verify)
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
        if contradict(other.answer, problem.answer):
            answers = f"{shown(other)} and {shown(problem)}"
            found.findings["contradictory"].append(f"{rows}: {answers}")
        elif before == part:
            found.findings["repeated" if other.id == problem.id else "near"].append(rows)


def try_references(found: Audit, problems: Iterable[Problem], verify: Verify) -> None:
    """Types of the references, and the verifier's word on spellings of each."""
    types: Counter[str] = Counter()
    for problem in {problem.answer: problem for problem in problems}.values():
        value, where = read(problem.answer), problem.meta["source"]
        kind = "unreadable" if (fault := next(unread(value), None)) else type_of(value)
        types[kind] += 1
        if fault:
            found.findings["unreadable"].append(f"{where}: {shown(problem)}, {fault.why}")
        elif kind in QUICK or types[kind] <= MOST_EXPRESSIONS:
            for truth, texts in ((True, spellings), (False, near_misses)):
                for text in texts(value, problem.answer):
                    try_one(found, problem, text, truth, verify)
    kinds = (
        type_of(read(p.answer)) if not [*unread(read(p.answer))] else "unreadable" for p in problems
    )
    found.types = dict(Counter(kinds).most_common())


def try_one(found: Audit, problem: Problem, text: str, truth: bool, verify: Verify) -> None:
    """One spelling: a finding if the verifier does not see what it is."""
    right, reason = word(verify, rf"\boxed{{{text}}}", problem.answer)
    found.tried["true" if truth else "false"] += 1
    if not truth:
        for how, alike in READINGS.items():
            found.alike[how] += alike(text, problem.answer) is right
    if right is not truth:
        line = f"{problem.meta['source']}: {text!r} for {problem.answer!r} ({reason})"
        found.findings["missed" if truth else "passed"].append(line)


def word(verify: Verify, completion: str, reference: str) -> tuple[bool, str]:
    """What a verifier says, and why; a verifier that fails has not said that it is right."""
    try:
        verdict = verify(completion, reference)
    except Exception as error:
        return False, f"it raised {type(error).__name__}: {error}"
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
    lines = [f"{found.name}: " + ", ".join(f"{n} rows to {part}" for part, n in found.rows.items())]
    lines += ["", "references  " + ", ".join(f"{n} {kind}" for kind, n in found.types.items())]
    for kind, (name, tried, what) in RATES.items():
        if kind != "disputed" or found.tried[tried]:
            count = f"{len(found.findings[kind])} of {found.tried[tried]:,} {what}"
            lines.append(f"{name}  {found.rate(kind):.2%} ({count})")
    if silent := found.tried["without an answer"]:
        lines.append(f"{silent} answers of the policy have no answer in a box")
    lines += [f"the verifier seems to compare {how}" for how in found.readings]
    for kind, rows in found.findings.items():
        if rows:
            more = [f"  … and {len(rows) - SHOWN} more"] if len(rows) > SHOWN else []
            lines += [
                "",
                f"{KINDS[kind]}: {len(rows)}",
                *(f"  {row}" for row in rows[:SHOWN]),
                *more,
            ]
    return "\n".join(
        [*lines, "", "nothing speaks against it" if found.passed else "mend this first"]
    )


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
