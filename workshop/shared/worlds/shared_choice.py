"""One choice, shared by all prompts: what one prompt gains, another one pays."""

from typing import Any, cast

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlbook.tasks import Problem, SumsTask, Verdict

__all__ = ["OpeningTask", "shared_choice"]

OPENING = "<think>"


class OpeningTask(SumsTask):
    """Sums whose prompt ends with `<think>`: the first token of the completion is the choice.

    Answer at once, think aloud, check, or work it out: short sums and long ones want different
    things, and `shared_choice` gives them one answer. Chapter 10.
    """

    name = "one opening for all"

    def sample(self, seed: int, n: int, levels: Any = None) -> list[Problem]:
        """Sums as `SumsTask` draws them, `<think>` behind the prompt."""
        return [
            Problem(p.id, p.prompt + OPENING, p.answer, p.level)
            for p in super().sample(seed, n, levels)
        ]

    def verify(self, problem: Problem, completion: str, finished: bool = True) -> Verdict:
        """The verdict on `<think>` and the completion together."""
        return super().verify(problem, OPENING + completion, finished)

    def label(self, problem: Problem, completion: str, finished: bool = True) -> str:
        """The strategy of `<think>` and the completion together."""
        return super().label(problem, OPENING + completion, finished)


def shared_choice(
    policy: tuple[PreTrainedModel, PreTrainedTokenizerBase],
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The policy, frozen but for one vector that is added to the hidden state behind `<think>`.

    The vector is the same for every prompt, so training can only move all prompts' openings
    together. Changes the model in place. For prompts that end with `<think>`.
    """
    model, tokenizer = policy
    model.requires_grad_(False)
    token = cast(int, tokenizer.convert_tokens_to_ids(OPENING))
    offset = SharedOffset(model.config.hidden_size, token).to(model.device, model.dtype)
    model.base_model.add_module("shared_offset", offset)
    model.base_model.register_forward_hook(offset.add, with_kwargs=True)
    return model, tokenizer


class SharedOffset(nn.Module):
    """h_t + offset where token t is the first one of its kind in its row, h_t elsewhere."""

    def __init__(self, width: int, token: int):
        super().__init__()
        self.offset, self.token = nn.Parameter(torch.zeros(width)), token

    def add(
        self, module: nn.Module, args: tuple[Any, ...], given: dict[str, Any], output: Any
    ) -> Any:
        """A forward hook of the model's trunk."""
        ids = given["input_ids"] if "input_ids" in given else args[0]
        places = first_places(ids, self.token)[..., None]
        output.last_hidden_state = output.last_hidden_state + places * self.offset
        return output


def first_places(ids: Int[Tensor, "N T"], token: int) -> Bool[Tensor, "N T"]:
    """True at the first occurrence of a token in each row."""
    found = ids == token
    return found & (found.cumsum(1) == 1)
