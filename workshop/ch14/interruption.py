"""Forced interruption: a thought that has used up its tokens is ended, and an answer is asked."""

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlbook.policy import Completion, Sampler
from rlbook.training.episodes import Ask, cut_short, written


@dataclass(frozen=True)
class InterruptedSampler:
    """Samples `after` tokens, then ends every thought still open with a text of one's own.

    What is put there (`text`) is forced: no token of it is trained on. The answer after it may have
    `answer_tokens`, and `max_new_tokens` bounds nothing else. An answer that has stopped, or closed
    its thought itself, goes on undisturbed.
    Sources: s1, arXiv:2501.19393 ("budget forcing"); ScaleRL, arXiv:2510.13786. Chapter 14.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    after: int
    text: str = "</think><answer>"
    answer_tokens: int = 8

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        n: int = 1,
        max_new_tokens: int = 256,
        temperature: float = 1.0,
        seed: int | None = None,
    ) -> list[Completion]:
        """`n` completions of each prompt, all those of the first prompt first."""
        sampler = Sampler(self.model, self.tokenizer.eos_token_id)

        def complete(asks: Sequence[Ask]) -> list[Completion]:
            contexts, room = [ask.token_ids for ask in asks], max(ask.room for ask in asks)
            return sampler.generate(contexts, 1, room, temperature, seed)

        thought = min(self.after, max_new_tokens)
        episodes = [
            cut_short(self.tokenizer, list(prompt), thought, self.text, self.answer_tokens)
            for prompt in prompts
            for _ in range(n)
        ]
        return [turns.completion() for turns in written(complete, episodes)]
