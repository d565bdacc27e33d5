"""Settings out of another trainer's file: YAML, JSON, TOML, a launch script, a Python program."""

import ast
import re
import shlex
import tomllib
from collections.abc import Callable, Collection, Mapping
from difflib import SequenceMatcher
from pathlib import Path
from string import Template
from typing import Any

from rlbook.yaml12 import read_yaml

Settings = dict[str, Any]


def read_peer_file(path: Path) -> Settings:
    """Settings in a file by dotted name; `ValueError` naming a file that holds none."""
    text = path.read_text()
    try:
        settings = READERS.get(path.suffix, read_yaml)(text)
    except (ValueError, SyntaxError) as error:
        raise ValueError(f"{path}: {error}") from None
    if not isinstance(settings, Mapping) or not settings:
        what = "is empty" if not text.strip() else "holds no `name: value`"
        raise ValueError(f"{path} {what}: expected the settings of a trainer")
    return flat(settings)


def words_of(script: str) -> Settings:
    """`name=value`, `--name value` and `--name=value` of a script, its own variables put in."""
    words = shlex.split(script.replace("\\\n", " "), comments=True)
    found: Settings = {}
    for word, after in zip(words, [*words[1:], "--"], strict=True):
        name, equals, value = word.lstrip("-+").partition("=")
        if not re.fullmatch(r"[A-Za-z_][\w.-]*", name) or not (equals or word.startswith("--")):
            continue
        if not equals:
            value = "true" if after.startswith("--") else after
        found[name] = Template(value).safe_substitute(found)
    return {name: value for name, value in found.items() if "$" not in value}


def arguments_of(program: str) -> Settings:
    """The literal keyword arguments of calls such as `GRPOConfig(…)`."""
    found: Settings = {}
    for call in ast.walk(ast.parse(program)):
        if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("Config"):
            for argument in call.keywords:
                try:
                    found |= {str(argument.arg): ast.literal_eval(argument.value)}
                except ValueError:  # computed when the program runs
                    continue
    return found


READERS: Mapping[str, Callable[[str], Any]] = {  # by suffix, where it is not YAML or JSON
    ".toml": tomllib.loads,
    ".sh": words_of,
    ".py": arguments_of,
}


def near_name(name: str, known: Collection[str]) -> str:
    """The known name that a mistyped one is meant to be: every part of it alike; "" if none is."""
    parts = name.split(".")
    near = {
        one: min(SequenceMatcher(None, *pair).ratio() for pair in pairs)
        for one in known
        if len(pairs := [*zip(parts, one.split("."), strict=False)]) == len(parts)
        and one.count(".") + 1 == len(parts)
    }
    best = max(near, key=near.__getitem__, default="")
    return best if near.get(best, 0) >= 0.85 else ""


def flat(settings: Mapping[str, Any], prefix: str = "") -> Settings:
    """Nested settings by dotted name."""
    out: Settings = {}
    for name, value in settings.items():
        inner = flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else None
        out |= {f"{prefix}{name}": value} if inner is None else inner
    return out
