"""Chapter 11: tokens that rounded copies of the policy sampled, and runs that learn from them."""

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from rlbook.exact import FOUR, four_table
from rlbook.objectives import Method
from rlbook.policy import Sampler, load_policy
from rlbook.training import RunConfig, Trainer, collect_rollouts
from workshop.shared.worlds import RoughSampler, rounded

Moved = tuple[Float[Tensor, " M"], Float[Tensor, " M"], Float[Tensor, " M"]]
NAMES = pd.Index([f"{row['completion']}{row['position']}" for row in four_table()], name="token")
BANDS = ["below 0.1", "0.1 to 0.5", "0.5 to 0.9", "above 0.9"]
SIXTEEN = RunConfig(prompts=16, minibatches=16, steps=8, lr=1e-4)


def sampled_by(sampler: PreTrainedModel, prompts: int = 16) -> Moved:
    """Tokens of 8 answers to each sum, drawn by a copy of the base: log π of the base, log μ, Â."""
    policy = load_policy("tiny")
    trainer = Trainer(RunConfig(method="dppo"), policy=policy)
    engine, problems = Sampler(sampler, policy[1].eos_token_id), trainer.task.sample(7, prompts)
    written = collect_rollouts(engine, policy[1], trainer.task, problems, 8, seed=1)
    batch = trainer.learner.prepare(written)
    logp, mask = trainer.learner.logprobs(batch), batch.mask
    return logp[mask], batch.logp_old[mask], batch.advantages[:, None].expand_as(mask)[mask]


def opening_tokens() -> dict[str, Moved]:
    """Tokens of a bfloat16 copy and of one whose weights have four bits, before any update."""
    model, _ = load_policy("tiny")
    fine, rough = load_policy("tiny")[0].bfloat16(), rounded(model, 4)
    return {"bfloat16": sampled_by(fine), "4 bits": sampled_by(rough)}


def rough_four() -> Float[Tensor, "4 8"]:
    """log μ of the four completions: as π_old, but for A2, B2 and C2, which a copy has rounded."""
    mu = FOUR.logp_old.exp()
    mu[0, 1], mu[1, 1], mu[2, 1] = 0.58, 0.007, 0.24
    return mu.log()


def four_moves() -> pd.DataFrame:
    """A row per token of the four completions: μ, π_old, π after updates, ratios and change."""
    mu, old, new = (x.exp()[FOUR.mask] for x in (rough_four(), FOUR.logp_old, FOUR.logp))
    columns = {"μ": mu, "π_old": old, "π": new, "π_old/μ": old / mu, "π/μ": new / mu}
    columns |= {"π_old−μ": old - mu, "π−μ": new - mu}
    return pd.DataFrame({name: x.numpy() for name, x in columns.items()}, index=NAMES)


def correlation(logp: Float[Tensor, " M"], log_mu: Float[Tensor, " M"]) -> float:
    """Of the probabilities that trainer and sampler give the same tokens."""
    return torch.corrcoef(torch.stack([logp, log_mu]).exp())[0, 1].item()


def by_probability(moved: Moved) -> pd.DataFrame:
    """By the probability at sampling: tokens, shares outside the window and far off, mean |π−μ|."""
    mu, ratio = moved[1].exp(), (moved[0] - moved[1]).exp()
    change = (ratio - 1).abs() * mu
    columns = {"ρ outside": (ratio < 0.8) | (ratio > 1.28), "|π−μ| > 0.15": change > 0.15}
    table = pd.DataFrame({name: x.double().numpy() for name, x in columns.items()})
    table["mean |π−μ|"] = change.numpy()
    bands = pd.cut(mu.numpy(), [0, 0.1, 0.5, 0.9, 1.0001], right=False, labels=BANDS)
    groups = table.groupby(pd.Series(bands, name="probability when sampled"), observed=True)
    found = groups.mean()
    found.insert(0, "tokens", groups.size())
    return found


def trainer(method: Method, bits: int | None) -> Trainer:
    """A run of 8 batches in 16 minibatches; its sampler has weights of `bits` bits, None: exact."""
    policy = load_policy("tiny")
    engine = RoughSampler(policy[1], bits=bits) if bits else None
    return Trainer(SIXTEEN.replace(method=method), policy, engine=engine)
