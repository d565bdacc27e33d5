"""Calling an advantage estimator: what it needs, the options bound to it, what it remembers.

An estimator declares its inputs with `@needs`, and a class that carries something from batch to
batch declares that with `@remembers`. Nothing is read from names of parameters.
"""

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["compute_advantages", "estimate", "estimator_state", "load_estimator_state", "needs"]
__all__ += ["remembers"]

Estimator = Callable[..., Any]
Declared = TypeVar("Declared", bound=Callable[..., Any])


@dataclass(frozen=True)
class Needs:
    """What an estimator is called with: `inputs`, and those of `optional` that there are.

    `token_rewards`: its rewards are (N, T), one per token, instead of (N,).
    """

    inputs: tuple[str, ...]
    optional: tuple[str, ...] = ()
    token_rewards: bool = False


UNDECLARED = Needs(("rewards", "groups"))


def needs(
    *inputs: str, optional: tuple[str, ...] = (), token_rewards: bool = False
) -> Callable[[Declared], Declared]:
    """Declare what an estimator is called with, by the names of its parameters.

    The trainer offers rewards, groups, mask, lengths, greedy_rewards, values, gamma and lam;
    naming `values` brings a critic, `greedy_rewards` one more completion per prompt.
    A function without a declaration is called with rewards and groups.
    """
    check_names("needs", inputs)

    def declare(estimator: Declared) -> Declared:
        estimator.needs = Needs(inputs, optional, token_rewards)  # type: ignore[attr-defined]
        return estimator

    return declare


def remembers(*names: str) -> Callable[[type], type]:
    """Declare the attributes that a class of estimators carries from batch to batch.

    Gives it `state_dict()` and `load_state_dict(state)`; the values must be numbers or text.
    """
    check_names("remembers", names)

    def declare(estimator: type) -> type:
        def state_dict(self: Any) -> dict[str, Any]:
            return {name: getattr(self, name) for name in names}

        def load_state_dict(self: Any, state: Mapping[str, Any]) -> None:
            if missing := [name for name in names if name not in state]:
                raise ValueError(
                    f"the state of {type(self).__name__} lacks {missing[0]!r}: it has "
                    f"{sorted(state)}; it was saved by another estimator"
                )
            for name in names:
                setattr(self, name, state[name])

        estimator.state_dict = state_dict  # type: ignore[attr-defined]
        estimator.load_state_dict = load_state_dict  # type: ignore[attr-defined]
        return estimator

    return declare


def check_names(decorator: str, names: tuple[object, ...]) -> None:
    """Require names, and not what is decorated: the parentheses were left out then."""
    for one in names:
        if not isinstance(one, str):
            raise ValueError(
                f'@{decorator} takes names and got {describe(one)}: write @{decorator}("…", "…") '
                "above it"
            )


class BoundEstimator(partial[Tensor]):
    """An estimator with options, compared by value: BoundEstimator(gpg, f_norm=2.0)."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BoundEstimator):
            return NotImplemented
        return (self.func, self.keywords) == (other.func, other.keywords)

    def __hash__(self) -> int:
        return hash((self.func, *sorted(self.keywords)))


def bound(estimator: Estimator) -> Estimator:
    """The estimator itself, or for a `functools.partial` the `BoundEstimator` of the same options.

    Raises `ValueError` for options that are bound by position.
    """
    if not isinstance(estimator, partial):
        return estimator
    if estimator.args:
        raise ValueError(f"bind options of {describe(estimator)} by name: partial(f, option=value)")
    function: Any = estimator.func
    options = dict(estimator.keywords)
    while isinstance(function, partial):
        function, options = function.func, {**function.keywords, **options}
    frozen = {name: tuple(v) if isinstance(v, list) else v for name, v in options.items()}
    return BoundEstimator(function, **frozen) if frozen else function


def needs_of(estimator: Estimator) -> Needs:
    """What an estimator declared with `@needs`; rewards and groups if it declared nothing."""
    function = estimator.func if isinstance(estimator, partial) else estimator
    declared = getattr(function, "needs", UNDECLARED)
    return declared if isinstance(declared, Needs) else UNDECLARED


def compute_advantages(estimator: Estimator, **inputs: Any) -> Float[Tensor, "..."]:
    """Advantages (N,) or (N, T): the first part of `estimate`."""
    return estimate(estimator, **inputs)[0]


def estimate(estimator: Estimator, **inputs: Any) -> tuple[Tensor, Tensor | None]:
    """(advantages, returns): the estimator, called with those of `inputs` that it declared.

    An input that is None counts as missing; an option bound to the estimator stays. Returns are
    what a critic is to learn, None of an estimator that has advantages alone.
    Raises `ValueError` naming an input it needs and did not get.
    """
    declared = needs_of(estimator)
    options = estimator.keywords if isinstance(estimator, partial) else {}
    given = {name: value for name, value in inputs.items() if value is not None} | options
    for name in declared.inputs:
        if name not in given:
            raise ValueError(f"{describe(estimator)} needs {name!r}; it got {sorted(given)}")
    if declared is UNDECLARED:  # the names of its parameters are its own affair
        result = estimator(given["rewards"], given["groups"])
    else:
        wanted = (*declared.inputs, *declared.optional)
        result = estimator(**{name: given[name] for name in wanted if name in given})
    parts = result if isinstance(result, tuple) else (result,)
    advantages, returns = parts if len(parts) == 2 else (result, None)
    if not is_numbers(advantages) or not (returns is None or is_numbers(returns)):
        kinds = (str(x.dtype) if isinstance(x, Tensor) else type(x).__name__ for x in parts)
        raise ValueError(
            f"advantage {describe(estimator)} returned {' and '.join(kinds) or 'nothing'}: return "
            "a tensor of numbers, (N,) or (N, T), or a pair of them, (advantages, returns)"
        )
    return advantages, returns


def is_numbers(given: object) -> bool:
    """Whether it is a tensor of numbers."""
    return isinstance(given, Tensor) and given.dtype != torch.bool


def estimator_state(estimator: Estimator) -> dict[str, Any]:
    """What an estimator remembers of earlier batches, JSON-safe; {} for one without a state.

    Of an object without `state_dict` these are its attributes. Raises `ValueError` naming one that
    is not JSON-safe.
    """
    owner = inspect.unwrap(estimator, stop=lambda f: hasattr(f, "state_dict"))
    if hasattr(owner, "state_dict"):
        return dict(owner.state_dict())
    if not may_remember(owner):
        return {}
    for name, value in vars(owner).items():
        try:
            json.dumps(value)
        except TypeError:
            raise ValueError(
                f"{describe(estimator)}.{name} is {value!r:.40}, which a checkpoint cannot hold: "
                "give the class state_dict() and load_state_dict(state), or keep plain numbers"
            ) from None
    return dict(vars(owner))


def may_remember(owner: object) -> bool:
    """Whether an estimator is an object with attributes, and neither a function nor frozen."""
    settings = getattr(type(owner), "__dataclass_params__", None)
    fixed = isinstance(owner, partial | type) or inspect.isroutine(owner)
    fixed = fixed or (settings is not None and settings.frozen)
    return not fixed and hasattr(owner, "__dict__")


def load_estimator_state(estimator: Estimator, state: Mapping[str, Any]) -> None:
    """Put `estimator_state` back; nothing to do for an estimator without a state.

    Raises `ValueError` for a state that is not this estimator's.
    """
    owner = inspect.unwrap(estimator, stop=lambda f: hasattr(f, "load_state_dict"))
    if hasattr(owner, "load_state_dict"):
        owner.load_state_dict(state)
    elif state and may_remember(owner) and vars(owner).keys() <= state.keys():
        vars(owner).update(state)
    elif state:
        raise ValueError(
            f"{describe(estimator)} remembers nothing, but the saved state holds {sorted(state)}: "
            "it was saved by another estimator"
        )


def describe(choice: object) -> str:
    """A name, a function with its bound options or a dataclass with its settings, in one line."""
    if isinstance(choice, str):
        return choice
    if isinstance(choice, partial):
        name, settings = describe(choice.func), choice.keywords
    elif hasattr(choice, "__name__"):
        return str(choice.__name__)
    elif is_dataclass(choice):
        name = type(choice).__name__
        settings = {f.name: getattr(choice, f.name) for f in fields(choice)}
    else:
        return type(choice).__name__
    shown = ", ".join(f"{k}={v}" for k, v in settings.items() if v is not None)
    return f"{name}({shown})"
