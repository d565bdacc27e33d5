"""Own code by name: "package.module:attribute"."""

import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

NOT_THEIRS = os.path.dirname(__file__) + os.sep, "<string>"  # a dataclass's __init__


def import_name(path: str) -> Any:
    """The object that "package.module:attribute" names; attributes may be dotted.

    Modules of the working directory are found too, after all others.
    Raises `ValueError` for a malformed path or a missing attribute, `ImportError` for a missing
    module, both naming the path.
    """
    module, colon, attribute = path.partition(":")
    if module == "__main__" and not hasattr(sys.modules[module], attribute.split(".")[0]):
        raise ValueError(
            f"cannot import {path!r}: it was defined in a notebook or script: move it into a "
            "module, a file of its own, and import it there"
        )
    if not (module and colon and attribute):
        raise ValueError(f"{path!r} is no import path: write package.module:name")
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.append(os.getcwd())  # an installed command's path lacks it
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and not module.startswith(error.name):
            raise
        raise ImportError(
            f"cannot import {path!r}: no module {module!r} here; install its package or add its "
            "folder to PYTHONPATH"
        ) from error
    for name in attribute.split("."):
        if not hasattr(found, name):
            raise ValueError(f"cannot import {path!r}: {module} has no {attribute!r}")
        found = getattr(found, name)
    return found


def name_of(thing: Any) -> str:
    """The path under which `import_name` finds a function or a class again.

    Raises `ValueError` for what has no such name, a lambda or a function inside a function.
    """
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", "")
    if not module or not name or "<" in name:
        raise ValueError(f"{thing!r} has no import path: define it at the top of a module")
    return f"{module}:{name}"


def check_call(
    what: str, function: Callable[..., Any], arguments: Sequence[str], named: Sequence[str] = ()
) -> None:
    """Require that a function of the reader's can be called with these arguments.

    Raises `ValueError` naming it, how it is called and what does not fit.
    """
    call = ", ".join([*arguments, *(f"{name}=…" for name in named)])
    try:
        inspect.signature(function).bind(*arguments, **dict.fromkeys(named))
    except TypeError as error:
        raise ValueError(f"{what} is called as ({call}), and does not take that: {error}") from None
    except ValueError:
        pass  # written in C, it does not say what it takes


@contextmanager
def errors_of(what: str) -> Iterator[None]:
    """An error of the reader's code becomes a `ValueError` that says whose, with file and line."""
    try:
        yield
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        theirs = [frame for frame in frames if not frame.filename.startswith(NOT_THEIRS)]
        last = (theirs or frames)[-1]
        raise ValueError(
            f"{what} raised {type(error).__name__}: {error} ({last.filename}, line {last.lineno})"
        ) from error


def call_with_list(
    what: str, function: Callable[[Any], Any], items: Sequence[Any], mend: str
) -> Any:
    """What a function of the reader's makes of a list of rollouts.

    Raises `ValueError` naming it and what it raised, with the `mend` where it took the list for one
    of its members.
    """
    with errors_of(what):
        try:
            return function(items)
        except AttributeError as error:
            if error.obj is not items:
                raise
            mistaken = error
    raise ValueError(
        f"{what} takes the list of rollouts for one ({mistaken}): {mend}"
    ) from mistaken
