"""The tokens of a batch as the seams of the loss see them: one record, and the ratios made of it.

A ratio of your own is a function of the record, or a frozen dataclass with a `__call__`:

    def halfway(tokens): return tokens.ratio.sqrt()
    replace(METHODS["grpo"], ratio=halfway)
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rlbook.objectives.ratios import sequence_ratio, token_ratio
from rlbook.objectives.shapes import check_result, zero_masked

__all__ = ["Tokens"]


@dataclass(frozen=True)
class Tokens:
    """What a ratio or a trust region looks at: (N, T) each, without gradient, 0 outside the mask.

    `logp` log π_θ now, `logp_old` log π_old, `ratio` the method's importance ratio, 1 for "none",
    `divergence` of the whole distributions where a run has it. One record, so that a field that
    comes later breaks nobody's own region.
    """

    logp: Float[Tensor, "*shape"]
    logp_old: Float[Tensor, "*shape"]
    advantages: Float[Tensor, "*shape"]
    mask: Bool[Tensor, "*shape"]
    ratio: Float[Tensor, "*shape"]
    divergence: Float[Tensor, "*shape"] | None = None

    @classmethod
    def of(
        cls,
        logp: Float[Tensor, "*shape"],
        logp_old: Float[Tensor, "*shape"],
        advantages: Float[Tensor, "*shape"],
        mask: Bool[Tensor, "*shape"] | None = None,
        ratio: "Ratio" = "token",
        divergence: Float[Tensor, "*shape"] | None = None,
    ) -> "Tokens":
        """The record of these tensors; without a mask every token counts.

        Raises `ValueError` for a ratio that `RATIOS` has not.
        """
        mask = torch.ones_like(logp, dtype=torch.bool) if mask is None else mask
        given = (x.detach() for x in (logp, logp_old, advantages))
        logp, logp_old, advantages = zero_masked(mask, *given)
        tokens = cls(logp, logp_old, advantages, mask, token_ratio(logp, logp_old), divergence)
        if ratio == "token":
            return tokens
        if isinstance(ratio, str) and ratio not in RATIOS:
            raise ValueError(f"unknown ratio {ratio!r}; choose from {', '.join(RATIOS)}")
        choice = RATIOS[ratio] if isinstance(ratio, str) else ratio
        chosen = choice(tokens)
        check_result(f"ratio {getattr(choice, '__name__', type(choice).__name__)}", chosen, logp)
        return replace(tokens, ratio=chosen.detach())

    @property
    def token_ratio(self) -> Float[Tensor, "*shape"]:
        """π_θ/π_old of each token, whatever ratio the method uses."""
        return token_ratio(self.logp, self.logp_old)


Ratio = str | Callable[[Tokens], Tensor]

RATIOS: Mapping[str, Callable[[Tokens], Tensor]] = {
    "none": lambda tokens: torch.ones_like(tokens.logp),
    "token": lambda tokens: tokens.token_ratio,
    "sequence": lambda t: sequence_ratio(t.logp, t.logp_old, t.mask),
    "sequence_product": lambda t: sequence_ratio(t.logp, t.logp_old, t.mask, normalize=False),
}
