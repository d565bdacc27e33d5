"""Chapter 09: what is trained and measured there."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rlbook.exact import four_table
from rlbook.objectives import (
    METHODS,
    RatioClip,
    Region,
    Tokens,
    WeightClip,
    group_center,
    weigh,
)
from rlbook.policy import load_policy
from rlbook.training import RunConfig, Trainer
from workshop.shared.worlds import RareOpening
from workshop.shared.worlds.batch_reuse import rare_token_world, reuse_batches, reuse_sampled
from workshop.shared.worlds.in_turn import batches, tokens_in_turn
from workshop.shared.worlds.in_turn import shuffle as shuffle

BASE = replace(METHODS["grpo"], kl=None, advantage=group_center, aggregation="token_mean")
PPO = replace(BASE, trust_region=RatioClip(0.2, 0.2))
ONCE = RunConfig(method=PPO, prompts=32, minibatches=16, lr=1e-4)
SMALL = ((64, 0.5), (64, 4.0), (16, 4.0))  # answers a batch, learning rate
ARMS = 10  # possible answers, of which the first is right most often


def trainer_of(rare: bool = False, **changes: Any) -> Trainer:
    """A run of `ONCE` with some settings changed, on plain sums or in the rare opening."""
    config = ONCE.replace(**changes)
    if not rare:
        return Trainer(config)
    return Trainer(config.replace(max_new_tokens=12), task=RareOpening())


def rare_token_waits(
    regions: Mapping[str, Region], updates: tuple[int, ...] = (4, 16), rare: float = 0.01
) -> pd.DataFrame:
    """Batches until the rare token of chapter 08's exact world has ½: updates a batch by region."""
    world = rare_token_world(rare)
    waits = {
        name: [reuse_batches(*world, region, 100, many).batches_until(0) for many in updates]
        for name, region in regions.items()
    }
    return pd.DataFrame(waits, index=list(updates))


def opening_tokens() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Every token with an advantage, as its own minibatch found it under PPO's clip.

    Two tables as of `tokens_in_turn` with a column "PPO": one batch of plain sums, three of the
    rare opening. `attrs["all"]` is the number of all tokens of those batches.
    """
    return tokens_when_used(1), tokens_when_used(3, rare=True)


def tokens_when_used(steps: int, rare: bool = False) -> pd.DataFrame:
    """One of the two tables of `opening_tokens`, of the first batches of its world."""
    trainer = trainer_of(rare)
    collect, batches = trainer.collect, []

    def collected() -> Any:
        batches.append(collect())
        return batches[-1]

    trainer.collect = collected
    tokens = tokens_in_turn(trainer, {"PPO": PPO}, steps=steps)
    tokens.attrs["all"] = sum(answer.length for batch in batches for answer in batch)
    return tokens


def masked_share(tokens: pd.DataFrame, regions: Mapping[str, Region]) -> pd.DataFrame:
    """Share of the tokens of right answers that each region masks: `check `, and any other token.

    The regions are those on a token's own ratio; that of a whole answer is not in the table.
    """
    good = tokens[tokens.advantage > 0]
    columns = ("ratio", "advantage")
    ratio, advantage = (torch.tensor(good[name].to_numpy(dtype=float)) for name in columns)
    of = Tokens.of(ratio.log(), torch.zeros_like(ratio), advantage)
    masked = {name: (weigh(region, of).weight == 0).numpy() for name, region in regions.items()}
    kind = good.token.eq("check ").map({True: "check", False: "any other"})
    return pd.DataFrame(masked, index=good.index).groupby(kind).mean()


def good_check(tokens: pd.DataFrame) -> pd.DataFrame:
    """The `check ` tokens of right answers."""
    return tokens[(tokens.advantage > 0) & tokens.token.eq("check ")]


def high_share(tokens: pd.DataFrame) -> float:
    """Masked tokens of right answers over all tokens: what TRL logs as `clip_ratio/high_mean`."""
    return float((tokens.PPO.eq(0) & (tokens.advantage > 0)).sum() / tokens.attrs["all"])


def four_tokens() -> pd.DataFrame:
    """The sixteen tokens of the four completions, A1 to D2: text and ratio."""
    four = pd.DataFrame(four_table())
    four.index = pd.Index(four.completion.str[0] + four.position.astype(str))
    return four[["token", "ratio"]]


def start(
    train: Callable[..., Iterator], losses: Mapping[str, Callable], task: Any, **size: Any
) -> tuple[dict[str, tuple], dict[str, Iterator]]:
    """For each loss a fresh base and the run that trains it; nothing runs until it is watched.

    ({name: policy}, {name: run}); `size` as in `batches`.
    """
    policies = {name: load_policy("tiny") for name in losses}
    runs = {
        name: train(policies[name], batches(policies[name], task, **size), loss)
        for name, loss in losses.items()
    }
    return policies, runs


def small_batches(regions: Mapping[str, Region], runs: int = 100) -> pd.DataFrame:
    """Ten answers, one right with probability .6, the others with .5: where each run ends.

    Sixteen updates of plain SGD on each of 60 batches. A row per world of `SMALL`, region and
    run, with the expected `reward` of its last policy and whether it has `found` the right answer.
    """
    begin = torch.full((ARMS,), 1 / ARMS, dtype=torch.float64)
    rates = torch.tensor([0.6] + (ARMS - 1) * [0.5], dtype=torch.float64)
    rows = []
    for answers, lr in SMALL:
        for name, region in regions.items():
            ends = reuse_sampled(begin, rates, region, 60, answers, 16, lr, runs=runs)[-1]
            row = {"world": f"{answers} answers, lr {lr:g}", "region": name}
            rows += [row | {"reward": (p @ rates).item(), "found": float(p[0] > 0.5)} for p in ends]
    return pd.DataFrame(rows)


def beyond_cap(cap: float = 5.0, lr: float = 2e-4, steps: int = 5) -> float:
    """Share of the tokens with an advantage whose ratio passes the cap: CISPO, rare opening."""
    rule = replace(BASE, trust_region=WeightClip(max=cap))
    trainer = trainer_of(rare=True, method=rule, lr=lr)
    return float((tokens_in_turn(trainer, {"CISPO": rule}, steps=steps).ratio > cap).mean())


@dataclass(frozen=True)
class Moved:
    """Answers after the sixteen updates of their batch, those without an advantage left out.

    log_sum, log_s   sum and mean of an answer's log-ratios; good: whether it is right
    length           its tokens; token: standard deviation of a token's log-ratio
    """

    log_sum: Float[Tensor, " N"]
    log_s: Float[Tensor, " N"]
    good: Bool[Tensor, " N"]
    length: Int[Tensor, " N"]
    token: float

    @property
    def scatter(self) -> float:
        """Half the width of the middle two thirds of log s."""
        low, high = torch.quantile(self.log_s, torch.tensor([1 / 6, 5 / 6]))
        return ((high - low) / 2).item()

    @property
    def tokens(self) -> float:
        """Mean length of the answers."""
        return self.length.double().mean().item()

    def outside(self, width: float) -> float:
        """Share of the answers that have moved by more than `width` to the side Â wants."""
        wanted = torch.where(self.good, self.log_s, -self.log_s)
        return (wanted > width).double().mean().item()


def moved_answers(answer_ratio: Callable[[Tensor, Tensor, Tensor], Tensor], seed: int = 1) -> Moved:
    """One batch of 256 answers of plain sums, sixteen updates under PPO's clip, then their s."""
    trainer = trainer_of(seed=seed)
    batch = trainer.learner.prepare(trainer.collect())
    for part in trainer.learner.minibatches(batch):
        trainer.learner.update(part)
    live = batch.advantages != 0
    mask, good = batch.mask[live], batch.advantages[live] > 0
    new, old = (x[live] for x in (trainer.learner.logprobs(batch), batch.logp_old))
    gap, log_s = torch.where(mask, new - old, 0.0), answer_ratio(new, old, mask).log()
    return Moved(gap.sum(1), log_s, good, mask.sum(1), gap[mask].std().item())
