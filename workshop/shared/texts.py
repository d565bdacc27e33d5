"""What a policy says, as text: answers with their verdicts, and one prompt before and after."""

import html
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import cast

import numpy as np
import torch
from matplotlib.colors import to_hex, to_rgb
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlbook.policy import logprobs
from rlbook.tasks import Problem
from rlbook.training import Rollout, collate
from rlbook.training.chat import decode
from rlbook.viz.style import BAD, FAINT, GOOD, INK, MUTED, readable

WIDTH = 96  # characters of an answer before it goes on in the next line
BREAKS = " ;>"  # a line ends after one of these where it can
INDENT = " " * 12
DEEPEST = 0.55  # share of colour in the strongest tint: the text on it stays readable
MARKED = 1 / 3  # of the largest push; from there on a token is marked by + or -


@dataclass(frozen=True)
class TextPanel:
    """Monospace text for a notebook: HTML where it is shown, the same words where it is not."""

    plain: str
    html: str

    def __repr__(self) -> str:
        return self.plain

    def _repr_html_(self) -> str:
        return self.html


@dataclass(frozen=True)
class Piece:
    """A part of an answer; `strength` of its push is in [-1, 1], `hover` says it in words."""

    text: str
    strength: float = 0.0
    hover: str = ""


@dataclass(frozen=True)
class Span:
    """A part of a line. Colours are for the eye only, the text says everything."""

    text: str
    colour: str = INK
    background: str = ""
    bold: bool = False
    hover: str = ""


def show_answers(
    rollouts: Sequence[Rollout],
    note: Callable[[Rollout], str] | None = None,
    width: int = WIDTH,
) -> TextPanel:
    """Sampled answers under their prompts, each with the verifier's verdict.

        rollouts = collect_rollouts(engine, tokenizer, task, problems[:1], n=2, seed=0)
        show_answers(rollouts)

        32-4-9-3=?  (16)    1 of 2 right
          ✓ right   <think>32-4=28;28-9=19;19-3=16;</think><answer>16</answer>
          ✗ wrong   <think></think><answer>17</answer>

    The rollouts of a group share a heading with the reference answer in parentheses. An answer
    that met the token limit is marked "cut off". `note` adds a word of your own to each answer,
    such as its strategy: `note=lambda r: task.label(r.problem, r.text, not r.truncated)`. Answers
    go on in a new line after `width` characters.
    """
    lines: list[list[Span]] = []
    for _, members in groupby(rollouts, key=lambda r: (r.group, r.problem)):
        group = list(members)
        lines += [[], heading(group[0].problem, right_of(group))]
        for rollout in group:
            lines += answer_lines(rollout, [Piece(rollout.text)], width, note and note(rollout))
    return panel(lines[1:])


def before_after(
    problem: Problem,
    before: Rollout | Sequence[Rollout],
    after: Rollout | Sequence[Rollout],
    push: Sequence[float] | Sequence[Sequence[float]] | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    push_name: str = "push",
    width: int = WIDTH,
) -> TextPanel:
    """Answers to one prompt before training and after it, tokens tinted by what pushed them.

        was = collect_rollouts(Sampler(base, eos), tokenizer, task, [problem], n=3, seed=0)
        now = collect_rollouts(Sampler(trained, eos), tokenizer, task, [problem], n=3, seed=0)
        change = log_prob_change(was, base, trained)
        before_after(problem, was, now, change, tokenizer, push_name="change of log π")

    `before` and `after` are one rollout or several. `push` has a number for every token that was
    sampled in `before`, the end of sequence included: a row for one rollout, a list of rows for
    several. Blue tokens were pushed up, orange ones down, with the number on hover; + and - below
    the text mark pushes of at least a third of the largest, for eyes and pages without colour.
    A push needs the `tokenizer`, which knows where tokens end.
    Raises `ValueError` for rollouts of another problem and for a push that does not fit.
    """
    before, after = as_list(before), as_list(after)
    if any(r.problem != problem for r in (*before, *after)):
        raise ValueError(f"a rollout answers another problem than {problem.prompt!r}")
    pieces, legend = [[Piece(r.text)] for r in before], []
    if push is not None:
        rows = push_rows(push, before)
        pieces, legend = (
            pushed_pieces(rows, before, tokenizer, push_name),
            [legend_of(rows, push_name)],
        )
    lines = [heading(problem), [Span(f"before: {right_of(before)}", MUTED)]]
    for rollout, parts in zip(before, pieces, strict=True):
        lines += answer_lines(rollout, parts, width)
    lines.append([Span(f"after: {right_of(after)}", MUTED)])
    for rollout in after:
        lines += answer_lines(rollout, [Piece(rollout.text)], width)
    return panel(lines + legend)


@torch.no_grad()
def log_prob_change(
    rollouts: Sequence[Rollout], before: PreTrainedModel, after: PreTrainedModel
) -> list[list[float]]:
    """log π_after − log π_before of every sampled token, in nats, a row per rollout."""
    batch = collate(rollouts)
    change = logprobs(after, batch.ids, batch.mask) - logprobs(before, batch.ids, batch.mask)
    ends = [len(r.prompt_ids) + r.length for r in rollouts]
    return [
        row[end - r.length : end].tolist()
        for row, end, r in zip(change, ends, rollouts, strict=True)
    ]


def token_texts(tokenizer: PreTrainedTokenizerBase, rollout: Rollout) -> list[str]:
    """What each token adds to the text; the one that ends the sequence shows its own name."""
    texts = [decode(tokenizer, rollout.token_ids[:end]) for end in range(rollout.length + 1)]
    return [longer[len(text) :] for text, longer in pairwise(texts)]


def as_list(rollouts: Rollout | Sequence[Rollout]) -> list[Rollout]:
    """One rollout or several, as a list."""
    return [rollouts] if isinstance(rollouts, Rollout) else list(rollouts)


def right_of(rollouts: Sequence[Rollout]) -> str:
    """How many are right, in words."""
    return f"{sum(r.correct for r in rollouts)} of {len(rollouts)} right"


def push_rows(
    push: Sequence[float] | Sequence[Sequence[float]], rollouts: Sequence[Rollout]
) -> list[list[float]]:
    """The push as one row of finite numbers per rollout, each as long as its tokens."""
    rows = cast(Sequence[Sequence[float]], [push] if np.ndim(push[0]) == 0 else push)
    wanted, given = [r.length for r in rollouts], [len(row) for row in rows]
    if wanted != given:
        raise ValueError(f"push needs a number per token, rows of {wanted}, got {given}")
    if not np.isfinite(np.concatenate(rows)).all():
        raise ValueError("push holds a number that is not finite")
    return [[float(value) for value in row] for row in rows]


def pushed_pieces(
    rows: Sequence[Sequence[float]],
    rollouts: Sequence[Rollout],
    tokenizer: PreTrainedTokenizerBase | None,
    name: str,
) -> list[list[Piece]]:
    """The tokens of each rollout with their pushes, relative to the largest of all."""
    if tokenizer is None:
        raise ValueError("a push needs the tokenizer, which knows where tokens end")
    largest = max(abs(value) for row in rows for value in row) or 1.0
    return [
        [
            Piece(text, value / largest, f"{name} {value:+.2g}")
            for text, value in zip(token_texts(tokenizer, rollout), row, strict=True)
        ]
        for rollout, row in zip(rollouts, rows, strict=True)
    ]


def heading(problem: Problem, remark: str = "") -> list[Span]:
    """A problem with its answer, and a remark."""
    prompt = Span(problem.prompt.strip(), bold=True)
    answer = f"({problem.answer})    " if problem.answer else ""
    return [prompt, Span(f"  {answer}{remark}", MUTED)]


def legend_of(rows: Sequence[Sequence[float]], name: str) -> list[Span]:
    """The range of a push and what its marks mean."""
    values = np.concatenate(rows)
    text = f"{name} of a token: {values.min():+.2g} to {values.max():+.2g}; marked from a third of"
    up, down = Span("+ up", background=tint(0.7)), Span("- down", background=tint(-0.7))
    return [Span(f"{text} the largest on:  ", MUTED), up, Span("  "), down]


def answer_lines(
    rollout: Rollout, pieces: Sequence[Piece], width: int, note: str | None = None
) -> Iterator[list[Span]]:
    """An answer after its verdict, wrapped; marks of strong pushes below the line."""
    mark, word = ("✓", "right") if rollout.correct else ("✗", "wrong")
    word = "cut off" if rollout.truncated else word
    colour = readable(GOOD if rollout.correct else BAD)
    start = Span(f"  {mark} {word}".ljust(len(INDENT)), colour)
    rows = list(wrapped(pieces, width))
    for number, row in enumerate(rows):
        spans = [Span(p.text, background=tint(p.strength), hover=p.hover) for p in row]
        last = note and number == len(rows) - 1
        yield [start, *spans, *([Span(f"   {note}", MUTED)] if last else [])]
        marks = "".join(sign(p.strength) * len(p.text) for p in row).rstrip()
        if marks:
            yield [Span(INDENT + marks, MUTED)]
        start = Span(INDENT)


def wrapped(pieces: Sequence[Piece], width: int) -> Iterator[list[Piece]]:
    """Lines of at most `width` characters; new lines of the text are kept."""
    line: list[tuple[Piece, str]] = []
    for piece, character in ((p, c) for p in pieces for c in p.text):
        if character == "\n":
            yield rejoined(line)
            line = []
            continue
        if len(line) == width:
            cut = max((n + 1 for n, (_, c) in enumerate(line) if c in BREAKS), default=width)
            yield rejoined(line[:cut])
            line = line[cut:]
        line.append((piece, character))
    yield rejoined(line)


def rejoined(characters: Sequence[tuple[Piece, str]]) -> list[Piece]:
    """Characters put together again to pieces."""
    groups = groupby(characters, key=lambda pair: id(pair[0]))
    parts = [list(members) for _, members in groups]
    return [
        Piece("".join(c for _, c in part), part[0][0].strength, part[0][0].hover) for part in parts
    ]


def sign(strength: float) -> str:
    """The mark under a character: + or − where the push is strong, else a blank."""
    if abs(strength) < MARKED:
        return " "
    return "+" if strength > 0 else "-"


def tint(strength: float) -> str:
    """White at 0, towards blue at +1 and orange at −1; "" where it would not be seen."""
    share = DEEPEST * abs(strength)
    if share < 0.02:
        return ""
    colour = np.array(to_rgb(GOOD if strength > 0 else BAD))
    return to_hex((1 - share + share * colour).tolist())


def panel(lines: Sequence[Sequence[Span]]) -> TextPanel:
    """Lines as a panel with a page and an ink of its own, readable on dark pages as well."""
    style = (
        f"background:#ffffff;color:{INK};border-left:3px solid {FAINT};padding:6px 10px;"
        "font-size:13px;line-height:1.35;white-space:pre;overflow-x:auto"
    )
    plain = "\n".join("".join(span.text for span in line).rstrip() for line in lines)
    body = "\n".join("".join(map(span_html, line)) for line in lines)
    return TextPanel(plain, f'<pre style="{style}">{body}</pre>')


def span_html(span: Span) -> str:
    """A span as HTML; its text is escaped."""
    text = html.escape(span.text)
    if span.bold:
        text = f"<b>{text}</b>"
    colours = [f"color:{span.colour}"] if span.colour != INK else []
    colours += [f"background:{span.background}"] if span.background else []
    attributes = f' style="{";".join(colours)}"' if colours else ""
    attributes += f' title="{html.escape(span.hover)}"' if span.hover else ""
    return f"<span{attributes}>{text}</span>" if attributes else text
