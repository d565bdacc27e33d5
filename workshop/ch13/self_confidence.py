"""Two ways to be surer without a label: a reward of self-certainty, and surer decoding."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from rlbook.policy import Completion
from rlbook.policy.decoding import decoder_for
from rlbook.policy.sampler import draw
from rlbook.training import Rollout
from rlbook.training.sft import padded

AT_ONCE = 256  # answers read in one forward pass


@torch.no_grad()
def self_certainty(
    model: PreTrainedModel, ids: Int[Tensor, "N T"], mask: Bool[Tensor, "N T"]
) -> Float[Tensor, " N"]:
    """How far the next-token distributions of an answer are from an even one, mean over tokens.

    r_i = 1/|o_i| Σ_t KL(U ‖ π(· | o_{i,<t})) = −1/|o_i| Σ_t [log V + 1/V Σ_v log π_t(v)]

    In nats per token, 0 for an even distribution over the V tokens and without an upper bound.
    Source: Intuitor, arXiv:2505.19590. Chapter 13.
    """
    logp = model(ids).logits.float().log_softmax(-1)[:, :-1]
    surplus = -logp.mean(-1) - torch.tensor(float(logp.shape[-1])).log()
    chosen = mask[:, 1:]
    return (surplus * chosen).sum(1) / chosen.sum(1)


@dataclass(frozen=True)
class SelfCertainty:
    """`self_certainty` by the policy as it is: a reward that moves with what it rewards."""

    model: PreTrainedModel

    def __call__(self, rollouts: Sequence[Rollout]) -> dict[str, list[float]]:
        parts = [rollouts[i : i + AT_ONCE] for i in range(0, len(rollouts), AT_ONCE)]
        found = [self_certainty(self.model, *padded(part, self.model.device)) for part in parts]
        return {"self_certainty": torch.cat(found).tolist()}


def surer(
    logits: Float[Tensor, "B V"], floor: float = 0.1, steps: int = 15, size: float = 1.0
) -> Float[Tensor, "B V"]:
    """Logits after gradient steps down their entropy, row by row until it is below `floor`.

    ∂H/∂z_v = −π_v (log π_v + H), so z_v ← z_v + size · π_v (log π_v + H) while H > floor
    """
    for _ in range(steps):
        logp = logits.float().log_softmax(-1)
        p = logp.exp()
        entropy = torch.special.entr(p).sum(-1, keepdim=True)
        logits = logits + size * (entropy > floor) * p * (logp + entropy)
    return logits


@dataclass(frozen=True)
class EntropyInference:
    """An engine that makes every next token surer before it draws it; no weight changes.

    Source: EM-INF, arXiv:2505.15134, whose steps (5 to 15) and floor (0.1 to 0.5 nats) these are.
    Reported log-probabilities are those of the changed distribution. Chapter 13.
    """

    model: PreTrainedModel
    eos_id: int

    @torch.inference_mode()
    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        n: int = 1,
        max_new_tokens: int = 256,
        temperature: float = 1.0,
        seed: int | None = None,
    ) -> list[Completion]:
        """`n` completions of each prompt, all those of the first prompt first."""
        generator = torch.Generator()
        generator.manual_seed(seed) if seed is not None else generator.seed()
        repeated = [prompt for prompt in prompts for _ in range(n)]
        uniform = torch.rand(
            len(repeated), max_new_tokens, generator=generator, dtype=torch.float64
        )
        decoder, drawn = decoder_for(self.model), []
        logits, open_ = decoder.prefill(repeated), torch.ones(len(repeated), dtype=torch.bool)
        for step in range(max_new_tokens):
            token, logp = draw(surer(logits), temperature, uniform[:, step])
            drawn.append((token, logp))
            open_ &= token != self.eos_id
            if not open_.any() or step + 1 == max_new_tokens:
                break
            logits = decoder.step(token)
        tokens, logps = (torch.stack(each, 1).tolist() for each in zip(*drawn, strict=True))
        return [self.finished(*row) for row in zip(tokens, logps, strict=True)]

    def finished(self, tokens: list[int], logps: list[float]) -> Completion:
        """What was drawn, up to the first EOS."""
        ended = self.eos_id in tokens
        length = tokens.index(self.eos_id) + 1 if ended else len(tokens)
        return Completion(tokens[:length], logps[:length], "stop" if ended else "length")
