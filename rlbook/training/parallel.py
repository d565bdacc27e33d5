"""What a model says of a batch, in micro-batches: log-probs, entropies, values, likeliest."""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, TypeVar, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from rlbook.policy import TokenStats, logprobs, token_stats, topk_logprobs
from rlbook.training.batch import SampledBatch, micro_batch_rows

AnyBatch = TypeVar("AnyBatch", bound=SampledBatch)
Result = TypeVar("Result")
Rows = Int[Tensor, " R"]


class LocalProcess:
    """Where models run: here, all of them. `rlbook.scale.train.parallel.Ranks` shares them out.

    A subclass says who runs which rows (`micro_batches`), how a model is called (`call`), and how
    parts come together (`whole`, `gather`).
    """

    optimizer_options: Mapping[str, bool] = MappingProxyType({})  # of `adamw`, besides the run's

    def micro_batches(self, batch: AnyBatch, max_tokens: int) -> Iterator[tuple[Rows, AnyBatch]]:
        """The rows that this process runs, slice by slice, each with its part of the batch."""
        for rows in micro_batch_rows(batch, max_tokens):
            yield rows, batch.select(rows)

    def call(
        self, score: Callable[..., Result], model: nn.Module, *arguments: object, **how: object
    ) -> Result:
        """`score(policy, …)`, a function of `rlbook.policy`, of the policy that is in the model."""
        return score(as_policy(model), *arguments, **how)

    def token_stats(
        self,
        model: nn.Module,
        micro: SampledBatch,
        temperature: float,
        entropy_grad: bool = False,
        topk_ids: Int[Tensor, "N T K"] | None = None,
    ) -> TokenStats:
        """Log-probabilities and entropies of a micro-batch's trained tokens.

        The log-probabilities carry a gradient, the entropies only if `entropy_grad` asks for it.
        """
        how = {"entropy_grad": entropy_grad, "topk_ids": topk_ids}
        return self.call(token_stats, model, micro.ids, micro.mask, temperature, **how)

    def token_logprobs(
        self, model: nn.Module, micro: SampledBatch, temperature: float
    ) -> Float[Tensor, "N T"]:
        """The log-probabilities alone."""
        return self.call(logprobs, model, micro.ids, micro.mask, temperature)

    def likeliest(
        self, model: nn.Module, micro: SampledBatch, k: int, temperature: float
    ) -> tuple[Int[Tensor, "N T K"], Float[Tensor, "N T K"]]:
        """`topk_logprobs` of a micro-batch."""
        return self.call(topk_logprobs, model, micro.ids, micro.mask, k, temperature)

    def whole(self, model: nn.Module, part: Tensor) -> Tensor:
        """A result for all rows, from the rows that this process ran and 0 in all others."""
        return part

    def gather(self, parts: list[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
        """The `step_sums` of every process's micro-batches, from those of this one."""
        return parts

    @torch.no_grad()
    def over(
        self,
        compute: Callable[..., Tensor | tuple[Tensor, ...]],
        model: nn.Module,
        batch: SampledBatch,
        max_tokens: int,
        *how: Any,
    ) -> list[Tensor]:
        """`compute(model, micro_batch, *how)`, tensors (n, t, …), of the whole batch: (N, T, …)."""
        results: list[Tensor] = []
        for rows, micro in self.micro_batches(batch, max_tokens):
            part = compute(model, micro, *how)
            parts = (part,) if isinstance(part, Tensor) else part
            results = results or [p.new_zeros(*batch.ids.shape, *p.shape[2:]) for p in parts]
            for result, part in zip(results, parts, strict=True):
                result[rows, : part.shape[1]] = part[: len(rows)]
        return [self.whole(model, result) for result in results]

    def logprobs(
        self, model: nn.Module, batch: SampledBatch, temperature: float, max_tokens: int
    ) -> Float[Tensor, "N T"]:
        """log π(token) of a batch's tokens."""
        (logps,) = self.over(self.token_logprobs, model, batch, max_tokens, temperature)
        return logps

    def entropies(
        self, model: nn.Module, batch: SampledBatch, temperature: float, max_tokens: int
    ) -> Float[Tensor, "N T"]:
        """Entropy of the distribution each token was drawn from, in nats."""
        (entropies,) = self.over(
            lambda *micro: self.token_stats(*micro).entropy, model, batch, max_tokens, temperature
        )
        return entropies

    def topk(
        self, model: nn.Module, batch: SampledBatch, k: int, temperature: float, max_tokens: int
    ) -> tuple[Int[Tensor, "N T K"], Float[Tensor, "N T K"]]:
        """The likeliest tokens at each position and their log-probabilities; `topk_logprobs`."""
        ids, logps = self.over(self.likeliest, model, batch, max_tokens, k, temperature)
        return ids, logps

    def values(
        self, critic: nn.Module, batch: SampledBatch, max_tokens: int
    ) -> Float[Tensor, "N T"]:
        """The critic's value of the state before each token."""
        (values,) = self.over(lambda critic, m: critic(m.ids, m.mask), critic, batch, max_tokens)
        return values


LOCAL = LocalProcess()


def as_policy(model: nn.Module) -> PreTrainedModel:
    """The model of a single process is the policy itself; only ranks wrap theirs."""
    return cast(PreTrainedModel, model)
