"""What a picture says in words, found in the code that drew it and without running it."""

import ast
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from rlbook.paths import ROOT

TITLES = {"set_title", "suptitle"}
DRAWING = "workshop."  # every module of it may draw
Drawer = ast.FunctionDef | ast.ClassDef


def alternative(source: str, drawers: Mapping[str, Drawer], section: str = "") -> str:
    """Alternative text of the pictures that a cell shows: their titles, which state the finding.

    Titles are looked for in the cell itself, then in the drawing functions that it calls
    (`drawers` has those of the cells so far: see `known`), then in what those say they draw, in
    the names of curves and in an explorer's hint; a cell without any of these is described by the
    heading above it.
    """
    tree = parsed(source)
    uses = dict.fromkeys(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
    helpers = [drawers[name] for name in uses if name in drawers]
    found = titles(tree) or [text for function in helpers for text in titles(function)]
    if not found:
        found = [sentence for function in helpers if (sentence := first_sentence(function))]
    found = found or told(tree)
    if not found:
        found = [f"Figure of the section “{section}”" if section else "Figure"]
    return ". ".join(text.rstrip(" .") for text in dict.fromkeys(found))


def titles(tree: ast.AST) -> list[str]:
    """Every title that the code gives to a picture, in the order in which it stands there."""
    found, texts = [], assigned(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and called(node) in TITLES and node.args:
            found.append((node.lineno, node.args[0]))
        elif isinstance(node, ast.keyword) and node.arg == "title":
            found.append((node.value.lineno, node.value))
    found += [(texts[name].lineno, texts[name]) for name in ("title", "titles") if name in texts]
    values = [texts.get(named(value), value) for _, value in sorted(found, key=lambda at: at[0])]
    words = [text for value in values for text in worded(value)]
    return [text for text in words if len(re.findall(r"[^\W\d_]{2,}", text)) > 1]


def assigned(tree: ast.AST) -> dict[str, ast.expr]:
    """The values that code gives to names, one by one or several at once."""
    pairs: list[tuple[ast.expr, ast.expr]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            match node.targets[0], node.value:
                case ast.Tuple(elts=names), ast.Tuple(elts=values):
                    pairs += zip(names, values, strict=False)
                case name, value:
                    pairs.append((name, value))
    return {named(name): value for name, value in pairs if named(name)}


def told(tree: ast.AST) -> list[str]:
    """What a cell says of its picture without a title: names of curves, or an explorer's hint."""
    texts = assigned(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and called(node) == "LivePlot":
            names = [each for part in node.args for each in curves(part, texts)]
            return [f"Curves of {', '.join(names)} over the steps of training"]
        if isinstance(node, ast.keyword) and node.arg == "hint":
            return worded(node.value)
    return []


def curves(value: ast.AST, texts: Mapping[str, ast.expr]) -> list[str]:
    """The names that are handed to a `LivePlot`, perhaps as the keys of a dictionary."""
    if isinstance(value, ast.Starred):
        value = texts.get(named(value.value), value.value)
    return worded(ast.Tuple(value.keys)) if isinstance(value, ast.Dict) else worded(value)


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


def known(source: str) -> dict[str, Drawer]:
    """The functions that a cell defines, or takes from the drawing modules."""
    tree = parsed(source)
    found = {node.name: node for node in tree.body if isinstance(node, Drawer)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(DRAWING):
            file = ROOT.joinpath(*str(node.module).split(".")).with_suffix(".py")
            names = {alias.name for alias in node.names}
            found |= {name: f for name, f in definitions(file).items() if name in names}
    return found


def first_sentence(function: Drawer) -> str:
    """What a function says that it does."""
    return (ast.get_docstring(function) or "").split("\n\n")[0].split(". ")[0].replace("\n", " ")


@cache
def definitions(path: Path) -> dict[str, Drawer]:
    """The functions and classes of a file."""
    body = parsed(path.read_text(encoding="utf-8")).body if path.is_file() else []
    return {node.name: node for node in body if isinstance(node, Drawer)}


def parsed(source: str) -> ast.Module:
    """Source as a tree; lines of IPython's own (`%time`, `!ls`) are left out."""
    lines = ("pass" if re.match(r"\s*[%!]", line) else line for line in source.splitlines())
    try:
        return ast.parse("\n".join(lines))
    except SyntaxError:
        return ast.Module(body=[], type_ignores=[])
