"""In-flight batching: completions join and leave a running batch, and weights change under it."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from rlbook.policy.decoding import Decoder, decoder_for, fill_holes
from rlbook.policy.sampler import Completion, check_request, draw

JOINING_SHARE = 8  # prompts join together when 1/8 of the slots is free: each join is a pass


@dataclass
class Row:
    """One completion: what was asked, and what has been sampled so far."""

    number: int
    prompt: list[int]
    max_new_tokens: int
    temperature: float
    random: Random
    stop: frozenset[int] = frozenset()  # besides the sampler's own
    tokens: list[int] = field(default_factory=list)
    logps: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    def append(self, token: int, logp: float, version: int) -> None:
        """Take in the next token, its log-probability and the version that wrote it."""
        self.tokens.append(token)
        self.logps.append(logp)
        self.versions.append(version)

    def finish_reason(self, stop_ids: set[int]) -> Literal["stop", "length"] | None:
        """Why the completion has ended, None if it has not."""
        if self.tokens[-1] in stop_ids or self.tokens[-1] in self.stop:
            return "stop"
        return "length" if len(self.tokens) == self.max_new_tokens else None


class ContinuousSampler:
    """Samples many completions, a token of each at a time; none waits for another. Chapter 18.

    `slots` completions run at a time, the others wait their turn. Completion number i draws from
    its own random stream, made of `seed` and i: it does not depend on what runs beside it, except
    through floating-point rounding.
    With `kv` "keep" running completions go on from keys and values of earlier weights when weights
    change (PipelineRL, arXiv:2509.19128); with "clear" these are computed again, which is exact.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        stop_ids: int | Iterable[int],
        slots: int = 128,
        kv: Literal["keep", "clear"] = "keep",
        seed: int = 0,
        version: int = 0,
    ):
        if slots < 1:
            raise ValueError(f"slots must be at least 1, got {slots}")
        self.model, self.slots, self.kv = model, slots, kv
        self.stop_ids = {stop_ids} if isinstance(stop_ids, int) else set(stop_ids)
        self.seed, self.version = seed, version
        self._template = decoder_for(model)
        self._decoder: Decoder | None = None  # None: nothing runs, or its cache was dropped
        self._waiting: deque[Row] = deque()
        self._running: list[Row] = []
        self._count = 0

    @property
    def busy(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._waiting or self._running)

    def add(
        self,
        prompt: Sequence[int],
        max_new_tokens: int,
        temperature: float = 1.0,
        stop: Iterable[int] = (),
    ) -> int:
        """Ask for a completion; returns its number. See `rlbook.policy.sample`."""
        check_request(self.model, [prompt], max_new_tokens, temperature)
        number, self._count = self._count, self._count + 1
        stream = Random(f"{self.seed}/{number}")
        row = Row(number, list(prompt), max_new_tokens, temperature, stream, frozenset(stop))
        self._waiting.append(row)
        return number

    def cancel(self, numbers: Iterable[int]) -> None:
        """Give up these completions, wherever they are."""
        numbers = set(numbers)
        self._waiting = deque(row for row in self._waiting if row.number not in numbers)
        self._drop([row.number in numbers for row in self._running])

    @torch.inference_mode()
    def step(self) -> dict[int, Completion]:
        """One token for every running completion; those that have ended, by number.

        Raises `FloatingPointError` if the logits are not finite.
        """
        if not self.busy:
            return {}
        logits = self._next_logits()
        self._draw(logits)
        reasons = [row.finish_reason(self.stop_ids) for row in self._running]
        finished = {
            row.number: Completion(row.tokens, row.logps, reason, versions=row.versions)
            for row, reason in zip(self._running, reasons, strict=True)
            if reason
        }
        self._drop([reason is not None for reason in reasons])
        return finished

    def load_weights(self, tensors: Mapping[str, Tensor], version: int) -> None:
        """Go on with other weights; all of them or, with a `ValueError`, none."""
        replace_weights(self.model, tensors)
        self._template.follow_weights()
        self.version = version
        if self.kv == "clear":
            self.clear_cache()

    def clear_cache(self) -> None:
        """Forget keys and values; the next step computes them with the weights it finds."""
        self._decoder = None

    def _next_logits(self) -> Float[Tensor, "B V"]:
        """Logits of every running row; rows that were waiting join behind the others."""
        logits = []
        if self._running:
            if self._decoder is None:
                self._decoder = self._template.fresh()
                self._decoder.prefill([row.prompt + row.tokens[:-1] for row in self._running])
            last = torch.tensor([row.tokens[-1] for row in self._running])
            logits.append(self._decoder.step(last.to(self.model.device)))
        if joining := self._admit():
            decoder = self._template.fresh()
            logits.append(decoder.prefill([row.prompt for row in joining]))
            if self._running and self._decoder is not None:
                self._decoder.join(decoder)
            else:
                self._decoder = decoder
            self._running += joining
        return torch.cat(logits)

    def _admit(self) -> list[Row]:
        """The rows that join now, first come first served."""
        free = self.slots - len(self._running)
        if free < min(len(self._waiting), max(1, self.slots // JOINING_SHARE)):
            return []
        return [self._waiting.popleft() for _ in range(min(free, len(self._waiting)))]

    def _draw(self, logits: Float[Tensor, "B V"]) -> None:
        """Append a token to every running row."""
        by_temperature: dict[float, list[int]] = {}
        for place, row in enumerate(self._running):
            by_temperature.setdefault(row.temperature, []).append(place)
        for temperature, places in by_temperature.items():
            rows = [self._running[place] for place in places]
            uniform = torch.tensor([row.random.random() for row in rows], dtype=torch.float64)
            token, logp = draw(logits[places], temperature, uniform.to(logits.device))
            if not torch.isfinite(logp).all():
                raise FloatingPointError(
                    "the policy's logits are not finite: its weights have diverged"
                )
            for row, one, its_logp in zip(rows, token.tolist(), logp.tolist(), strict=True):
                row.append(one, its_logp, self.version)

    @torch.inference_mode()
    def _drop(self, leaving: list[bool]) -> None:
        """Take rows out of the batch."""
        if not any(leaving):
            return
        staying = (~torch.tensor(leaving)).nonzero().squeeze(1)
        kept = staying[fill_holes(staying)]
        self._running = [self._running[place] for place in kept.tolist()]
        if not self._running:
            self._decoder = None
        elif self._decoder is not None:
            self._decoder.take(kept.to(self.model.device))


@torch.no_grad()
def replace_weights(model: PreTrainedModel, tensors: Mapping[str, Tensor]) -> None:
    """Copy tensors into a model, by name; all of its weights must be there.

    Of weights that share memory (an output head tied to the embedding) one suffices.
    Raises `ValueError` naming a tensor that is missing, unknown or of another shape, before
    anything is copied.
    """
    own = model.state_dict()
    for name, tensor in tensors.items():
        if name not in own:
            raise ValueError(f"the model has no weight {name!r}")
        if tensor.shape != own[name].shape:
            shapes = f"{tuple(tensor.shape)}, the model's is {tuple(own[name].shape)}"
            raise ValueError(f"weight {name!r} has shape {shapes}")
    given = {own[name].data_ptr() for name in tensors}
    if missing := [name for name, weight in own.items() if weight.data_ptr() not in given]:
        raise ValueError(f"{len(missing)} weights are missing, the first is {missing[0]!r}")
    for name, tensor in tensors.items():
        own[name].copy_(tensor)
