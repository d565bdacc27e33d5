"""One text, several token sequences: what decoding and encoding again does to the gradient.

A tokenizer's encoder gives one spelling of a text. A policy samples tokens, and may spell the same
text in other ways. Training on the text encoded again is training on tokens that were not sampled.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rlbook.exact.policies import TokenTree


@dataclass(frozen=True, eq=False)
class Speller:
    """A token tree whose symbols are pieces of text; the encoder takes the longest that fits."""

    tree: TokenTree
    pieces: tuple[str, ...]

    @cached_property
    def texts(self) -> list[str]:
        """The text of every outcome; one that was cut off ends in an ellipsis."""
        return [self.decode(sequence) for sequence in self.tree.sequences]

    def decode(self, sequence: tuple[int, ...]) -> str:
        stopped = sequence[-1] == self.tree.stop
        text = "".join(self.pieces[token] for token in sequence[: -1 if stopped else None])
        return text if stopped else text + "…"

    def encode(self, text: str) -> tuple[int, ...]:
        """The encoder's spelling of a text."""
        rest, sequence = text.removesuffix("…"), []
        while rest:
            fits = [piece for piece in self.pieces if rest.startswith(piece)]
            longest = max(fits, key=len)
            sequence.append(self.pieces.index(longest))
            rest = rest[len(longest) :]
        return (*sequence, *(() if text.endswith("…") else (self.tree.stop,)))

    @cached_property
    def sampled_as_encoded(self) -> Bool[Tensor, " K"]:
        """True where the encoder would have spelt the text as the policy did."""
        pairs = zip(self.tree.sequences, self.texts, strict=True)
        return torch.tensor([sequence == self.encode(text) for sequence, text in pairs])

    def log_probs_encoded(self, logits: Float[Tensor, "P A"]) -> Float[Tensor, " K"]:
        """log π of every outcome's text, as the encoder spells it."""
        table = logits.log_softmax(-1)
        row_of = {prefix: row for row, prefix in enumerate(self.tree.prefixes)}
        encoded = [self.encode(text) for text in self.texts]
        return torch.stack(
            [
                torch.stack([table[row_of[s[:t]], token] for t, token in enumerate(s)]).sum()
                for s in encoded
            ]
        )

    @property
    def ratios(self) -> Float[Tensor, " K"]:
        """π(text encoded again) / π(tokens sampled): 1, were nothing lost on the way."""
        return (self.log_probs_encoded(self.tree.logits) - self.tree.logp).exp()

    def gradient(self, rewards: Float[Tensor, " K"]) -> Float[Tensor, " D"]:
        """What is climbed by training on encoded text: E[(r − J) ∇log π(text encoded again)]."""
        credit = self.tree.probs * (rewards - self.tree.expected_reward(rewards))
        push = torch.func.grad(lambda logits: credit @ self.log_probs_encoded(logits))
        return push(self.tree.logits).flatten()

    def moved(self, step: Float[Tensor, " D"]) -> "Speller":
        return Speller(self.tree.moved(step), self.pieces)


def climb(
    speller: Speller, rewards: Float[Tensor, " K"], encoded: bool, steps: int = 200, lr: float = 0.5
) -> list[Speller]:
    """Exact gradient steps: on the tokens that were sampled, or on their text encoded again."""
    path = [speller]
    for _ in range(steps):
        now = path[-1]
        gradient = now.gradient(rewards) if encoded else now.tree.true_gradient(rewards)
        path.append(now.moved(lr * gradient))
    return path


def rewards_of(speller: Speller, right: str) -> Float[Tensor, " K"]:
    """1 for every spelling of the right text."""
    return torch.tensor([float(text == right) for text in speller.texts], dtype=torch.float64)


def letter_by_letter() -> Speller:
    """Pieces a, b and ab, and a policy whose habit is the text "ab", spelt a + b as a rule.

    The encoder spells it ab. Of the answers about half are "ab", a quarter "b".
    """
    chances = {
        (): (0.55, 0.30, 0.05, 0.10),  # a, b, ab, STOP
        (0,): (0.03, 0.90, 0.02, 0.05),
        (1,): (0.03, 0.03, 0.04, 0.90),
        (2,): (0.03, 0.03, 0.04, 0.90),
    }
    after_two = (0.02, 0.02, 0.01, 0.95)
    prefixes = [(), *((i,) for i in range(3)), *((i, j) for i in range(3) for j in range(3))]
    table = torch.tensor([chances.get(p, after_two) for p in prefixes], dtype=torch.float64)
    return Speller(TokenTree(table.log(), max_tokens=3), ("a", "b", "ab"))
