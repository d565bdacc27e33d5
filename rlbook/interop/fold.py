"""Any average of any row, folded into advantages per token.

Every region's gradient is −weight·A, and a weight asks nothing of A but its sign. So a trainer
that takes another average over tokens than the row's has the row's gradient all the same, if each
token's advantage is multiplied by the two shares' quotient.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rlbook.objectives import Method, compute_advantages, token_weights
from rlbook.objectives.shapes import expand_to_tokens


def folded(
    method: Method,
    advantages: Float[Tensor, "..."],
    mask: Bool[Tensor, "N T"],
    groups: Int[Tensor, " N"],
    base: str = "token_mean",
) -> Float[Tensor, "N T"]:
    """Advantages whose `base` average has the gradient of the row's own; 0 outside the mask.

    A_t · share_row(t) / share_base(t). KL terms and entropy bonuses are no advantages: they keep
    the average `base`.
    """
    tokens = expand_to_tokens(advantages, mask)
    if method.aggregation == base:
        return torch.where(mask, tokens, 0.0)
    limit = float(mask.shape[1])
    own = token_weights(mask, method.aggregation, groups, method.constant or limit)
    theirs = token_weights(mask, base, groups, method.constant or limit)
    factor = torch.where(mask, own / theirs, 0.0).to(tokens.dtype)
    return torch.where(mask, tokens * factor, 0.0)


class RowAdvantages:
    """A row's estimator as verl and SkyRL call theirs; it remembers what the row's own does.

    Called with rewards (N, T), the mask and prompt names; returns the advantages (N, T), the
    row's average folded in, twice: there is no critic to train on the second.
    """

    def __init__(self, method: Method, base: str) -> None:
        self.method, self.base, self.estimate = method, base, method.new_advantage()

    def __call__(
        self,
        token_level_rewards: Tensor,
        response_mask: Tensor,
        index: Sequence[Any],
        **_: Any,
    ) -> tuple[Tensor, Tensor]:
        mask, rewards = response_mask.bool(), token_level_rewards
        places = {name: place for place, name in enumerate(dict.fromkeys(index))}
        groups = torch.tensor([places[name] for name in index], device=mask.device)
        advantages = compute_advantages(
            self.estimate,
            rewards=rewards if self.method.takes_token_rewards else rewards.sum(-1),
            groups=groups,
            mask=mask,
            lengths=mask.sum(1),
        )
        tokens = folded(self.method, advantages, mask, groups, self.base)
        return tokens, tokens
