"""What completes prompts: the built-in sampler, or an engine of one's own."""

from collections.abc import Sequence
from math import isfinite
from numbers import Integral, Real
from typing import Any, Protocol, runtime_checkable

import numpy as np

from rlbook.policy import Completion

__all__ = ["Engine"]

# What the values of each field are, besides Python's own kind, and what to give.
FIELDS: dict[str, tuple[type, tuple[type, ...], str]] = {
    "token_ids": (int, (Integral,), "a list of ints ≥ 0"),
    "logps": (float, (Real,), "a list of numbers ≤ 0, log-probabilities"),
    "forced": (bool, (bool, np.bool_), "a list of True and False, or None"),
    "versions": (int, (Integral,), "a list of ints, or None"),
}
ROUNDING = 1e-3  # a sampler's log-probability of a sure token, as `rlbook.scale` takes it too


@runtime_checkable
class Engine(Protocol):
    """Anything that completes token prompts: the built-in sampler, or a vLLM server.

    One with weights of its own has a method `load_weights(model)` too; it is called with the
    policy to sample from. An environment whose turns end with tokens of its own hands them over
    as `stop`, besides the engine's.
    """

    def generate(
        self,
        prompts: list[list[int]],
        *,
        n: int,
        max_new_tokens: int,
        temperature: float,
        seed: int,
    ) -> list[Completion]:
        """`n` completions per prompt, those of one prompt adjacent, in the order given."""
        ...


def checked_completions(
    completions: Sequence[Completion],
    prompts: int,
    n: int,
    engine: str = "the engine",
    max_new_tokens: int | None = None,
) -> list[Completion]:
    """The completions themselves, if there are `n` for every prompt and each is whole.

    A completion that is missing would give its place, and its verdict, to another prompt's. Raises
    `ValueError` naming the engine and the completion that does not fit, such as one that is longer
    than `max_new_tokens`.
    """
    wanted = "generate returns n for every prompt, those of one prompt adjacent, in the order given"
    if not isinstance(completions, Sequence):
        raise ValueError(
            f"{engine} gave {completions!r:.60} in place of a list of completions: {wanted}, "
            "without `async` or `yield`"
        )
    if len(completions) != n * prompts:
        raise ValueError(
            f"{engine} gave {len(completions)} completions for {prompts} prompts × {n}: {wanted}"
        )
    for number, one in enumerate(completions):
        if wrong := fault_of(one, max_new_tokens):
            raise ValueError(f"{engine}, completion {number} of {len(completions)}: {wrong}")
    return list(completions)


def fault_of(one: Completion, max_new_tokens: int | None = None) -> str:
    """Why nothing could be learned from this completion, and what to do; "" for a whole one."""
    if not isinstance(one, Completion):
        return f"{one!r:.60} is no rlbook.policy.Completion(token_ids, logps, finish_reason)"
    for name, kinds in FIELDS.items():
        values = getattr(one, name)
        if values is None and name in ("forced", "versions"):
            continue
        if wrong := odd(values, *kinds):
            return f"{name} {wrong}"
        if len(values) != len(one.token_ids):
            wrong = f"{len(values)} values for {len(one.token_ids)} tokens"
            return f"{name} has {wrong}: one for each token"
    if not one.token_ids:
        return "no tokens: a completion ends with its EOS token at least"
    if (least := min(one.token_ids)) < 0:
        return f"token_ids holds {least}: give {FIELDS['token_ids'][-1]}"
    if max_new_tokens is not None and len(one.token_ids) > max_new_tokens:
        return f"{len(one.token_ids)} tokens, and max_new_tokens={max_new_tokens}: end it there"
    if one.finish_reason not in ("stop", "length"):
        return f'finish_reason {one.finish_reason!r} is neither "stop" (by its EOS) nor "length"'
    if not all(map(isfinite, one.logps)):
        return "logps are not finite: a token that was sampled has a log-probability"
    if (most := max(one.logps)) > ROUNDING:
        return f"logps holds {most:g}: a log-probability is at most 0, log(p) of a probability p"
    return ""


def odd(values: Any, own: type, kinds: tuple[type, ...], wanted: str) -> str:
    """What of these values is of no such kind, and what to give; "" where all of them are."""
    if not isinstance(values, list | tuple):
        return f"is {values!r:.60}: give {wanted}"
    found = set(map(type, values)) - {own}
    if wrong := [k for k in found if not issubclass(k, kinds) or (k is bool and own is not bool)]:
        return f"holds {next(v for v in values if type(v) in wrong)!r:.60}: give {wanted}"
    return ""
