"""The reference of the package: a page per room, made from its signatures and docstrings."""

import ast
import importlib
import inspect
import re
import textwrap
import tomllib
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from rlbook.paths import ROOT
from workshop.site.owner import Owner

ROOMS = {
    "objectives": "advantages, ratios, trust regions, aggregation, KL, the table of methods",
    "tasks": "what is asked, and how an answer is verified",
    "policy": "load, score, sample",
    "rewards": "what an answer can be worth",
    "training": "a run as data, the loop, the learner, the trainer",
    "evaluation": "one way to measure a policy",
    "exact": "policies small enough to enumerate",
    "stats": "pass@k, intervals, paired differences",
    "scaling": "compute curves, memory, the pipeline simulated",
}

SIGNS = re.compile(r"(?!^\* )[*_|<>$\[\]\\]")  # Markdown's own, but for the star of a list


def write_reference(folder: Path, owner: Owner) -> None:
    """Write the sources of the reference: its contents, and a page per room."""
    folder.mkdir(parents=True)
    lines = "\n".join(f"* [`rlbook.{room}`]({room}.md): {about}" for room, about in ROOMS.items())
    rooms = "\n".join(ROOMS)
    (folder / "index.md").write_text(
        f"# The package\n\n`rlbook`, room by room.\n\n{lines}\n\n"
        f"```{{toctree}}\n:hidden:\n\n{rooms}\n```\n"
    )
    for room, about in ROOMS.items():
        module = importlib.import_module(f"rlbook.{room}")
        parts = [f"# rlbook.{room}", f"*{about[:1].upper()}{about[1:]}.*"]
        told = equations().get(room, {})
        for name, thing in sorted(public(module).items()):
            parts.append(entry(name, thing, owner, told.get(name)))
        (folder / f"{room}.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")


@cache
def equations() -> dict[str, dict[str, str]]:
    """Formulas of functions and classes in LaTeX, by room and name."""
    return tomllib.loads(Path(__file__).with_name("equations.toml").read_text(encoding="utf-8"))


def public(module: ModuleType) -> dict[str, Any]:
    """The functions and classes that a room shows, by name."""
    names = getattr(module, "__all__", None) or [n for n in vars(module) if not n.startswith("_")]
    found = {name: getattr(module, name) for name in names}
    return {
        name: thing
        for name, thing in found.items()
        if (inspect.isfunction(thing) or inspect.isclass(thing))
        and thing.__module__.startswith(module.__name__)
    }


def entry(name: str, thing: Any, owner: Owner, equation: str | None = None) -> str:
    """A function or class: heading, signature as it is written, docstring, public methods.

    An equation stands below the first line of the docstring.
    """
    thing = inspect.unwrap(thing)  # what a decorator of another package wraps is ours
    file, line = inspect.getsourcefile(thing), inspect.getsourcelines(thing)[1]
    place = Path(file or "").relative_to(ROOT).as_posix()
    address = owner.source_of(place)
    source = f"[`{place}`]({address}#L{line})" if address else f"`{place}`"
    node = ast.parse(textwrap.dedent(inspect.getsource(thing))).body[0]
    first, _, rest = (ast.get_docstring(node) or "").partition("\n\n")
    formula = f"$$\n{equation}\n$$" if equation else ""
    parts = [f"## {name}", f"```python\n{signature(node)}\n```", prose(first), formula, prose(rest)]
    for method in getattr(node, "body", ()) if isinstance(node, ast.ClassDef) else ():
        told = isinstance(method, ast.FunctionDef) and ast.get_docstring(method)
        if told and not method.name.startswith("_"):
            parts += [f"```python\n{signature(method)}\n```", prose(told)]
    return "\n\n".join(filter(None, [*parts, f"{source}"]))


def signature(node: ast.AST) -> str:
    """A definition as it is written: its head, and the fields of a class."""
    if isinstance(node, ast.ClassDef):
        fields = [ast.unparse(line) for line in node.body if isinstance(line, ast.AnnAssign)]
        bases = ", ".join(ast.unparse(base) for base in node.bases)
        return "\n".join(
            [f"class {node.name}({bases})" if bases else f"class {node.name}"]
            + [f"    {field}" for field in fields if not field.startswith("_")]
        )
    assert isinstance(node, ast.FunctionDef)
    given = ast.unparse(node.args)
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    line = f"{node.name}({given}){returns}"
    if len(line) <= 88:
        return line
    inner = re.sub(r", (?=\*|[a-z_]+[:=])", ",\n    ", given)
    return f"{node.name}(\n    {inner},\n){returns}".replace("/,\n)", "/\n)")


def prose(docstring: str | None) -> str:
    """A docstring as Markdown that means the same: indented lines stay code, signs stay signs."""
    if not docstring:
        return ""
    if re.search(r"^={3,}", docstring, re.MULTILINE):  # a table drawn with signs
        return f"```text\n{docstring}\n```"
    lines, code = [], False
    for line in docstring.splitlines():
        indented = line.startswith("    ")
        if indented and not code:
            lines += ["", "```text"]
        if not indented and code and line:
            lines += ["```", ""]
        code = indented or (code and not line)
        lines.append(line[4:] if indented else escaped(line) if not code else line)
    return "\n".join([*lines, *(["```"] if code else [])])


def escaped(line: str) -> str:
    """A line of prose with the signs that Markdown would take for its own; code is left alone."""
    parts = re.split(r"(``.+?``|`[^`]+`)", line)
    return "".join(part if part.startswith("`") else SIGNS.sub(r"\\\g<0>", part) for part in parts)
