"""The notebooks: execute them with clean, repeatable outputs, and say what is wrong with one.

`python -m rlbook.book` executes every chapter in place; name files to execute only those.
"""

import ast
import base64
import difflib
import hashlib
import importlib
import inspect
import io
import json
import re
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from rlbook.manifest import manifest
from rlbook.paths import data_dir

ROOT = Path(__file__).parent.parent
WIDGET = "application/vnd.jupyter.widget-view+json"
CHECK_COMMENT, CHECK_TAG, EXPORT_TAG = "# NBVAL_CHECK_OUTPUT", "nbval-check-output", "export:"

MAX_CELL_LINES = 15
MAX_PARAGRAPH_WORDS = 80
MAX_IMAGE_BYTES = 150_000  # base64, as stored
MAX_NOTEBOOK_BYTES = 500_000
MAX_SECONDS = 120


def chapters() -> list[Path]:
    """Every notebook of the book in reading order: chapters, appendices, then solutions."""
    folder = ROOT / "chapters"
    return sorted(folder.glob("*.ipynb")) + sorted(folder.glob("solutions/*.ipynb"))


def build(paths: Sequence[str | Path] = (), timeout: int = 300) -> bool:
    """Execute notebooks in place (default: the whole book), one line each; True if all is well.

    Writes each wall time, with the machine it was measured on, to
    `data/results/chapter_times.json`. A notebook that fails keeps its old outputs.
    """
    good = True
    for path in [Path(p).resolve() for p in paths] or chapters():
        try:
            seconds = execute(path, timeout)
        except Exception as error:
            print(f"{path.name:<32} FAILED\n{textwrap.indent(str(error).strip(), '    ')}")
            good = False
            continue
        record_time(path, seconds)
        wrong = problems(path)
        good &= not wrong
        size = path.stat().st_size / 1000
        print(f"{path.name:<32} {seconds:6.1f} s {size:5.0f} kB", *wrong, sep="\n    ", flush=True)
    return good


def execute(path: str | Path, timeout: int = 300) -> float:
    """Run a notebook from top to bottom, store its outputs in place, return the wall seconds.

    Same code, same bytes: no time stamps, widget state, model ids or paths of this machine.
    `timeout` is per cell. Raises `nbclient.exceptions.CellExecutionError` for a failing cell; the
    file is left alone then.
    """
    from nbclient import NotebookClient

    path = Path(path)
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    client = NotebookClient(
        notebook,
        timeout=timeout,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(path.parent)}},
    )
    start = time.perf_counter()
    client.execute()
    seconds = time.perf_counter() - start
    clean(notebook, path.stem)
    nbformat.write(notebook, path)
    return seconds


def clean(notebook: NotebookNode, name: str) -> None:
    """Remove from an executed notebook what differs from run to run or machine to machine."""
    notebook.metadata = nbformat.from_dict(
        {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        }
    )
    for index, cell in enumerate(notebook.cells):
        cell.metadata.pop("execution", None)
        for output in cell.get("outputs", []):
            if "text" in output:
                output.text = without_paths(output.text)
            data = output.get("data", {})
            output.get("metadata", {}).pop(WIDGET, None)
            for mime, content in data.items():
                if mime == WIDGET:
                    digest = hashlib.sha256(f"{name}/{index}".encode())
                    content["model_id"] = digest.hexdigest()[:32]
                elif mime == "image/png":
                    data[mime] = small_png(content)
                elif mime.startswith("text/"):
                    data[mime] = without_paths(content)


def without_paths(text: str) -> str:
    """Text of an output with this machine's paths made relative or neutral."""
    text = re.sub(r"\S*/ipykernel_\d+/\d+\.py", "<cell>", text)
    return text.replace(f"{ROOT}/", "").replace(str(Path.home()), "~")


def small_png(image: str, limit: int = MAX_IMAGE_BYTES // 2) -> str:
    """A base64 PNG, reduced to a palette of 256 colours where it is larger than `limit`."""
    if len(image) <= limit:
        return image
    from PIL import Image

    picture = Image.open(io.BytesIO(base64.b64decode(image))).convert("RGB")
    buffer = io.BytesIO()
    picture.quantize(256, dither=Image.Dither.NONE).save(buffer, "PNG", optimize=True)
    return base64.b64encode(buffer.getvalue()).decode()


def times_path() -> Path:
    return data_dir() / "results" / "chapter_times.json"


def recorded_times() -> dict[str, dict]:
    """Per notebook (path below chapters/): `seconds` and the manifest of the run."""
    path = times_path()
    return json.loads(path.read_text()) if path.is_file() else {}


def record_time(path: Path, seconds: float) -> None:
    folder = ROOT / "chapters"
    if not path.is_relative_to(folder):
        return
    name = path.relative_to(folder).as_posix()
    facts = manifest(command=f"make book CHAPTERS=chapters/{name}")
    times = {**recorded_times(), name: {"seconds": round(seconds, 1), **facts}}
    times = {key: times[key] for key in sorted(times) if (folder / key).is_file()}
    times_path().parent.mkdir(parents=True, exist_ok=True)
    times_path().write_text(json.dumps(times, indent=1) + "\n")


def problems(notebook: NotebookNode | str | Path) -> list[str]:
    """What a notebook must not be committed with, one line per problem; empty when it is fit."""
    if not isinstance(notebook, NotebookNode):
        notebook = nbformat.read(notebook, as_version=4)
    return [*notebook_problems(notebook), *order_problems(notebook), *cell_problems(notebook)]


def notebook_problems(notebook: NotebookNode) -> Iterator[str]:
    try:
        nbformat.validate(notebook)
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
        yield f"{size / 1000:.0f} kB, the limit is {MAX_NOTEBOOK_BYTES / 1000:.0f}"
    if not any("assert" in source or is_check(cell) for cell, source in code_cells(notebook)):
        yield "no cell asserts or checks anything"


def order_problems(notebook: NotebookNode) -> Iterator[str]:
    counts = [cell.execution_count for cell, _ in code_cells(notebook)]
    if counts != list(range(1, len(counts) + 1)):
        yield "not executed from top to bottom in a fresh kernel: run `make book`"


def cell_problems(notebook: NotebookNode) -> Iterator[str]:
    for index, cell in enumerate(notebook.cells):
        check = code_cell_problems if cell.cell_type == "code" else text_cell_problems
        yield from (f"cell {index}: {problem}" for problem in check(cell))


def code_cell_problems(cell: NotebookNode) -> Iterator[str]:
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


def text_cell_problems(cell: NotebookNode) -> Iterator[str]:
    yield from machine_paths(cell.source)
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
    for block in (r"```.*?```", r"\$\$.*?\$\$", r"\$[^$\n]+\$", r"`[^`\n]+`", r"<[^>]+>"):
        symbol = " x " if block.startswith((r"\$[", "`[")) else "\n\n"
        markdown = re.sub(block, symbol, markdown, flags=re.DOTALL)
    markdown = re.sub(r"\]\([^)]*\)", "]", markdown)
    markdown = re.sub(r"^\s*(?:[-*+]|\d+\.)\s", "\n\n", markdown, flags=re.MULTILINE)
    blocks = re.split(r"\n\s*\n", markdown)
    return [b.strip() for b in blocks if b.strip() and not b.strip().startswith(("#", "|"))]


def exported(notebook: NotebookNode) -> list[tuple[str, str]]:
    """(dotted name, cell source) for every `export:rlbook.…` tag."""
    return [
        (tag.removeprefix(EXPORT_TAG), source)
        for cell, source in code_cells(notebook)
        for tag in cell.metadata.get("tags", [])
        if tag.startswith(EXPORT_TAG)
    ]


def export_difference(name: str, source: str) -> str:
    """How the definition in a cell differs from the package's `name`; "" where they agree.

    Docstrings, comments, annotations, decorators and leading guards are not compared.
    Raises `ValueError` if the cell does not define it, `AttributeError` or `ImportError` if the
    package does not.
    """
    module, _, short = name.rpartition(".")
    package = textwrap.dedent(inspect.getsource(getattr(importlib.import_module(module), short)))
    ours, theirs = (essence(text, short).splitlines() for text in (package, source))
    lines = difflib.unified_diff(ours, theirs, f"package: {name}", "chapter", lineterm="", n=20)
    return "\n".join(lines)


def essence(source: str, name: str) -> str:
    """Source of the function or class `name`, with what is not compared taken out."""
    kinds = (ast.FunctionDef, ast.ClassDef)
    found = [n for n in ast.parse(source).body if isinstance(n, kinds) and n.name == name]
    if not found:
        raise ValueError(f"the cell does not define {name!r} at its top level")
    return ast.unparse(ast.fix_missing_locations(Essence().visit(found[-1])))


class Essence(ast.NodeTransformer):
    """Drops docstrings, annotations, decorators and leading guards.

    A guard is a bare call of a function named `check_…`, or an `if` that only raises.
    """

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.decorator_list, node.returns, node.type_comment = [], None, None
        node.type_params = []
        body = without_docstring(node.body)
        while len(body) > 1 and is_guard(body[0]):
            body = body[1:]
        node.body = body or [ast.Pass()]
        return self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node.decorator_list = []
        node.body = without_docstring(node.body) or [ast.Pass()]
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        if node.value is None:
            return None
        return self.generic_visit(ast.Assign([node.target], node.value))


def without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    first = body[0] if body else None
    is_text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    return body[1:] if is_text and isinstance(first.value.value, str) else body


def is_guard(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.If):
        return not statement.orelse and all(isinstance(s, ast.Raise) for s in statement.body)
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        function = statement.value.func
        name = getattr(function, "id", getattr(function, "attr", ""))
        return name.startswith("check_")
    return False


if __name__ == "__main__":
    sys.exit(not build(sys.argv[1:]))
