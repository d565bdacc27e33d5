"""Choices as data: functions and dataclasses as JSON-safe specs, and back.

A spec is a name, "group_normalize", or a name with options, {"type": "RatioClip", "low": 0.2}.
The package's own choices go by their bare name; a reader's own by import path,
"my_pkg.losses:my_advantage" (in a notebook "__main__:my_advantage"). Reading such a path imports
the module: a file that you did not write can run code.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from types import ModuleType
from typing import Any

from rlbook.importing import import_name, name_of
from rlbook.objectives import advantages, selection, soft_regions, trust_regions
from rlbook.objectives.aggregation import AGGREGATIONS
from rlbook.objectives.estimators import BoundEstimator
from rlbook.objectives.kl import KLPenalty
from rlbook.objectives.options import checked, meant, option_names, told_its_names
from rlbook.objectives.prompts import PromptFilter
from rlbook.objectives.ratios import RATIOS, SamplerCorrection

Known = Mapping[str, Any]


def defined_in(*modules: ModuleType, like: Callable[[Any], bool]) -> Known:
    """What these modules define themselves and `like` accepts, by name."""
    return {
        name: thing
        for module in modules
        for name, thing in vars(module).items()
        if getattr(thing, "__module__", "") == module.__name__ and like(thing)
    }


# The columns of a method that hold a choice, and the choices there are for each.
KNOWN: Mapping[str, Known] = {
    "advantage": defined_in(advantages, like=lambda thing: hasattr(thing, "needs")),
    "ratio": RATIOS,
    "trust_region": defined_in(
        *(trust_regions, soft_regions),
        like=lambda thing: is_dataclass(thing) and hasattr(thing, "weigh"),
    ),
    "aggregation": AGGREGATIONS,
    "selection": defined_in(selection, like=is_dataclass),
    "prompt_filter": {"PromptFilter": PromptFilter},
}
BY_NAME = ("ratio", "aggregation")  # a row goes on calling these by name
SETTINGS: Mapping[str, type] = {
    "kl": KLPenalty,
    "sampler_correction": SamplerCorrection,
}


for known in (*KNOWN.values(), SETTINGS):  # all of them say so where an option is none of theirs
    for choice in known.values():
        if isinstance(choice, type) and is_dataclass(choice):
            told_its_names(choice)


def write(column: str, value: Any) -> Any:
    """What a column of a method holds, JSON-safe; `ValueError` for what no file can name."""
    if (column in SETTINGS and value is not None) or isinstance(value, PromptFilter):
        return settings(value)
    if column not in KNOWN or value is None or isinstance(value, str):
        return plain(value, column)
    if isinstance(value, partial):
        name = name_in(column, value.func)
        return {"type": name} | {k: plain(v, f"{name}.{k}") for k, v in value.keywords.items()}
    if hasattr(value, "__qualname__"):
        return name_in(column, value)
    if is_dataclass(value) and column != "advantage":  # an advantage is a class, made afresh
        return {"type": name_in(column, type(value))} | settings(value)
    raise ValueError(
        f"{type(value).__name__} cannot be written to a file: make the {column} a function or a "
        "@dataclass(frozen=True) at the top of a module"
    )


def read(column: str, spec: Any) -> Any:
    """The value of a spec in a column of a method; anything but a spec is returned as it is.

    Raises `ValueError` for an unknown name or option, naming those there are.
    """
    if column in SETTINGS and isinstance(spec, Mapping):
        return build(SETTINGS[column], spec, column)
    if column not in KNOWN or not isinstance(spec, str | Mapping):
        return as_spec_would(column, spec)
    if column == "prompt_filter" and isinstance(spec, Mapping):
        spec = {"type": "PromptFilter"} | dict(spec)
    name, options = parts(spec, column)
    choice = find(name, KNOWN[column], column)
    if not callable(choice):
        raise ValueError(f"{column} {name!r} is a {type(choice).__name__}, not a function")
    if column in BY_NAME and choice is KNOWN[column].get(name) and not options:
        return name
    if column == "advantage":
        return BoundEstimator(choice, **checked(choice, options, column)) if options else choice
    if inspect.isclass(choice):
        return build(choice, options, column)
    if options:
        raise ValueError(f"{name} is a function: options of a {column} need a dataclass")
    return choice


def as_spec_would(column: str, choice: Any) -> Any:
    """An object in a column of a method, its fields checked and converted as those of a spec.

    Raises `ValueError` for a field that does not fit, for a class where an object is wanted, and
    for what is neither.
    """
    if column not in (*KNOWN, *SETTINGS):
        return choice
    if column in KNOWN and not (choice is None or callable(choice) or hasattr(choice, "weigh")):
        known = (f"{k}(…)" if is_dataclass(v) else repr(k) for k, v in KNOWN[column].items())
        raise ValueError(
            f"{column} is {choice!r:.60}: choose from {', '.join(known)}, or give code of your own"
        )
    if column == "advantage":
        return choice
    if isinstance(choice, type):
        name = choice.__name__
        raise ValueError(f"{column} is the class {name}: make one, {column}={name}(…)")
    if not is_dataclass(choice):
        return choice
    made_by: type = type(choice)
    names = [name for name in option_names(made_by) or () if hasattr(choice, name)]
    given = {name: getattr(choice, name) for name in names}
    fitted = checked(made_by, given, f"{column} {made_by.__name__}")
    return choice if fitted == given else made_by(**fitted)


def settings(choice: Any) -> dict[str, Any]:
    """Every field of a dataclass, JSON-safe."""
    name = type(choice).__name__
    return {
        f.name: plain(getattr(choice, f.name), f"{name}.{f.name}") for f in fields(choice) if f.init
    }


def build(cls: type, options: Mapping[str, Any], where: str) -> Any:
    """`cls(**options)`; `ValueError` for an unknown, missing or unsuitable option."""
    return cls(**checked(cls, options, where))


def merged(row: Any, change: Any) -> Any:
    """The row's spec with a change: field by field for the same `type`, else the change alone."""
    if not isinstance(change, Mapping) or row is None:
        return change
    row = row if isinstance(row, Mapping) else {"type": row}
    return {**row, **change} if change.get("type", row.get("type")) == row.get("type") else change


def parts(spec: Any, where: str) -> tuple[str, dict[str, Any]]:
    """(name, options) of a spec."""
    options = dict(spec) if isinstance(spec, Mapping) else {"type": spec}
    name = options.pop("type", None)
    if not isinstance(name, str):
        raise ValueError(f'{where} must be a name or {{"type": name, option: value}}, got {spec!r}')
    return name, options


def find(name: str, known: Known, where: str) -> Any:
    """What a name stands for; `ValueError` listing the known ones."""
    if ":" in name:
        return imported(name)
    if name in known:
        return known[name]
    raise ValueError(
        f"{where} {name!r} is unknown{meant(name, known)}: choose from {', '.join(known)}, or give "
        "your own as 'package.module:name'"
    )


def imported(path: str) -> Any:
    """The object at "package.module:name"; `ValueError` where there is none."""
    try:
        return import_name(path)
    except ImportError as error:
        raise ValueError(str(error)) from error


def name_in(column: str, choice: Any) -> str:
    """The name under which `find` gives this function or class again in a column.

    Raises `ValueError` for a lambda, a function inside a function, and an object without a name.
    """
    name = getattr(choice, "__name__", "")
    if name and KNOWN[column].get(name) is choice:
        return name
    try:
        path = name_of(choice)
    except ValueError as error:
        raise ValueError(f"{column}: {error}") from None
    # a notebook's cell that runs again makes a new object of the same name, and that is meant
    if choice.__module__ == "__main__":
        return path
    try:
        if imported(path) is choice:
            return path
    except ValueError:
        pass
    raise ValueError(
        f"{column}: {path} is another object: define {choice!r} at the top of a module"
    )


def plain(value: Any, where: str) -> Any:
    """The value as JSON and YAML hold it; `ValueError` for anything but numbers, text, lists."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int | float):  # also their subclasses, NumPy's float among them
        return int(value) if isinstance(value, int) else float(value)
    if isinstance(value, tuple | list):
        return [plain(item, where) for item in value]
    raise ValueError(f"{where} is a {type(value).__name__}: only numbers, text and lists of them")
