"""A cell tagged `export:rlbook.…` shows a function of the package: is it the same one?"""

import ast
import difflib
import importlib
import inspect
import textwrap

from nbformat import NotebookNode

from workshop.tools.hygiene import code_cells

EXPORT_TAG = "export:"


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
    """Drops docstrings, annotations, decorators, leading guards, and a class's own guard.

    A guard is a bare call of a function named `check_…`, or an `if` that only raises; a class's own
    is a `__post_init__` of nothing but guards, and the base `Choice`, which checks its fields.
    """

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """A function without decorators, annotations, docstring and guards."""
        node.decorator_list, node.returns, node.type_comment = [], None, None
        node.type_params = []  # type: ignore[attr-defined]  # of Python 3.12
        body = without_docstring(node.body)
        while len(body) > 1 and is_guard(body[0]):
            body = body[1:]
        node.body = body or [ast.Pass()]
        return self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        """A class without decorators, docstring and methods that only guard."""
        node.decorator_list = []
        node.bases = [base for base in node.bases if ast.unparse(base) != "Choice"]
        body = [part for part in without_docstring(node.body) if not only_guards(part)]
        node.body = body or [ast.Pass()]
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        """A parameter without its annotation."""
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        """An annotated assignment without its annotation; a bare one goes."""
        if node.value is None:
            return None
        return self.generic_visit(ast.Assign([node.target], node.value))


def without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    """Statements after the docstring."""
    match body:
        case [ast.Expr(ast.Constant(str())), *rest]:
            return rest
    return body


def only_guards(statement: ast.stmt) -> bool:
    """Whether a `__post_init__` does nothing but refuse."""
    match statement:
        case ast.FunctionDef(name="__post_init__", body=body):
            return all(map(is_guard, without_docstring(body)))
    return False


def is_guard(statement: ast.stmt) -> bool:
    """Whether a statement only refuses bad input."""
    if isinstance(statement, ast.If):
        return not statement.orelse and all(isinstance(s, ast.Raise) for s in statement.body)
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        function = statement.value.func
        name = getattr(function, "id", getattr(function, "attr", ""))
        return name.startswith("check_") or name == "__post_init__"
    return False
