"""A program of several verbs on the command line; settings are words of the form name=value."""

import argparse
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import yaml
from pydantic import TypeAdapter, ValidationError

Config = TypeVar("Config")
Verb = Callable[[Sequence[str]], int | None]
EXPECTED = (ValueError, FileNotFoundError, FileExistsError, ImportError)  # said in one line


def run_verb(program: str, verbs: Mapping[str, Verb], words: Sequence[str]) -> int:
    """Call the verb that the first word names with the others; its exit code.

    An error that a user can mend is one line on standard error, and code 2.
    """
    name = words[0] if words else "--help"
    if name in ("-h", "--help"):
        width = max(map(len, verbs))
        lines = [f"  {verb:<{width}}  {first_line(function)}" for verb, function in verbs.items()]
        print(f"{program} VERB …\n\n" + "\n".join(lines) + f"\n\n{program} VERB --help tells more.")
        return 0
    try:
        if name not in verbs:
            raise ValueError(f"no verb {name!r}: choose from {', '.join(verbs)}")
        return verbs[name](words[1:]) or 0
    except EXPECTED as error:
        print(f"{program.split()[-1]}: {error}", file=sys.stderr)
        return 2


def parser_of(verb: str, function: Verb, more: str = "") -> argparse.ArgumentParser:
    """A parser whose help is the verb's docstring, and what there is `more` to say."""
    return argparse.ArgumentParser(
        prog=verb,
        description=inspect.getdoc(function),
        epilog=more,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def first_line(function: Verb) -> str:
    """The first line of a docstring."""
    return (inspect.getdoc(function) or "").partition("\n")[0]


def file_and_settings(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """The settings file among the words, if any, and the settings."""
    files = [word for word in words if "=" not in word]
    if len(files) > 1:
        raise ValueError(f"one settings file, not {', '.join(files)}; a setting is field=value")
    return (files[0] if files else None), [word for word in words if "=" in word]


def read_settings(words: Sequence[str]) -> dict[str, Any]:
    """Values by dotted name of words `name=value`; values as YAML, and 3e-4 is a number.

    Raises `ValueError` for a word of another form and for a name that is given twice.
    """
    found: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        name = name.replace("-", "_")
        if not equals or not name:
            raise ValueError(f"{word!r} is no setting: write section.field=value")
        if name in found:
            raise ValueError(f"{name} is given twice: {found[name]!r} and {text!r}; give it once")
        found[name] = value_of(text)
    return found


def configured(kind: type[Config], words: Sequence[str]) -> Config:
    """A dataclass of settings from words field=value; `ValueError` naming what is wrong."""
    try:
        return TypeAdapter(kind).validate_python(read_settings(words))
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]
        raise ValueError("; ".join(problems)) from None


def value_of(text: str) -> Any:
    """What a word of YAML means."""
    value = yaml.safe_load(text)
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value
