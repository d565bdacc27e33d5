"""The masks of the lab: one trust region each, as the table of methods has it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, cast

from jaxtyping import Float
from torch import Tensor

from rlbook.exact import FOUR
from rlbook.exact.four_completions import Completions
from rlbook.objectives import (
    METHODS,
    NoTrustRegion,
    RatioClip,
    Region,
    Tokens,
    Weights,
    group_normalize,
    weigh,
)
from workshop.shared.evidence import colour_of


@dataclass(frozen=True)
class Mask:
    """A trust region with its name and colour; `ratio` as in `Method`: of the token or the answer.

    One that looks at the ratio of the whole answer ("sequence") has no wall in the plane of one
    token's probabilities: it silences answers.
    """

    label: str
    region: Region
    colour: str
    ratio: Literal["token", "sequence"] = "token"


def of_method(name: str, label: str) -> Mask:
    """The mask of a row of `METHODS`, in the method's colour."""
    method = METHODS[name]
    ratio = cast(Literal["token", "sequence"], method.ratio)
    return Mask(label, method.trust_region, colour_of(name), ratio)


PPO = of_method("ppo", "PPO")
MASKS: Mapping[str, Mask] = {
    "none": Mask("No mask", NoTrustRegion(), colour_of("reinforce")),
    "ppo": PPO,
    "dual": Mask("Dual clip", replace(cast(RatioClip, PPO.region), dual=3.0), "#7a1e00"),
    "dapo": of_method("dapo", "DAPO"),
    "cispo": of_method("cispo", "CISPO"),
    "dppo": of_method("dppo", "DPPO-TV"),
    "dppo_kl": of_method("dppo_kl", "DPPO-KL"),
    "gspo": of_method("gspo", "GSPO"),
}


def find_mask(name: str, masks: Mapping[str, Mask] = MASKS) -> Mask:
    """The mask of this name; `ValueError` listing the known ones."""
    if name not in masks:
        raise ValueError(f"no mask {name!r}: choose from {', '.join(masks)}")
    return masks[name]


def advantages_of(completions: Completions = FOUR) -> Float[Tensor, "N T"]:
    """GRPO's advantage of each completion, on each of its tokens."""
    centred = group_normalize(completions.rewards, completions.groups)
    return centred[:, None] * completions.mask


def apply_mask(mask: Mask, completions: Completions = FOUR) -> Weights:
    """What the mask does to every token of the completions."""
    logp, logp_old, advantages = completions.logp, completions.logp_old, advantages_of(completions)
    return weigh(mask.region, Tokens.of(logp, logp_old, advantages, completions.mask, mask.ratio))


def token_names(completions: Completions = FOUR) -> list[list[str]]:
    """A1, A2, … of each completion: its letter and the token's position."""
    return [
        [f"{name[0]}{t + 1}" for t in range(len(tokens))]
        for name, tokens in zip(completions.names, completions.tokens, strict=True)
    ]
