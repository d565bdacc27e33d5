"""The main line of a chapter and what is folded beside it: how long, and whether it stands alone.

A heading that begins with `Deeper:` opens a folded section, which ends at the next heading of its
order or above. Exercises are neither: they come after the main line.
"""

import ast
import builtins
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from workshop.shared.checks import SOLUTION
from workshop.shared.solutions import CLOSED
from workshop.tools.hygiene import paragraphs

MAX_WORDS, MAX_CODE_CELLS, MAX_PICTURES = 3000, 30, 6
MAX_LINES = 120
WORDS_A_MINUTE, SECONDS_A_LINE, MINUTES_A_PICTURE = 220, 4, 1

COLLAPSED = "jp-MarkdownHeadingCollapsed"
HEADING = re.compile(r"^(#{1,6}) +(.+?)\s*$", re.MULTILINE)
STARTS = {"folded": r"Deeper:", "exercises": r"(\d+ · )?Exercises"}
ASIDE = re.compile(r"\A#+ Deeper: .+\n\n\*Aside[^*]+\*\Z")
SCOPES = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
NAMES = set(dir(builtins)) | {"display", "get_ipython"}


@dataclass(frozen=True)
class Part:
    """What reading some cells of a notebook takes."""

    words: int
    code_cells: int
    lines: int
    pictures: int

    @property
    def minutes(self) -> float:
        """Reading alone, at the pace that the constants above say."""
        return (
            self.words / WORDS_A_MINUTE
            + self.lines * SECONDS_A_LINE / 60
            + self.pictures * MINUTES_A_PICTURE
        )


def places(notebook: NotebookNode) -> list[str]:
    """For every cell "main", "folded" or "exercises"."""
    found, place, order = [], "main", 0
    for cell in notebook.cells:
        heading = highest(cell)
        if heading and (place == "main" or heading[0] <= order):
            order, title = heading
            place = next(
                (
                    name
                    for name, start in (
                        ("folded", r"Deeper:"),
                        ("exercises", r"(\d+ · )?Exercises"),
                    )
                    if re.match(start, title)
                ),
                "main",
            )
        found.append(place)
    return found


def highest(cell: NotebookNode) -> tuple[int, str] | None:
    """Order and text of the heading by which JupyterLab folds a cell: the first of the highest."""
    if cell.cell_type != "markdown":
        return None
    text = re.sub(r"^```.*?^```", "", cell.source, flags=re.DOTALL | re.MULTILINE)
    headings = [(len(marks), title) for marks, title in HEADING.findall(text)]
    return min(headings, key=lambda found: found[0], default=None)


def measure(notebook: NotebookNode, place: str | None = "main") -> Part:
    """What the cells in one place take, but those with a solution or for Colab; None: all cells.

    A cell whose source is hidden shows its outputs alone.
    """
    cells = [
        cell
        for cell, where in zip(notebook.cells, places(notebook), strict=True)
        if place in (None, where) and not {SOLUTION, "colab"} & {*cell.metadata.get("tags", [])}
    ]
    code = [cell for cell in cells if cell.cell_type == "code" and cell.source.strip()]
    texts = [cell.source for cell in cells if cell.cell_type == "markdown"]
    return Part(
        words=sum(len(each.split()) for text in texts for each in paragraphs(text)),
        code_cells=sum(not is_hidden(cell) for cell in code),
        lines=sum(len(cell.source.strip().splitlines()) for cell in code if not is_hidden(cell)),
        pictures=sum(map(is_picture, (output for cell in code for output in cell.outputs))),
    )


def is_hidden(cell: NotebookNode) -> bool:
    """Whether JupyterLab and the site show a cell's outputs without its source."""
    return bool(cell.metadata.get("jupyter", {}).get("source_hidden"))


def is_closed(cell: NotebookNode) -> bool:
    """Whether a solution is seen only when it is asked for: a closed `<details>`, a hidden call."""
    if cell.cell_type == "markdown":
        return cell.source.startswith(CLOSED)
    return is_hidden(cell)


def is_picture(output: NotebookNode) -> bool:
    """Whether an output is drawn."""
    data = output.get("data", {})
    return any(mime.startswith("image/") for mime in data) or "data-live=" in data.get(
        "text/html", ""
    )


def is_shaped(notebook: NotebookNode) -> bool:
    """Whether the chapter has a main line: whether anything in it is folded."""
    return "folded" in places(notebook)


def main_line_problems(notebook: NotebookNode, max_lines: int = MAX_LINES) -> list[str]:
    """What a chapter with a main line must not be committed with."""
    part = measure(notebook)
    limits = (
        ("words", part.words, MAX_WORDS),
        ("lines of code in view", part.lines, max_lines),
        ("code cells", part.code_cells, MAX_CODE_CELLS),
        ("pictures", part.pictures, MAX_PICTURES),
    )
    return [
        *(f"{count} {what} in the main line, the limit is {most}"
          for what, count, most in limits if count > most),
        *fold_problems(notebook),
        *dependences(notebook),
    ]  # fmt: skip


def fold_problems(notebook: NotebookNode) -> Iterator[str]:
    """Folded sections that JupyterLab would open, or that do not say what follows."""
    for index, cell in enumerate(notebook.cells):
        heading = highest(cell)
        folded = heading is not None and heading[1].startswith("Deeper:")
        if cell.metadata.get(COLLAPSED, False) != folded:
            yield f"cell {index}: {COLLAPSED} must be {'true' if folded else 'absent'}"
        if folded and not ASIDE.match(cell.source.strip()):
            yield (
                f"cell {index}: a folded heading stands alone with one line in italics below it, "
                "*Aside …*, which says what follows: it is all that is seen of the section"
            )
        if SOLUTION in cell.metadata.get("tags", []) and not is_closed(cell):
            yield f"cell {index}: a solution in sight; write it as `shown` in shared.solutions does"


def dependences(notebook: NotebookNode) -> Iterator[str]:
    """Names in cells that are read which a folded cell has bound last."""
    bound: dict[str, tuple[int, str]] = {}
    for index, (cell, place) in enumerate(zip(notebook.cells, places(notebook), strict=True)):
        if cell.cell_type != "code":
            continue
        tree = ast.parse(cell.source)
        if place != "folded":
            for name in sorted(loaded(tree)):
                where, whose = bound.get(name, (index, "main"))
                if whose == "folded":
                    yield f"cell {index} uses {name}, which the folded cell {where} bound last"
        bound |= dict.fromkeys(stored(tree), (index, place))


def loaded(tree: ast.Module) -> set[str]:
    """Names that a cell takes from cells before it."""
    first: dict[str, bool] = {}  # name: whether it is read before the cell binds it
    for statement in tree.body:
        inner = parameters(statement)
        changed = [n.target for n in ast.walk(statement) if isinstance(n, ast.AugAssign)]
        names = [node for node in ast.walk(statement) if isinstance(node, ast.Name)]
        for node in names:
            if (node in changed or not is_stored(node)) and node.id not in inner:
                first.setdefault(node.id, True)
        for name in stored(ast.Module([statement], [])):
            first.setdefault(name, False)
    return {name for name, before in first.items() if before} - NAMES


def parameters(statement: ast.stmt) -> set[str]:
    """Names that are local to functions and comprehensions of a statement."""
    local: set[str] = set()
    for node in ast.walk(statement):
        if isinstance(node, ast.FunctionDef | ast.Lambda):
            local |= {each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)}
        if isinstance(node, ast.FunctionDef):
            inside = [each for line in node.body for each in ast.walk(line)]
            local |= {n.id for n in inside if isinstance(n, ast.Name) and is_stored(n)}
        if isinstance(node, ast.comprehension):
            targets = ast.walk(node.target)
            local |= {each.id for each in targets if isinstance(each, ast.Name)}
        if isinstance(node, ast.For | ast.With):
            local |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and is_stored(n)}
    return local


def is_stored(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Store)


def stored(tree: ast.Module) -> set[str]:
    """Names that a cell binds at its top level."""
    found: set[str] = set()
    waiting: list[ast.AST] = [*tree.body]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(each.asname or each.name).partition(".")[0] for each in node.names}
        if isinstance(
            node, ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
        ):
            continue
        if isinstance(node, ast.Name) and is_stored(node):
            found.add(node.id)
        waiting += ast.iter_child_nodes(node)
    return found


def report(paths: Sequence[Path]) -> str:
    """A row per chapter: main line beside the whole, and what is wrong with it."""
    columns = f"{'words':>12}{'lines':>10}{'code cells':>12}{'pictures':>10}{'minutes':>10}"
    rows = [f"{'chapter':<24}{columns}   (main line / whole)"]
    for path in paths:
        notebook = nbformat.read(path, as_version=4)
        line, whole = measure(notebook), measure(notebook, None)
        pairs = (
            (f"{line.words}/{whole.words}", 12),
            (f"{line.lines}/{whole.lines}", 10),
            (f"{line.code_cells}/{whole.code_cells}", 12),
            (f"{line.pictures}/{whole.pictures}", 10),
            (f"{line.minutes:.0f}/{whole.minutes:.0f}", 10),
        )
        rows.append(f"{path.stem:<24}" + "".join(f"{pair:>{width}}" for pair, width in pairs))
        if is_shaped(notebook):
            rows += [f"    {problem}" for problem in main_line_problems(notebook)]
    return "\n".join(rows)
