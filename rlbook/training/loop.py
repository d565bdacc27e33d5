"""The loop: prompts → rollouts → rewards → advantages → objective → update, in view."""

from collections.abc import Iterator

from torch.nn.utils import clip_grad_norm_
from torch.optim import AdamW
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlbook.objectives import Method, policy_loss
from rlbook.policy import Sampler, logprobs
from rlbook.tasks import Task
from rlbook.training.batch import collate, minibatches
from rlbook.training.collect import collect_rollouts, derive_seed

PLAIN = {"rewards", "groups"}


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
    engine = Sampler(model, tokenizer.eos_token_id)
    optimizer = AdamW(model.parameters(), lr, betas=(0.9, 0.95), weight_decay=0.0)
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
    """Raise `ValueError` if the method needs more than the loop has."""
    limit = method.aggregation == "constant" and method.constant is None
    shaped = method.reward_values != (0.0, 1.0) or method.format_bonus
    wants = {
        f"{', '.join(sorted(method.needs - PLAIN))} for its advantages": method.needs - PLAIN,
        "rewards per token": method.needs_token_rewards,
        "a fresh estimator (it remembers earlier batches)": (
            method.new_advantage() is not method.advantage
        ),
        "log-probs recomputed by the trainer": method.old_logprobs == "recomputed",
        "a reference model": method.needs_reference,
        "a prompt filter": method.prompt_filter != "none",
        "groups in its aggregation": method.aggregation == "prompt_mean",
        "the generation limit as its constant": limit,
        "further tokens for its trust region": method.needs_topk,
        "a selection of tokens": method.selection is not None,
        "the entropies of its tokens": method.entropy_bonus,
        "shaped rewards": shaped or method.reward_shaping != "none",
    }
    if missing := [want for want, wanted in wants.items() if wanted]:
        raise ValueError(
            f"the loop of chapter 02 lacks what {method.name} needs: {missing[0]}; "
            "use rlbook.training.Trainer"
        )
