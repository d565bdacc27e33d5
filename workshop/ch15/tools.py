"""A tool in the loop: the policy writes what is to be computed, the engine writes the result."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlbook.policy import Completion, Sampler
from rlbook.tasks.arithmetic import value_of
from rlbook.training.chat import decode
from rlbook.training.episodes import Ask, Episode, Turns, cut, written

__all__ = ["Calculator", "Unmasked"]

SLIPS = (-10, -2, -1, 1, 2, 10)
MAX_CALLS = 16
CALL_TOKENS = 16  # no call is longer


class Calculator:
    """After each `=` the engine writes the result and a semicolon, and the policy goes on.

    The result is text like any other to the policy: context that it reads. It did not choose it,
    so `forced` is True there and the trainer's mask is False. A call that is no sum, difference or
    product is answered with `?;`. Tokens are only ever appended, never decoded and encoded again.
    An unreliable one is `wrong` with that probability in each call: what a right step earns is then
    a matter of luck. Chapter 15.
    """

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, wrong: float = 0.0
    ):
        if not 0 <= wrong <= 1:
            raise ValueError(f"wrong is a probability, got {wrong}")
        self.tokenizer, self.wrong = tokenizer, wrong
        self.call = cast(int, tokenizer.convert_tokens_to_ids("="))
        self.sampler = Sampler(model, [tokenizer.eos_token_id, self.call])

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        n: int,
        max_new_tokens: int,
        temperature: float,
        seed: int,
    ) -> list[Completion]:
        """`n` completions per prompt; tool tokens count towards the limit.

        A prompt that ends with a call is answered by the tool first.
        """
        noise = torch.Generator().manual_seed(seed)

        def complete(asks: Sequence[Ask]) -> list[Completion]:
            room = max(ask.room for ask in asks)
            drawn = self.sampler.generate(
                [ask.token_ids for ask in asks],
                max_new_tokens=room,
                temperature=temperature,
                generator=noise,
            )
            return [cut(one, ask.room) for one, ask in zip(drawn, asks, strict=True)]

        episodes = [
            self.calls(list(prompt), max_new_tokens, noise) for prompt in prompts for _ in range(n)
        ]
        return [turns.completion() for turns in written(complete, episodes)]

    def calls(self, prompt: list[int], room: int, noise: torch.Generator) -> Episode:
        """The policy writes up to a call, the tool answers, the policy goes on."""
        turns = Turns(prompt)
        for call in range(MAX_CALLS + 1):
            if turns.context[-1] == self.call:
                said = self.result(turns.context, noise)
                turns.put(call, said[: room - len(turns.token_ids)])
                turns.finish_reason = "length"  # unless the policy writes more
            elif call:
                return turns
            left = room - len(turns.token_ids)
            if left == 0 or call == MAX_CALLS:
                return turns
            one = yield Ask(turns.context, left)
            turns.write(call, one)
            if one.finish_reason == "length":
                return turns
        return turns

    def result(self, token_ids: Sequence[int], noise: torch.Generator) -> list[int]:
        """Tokens of the result of the call that ends these tokens."""
        written = decode(self.tokenizer, list(token_ids[-CALL_TOKENS:-1]))
        value = value_of(re.split(r"[^0-9+*-]", written)[-1])
        said = "?" if value is None else str(value)
        if value is not None and self.wrong:
            luck, slip = torch.rand(2, generator=noise).tolist()
            off = SLIPS[int(slip * len(SLIPS))] if luck < self.wrong else 0
            said = str(value + off)
        return cast(list[int], self.tokenizer(f"{said};", add_special_tokens=False).input_ids)


@dataclass(frozen=True)
class Unmasked:
    """The mistake: an engine that does not say which tokens its tool wrote."""

    engine: Calculator

    def generate(self, prompts: Sequence[Sequence[int]], **settings: Any) -> list[Completion]:
        """The engine's completions, all tokens as if the policy had chosen them."""
        return [replace(c, forced=None) for c in self.engine.generate(prompts, **settings)]
