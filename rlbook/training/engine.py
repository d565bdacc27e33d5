"""What completes prompts: the built-in sampler, or an engine of one's own."""

from typing import Protocol, runtime_checkable

from rlbook.policy import Completion

__all__ = ["Engine"]


@runtime_checkable
class Engine(Protocol):
    """Anything that completes token prompts: the built-in sampler, or a vLLM server.

    One with weights of its own has a method `load_weights(model)` too; it is called with the
    policy to sample from.
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
