"""Which prompts learn: the choice of a method, carried out by `rlbook.training.select_groups`."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["PromptFilter"]


@dataclass(frozen=True)
class PromptFilter:
    """Only prompts whose completions differ learn, and `by` says in what.

    "correct": in the verifier's word, whatever a shaped reward makes of it (DAPO's dynamic
    sampling, arXiv:2503.14476, equation 11; CISPO takes it over). "reward": in the reward, which
    need not be the verifier's (ScaleRL's zero-variance filter, arXiv:2510.13786).
    With `resample` further prompts are asked until the batch is full; without, it is smaller.
    """

    by: Literal["correct", "reward"]
    resample: bool = False
