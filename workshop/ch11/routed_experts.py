"""A mixture of experts small enough to see its router choose: what replaying the choice does.

A token's scores pick `top` of the experts. Two programs with the same weights and a little rounding
between them pick different ones where two scores are nearly equal, and then the token's
probabilities are another expert's. Chapter 11.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor


def routed(
    states: Float[Tensor, "N D"],
    router: Float[Tensor, "D E"],
    experts: Float[Tensor, "E D V"],
    top: int = 1,
    replay: Int[Tensor, "N K"] | None = None,
    rounding: float | Float[Tensor, "N E"] = 0.0,
) -> tuple[Float[Tensor, "N V"], Int[Tensor, "N K"]]:
    """(log-probs of the next token, the experts that made them).

    Logits are the sum of the chosen experts' outputs, weighted by the softmax of their scores.
    `rounding` is what a program adds to the scores by its arithmetic. `replay` are experts chosen
    elsewhere: only the choice is taken over, the weights are computed anew, with their gradient.
    """
    scores = states @ router + rounding
    chosen = scores.topk(top).indices if replay is None else replay
    gates = scores.gather(1, chosen).softmax(1)
    outputs = torch.einsum("nd,nkdv->nkv", states, experts[chosen])
    return (gates[..., None] * outputs).sum(1).log_softmax(-1), chosen
