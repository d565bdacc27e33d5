"""The four completions that every chapter works by hand.

One prompt, `37+8-5+9=?`, and four answers to it. Each is cut into a few coarse tokens so that a
pencil suffices; the last token of each includes the end of the sequence. π_old sampled them,
π_θ is a few updates later. Tokens after the same prefix share one distribution, and no
distribution sums to more than 1.

A  worked out, right (4 tokens)      B  lucky guess, right (2 tokens)
    π_old  .40   .60   .80   .90         π_old  .50   .01
    π_θ    .50   .80   .60   .90         π_θ    .49   .02
    ρ      1.25  4/3   .75   1           ρ      .98   2

C  lost, wrong (8 tokens)                                    D  confident guess, wrong (2 tokens)
    π_old  .40   .20   .50   .60   .90   .96   .80   .90         π_old  .50   .90
    π_θ    .50   .10   .80   .80   .81   .80   .80   .90         π_θ    .49   .70
    ρ      1.25  .5    1.6   4/3   .9    5/6   1     1           ρ      .98   7/9

By hand:

- rewards 1, 1, 0, 0: mean 1/2, standard deviation √(1/3) (ddof 1) or 1/2 (ddof 0).
- advantages of A and B (C and D: minus that): centred .5, GRPO √3/2 = .866, leave-one-out 2/3,
  MaxRL 1.
- lengths 4, 2, 8, 2: 16 tokens, mean 4, width 8. Weight of one token of A, B, C, D in the loss:
  sequence mean 1/16, 1/8, 1/32, 1/8; token mean 1/16 each; constant 8: 1/32 each.
- ratio clip at 0.2 masks 5 of 16 tokens: A1, A2, B2, C2, D2. With ε_high = .28 A1 is free again.
  C1 is the same token as A1 with the same ratio and is never masked: its advantage is negative.
- total variation |π_θ - π_old| > .15 masks 3 tokens: A2 (+.20), C6 (-.16), D2 (-.20). B2 doubles
  but moves only .01, so it is kept; C6 is inside the ratio window, and is not.
- sequence ratios: A 1.25^(1/4) = 1.057, B √1.96 = 1.4, C 1 (its ratios multiply to 1),
  D √(.98 · 7/9) = .873.
- critic (γ = 1): V is .5 at the prompt, .75 after the first step, .25 after skipping the thought.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

__all__ = ["FOUR", "Completions", "four_table"]


@dataclass(frozen=True)
class Completions:
    """Completions of one prompt with fixed rewards and token probabilities.

    Tensors are built afresh on every access, float64 and right-padded with 0 to the longest
    completion, so a chapter may change them in place or ask for gradients.
    """

    prompt: str
    answer: str
    names: tuple[str, ...]
    tokens: tuple[tuple[str, ...], ...]
    reward_values: tuple[float, ...]
    probs_old: tuple[tuple[float, ...], ...]
    probs: tuple[tuple[float, ...], ...]
    critic_values: tuple[tuple[float, ...], ...]

    @property
    def texts(self) -> tuple[str, ...]:
        """Completions as text, end of sequence excluded."""
        return tuple("".join(tokens) for tokens in self.tokens)

    @property
    def lengths(self) -> Int[Tensor, " N"]:
        """Tokens of each completion, the end of sequence counted."""
        return torch.tensor([len(tokens) for tokens in self.tokens])

    @property
    def rewards(self) -> Float[Tensor, " N"]:
        """Reward of each completion."""
        return torch.tensor(self.reward_values, dtype=torch.float64)

    @property
    def groups(self) -> Int[Tensor, " N"]:
        """All 0: completions of one prompt."""
        return torch.zeros(len(self.tokens), dtype=torch.long)

    @property
    def mask(self) -> Bool[Tensor, "N T"]:
        """True on the tokens of each completion, the end of sequence included."""
        return torch.arange(int(self.lengths.max())) < self.lengths[:, None]

    @property
    def logp_old(self) -> Float[Tensor, "N T"]:
        """log π_old of each token: the policy that sampled."""
        return _padded(self.probs_old, empty=1.0).log()

    @property
    def logp(self) -> Float[Tensor, "N T"]:
        """log π_θ of each token: the policy being trained."""
        return _padded(self.probs, empty=1.0).log()

    @property
    def values(self) -> Float[Tensor, "N T"]:
        """A critic's estimate of the reward before each token."""
        return _padded(self.critic_values, empty=0.0)


FOUR = Completions(
    prompt="37+8-5+9=?",
    answer="49",
    names=("A: worked out", "B: lucky guess", "C: lost", "D: confident guess"),
    tokens=(
        ("<think>37+8=45;", "45-5=40;", "40+9=49;", "</think><answer>49</answer>"),
        ("<think></think>", "<answer>49</answer>"),
        ("<think>37+8=45;", "45-5=30;", *4 * ("hmm ",), "</think>", "<answer>30</answer>"),
        ("<think></think>", "<answer>45</answer>"),
    ),
    reward_values=(1.0, 1.0, 0.0, 0.0),
    probs_old=(
        (0.40, 0.60, 0.80, 0.90),
        (0.50, 0.01),
        (0.40, 0.20, 0.50, 0.60, 0.90, 0.96, 0.80, 0.90),
        (0.50, 0.90),
    ),
    probs=(
        (0.50, 0.80, 0.60, 0.90),
        (0.49, 0.02),
        (0.50, 0.10, 0.80, 0.80, 0.81, 0.80, 0.80, 0.90),
        (0.49, 0.70),
    ),
    critic_values=(
        (0.50, 0.75, 0.75, 1.00),
        (0.50, 0.25),
        (0.50, 0.75, 0.25, 0.25, 0.25, 0.00, 0.00, 0.00),
        (0.50, 0.25),
    ),
)


def four_table(completions: Completions = FOUR) -> list[dict[str, str | float | int]]:
    """One row per token, for printing or a data frame."""
    return [
        {
            "completion": name[0],
            "position": t + 1,
            "token": token,
            "reward": reward,
            "pi_old": old,
            "pi": new,
            "ratio": new / old,
            "tv": new - old,
        }
        for name, tokens, reward, olds, news in zip(
            completions.names,
            completions.tokens,
            completions.reward_values,
            completions.probs_old,
            completions.probs,
            strict=True,
        )
        for t, (token, old, new) in enumerate(zip(tokens, olds, news, strict=True))
    ]


def _padded(rows: tuple[tuple[float, ...], ...], empty: float) -> Float[Tensor, "N T"]:
    width = max(map(len, rows))
    return torch.tensor(
        [[*row, *(width - len(row)) * [empty]] for row in rows], dtype=torch.float64
    )
