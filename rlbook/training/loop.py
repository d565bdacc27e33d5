"""The loop: prompts → rollouts → rewards → advantages → objective → update, in view."""

from collections.abc import Iterator

from torch.nn.utils import clip_grad_norm_
from torch.optim import AdamW
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlbook.objectives import Method, policy_loss
from rlbook.policy import Sampler, end_ids, logprobs
from rlbook.tasks import Task
from rlbook.training.batch import collate, minibatches
from rlbook.training.config import derive_seed
from rlbook.training.rollouts import collect_rollouts

__all__ = ["train"]


def train(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
    method: Method,
    steps: int = 60,
    prompts: int = 16,
    n: int = 8,
    updates: int = 4,
    lr: float = 1.5e-4,
    seed: int = 0,
) -> Iterator[float]:
    """Train `model` in place; yields the mean reward of each step's rollouts.

    A step asks `n` completions of each of `prompts` prompts and cuts them into `updates`
    minibatches. This is all of reinforcement learning from a verifier that a method without
    critic, reference model and filters needs. `Trainer` does the same, bit for bit, and what the
    other chapters add. Raises `ValueError` for a method that needs one of these. Chapter 02.
    """
    check_plain(method)
    engine = Sampler(model, end_ids(model, tokenizer))
    optimizer = AdamW(model.parameters(), lr, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    for step in range(steps):
        problems = task.sample(derive_seed(seed, step, "prompts", 0), prompts)
        noise = derive_seed(seed, step, "rollouts", 0)
        sampled = collate(collect_rollouts(engine, tokenizer, task, problems, n, seed=noise))
        batch = sampled.prepared(advantages=method.advantage(sampled.rewards, sampled.groups))
        for part in minibatches(batch, updates, derive_seed(seed, step, "shuffle", 0)):
            logp = logprobs(model, part.ids, part.mask)
            policy_loss(method, logp, part.logp_old, part.advantages, part.mask).loss.backward()
            clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        yield batch.rewards.mean().item()


def check_plain(method: Method) -> None:
    """Raise `ValueError` if the method needs more than answers and their rewards."""
    if lacking := method.lacking(()):
        raise ValueError(
            f"the loop of chapter 02 lacks what {method.name} needs: {lacking[0]}; "
            "use rlbook.training.Trainer"
        )
