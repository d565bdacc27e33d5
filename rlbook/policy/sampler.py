"""Sample completions from the policy, with the log-probability of every token."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Literal, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlbook.policy.decoding import decoder_for, fill_holes

__all__ = ["Completion", "Sampler", "StopTexts", "sample", "stopping"]


@dataclass(frozen=True)
class Completion:
    """Sampled tokens, their log-probabilities, and why sampling ended.

    `finish_reason` is "stop" (the last token is an EOS token) or "length". `forced` marks tokens
    that an engine put there instead of sampling them; their log-probability is 0. `versions[t]`
    names the weights that wrote `token_ids[t]`, where they may have changed meanwhile.
    """

    token_ids: list[int]
    logps: list[float]
    finish_reason: Literal["stop", "length"]
    forced: list[bool] | None = field(default=None, kw_only=True)
    versions: list[int] | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class StopTexts:
    """Texts that end a completion, however a tokenizer cuts them.

    The token in which one is complete is the last of the completion; it may hold more than the text
    (`rlbook.training.chat.text_of` cuts before it). Raises `ValueError` for an empty text.
    """

    tokenizer: PreTrainedTokenizerBase
    texts: tuple[str, ...]

    def __post_init__(self) -> None:
        if "" in self.texts:
            raise ValueError("an empty stop text would end every completion: leave it out")

    @cached_property
    def closing(self) -> list[int]:
        """Tokens that may complete a text: those that hold its last character, or part of it."""
        last = {text[-1] for text in self.texts} | {"\N{REPLACEMENT CHARACTER}"}
        words = self.tokenizer.batch_decode([[i] for i in range(len(self.tokenizer))])
        return [i for i, word in enumerate(words) if last.intersection(word)]

    def cut(self, one: Completion) -> Completion:
        """The completion up to the token that completes a text: engines need not know of these."""
        closing = set(self.closing)
        for end in (t + 1 for t, token in enumerate(one.token_ids) if token in closing):
            if self.reached(one.token_ids[:end]):
                return replace(
                    one,
                    token_ids=one.token_ids[:end],
                    logps=one.logps[:end],
                    finish_reason="stop",
                    forced=one.forced and one.forced[:end],
                    versions=one.versions and one.versions[:end],
                )
        return one

    def reached(self, token_ids: Sequence[int]) -> bool:
        """Whether the last tokens complete a text: a token has a byte of it at least."""
        longest = max(len(text.encode()) for text in self.texts)
        last = list(token_ids[-longest:])
        said = cast(str, self.tokenizer.decode(last, clean_up_tokenization_spaces=False))
        return any(text in said for text in self.texts)


@lru_cache(maxsize=8)
def stopping(tokenizer: PreTrainedTokenizerBase, texts: tuple[str, ...]) -> StopTexts | None:
    """`StopTexts` of a tokenizer, made once; None for no texts."""
    return StopTexts(tokenizer, texts) if texts else None


@dataclass(frozen=True)
class Sampler:
    """The built-in engine: a model, and the tokens and texts that end a completion."""

    model: PreTrainedModel
    eos_id: int | Sequence[int]
    texts: StopTexts | None = None

    @property
    def positions(self) -> float:
        """How many tokens a prompt and its completion may have together."""
        return positions_of(self.model)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        n: int = 1,
        max_new_tokens: int = 256,
        temperature: float = 1.0,
        seed: int | None = None,
        generator: torch.Generator | None = None,
        stop: Sequence[int] = (),
    ) -> list[Completion]:
        """`n` completions of each prompt, all those of the first prompt first. See `sample`.

        `stop` are tokens that end these completions besides the engine's own.
        """
        if n < 1:
            raise ValueError(f"n must be at least 1, got {n}")
        repeated = [prompt for prompt in prompts for _ in range(n)]
        own = [self.eos_id] if isinstance(self.eos_id, int) else self.eos_id
        ends = [*own, *stop]
        if learns := self.model.training:
            self.model.eval()  # what samples is the policy, without dropout
        try:
            return sample(
                self.model, repeated, max_new_tokens, ends, temperature, seed, generator, self.texts
            )
        finally:
            if learns:
                self.model.train()


@torch.inference_mode()
def sample(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    eos_id: int | Sequence[int],
    temperature: float = 1.0,
    seed: int | None = None,
    generator: torch.Generator | None = None,
    stop: StopTexts | None = None,
) -> list[Completion]:
    """One completion per prompt, in the order of the prompts.

    Tokens are drawn from softmax(logits / temperature), the whole of it: no top-k, no top-p; the
    reported log-probabilities belong to that same distribution. Temperature 0 takes the most
    probable token and reports log-probabilities at temperature 1. Completions of one prompt that
    have said the same so far are one row, computed once.

    Completion i uses the i-th row of one table of uniform numbers, drawn from `generator` (or from
    `seed`) before anything else. It therefore depends on the seed, on i and on `max_new_tokens`,
    but not on the other prompts, except through floating-point rounding.
    It ends with a token of `eos_id`, or with the one that completes a text of `stop`.
    Raises `ValueError` naming the prompt or argument that cannot be used.
    """
    stop_ids = [eos_id] if isinstance(eos_id, int) else list(eos_id)
    check_request(model, prompts, max_new_tokens, temperature)
    if not prompts:
        return []
    if generator is None:
        generator = torch.Generator()
        generator.manual_seed(seed) if seed is not None else generator.seed()
    device, count = model.device, len(prompts)
    eos = torch.tensor(stop_ids, device=device)
    uniform = torch.rand(count, max_new_tokens, generator=generator, dtype=torch.float64)
    uniform = uniform.to(device)
    tokens = torch.zeros(count, max_new_tokens, dtype=torch.long, device=device)
    logps = torch.zeros(count, max_new_tokens, device=device)
    lengths = torch.full((count,), max_new_tokens, device=device)

    decoder = decoder_for(model)
    logits, place = decoder.prefill_once(prompts)  # of every sequence, its row
    ended = torch.zeros(count, dtype=torch.bool, device=device)
    closing = torch.tensor(stop.closing if stop else [], dtype=torch.long, device=device)
    rows, vocabulary = torch.arange(count, device=device), logits.shape[-1]
    for step in range(max_new_tokens):
        token, logp = draw(logits[place], temperature, uniform[rows, step])
        tokens[rows, step], logps[rows, step] = token, logp
        finished = torch.isin(token, eos)
        if stop:
            for i in torch.isin(token, closing).nonzero().flatten().tolist():
                finished[i] |= stop.reached(tokens[rows[i], : step + 1].tolist())
        if finished.any():
            lengths[rows[finished]], ended[rows[finished]] = step + 1, True
            rows, token, place = (each[~finished] for each in (rows, token, place))
        if len(rows) == 0 or step + 1 == max_new_tokens:
            break
        longer, prefix = torch.unique(place * vocabulary + token, return_inverse=True)
        order = fill_holes(longer // vocabulary)
        longer = longer[order]
        decoder.take(longer // vocabulary)
        place = torch.argsort(order)[prefix]
        logits = decoder.step(longer % vocabulary)
    return _completions(tokens, logps, lengths, ended)


def draw(
    logits: Float[Tensor, "B V"], temperature: float, uniform: Float[Tensor, " B"]
) -> tuple[Int[Tensor, " B"], Float[Tensor, " B"]]:
    """A token per row by inverting the cumulative distribution at `uniform`, and its log-prob.

    token = min { v : Σ_{w ≤ v} π(w) > u },  π = softmax(logits / temperature),  u in [0, 1)

    Temperature 0 takes the most probable token, its log-prob at temperature 1. Chapter 01.
    """
    logp = (logits.float() / (temperature or 1.0)).log_softmax(-1)
    if temperature == 0:
        token = logp.argmax(-1)
    else:
        cumulative = logp.exp().cumsum(-1, dtype=torch.float64)
        point = uniform[:, None] * cumulative[:, -1:]
        token = torch.searchsorted(cumulative, point, right=True).squeeze(-1)
        token.clamp_(max=logits.shape[-1] - 1)
    return token, logp.gather(-1, token[:, None]).squeeze(-1)


def _completions(
    tokens: Int[Tensor, "B S"],
    logps: Float[Tensor, "B S"],
    lengths: Int[Tensor, " B"],
    ended: Bool[Tensor, " B"],
) -> list[Completion]:
    completions = []
    reason: Literal["stop", "length"]
    rows = (tensor.tolist() for tensor in (tokens, logps, lengths, ended))
    for row, logp, length, stopped in zip(*rows, strict=True):
        reason = "stop" if stopped else "length"
        completions.append(Completion(row[:length], logp[:length], reason))
    if not torch.isfinite(logps).all():
        raise FloatingPointError("the policy's logits are not finite: its weights have diverged")
    return completions


def positions_of(model: PreTrainedModel) -> float:
    """The longest sequence that a model has positions for; without such a limit infinite."""
    return getattr(model.config, "max_position_embeddings", None) or float("inf")


def check_request(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    temperature: float,
) -> None:
    """Raise `ValueError` naming the prompt or argument that cannot be sampled from."""
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens must be at least 1, got {max_new_tokens}")
    if not 0 <= temperature < float("inf"):
        raise ValueError(f"temperature must be 0 (greedy) or positive, got {temperature}")
    context = positions_of(model)
    # A Module in the library's words, but prompts of token ids need a table to look them up in.
    vocabulary = cast(nn.Embedding, model.get_input_embeddings()).num_embeddings
    for i, prompt in enumerate(prompts):
        if len(prompt) == 0:
            raise ValueError(f"prompt {i} is empty: start it with the tokenizer's BOS token")
        if len(prompt) + max_new_tokens > context:
            raise ValueError(
                f"prompt {i} has {len(prompt)} tokens; with max_new_tokens={max_new_tokens} it "
                f"exceeds the model's context of {context}: shorten either"
            )
        if not 0 <= min(prompt) <= max(prompt) < vocabulary:
            raise ValueError(f"prompt {i} has token ids outside the vocabulary of {vocabulary}")
