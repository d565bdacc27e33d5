"""Between text and token ids: prompts, what stands between turns, what is read of an answer."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Any, cast

from transformers import PreTrainedTokenizerBase

from rlbook.policy import Completion
from rlbook.tasks import Problem
from rlbook.tasks.environment import Environment, Message, ends_of, tools_of

__all__ = ["Dialect"]

MARK = "\u241e"  # a character that no template writes
CALL = "call00000"  # nine letters or digits: what some templates want of an id


@dataclass(frozen=True)
class Dialect:
    """How what is said becomes tokens: as it stands, or in the tokenizer's chat template.

    A problem with `meta["chat"]` is a conversation where the tokenizer has a chat template; every
    other text is taken as it is. `ends` are tokens that end a turn besides the tokenizer's EOS,
    `tools` what the template offers to the policy. `chat` is what a run says in `model.chat`:
    `system` is the message before all; `examples`, pairs of a question and its answer, come before
    the question, as turns or as lines; everything else is a variable of the template.
    """

    tokenizer: PreTrainedTokenizerBase
    ends: tuple[str, ...] = ()
    tools: list[dict[Any, Any] | Callable[..., Any]] | None = None
    chat: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        tokenizer: PreTrainedTokenizerBase,
        world: Environment,
        chat: Mapping[str, Any] | None = None,
    ) -> "Dialect":
        """The dialect of a world: its `ends` and `tools`, if it has any."""
        return cls(tokenizer, ends_of(world), tools_of(world), chat or {})

    @cached_property
    def stop(self) -> tuple[int, ...]:
        """Ids of the tokens that end a turn besides the EOS.

        Raises `ValueError` for a text that is no token of the vocabulary.
        """
        vocabulary = self.tokenizer.get_vocab()
        if unknown := [end for end in self.ends if end not in vocabulary]:
            raise ValueError(
                f"a turn is to end with {unknown[0]!r}, which is no token of this tokenizer: "
                "`ends` of the environment names single tokens"
            )
        return tuple(vocabulary[end] for end in self.ends)

    def chats(self, problem: Problem) -> bool:
        """Whether this problem is put in a chat template."""
        return bool(problem.meta.get("chat") and getattr(self.tokenizer, "chat_template", None))

    def prompt(self, problem: Problem, opening: Sequence[Message] = ()) -> list[int]:
        """Token ids of a problem's prompt, and of what a world says before the first turn.

        Raises `ValueError` for a setting in `chat` that nothing reads.
        """
        text = problem.prompt + "".join(message.content for message in opening)
        examples, system = self.chat.get("examples", ()), self.chat.get("system")
        if self.chat and (unread := self.unread(problem)):
            raise ValueError(
                f"model.chat.{unread[0]}: no chat template reads it here: leave it out"
            )
        if not self.chats(problem):
            shown = "".join(f"{question}\n{answer}\n\n" for question, answer in examples)
            return cast(list[int], self.tokenizer(shown + text).input_ids)
        turns = [("system", system)] if system else []
        for question, answer in examples:
            turns += [("user", question), ("assistant", answer)]
        said = [*turns, ("user", text)]
        return self.ids(self.rendered([{"role": who, "content": what} for who, what in said]))

    @property
    def variables(self) -> dict[str, Any]:
        """What `chat` says to the template itself."""
        return {k: v for k, v in self.chat.items() if k not in ("system", "examples")}

    def unread(self, problem: Problem) -> list[str]:
        """Settings of `chat` that have no effect on this problem's prompt."""
        if not self.chats(problem):
            return [name for name in self.chat if name != "examples"]
        template = str(self.tokenizer.chat_template)
        return [name for name in self.variables if not re.search(rf"\b{name}\b", template)]

    def between(self, problem: Problem, messages: Sequence[Message]) -> list[int]:
        """Token ids from behind a turn's end token to the beginning of the next turn.

        In a chat template a conversation is rendered whose turn ends in a mark; what stands behind
        the end token that follows the mark is what stands between turns. The real turn is never
        rendered: a template that strips thoughts from history cannot change what was sampled.
        Raises `ValueError` if the template ends a turn with none of the known end tokens.
        """
        if not self.chats(problem):
            return self.ids("".join(message.content for message in messages))
        behind = self.behind_turn(messages)
        places = [(behind.find(end), end) for end in (self.tokenizer.eos_token, *self.ends)]
        found = sorted(place for place in places if place[0] >= 0)
        if not found:
            raise ValueError(
                f"the chat template ends a turn without {self.tokenizer.eos_token!r}: name the "
                "token that does in `ends` of the environment"
            )
        at, end = found[0]
        said = behind[at + len(end) :]
        if lost := [m.content for m in messages if m.content.strip() not in said]:
            raise ValueError(
                f"the chat template shows {lost[0]!r}, which the world replies, before {end!r}: if "
                "a turn ends with its call, name the token behind a call in `ends`"
            )
        return self.ids(said)

    def behind_turn(self, messages: Sequence[Message]) -> str:
        """What a template has behind a turn that ends in the mark, in its text or its tool calls.

        Templates want a call's arguments as an object or as JSON, and contents as text or in parts.
        """
        why: object = "it leaves out the turn or the reply"
        for call_of, content_of in product((call, call_in_json), (str, in_parts)):
            calls = [call_of(m) for m in messages if m.role == "tool"]
            turn = {"role": "assistant", "content": content_of(MARK)}
            turn |= {"tool_calls": calls} if calls else {}
            new = [given(message, content_of(message.content)) for message in messages]
            first = {"role": "user", "content": content_of("-")}
            try:
                text = self.rendered([first, turn, *new])
            except Exception as error:  # in the template's own way
                why = error if content_of is str and call_of is call else why
            else:
                if all(m.content.strip() in text for m in messages) and MARK in text:
                    return text.rpartition(MARK)[2]
        raise ValueError(f"the chat template has no place for this reply of the world: {why}")

    def rendered(self, messages: Sequence[dict[str, Any]]) -> str:
        """The template's text of a conversation, up to where the policy goes on."""
        text = self.tokenizer.apply_chat_template(
            list(messages),
            tools=self.tools,
            tokenize=False,
            add_generation_prompt=True,
            **self.variables,
        )
        return cast(str, text)

    def ids(self, text: str) -> list[int]:
        """Token ids of a text; what stands before it has begun the sequence already."""
        return cast(list[int], self.tokenizer(text, add_special_tokens=False).input_ids)

    def text(self, completion: Completion) -> str:
        """What the policy said, without the token that ended it."""
        return text_of(self.tokenizer, completion)


def call(message: Message) -> dict[str, Any]:
    """The call that a tool's message answers, with the mark among its arguments."""
    function = {"name": message.name, "arguments": {"text": MARK}}
    return {"id": CALL, "type": "function", "function": function}


def call_in_json(message: Message) -> dict[str, Any]:
    """The same, its arguments as JSON."""
    asked = call(message)
    arguments = json.dumps(asked["function"]["arguments"], ensure_ascii=False)
    return asked | {"function": asked["function"] | {"arguments": arguments}}


def in_parts(text: str) -> list[dict[str, str]]:
    """A content as templates of models with images want it."""
    return [{"type": "text", "text": text}]


def given(message: Message, content: Any) -> dict[str, Any]:
    """A message as templates read it; a tool's answers a call."""
    row = {"role": message.role, "content": content}
    row |= {"name": message.name} if message.name else {}
    return row | ({"tool_call_id": CALL} if message.role == "tool" else {})


def encode(
    tokenizer: PreTrainedTokenizerBase, problem: Problem, chat: Mapping[str, Any] | None = None
) -> list[int]:
    """Token ids of a problem's prompt, see `Dialect`; `chat` is a run's `model.chat`."""
    return Dialect(tokenizer, chat=chat or {}).prompt(problem)


def text_of(
    tokenizer: PreTrainedTokenizerBase, completion: Completion, stop: Sequence[str] = ()
) -> str:
    """What the verifier reads: the completion without the stop text or EOS token that ended it."""
    whole, ended = completion.token_ids, completion.finish_reason == "stop"
    if ended and stop:
        text = decode(tokenizer, whole)
        if ends := [place for one in stop if (place := text.find(one)) >= 0]:
            return text[: min(ends)]
    return decode(tokenizer, whole[:-1] if ended else whole)


def decode(tokenizer: PreTrainedTokenizerBase, token_ids: list[int]) -> str:
    """Exact text of a completion: special tokens inside it stay visible to the verifier."""
    return cast(str, tokenizer.decode(token_ids, clean_up_tokenization_spaces=False))
