"""Entropy minimisation by fine-tuning: no reward, the policy only grows surer of what it says."""

from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from rlbook.policy import token_stats
from rlbook.training import Learner, TrainBatch, Trainer
from rlbook.training.parallel import as_policy
from rlbook.training.step import apply_gradients, warm_up


def token_entropy(
    model: PreTrainedModel, batch: TrainBatch, temperature: float = 1.0
) -> Float[Tensor, ""]:
    """Mean entropy of the next-token distributions along sampled completions, in nats per token.

    L = Σ_i Σ_t H(π_θ(· | o_{i,<t})) / Σ_i |o_i|

    Differentiable through H alone: the completions count as given, so what sampling other ones
    would change is left out. Source: EM-FT, arXiv:2505.15134 (which divides by the number of
    completions: the same direction on a batch). Chapter 13.
    """
    stats = token_stats(model, batch.ids, batch.mask, temperature, entropy_grad=True)
    return stats.entropy.sum() / batch.mask.sum()


class EntropyDescent(Learner):
    """A learner whose update descends `token_entropy`.

    Advantages, trust region and aggregation of the run's method are not used.
    """

    def update(self, minibatch: TrainBatch) -> dict[str, float]:
        """One step downhill in entropy."""
        settings = self.config.optimizer
        optimizer = self.optimizers["model"]
        warm_up(optimizer, settings.lr, self.updates_made, settings.warmup)
        optimizer.zero_grad(set_to_none=True)
        loss = token_entropy(as_policy(self.model), minibatch, self.config.rollout.temperature)
        loss.backward()
        norm, skipped = apply_gradients(self.model, optimizer, settings.max_grad_norm)
        self.updates_made += 1
        entropy = float(loss.detach())
        return {"entropy": entropy, "grad_norm": norm, "skipped_updates": skipped}


class EntropyFineTuning(Trainer):
    """A trainer that grows surer of its own samples (`EntropyDescent`); rewards are only logged."""

    learner_class = EntropyDescent
