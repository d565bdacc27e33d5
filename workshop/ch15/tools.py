"""A tool in the loop: the policy writes what is to be computed, the engine writes the result."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlbook.policy import Completion, Sampler
from rlbook.tasks.arithmetic import value_of
from rlbook.training.chat import decode

__all__ = ["Calculator", "Unmasked"]

SLIPS = (-10, -2, -1, 1, 2, 10)
MAX_CALLS = 16
CALL_TOKENS = 16  # no call is longer


@dataclass
class Turns:
    """A completion in the making: what the policy wrote and what the tool put in between."""

    prompt: list[int]
    token_ids: list[int] = field(default_factory=list)
    logps: list[float] = field(default_factory=list)
    forced: list[bool] = field(default_factory=list)
    finish_reason: Literal["", "stop", "length"] = ""

    def write(self, token_ids: Sequence[int], logps: Sequence[float], forced: bool) -> None:
        """Add tokens: the policy's own, or `forced` ones, which the tool wrote."""
        self.token_ids += token_ids
        self.logps += logps
        self.forced += [forced] * len(token_ids)


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
        all_turns = [Turns(list(prompt)) for prompt in prompts for _ in range(n)]
        noise = torch.Generator().manual_seed(seed)
        for turns in all_turns:
            if turns.prompt[-1] == self.call:
                self.answer(turns, max_new_tokens, noise)
        for _ in range(MAX_CALLS):
            open_turns = [t for t in all_turns if not t.finish_reason]
            if not open_turns:
                break
            left = [max_new_tokens - len(t.token_ids) for t in open_turns]
            written = self.sampler.generate(
                [t.prompt + t.token_ids for t in open_turns],
                max_new_tokens=max(left),
                temperature=temperature,
                generator=noise,
            )
            for turns, one, room in zip(open_turns, written, left, strict=True):
                self.take_turn(turns, one, room, noise)
        return [finished(t) for t in all_turns]

    def take_turn(self, turns: Turns, one: Completion, room: int, noise: torch.Generator) -> None:
        """Add what the policy wrote, and the tool's answer if it called."""
        turns.write(one.token_ids[:room], one.logps[:room], forced=False)
        if len(one.token_ids) > room or one.finish_reason == "length":
            turns.finish_reason = "length"
        elif one.token_ids[-1] != self.call:
            turns.finish_reason = "stop"
        else:
            self.answer(turns, room - len(one.token_ids), noise)

    def answer(self, turns: Turns, room: int, noise: torch.Generator) -> None:
        """Add the tool's answer to the call that ends these turns, as far as there is room."""
        said = self.result(turns.prompt + turns.token_ids, noise)[:room]
        turns.write(said, [0.0] * len(said), forced=True)
        turns.finish_reason = "" if len(said) < room else "length"

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


def finished(turns: Turns) -> Completion:
    """The turns as one completion."""
    return Completion(
        turns.token_ids, turns.logps, turns.finish_reason or "length", forced=turns.forced
    )


@dataclass(frozen=True)
class Unmasked:
    """The mistake: an engine that does not say which tokens its tool wrote."""

    engine: Calculator

    def generate(self, prompts: Sequence[Sequence[int]], **settings: Any) -> list[Completion]:
        """The engine's completions, all tokens as if the policy had chosen them."""
        return [replace(c, forced=None) for c in self.engine.generate(prompts, **settings)]
