"""What a picture says in words, found in the code that drew it and without running it."""

import ast
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from rlbook.paths import ROOT

TITLES = {"set_title", "suptitle"}
FIGURES = "workshop.figures"


def alternative(source: str, home: Mapping[str, str], section: str = "") -> str:
    """Alternative text of the pictures that a cell shows: their titles, which state the finding.

    Titles are looked for in the cell itself, then in the drawing functions that it calls (`home`
    has the module of each: see `imported`), then in what those say they draw; a cell without any
    of these is described by the heading above it.
    """
    tree = parsed(source)
    uses = dict.fromkeys(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
    helpers = [f for name in uses if name in home and (f := defined(home[name], name))]
    found = titles(tree) or [text for function in helpers for text in titles(function)]
    if not found:
        found = [sentence for function in helpers if (sentence := first_sentence(function))]
    if not found:
        found = [f"Figure of the section “{section}”" if section else "Figure"]
    return ". ".join(text.rstrip(" .") for text in dict.fromkeys(found))


def titles(tree: ast.AST) -> list[str]:
    """Every title that the code gives to a picture, in the order in which it stands there."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and called(node) in TITLES and node.args:
            found.append((node.lineno, node.args[0]))
        elif isinstance(node, ast.keyword) and node.arg == "title":
            found.append((node.value.lineno, node.value))
        elif isinstance(node, ast.Assign) and named(node.targets[0]) in ("title", "titles"):
            found.append((node.lineno, node.value))
    texts = [text for _, value in sorted(found, key=lambda at: at[0]) for text in worded(value)]
    return [text for text in texts if len(re.findall(r"[^\W\d_]{2,}", text)) > 1]


def worded(value: ast.AST) -> list[str]:
    """The texts of an expression: a string, a formatted one with its gaps, or several of them."""
    match value:
        case ast.Constant(value=str(text)):
            return [" ".join(text.split())]
        case ast.JoinedStr(values=parts):
            pieces = (p.value if isinstance(p, ast.Constant) else "…" for p in parts)
            return [" ".join("".join(pieces).split())]
        case ast.List(elts=many) | ast.Tuple(elts=many):
            return [text for each in many for text in worded(each)]
        case ast.Dict(values=many):
            return [text for each in many for text in worded(each)]
        case ast.IfExp(body=first, orelse=second):
            return [*worded(first), *worded(second)]
    return []


def called(node: ast.Call) -> str:
    """The last name of what is called."""
    return named(node.func)


def named(node: ast.AST) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def imported(source: str) -> dict[str, str]:
    """The names that a cell takes from the drawing modules, each with its module."""
    return {
        alias.name: node.module
        for node in ast.walk(parsed(source))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(FIGURES)
        for alias in node.names
    }


def first_sentence(function: ast.FunctionDef | ast.ClassDef) -> str:
    """What a function says that it does."""
    return (ast.get_docstring(function) or "").split("\n\n")[0].split(". ")[0].replace("\n", " ")


def defined(module: str, name: str) -> ast.FunctionDef | ast.ClassDef | None:
    """A function or class of a module, as it is written there."""
    return definitions(ROOT.joinpath(*module.split(".")).with_suffix(".py")).get(name)


@cache
def definitions(path: Path) -> dict[str, ast.FunctionDef | ast.ClassDef]:
    """The functions and classes of a file."""
    body = parsed(path.read_text(encoding="utf-8")).body if path.is_file() else []
    return {node.name: node for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)}


def parsed(source: str) -> ast.Module:
    """Source as a tree; lines of IPython's own (`%time`, `!ls`) are left out."""
    lines = ("pass" if re.match(r"\s*[%!]", line) else line for line in source.splitlines())
    try:
        return ast.parse("\n".join(lines))
    except SyntaxError:
        return ast.Module(body=[], type_ignores=[])
