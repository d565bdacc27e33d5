"""The critic: a value for every token of a completion."""

import copy
from typing import cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from rlbook.policy.prefixes import last_states

__all__ = ["Critic", "explained_variance"]


class Critic(nn.Module):
    """V(s_t) for the state before token t: the policy's trunk, copied, with a scalar head.

    The head starts at zero, so the first advantages are the plain returns. Chapter 03.
    """

    def __init__(self, policy: PreTrainedModel):
        super().__init__()
        self.trunk = copy.deepcopy(policy.base_model)
        embedding = cast(Tensor, policy.get_input_embeddings().weight)
        self.head = nn.Linear(embedding.shape[1], 1, device=embedding.device)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, ids: Int[Tensor, "N T"], mask: Bool[Tensor, "N T"]) -> Float[Tensor, "N T"]:
        """Values aligned to tokens: entry (n, t) sees ids[n, :t] only; 0 where `mask` is False."""
        hidden, node = last_states(self.trunk, ids, mask)
        before_token = self.head(hidden.to(self.head.weight.dtype)).squeeze(-1)[node[:, :-1]]
        values = nn.functional.pad(before_token, (1, 0))
        return torch.where(mask, values, torch.zeros_like(values))


def explained_variance(
    values: Float[Tensor, "N T"], returns: Float[Tensor, "N T"], mask: Bool[Tensor, "N T"]
) -> float:
    """1 − Var(returns − values) / Var(returns) over masked tokens; 0 if the returns are constant.

    1 is a perfect critic, 0 one no better than a constant, below 0 a harmful one. Judge it by the
    reward that came: λ-returns with λ < 1 contain the values themselves and flatter them.
    """
    target, error = returns[mask], (returns - values)[mask]
    spread = target.var(unbiased=False)
    return 0.0 if spread == 0 else float(1 - error.var(unbiased=False) / spread)
