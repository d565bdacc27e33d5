"""Troubles that lie in how answers are sampled."""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any, cast

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlbook.policy import Completion, Sampler
from rlbook.tasks.sums import terms_in
from rlbook.training.chat import decode
from rlbook.training.episodes import Ask, Episode, Turns, written

__all__ = ["RoughSampler", "StartsLost", "rounded"]


class StartsLost:
    """Half of every group starts with a forced step that is stuck and a first "hmm ".

    `<think>37+8=?;hmm ` is put there, not sampled, so it is not trained on; what comes after is
    the policy's own: to stop, or to go on saying "hmm ". Chapter 07.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase):
        self.sampler, self.tokenizer = Sampler(model, tokenizer.eos_token_id), tokenizer

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        n: int,
        max_new_tokens: int,
        temperature: float,
        seed: int,
    ) -> list[Completion]:
        """`n` completions per prompt; the last half of them, rounded down, start lost."""
        starts = [
            self.lost_start(prompt) if i >= n - n // 2 else []
            for prompt in prompts
            for i in range(n)
        ]
        asked = [list(prompt) for prompt in prompts for _ in range(n)]
        room = max_new_tokens - max(map(len, starts))

        def complete(asks: Sequence[Ask]) -> list[Completion]:
            contexts = [ask.token_ids for ask in asks]
            return self.sampler.generate(contexts, 1, room, temperature, seed)

        episodes = [begun(*pair, room) for pair in zip(asked, starts, strict=True)]
        return [turns.completion() for turns in written(complete, episodes)]

    def lost_start(self, prompt: Sequence[int]) -> list[int]:
        """Token ids of the first step of a sum, stuck, and of the first "hmm "."""
        first, second, *_ = terms_in(decode(self.tokenizer, list(prompt)))
        text = f"<think>{first}{second:+d}=?;hmm "
        return cast(list[int], self.tokenizer(text, add_special_tokens=False).input_ids)


def begun(prompt: list[int], start: list[int], room: int) -> Episode:
    """An answer whose first tokens are put there."""
    turns = Turns(prompt)
    turns.put(0, start)
    turns.write(0, (yield Ask(turns.context, room)))
    return turns


class RoughSampler:
    """Samples from a rounded copy of the policy, as an engine in low precision does.

    With 4 or 5 bits a weight, the probabilities of its tokens and the trainer's agree about as well
    as in a production engine after its repairs. With `exact_head` the head stays as it is: what
    a head in full precision repairs, and what not. Chapters 11 and 17.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, bits: int = 4, exact_head: bool = False):
        self.tokenizer, self.bits, self.exact_head = tokenizer, bits, exact_head
        self.sampler: Sampler | None = None

    def load_weights(self, model: PreTrainedModel) -> None:
        """Sample from a rounded copy of these weights from now on."""
        copy = rounded(model, self.bits)
        if self.exact_head:
            copy.get_output_embeddings().load_state_dict(model.get_output_embeddings().state_dict())
        self.sampler = Sampler(copy, self.tokenizer.eos_token_id)

    def generate(self, prompts: Sequence[Sequence[int]], **settings: Any) -> list[Completion]:
        """What the rounded copy samples; `settings` are those of `Sampler.generate`.

        Raises `ValueError` before the first weights.
        """
        if self.sampler is None:
            raise ValueError("a RoughSampler has no weights yet: call load_weights(model) first")
        return self.sampler.generate(prompts, **settings)


@torch.no_grad()
def rounded(model: PreTrainedModel, bits: int) -> PreTrainedModel:
    """A copy of the model whose weight matrices hold 2^bits − 1 different values per row."""
    copy = deepcopy(model)
    for weight in copy.parameters():
        if weight.ndim == 2:
            largest = weight.abs().amax(1, keepdim=True).clamp(min=1e-8)
            scale = largest / (2 ** (bits - 1) - 1)
            weight.copy_((weight / scale).round() * scale)
    return copy
