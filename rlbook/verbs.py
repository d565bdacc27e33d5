"""A program of several verbs on the command line; settings are words of the form name=value."""

import argparse
import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, NoReturn, TypeVar

from pydantic import TypeAdapter, ValidationError

from rlbook.yaml12 import read_yaml

Config = TypeVar("Config")
Verb = Callable[[Sequence[str]], int | None]
EXPECTED = (ValueError, OSError, ImportError)  # said in one line
SYNONYMS = {"evaluate": "eval", "test": "eval", "run": "train", "diagnose": "doctor"}


def run_verb(program: str, verbs: Mapping[str, Verb], words: Sequence[str]) -> int:
    """Call the verb that the first word names with the others; its exit code.

    An error that a user can mend is one line on standard error, and code 2; so is Ctrl-C, with 130.
    """
    name = words[0] if words else "--help"
    if name in ("-h", "--help"):
        width = max(map(len, verbs))
        lines = [f"  {verb:<{width}}  {first_line(function)}" for verb, function in verbs.items()]
        print(f"{program} VERB …\n\n" + "\n".join(lines) + f"\n\n{program} VERB --help tells more.")
        return 0
    try:
        if name not in verbs:
            near = get_close_matches(name.lower(), verbs, n=1) or [SYNONYMS.get(name.lower(), "")]
            hint = f", did you mean {near[0]}?" if near[0] in verbs else ""
            raise ValueError(f"no verb {name!r}{hint}: choose from {', '.join(verbs)}")
        return verbs[name](words[1:]) or 0
    except EXPECTED as error:
        print(f"{program.split()[-1]}: {in_one_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{program.split()[-1]}: stopped", file=sys.stderr)
        return 130


def in_one_line(error: Exception) -> str:
    """What an error says, an operating system's with its file first."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split())


class Parser(argparse.ArgumentParser):
    """A parser whose errors are raised, and that takes settings from anywhere among the words."""

    def error(self, message: str) -> NoReturn:
        """Raise `ValueError` with the fix, where there is a likely one."""
        raise ValueError(f"{self.prog.split()[-1]}: {message}")

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """The words, with `settings` those of the form name=value; `ValueError` in one line."""
        for i, word in enumerate(words):
            name, _, value = word.lstrip("-").partition("=")
            flag = word.split("=")[0]
            if re.match(r"--?[a-zA-Z]", word) and not self.knows(flag):
                known = [option for action in self._actions for option in action.option_strings]
                if near := get_close_matches(flag.replace("_", "-"), known, n=1, cutoff=0.75):
                    self.error(f"no option {flag}, did you mean {near[0]}?")
                value = value or next(iter(words[i + 1 : i + 2]), "…")
                self.error(f"no option {flag}; a setting is written {name}={value}")
        if "=" in words and 0 < (i := list(words).index("=")) < len(words) - 1:
            self.error(f"write {words[i - 1]}={words[i + 1]}, without spaces")
        settings = [word for word in words if re.match(r"[\w.-]*=", word) and word[0] != "-"]
        asked = self.parse_intermixed_args([word for word in words if word not in settings])
        asked.settings = settings
        return asked

    def knows(self, flag: str) -> bool:
        """Whether there is such an option, or a long one that begins like it."""
        options = [option for action in self._actions for option in action.option_strings]
        return flag in options or (flag[:2] == "--" and any(o.startswith(flag) for o in options))


def parser_of(verb: str, function: Verb, more: str = "") -> Parser:
    """A parser whose help is the verb's docstring, and what there is `more` to say."""
    return Parser(
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
    if files and (pair := re.fullmatch(r"([a-z][\w.]*):(\S+)", files[0])):
        raise ValueError(f"{files[0]} is no file; a setting is written {pair[1]}={pair[2]}")
    return (files[0] if files else None), [word for word in words if "=" in word]


def read_settings(words: Sequence[str]) -> dict[str, Any]:
    """Values by dotted name of words `name=value`, as YAML 1.2 reads them.

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
    """What a word of YAML means; a text that is none is a word."""
    try:
        return read_yaml(text)
    except ValueError:
        return text
