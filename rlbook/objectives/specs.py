"""Choices as data: functions and dataclasses as JSON-safe specs, and back.

A spec is a name, "group_normalize", or a name with options, {"type": "RatioClip", "low": 0.2}.
The package's own choices go by their bare name; a reader's own by import path,
"my_pkg.losses:my_advantage" (in a notebook "__main__:my_advantage"). Reading such a path imports
the module: a file that you did not write can run code.
"""

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from rlbook.importing import import_name, name_of
from rlbook.objectives import advantages
from rlbook.objectives.estimators import UNDECLARED, BoundEstimator, needs_of
from rlbook.objectives.selection import CovarianceClip, CovarianceKL, TopEntropy
from rlbook.objectives.soft_regions import (
    DivergencePenalty,
    SequenceGamma,
    SequenceMask,
    SoftGate,
    TaperedWeight,
)
from rlbook.objectives.trust_regions import DivergenceMask, NoTrustRegion, RatioClip, WeightClip

Known = Mapping[str, Any]
REGIONS: Known = {
    region.__name__: region
    for region in (
        *(NoTrustRegion, RatioClip, WeightClip, DivergenceMask),
        *(SoftGate, DivergencePenalty, TaperedWeight, SequenceMask, SequenceGamma),
    )
}
SELECTIONS: Known = {one.__name__: one for one in (TopEntropy, CovarianceClip, CovarianceKL)}
ADVANTAGES: Known = {
    name: function
    for name, function in vars(advantages).items()
    if hasattr(function, "needs") and function.__module__ == advantages.__name__
}


def write_estimator(estimator: Callable[..., Any]) -> str | dict[str, Any]:
    """Spec of an estimator; `ValueError` for one that no file can name."""
    if not isinstance(estimator, partial):
        return name_in(ADVANTAGES, estimator)
    name = name_in(ADVANTAGES, estimator.func)
    return {"type": name} | {k: plain(v, f"{name}.{k}") for k, v in estimator.keywords.items()}


def read_estimator(spec: Any) -> Callable[..., Any]:
    """The estimator of a spec, with its options bound; a callable is returned as it is."""
    if callable(spec):
        return spec
    name, options = parts(spec, "advantage")
    estimator = find(name, ADVANTAGES, "advantage")
    if not callable(estimator):
        raise ValueError(f"advantage {name!r} is a {type(estimator).__name__}, not a function")
    if not options:
        return estimator
    return BoundEstimator(estimator, **checked(estimator, options, "advantage"))


def write_region(region: Any) -> str | dict[str, Any]:
    """Spec of a trust region with every setting; a function goes by its name alone."""
    if is_dataclass(region) and not isinstance(region, type):
        return {"type": name_in(REGIONS, type(region))} | settings(region)
    if inspect.isfunction(region):
        return name_in(REGIONS, region)
    raise ValueError(
        f"{type(region).__name__} cannot be written to a file: make the trust region a "
        "@dataclass(frozen=True) in a module"
    )


def read_region(spec: Any) -> Any:
    """The trust region of a spec; None is none, and anything but a spec is returned as it is."""
    if spec is None:
        return NoTrustRegion()
    if not isinstance(spec, str | Mapping):
        return spec
    name, options = parts(spec, "trust_region")
    region = find(name, REGIONS, "trust_region")
    if inspect.isclass(region):
        return build(region, options, "trust_region")
    if options:
        raise ValueError(f"{name} is a function: options of a trust region need a dataclass")
    return region


def write_selection(selection: Any) -> dict[str, Any] | None:
    """Spec of a selection of tokens with every setting; None is none."""
    if selection is None:
        return None
    return {"type": name_in(SELECTIONS, type(selection))} | settings(selection)


def read_selection(spec: Any) -> Any:
    """The selection of a spec; anything but a spec is returned as it is."""
    if not isinstance(spec, str | Mapping):
        return spec
    name, options = parts(spec, "selection")
    return build(find(name, SELECTIONS, "selection"), options, "selection")


def settings(choice: Any) -> dict[str, Any]:
    """Every field of a dataclass, JSON-safe."""
    name = type(choice).__name__
    return {
        f.name: plain(getattr(choice, f.name), f"{name}.{f.name}") for f in fields(choice) if f.init
    }


def build(cls: type, options: Mapping[str, Any], where: str) -> Any:
    """`cls(**options)`; `ValueError` for an unknown, missing or unsuitable option."""
    options = checked(cls, options, where)
    try:
        inspect.signature(cls).bind(**options)
    except TypeError as error:
        raise ValueError(f"{where}: {cls.__name__} is {error}") from None
    return cls(**options)


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
        f"{where} {name!r} is unknown: choose from {', '.join(known)}, or give your own as "
        "'package.module:name'"
    )


def imported(path: str) -> Any:
    """The object at "package.module:name"; `ValueError` where there is none."""
    try:
        return import_name(path)
    except ImportError as error:
        raise ValueError(str(error)) from error


def name_in(known: Known, choice: Any) -> str:
    """The name under which `find` gives this function or class again.

    Raises `ValueError` for a lambda, a function inside a function, and an object without a name.
    """
    name = getattr(choice, "__name__", "")
    if name and known.get(name) is choice:
        return name
    path = name_of(choice)
    # a notebook's cell that runs again makes a new object of the same name, and that is meant
    if choice.__module__ != "__main__" and not is_at(path, choice):
        raise ValueError(f"{path} is another object: define {choice!r} at the top of a module")
    return path


def is_at(path: str, choice: Any) -> bool:
    try:
        return imported(path) is choice
    except ValueError:
        return False


def plain(value: Any, where: str) -> Any:
    """The value as JSON and YAML hold it; `ValueError` for anything but numbers, text, lists."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int | float):  # also their subclasses, NumPy's float among them
        return int(value) if isinstance(value, int) else float(value)
    if isinstance(value, tuple | list):
        return [plain(item, where) for item in value]
    raise ValueError(f"{where} is a {type(value).__name__}: only numbers, text and lists of them")


def checked(target: Any, options: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Options of a function or class, known and of the right type; lists become tuples."""
    allowed = option_names(target)
    if allowed is not None:
        check_keys(options, allowed, f"{where} {target.__name__}")
    options = {k: tuple(v) if isinstance(v, list) else v for k, v in options.items()}
    check_types(options, hints_of(target), f"{where}.")
    return options


def hints_of(target: Any) -> dict[str, Any]:
    """Annotations; none where one names what cannot be found from here."""
    try:
        return get_type_hints(target)
    except (NameError, TypeError):
        return {}


def option_names(target: Any) -> list[str] | None:
    """Parameters that are not inputs of an estimator; None where it takes any keyword."""
    parameters = list(inspect.signature(target).parameters.values())
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    if inspect.isclass(target):
        return [p.name for p in parameters]
    if needs_of(target) is UNDECLARED:  # rewards and groups, whatever they are called
        return [p.name for p in parameters[2:]]
    return [p.name for p in parameters if p.name not in (*needs_of(target).inputs, "groups")]


def check_keys(given: Collection[str], allowed: Collection[str], where: str) -> None:
    """Require every key to be an allowed one."""
    for key in given:
        if key not in allowed:
            raise ValueError(
                f"{where} has no {key!r}: it has {', '.join(allowed) or 'no options at all'}"
            )


def check_types(values: Mapping[str, Any], hints: Mapping[str, Any], prefix: str = "") -> None:
    """Require every value to fit its annotation; annotations of other kinds are not judged."""
    for name, value in values.items():
        hint = hints.get(name, Any)
        if fits(value, hint):
            continue
        if get_origin(hint) is Literal:
            raise ValueError(f"{prefix}{name} must be one of {get_args(hint)}, got {value!r}")
        wanted = " or ".join(map(kind_name, alternatives(hint)))
        note = ": YAML reads 3e-4 as text, so write 3.0e-4" if is_number(value) else ""
        raise ValueError(f"{prefix}{name} must be {wanted}, got {value!r}{note}")


def fits(value: Any, hint: Any) -> bool:
    return any(fits_one(value, option) for option in alternatives(hint))


def fits_one(value: Any, hint: Any) -> bool:
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if get_origin(hint) is tuple:
        items = get_args(hint)
        return (
            isinstance(value, tuple)
            and len(value) == len(items)
            and all(map(fits_one, value, items))
        )
    if hint in (int, float):
        return isinstance(value, int | hint) and not isinstance(value, bool)
    if get_origin(hint) is Callable or getattr(hint, "_is_protocol", False):
        return callable(value)
    return hint is Any or not isinstance(hint, type) or isinstance(value, hint)


def alternatives(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def kind_name(hint: Any) -> str:
    plain_type = isinstance(hint, type) and not get_args(hint)
    return hint.__name__.replace("NoneType", "None") if plain_type else str(hint)


def is_number(value: Any) -> bool:
    """Whether a text is a number."""
    try:
        return isinstance(value, str) and float(value) is not None
    except ValueError:
        return False
