"""Forced interruption: a thought that has used up its tokens is ended, and an answer is asked."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlbook.policy.sampler import Completion, Sampler


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
    closing: str = "</think>"

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
        draw = partial(sampler.generate, temperature=temperature, seed=seed)
        limit = min(self.after, max_new_tokens)
        thoughts = draw(prompts, n, limit)
        asked = [list(prompt) for prompt in prompts for _ in range(n)]
        cut = [i for i, one in enumerate(thoughts) if one.finish_reason == "length"]
        forced = {i: self.forced(thoughts[i]) for i in cut}
        contexts = [asked[i] + thoughts[i].token_ids + forced[i] for i in cut]
        answers = draw(contexts, 1, self.answer_tokens) if cut else []
        ended = {
            i: joined(thoughts[i], forced[i], answer)
            for i, answer in zip(cut, answers, strict=True)
        }
        return [ended.get(i, one) for i, one in enumerate(thoughts)]

    def forced(self, thought: Completion) -> list[int]:
        """Token ids that end this thought; none if it has closed itself."""
        closing = self.tokenizer.convert_tokens_to_ids(self.closing)
        if closing in thought.token_ids:
            return []
        return self.tokenizer(self.text, add_special_tokens=False).input_ids


def joined(thought: Completion, forced: list[int], answer: Completion) -> Completion:
    """Thought, forced tokens and answer as one completion; forced ones have log-probability 0."""
    mask = [False] * len(thought.token_ids) + [True] * len(forced)
    return replace(
        answer,
        token_ids=thought.token_ids + forced + answer.token_ids,
        logps=thought.logps + [0.0] * len(forced) + answer.logps,
        forced=mask + [False] * len(answer.token_ids) if forced else None,
    )
