"""What completes prompts: the built-in sampler, or an engine of one's own."""

from collections.abc import Sequence
from math import isfinite
from typing import Protocol, runtime_checkable

from rlbook.policy import Completion

__all__ = ["Engine"]


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
    completions: Sequence[Completion], prompts: int, n: int, engine: str = "the engine"
) -> list[Completion]:
    """The completions themselves, if there are `n` for every prompt and each is whole.

    A completion that is missing would give its place, and its verdict, to another prompt's. Raises
    `ValueError` naming the engine and the completion that does not fit.
    """
    if len(completions) != n * prompts:
        raise ValueError(
            f"{engine} gave {len(completions)} completions for {prompts} prompts × {n}: generate "
            "returns n for every prompt, those of one prompt adjacent, in the order given"
        )
    for number, one in enumerate(completions):
        if wrong := fault_of(one):
            raise ValueError(f"{engine}, completion {number} of {len(completions)}: {wrong}")
    return list(completions)


def fault_of(one: Completion) -> str:
    """Why nothing could be learned from this completion, and what to do; "" for a whole one."""
    if not isinstance(one, Completion):
        return f"{one!r:.60} is no rlbook.policy.Completion(token_ids, logps, finish_reason)"
    if not (count := len(one.token_ids)):
        return "no tokens: a completion ends with its EOS token at least"
    for name, values in (("logps", one.logps), ("forced", one.forced), ("versions", one.versions)):
        if values is not None and len(values) != count:
            return f"{name} has {len(values)} values for {count} tokens: one for each token"
    if one.finish_reason not in ("stop", "length"):
        return f'finish_reason {one.finish_reason!r} is neither "stop" (by its EOS) nor "length"'
    if not all(map(isfinite, one.logps)):
        return "logps are not finite: a token that was sampled has a log-probability"
    return ""
