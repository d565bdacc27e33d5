"""A loop written out: batches, their minibatches, and what each token met when its turn came."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pandas as pd
from torch import Tensor

from rlbook.objectives import Method, Tokens, group_center, weigh
from rlbook.objectives.shapes import expand_to_tokens
from rlbook.policy import Sampler
from rlbook.training import TrainBatch, Trainer, collate, collect_rollouts, derive_seed

BANDS = {0.03: "< .03", 0.1: ".03–.1", 0.3: ".1–.3", 0.5: ".3–.5", 0.9: ".5–.9", 1.01: "> .9"}


def batches(
    policy: tuple,
    task: Any,
    *,
    steps: int = 2,
    prompts: int = 8,
    limit: int = 80,
    estimate: Callable[[Tensor, Tensor], Tensor] = group_center,
) -> Iterator[Any]:
    """Prepared batches, 8 answers a prompt, each sampled from `policy` as it is by then."""
    words, engine = policy[1], Sampler(policy[0], policy[1].eos_token_id)
    for step in range(steps):
        problems = task.sample(derive_seed(0, step, "prompts", 0), prompts)
        size = {"n": 8, "seed": derive_seed(0, step, "rollouts", 0), "max_new_tokens": limit}
        sampled = collate(collect_rollouts(engine, words, task, problems, **size))
        yield sampled.prepared(advantages=estimate(sampled.rewards, sampled.groups))


def shuffle(step: int) -> int:
    """The seed by which batch `step` is cut into minibatches, the same as `Trainer`'s."""
    return derive_seed(0, step, "shuffle", 0)


def tokens_in_turn(trainer: Trainer, methods: Mapping[str, Method], steps: int = 1) -> pd.DataFrame:
    """Train for some steps, and list every token with an advantage as its minibatch found it.

    `ratio` is how far the updates before its own have moved the token; a column per method holds
    the weight w of its gradient −w·Â·∇log π there, 0 if masked; `band` sorts by `pi_old`, the
    probability it had when sampled. One row per token.
    """
    frames = []
    for _ in range(steps):
        for part in trainer.learner.minibatches(trainer.learner.prepare(trainer.collect())):
            frames.append(token_frame(trainer, part, methods).assign(step=trainer.step + 1))
            trainer.learner.update(part)
        trainer.step += 1
    tokens = pd.concat(frames, ignore_index=True)
    tokens["band"] = pd.cut(tokens.pi_old, [0, *BANDS], labels=list(BANDS.values()), right=False)
    return tokens


def token_frame(trainer: Trainer, part: TrainBatch, methods: Mapping[str, Method]) -> pd.DataFrame:
    """The tokens of a minibatch that have an advantage, under the policy as it is now."""
    logp, advantages = trainer.learner.logprobs(part), expand_to_tokens(part.advantages, part.mask)
    live = part.mask & (advantages != 0)
    columns = {
        "token": [trainer.tokenizer.decode([i]) for i in part.ids[live].tolist()],
        "pi_old": part.logp_old[live].exp(),
        "advantage": advantages[live],
        "ratio": (logp - part.logp_old)[live].exp(),
    }
    for name, method in methods.items():
        tokens = Tokens.of(logp, part.logp_old, advantages, part.mask, method.ratio)
        columns[name] = weigh(method.trust_region, tokens).weight[live]
    return pd.DataFrame(columns)
