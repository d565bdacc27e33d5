"""What a choice is made with: its options, by name and kind, from a file or as an object."""

import inspect
import re
from collections.abc import Collection, Mapping
from dataclasses import fields
from difflib import get_close_matches
from functools import cache, wraps
from math import isnan
from typing import Annotated, Any, Required, TypeVar, cast, get_args, get_type_hints

from pydantic import BeforeValidator, ConfigDict, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from rlbook.objectives.estimators import UNDECLARED, needs_of

NO_FLAG = BeforeValidator(lambda value: str(value) if isinstance(value, bool) else value)
Made = TypeVar("Made", bound=type)

ELSEWHERE = {  # what users of other trainers call an option of a method's parts
    "kl.beta": "beta kl_coef kl_loss_coef init_kl_coef",
    "trust_region.low": "clip epsilon clip_ratio clip_ratio_low eps_clip eps_clip_low cliprange",
    "trust_region.high": "epsilon_high clip_ratio_high eps_clip_high",
}


class Choice:
    """Base of the frozen dataclasses a row is made of: fields are checked as those of a file are.

    Raises `ValueError` naming class, field and what it wants.
    """

    def __post_init__(self) -> None:
        given = {f.name: getattr(self, f.name) for f in fields(cast(Any, self))}
        for name, value in checked(type(self), given, type(self).__name__).items():
            object.__setattr__(self, name, value)


def meant(name: str, known: Collection[str]) -> str:
    """The near misses among the known names, as a question."""
    plain = {re.sub(r"\W+", "_", one.lower()): one for one in known}
    given = re.sub(r"\W+", "_", name.lower().replace("++", "_plus_plus")).strip("_")
    near = [plain[one] for one in get_close_matches(given, plain, n=2)]
    return f" (did you mean {' or '.join(map(repr, near))}?)" if near else ""


def no_such(owner: str, name: str, names: Collection[str]) -> str:
    """Says that there is no such option, which one may be meant, and those there are."""
    near = meant(name, names)
    for option, theirs in ELSEWHERE.items():
        column, own = option.split(".")
        if not near and name.lower() in theirs.split() and {column, own} & {*names}:
            near = f" (did you mean {option if column in names else own}?)"
    return f"{owner} has no {name!r}{near}: it has {', '.join(names) or 'no options at all'}"


def told_its_names(made: Made) -> Made:
    """The class, which says so itself where it is made or replaced with an option it has not."""
    begin = made.__init__  # type: ignore[misc]

    @wraps(begin)
    def begin_or_say(self: Any, *values: Any, **options: Any) -> None:
        try:
            begin(self, *values, **options)
        except TypeError:
            names = option_names(type(self)) or []
            for name in options:
                if name not in names:
                    raise ValueError(no_such(type(self).__name__, name, names)) from None
            raise

    made.__init__ = begin_or_say  # type: ignore[misc]
    return made


def checked(target: Any, options: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Options of a function or class as its annotations want them, checked by pydantic.

    Raises `ValueError` for the first that is unknown, missing or of the wrong kind; `where` names
    what they are options of.
    """
    options = {k: tuple(v) if isinstance(v, list) else v for k, v in options.items()}
    owner, prefix = (f"{where} {target.__name__}", f"{where}.") if where else ("", "")
    try:
        fitting = dict(options_of(target).validate_python(options))
    except ValidationError as error:
        first = min(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
    else:
        for name, value in fitting.items():
            if isinstance(value, float) and isnan(value):  # it may be infinite, where it bounds
                raise ValueError(f"{prefix}{name}: input should be a finite number, got nan")
        return fitting
    name, said, names = str(first["loc"][0]), first["msg"], option_names(target) or []
    if first["type"] == "extra_forbidden":
        raise ValueError(no_such(owner, name, names))
    if first["type"] == "missing" and len(first["loc"]) == 1:
        raise ValueError(f"{owner} is missing {name!r}: it has {', '.join(names)}")
    value = options[name]
    may_be_none = type(None) in get_args(hints_of(target).get(name))
    if may_be_none and str(value).lower() == "none":
        raise ValueError(f"{prefix}{name}: null means none, method.{prefix}{name}=null")
    got = "None is not allowed" if value is None else f"got {value!r}"
    raise ValueError(f"{prefix}{name}: {said[0].lower()}{said[1:]}, {got}")


@cache
def options_of(target: Any) -> Any:
    """The pydantic `TypeAdapter` of a target's options; of a class's none may be missing."""
    hints, names = hints_of(target), option_names(target)
    given = {name: hints.get(name, Any) for name in names or ()}
    for name, hint in given.items():
        if {int, float} & {hint, *get_args(hint)}:
            given[name] = Annotated[hint, NO_FLAG]
    if inspect.isclass(target):
        for name, parameter in inspect.signature(target).parameters.items():
            if parameter.default is parameter.empty:
                given[name] = Required[given[name]]
    make: Any = TypedDict
    shape = make("Options", given, total=False)
    shape.__pydantic_config__ = ConfigDict(
        extra="allow" if names is None else "forbid", arbitrary_types_allowed=True
    )
    return TypeAdapter(shape)


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


def hints_of(target: Any) -> dict[str, Any]:
    """Annotations; none where one names what cannot be found from here."""
    try:
        return get_type_hints(target, include_extras=True)
    except (NameError, TypeError):
        return {}
