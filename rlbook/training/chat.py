"""Between text and token ids: a problem's prompt, and what the verifier reads."""

from typing import cast

from transformers import PreTrainedTokenizerBase

from rlbook.policy import Completion
from rlbook.tasks import Problem


def encode(tokenizer: PreTrainedTokenizerBase, problem: Problem) -> list[int]:
    """Token ids of a problem's prompt.

    A problem with `meta["chat"]` becomes a user's message where the tokenizer has a chat template;
    every other prompt is taken as it is.
    """
    if not (problem.meta.get("chat") and getattr(tokenizer, "chat_template", None)):
        return cast(list[int], tokenizer(problem.prompt).input_ids)
    messages = [{"role": "user", "content": problem.prompt}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return cast(list[int], tokenizer(text, add_special_tokens=False).input_ids)


def text_of(tokenizer: PreTrainedTokenizerBase, completion: Completion) -> str:
    """What the verifier reads: the completion without the EOS token that ended it."""
    finished = completion.finish_reason == "stop"
    return decode(tokenizer, completion.token_ids[: -1 if finished else None])


def decode(tokenizer: PreTrainedTokenizerBase, token_ids: list[int]) -> str:
    """Exact text of a completion: special tokens inside it stay visible to the verifier."""
    return cast(str, tokenizer.decode(token_ids, clean_up_tokenization_spaces=False))
