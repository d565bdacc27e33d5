"""Answers that a full-scale run kept to be read (`samples.jsonl`), by verdict and by update."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from rlbook.jsonl import read_jsonl
from rlbook.scale.layout import Layout
from rlbook.viz.style import BAD, GOOD, MUTED, readable
from workshop.shared.texts import INDENT, WIDTH, Piece, Span, TextPanel, panel, wrapped

Verdict = Literal["all", "right", "wrong", "cut off"]
VERDICTS: tuple[Verdict, ...] = ("all", "right", "wrong", "cut off")


def show_samples(
    run: str | Path,
    verdict: Verdict = "all",
    updates: tuple[int, int] | None = None,
    limit: int = 6,
) -> TextPanel:
    """The last `limit` answers with this verdict, of the updates from the first to the second.

        show_samples("runs/cpu-tiny", verdict="wrong", updates=(1, 20))

    Each stands under its prompt with what the verifier said, its reward, its length and the age of
    its oldest token in updates. Raises `ValueError` for another verdict, and `FileNotFoundError`
    for a folder without samples.
    """
    return samples_panel(chosen(read_samples(run), verdict, updates)[-limit:])


def read_samples(run: str | Path) -> list[dict]:
    """Rows of a run's `samples.jsonl`. Raises `FileNotFoundError` if there are none."""
    path = Layout(Path(run)).log("samples")
    if not (rows := read_jsonl(path)):
        raise FileNotFoundError(
            f"{path} has no answers: full-scale runs keep `launch.shown` of every batch"
        )
    return rows


def chosen(
    rows: Sequence[dict], verdict: Verdict = "all", updates: tuple[int, int] | None = None
) -> list[dict]:
    """Those with this verdict, of these updates."""
    if verdict not in VERDICTS:
        raise ValueError(f"verdict {verdict!r}: choose one of {', '.join(VERDICTS)}")
    first, last = updates or (0, float("inf"))
    inside = [row for row in rows if first <= row["step"] <= last]
    return [row for row in inside if verdict in ("all", verdict_of(row))]


def verdict_of(row: dict) -> Verdict:
    """In one word: right, wrong or cut off."""
    if row["correct"]:
        return "right"
    return "cut off" if row["truncated"] else "wrong"


def samples_panel(rows: Sequence[dict]) -> TextPanel:
    """Answers under their prompts."""
    lines = [line for row in rows for line in ([], *sample_lines(row))]
    return panel(lines[1:] or [[Span("no answer is left by these filters", MUTED)]])


def sample_lines(row: dict) -> list[list[Span]]:
    """The prompt with the expected answer and the facts, then the verdict and the answer."""
    word = verdict_of(row)
    facts = (
        f"  ({row['expected']})    update {row['step']} · reward {row['reward']:+g} · "
        f"{row['tokens']} tokens · staleness {row['staleness']}"
    )
    mark, colour = ("✓", GOOD) if row["correct"] else ("✗", BAD)
    starts = [Span(f"  {mark} {word}".ljust(len(INDENT)), readable(colour))]
    lines = [[Span(row["prompt"].strip(), bold=True), Span(facts, MUTED)]]
    for pieces in wrapped([Piece(row["answer"])], WIDTH):
        lines.append([*(starts or [Span(INDENT)]), *(Span(piece.text) for piece in pieces)])
        starts = []
    return lines
