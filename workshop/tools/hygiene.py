"""What a notebook must not be committed with."""

import json
import re
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbformat.v4.rwbase import rejoin_lines

from rlbook.manifest import sha256
from rlbook.paths import data_dir
from workshop.shared.bound import without_bindings
from workshop.shared.evidence import READ_MARK

WIDGET = "application/vnd.jupyter.widget-view+json"
CHECK_COMMENT, CHECK_TAG = "# NBVAL_CHECK_OUTPUT", "nbval-check-output"

UNESCAPED_DOLLAR = re.compile(r"(?<!\\)\$")

MAX_CELL_LINES = 15
MAX_PARAGRAPH_WORDS = 110
MAX_IMAGE_BYTES = 150_000  # base64, as stored
MAX_NOTEBOOK_BYTES = 512 * 1024
MAX_SECONDS = 150  # machines differ by a fifth: 120 on the faster of those that executed the book


def problems(notebook: NotebookNode | str | Path) -> list[str]:
    """What a notebook must not be committed with, one line per problem; empty when it is fit."""
    if not isinstance(notebook, NotebookNode):
        # not nbformat.read, which would quietly repair ids
        notebook = rejoin_lines(nbformat.from_dict(json.loads(Path(notebook).read_text())))
    return [*notebook_problems(notebook), *order_problems(notebook), *cell_problems(notebook)]


def notebook_problems(notebook: NotebookNode) -> Iterator[str]:
    """What is wrong with the notebook as a whole."""
    try:
        nbformat.validate(deepcopy(notebook))  # it repairs ids in what it is given
    except nbformat.ValidationError as error:
        yield f"not a valid notebook: {error.message.splitlines()[0]}"
    if notebook.metadata.get("kernelspec", {}).get("name") != "python3":
        yield "kernelspec is not python3"
    if "widgets" in notebook.metadata:
        yield "stores widget state"
    ids = [cell.get("id") for cell in notebook.cells]
    if None in ids or len(set(ids)) < len(ids):
        yield "cell ids are missing or not unique"
    size = len(nbformat.writes(notebook).encode())
    if size > MAX_NOTEBOOK_BYTES:
        yield f"{size / 1024:.0f} KiB, the limit is {MAX_NOTEBOOK_BYTES / 1024:.0f}"
    if not any("assert" in source or is_check(cell) for cell, source in code_cells(notebook)):
        yield "no cell asserts or checks anything"


def order_problems(notebook: NotebookNode) -> Iterator[str]:
    """Whether it was executed out of order."""
    counts = [cell.execution_count for cell, _ in code_cells(notebook)]
    if counts != list(range(1, len(counts) + 1)):
        yield "not executed from top to bottom in a fresh kernel: run `make book`"


def cell_problems(notebook: NotebookNode) -> Iterator[str]:
    """What is wrong with single cells, each named by its number."""
    for index, cell in enumerate(notebook.cells):
        check = code_cell_problems if cell.cell_type == "code" else text_cell_problems
        yield from (f"cell {index}: {problem}" for problem in check(cell))


def code_cell_problems(cell: NotebookNode) -> Iterator[str]:
    """What is wrong with a cell of code."""
    lines = cell.source.strip().splitlines()
    if len(lines) > MAX_CELL_LINES:
        yield f"{len(lines)} lines of code, the limit is {MAX_CELL_LINES}"
    if re.search(r"^\s*[%!]\s*(pip|conda|apt)", cell.source, re.MULTILINE):
        yield "installs packages; the environment is set up by make"
    if is_check(cell):
        if not cell.outputs:
            yield "its output is to be checked, but it has none"
        if cell.source.rstrip().endswith(";"):
            yield "a final ; does not hide the output where it is checked: assign to _ instead"
    yield from machine_paths(cell.source)
    yield from evidence_problems(cell)
    for output in cell.outputs:
        if output.output_type == "error":
            yield f"raised {output.ename}: {output.evalue}"
        data = output.get("data", {})
        for mime, content in data.items():
            if mime.startswith("image/") and len(content) > MAX_IMAGE_BYTES:
                yield f"{mime} of {len(content) / 1000:.0f} kB, the limit is 150"
            elif mime.startswith("text/"):
                yield from machine_paths(content)
        if WIDGET in data and "image/png" not in data and "text/html" not in data:
            yield "a widget without a static picture: use Explorer, or draw a figure beside it"
        yield from machine_paths(output.get("text", ""))


def evidence_problems(cell: NotebookNode) -> Iterator[str]:
    """Tables of results that the cell has read, or does not show to have read, as committed."""
    printed = "".join(output.get("text", "") for output in cell.outputs)
    mark = READ_MARK.format(table=r"(\S+)", sha=r"([0-9a-f]+)")
    marks = re.findall(f"^{mark}$", printed, re.MULTILINE)
    if "load_results(" in cell.source and not marks:
        yield "reads a table of results without saying which: execute it again"
    for table, sha in marks:
        path = data_dir() / "results" / table
        if not path.is_file() or not sha256(path).startswith(sha):
            yield f"was drawn from another {table} than the committed one: execute it again"


def text_cell_problems(cell: NotebookNode) -> Iterator[str]:
    """What is wrong with a cell of text."""
    yield from machine_paths(cell.source)
    for row in re.findall(r"^\s*\|.*$", re.sub(r"`[^`\n]*`", "", cell.source), re.MULTILINE):
        if any(len(UNESCAPED_DOLLAR.findall(part)) % 2 for part in re.split(r"(?<!\\)\|", row)):
            yield f"a | inside a formula ends the cell of its table, write \\vert: {row[:40]} …"
    for paragraph in paragraphs(cell.source):
        words = len(paragraph.split())
        if words > MAX_PARAGRAPH_WORDS:
            start = " ".join(paragraph.split()[:6])
            yield f"paragraph of {words} words, the limit is {MAX_PARAGRAPH_WORDS}: {start} …"


def code_cells(notebook: NotebookNode) -> list[tuple[NotebookNode, str]]:
    """Non-empty code cells with their source."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [(cell, cell.source) for cell in cells if cell.source.strip()]


def is_check(cell: NotebookNode) -> bool:
    """Whether the cell's output is compared when the chapter is tested."""
    return CHECK_TAG in cell.metadata.get("tags", []) or CHECK_COMMENT in cell.source


def machine_paths(text: str) -> Iterator[str]:
    """Paths that exist on one machine only."""
    pattern = r"(?<![\w./:])(/(?:tmp|home|root|Users|opt|var|mnt|work)/[\w.]\S*)|\b[A-Z]:\\\w+"
    for found in re.finditer(pattern, text):
        yield f"path of one machine: {found.group()}"


def paragraphs(markdown: str) -> list[str]:
    """Running prose of a Markdown cell; no code, formulas, tables, headings or HTML tags.

    An item of a list counts as a paragraph of its own.
    """
    markdown = without_bindings(markdown)
    for block in (r"```.*?```", r"\$\$.*?\$\$", r"\$[^$\n]+\$", r"`[^`\n]+`", r"<[^>]+>"):
        symbol = " x " if block.startswith((r"\$[", "`[")) else "\n\n"
        markdown = re.sub(block, symbol, markdown, flags=re.DOTALL)
    markdown = re.sub(r"\]\([^)]*\)", "]", markdown)
    markdown = re.sub(r"^\s*(?:[-*+]|\d+\.)\s", "\n\n", markdown, flags=re.MULTILINE)
    blocks = re.split(r"\n\s*\n", markdown)
    return [b.strip() for b in blocks if b.strip() and not b.strip().startswith(("#", "|"))]
