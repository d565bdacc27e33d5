"""Where models run, and what they say of a batch in micro-batches."""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import torch
from jaxtyping import Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from rlbook.training.batch import SampledBatch, micro_batch_rows

AnyBatch = TypeVar("AnyBatch", bound=SampledBatch)
Arguments = ParamSpec("Arguments")
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
        self,
        score: Callable[Concatenate[Any, Arguments], Result],
        model: nn.Module,
        *arguments: Arguments.args,
        **options: Arguments.kwargs,
    ) -> Result:
        """`score(policy, …)`, a function of `rlbook.policy`, of the policy that is in the model."""
        return score(model, *arguments, **options)

    def whole(self, model: nn.Module, part: Tensor) -> Tensor:
        """A result for all rows, from the rows that this process ran and 0 in all others."""
        return part

    def gather(self, parts: list[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
        """The `step_sums` of every process's micro-batches, from those of this one."""
        return parts

    @torch.no_grad()
    def over(
        self,
        score: Callable[..., Any],
        model: nn.Module,
        batch: SampledBatch,
        max_tokens: int,
        *options: Any,
    ) -> list[Tensor]:
        """`score(policy, ids, mask, *options)`, tensors (n, t, …), of the whole batch: (N, T, …).

        `score` is `logprobs`, `token_stats` or `topk_logprobs`; no pass is wider than `max_tokens`.
        """
        results: list[Tensor] = []
        for rows, micro in self.micro_batches(batch, max_tokens):
            said = self.call(score, model, micro.ids, micro.mask, *options)
            parts = [said] if isinstance(said, Tensor) else [p for p in said if p is not None]
            results = results or [p.new_zeros(*batch.ids.shape, *p.shape[2:]) for p in parts]
            for result, part in zip(results, parts, strict=True):
                result[rows, : part.shape[1]] = part[: len(rows)]
        return [self.whole(model, result) for result in results]


LOCAL = LocalProcess()


def as_policy(model: nn.Module) -> PreTrainedModel:
    """The model of a single process is the policy itself; only ranks wrap theirs."""
    return cast(PreTrainedModel, model)
