"""Chapter 03: one batch used again and again, a critic with a head start, and what models say."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pandas as pd
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlbook.evaluation import evaluate_run
from rlbook.objectives import METHODS, Method, NoTrustRegion, batch_mean_baseline
from rlbook.policy import Sampler
from rlbook.tasks import SumsTask, held_out_problems
from rlbook.training import (
    Rollout,
    RunConfig,
    TrainBatch,
    Trainer,
    collect_rollouts,
    side_by_side,
)
from rlbook.training.step import critic_step
from workshop.shared.texts import TextPanel, before_after, log_prob_change, show_answers

CLIPPED = replace(METHODS["ppo"], advantage=batch_mean_baseline)
WEIGHTED = replace(CLIPPED, trust_region=NoTrustRegion())
PLAIN = replace(WEIGHTED, ratio="none")
RULES = {"plain": PLAIN, "weighted": WEIGHTED, "clipped": CLIPPED}
SLOW = "weighted, a tenth of the rate"


class Reused(NamedTuple):
    """A batch, its log-probabilities (N, T) before and after each pass, and accuracy by passes."""

    rollouts: list[Rollout]
    batch: TrainBatch
    logps: list[Tensor]
    fresh: dict[int, float]

    @property
    def gains(self) -> list[float]:
        """After each pass the mean of (ρ − 1) Â: are good tokens likelier, bad ones rarer?"""
        advantages, mask = self.batch.advantages[:, None], self.batch.mask
        return [
            (((logp - self.batch.logp_old).exp() - 1) * advantages)[mask].mean().item()
            for logp in self.logps
        ]


def reuse_one_batch(method: Method, lr: float = 3e-4, passes: int = 8) -> Iterator[Reused]:
    """64 answers, gone over so many times with four updates a pass; fresh answers every other."""
    trainer = Trainer(RunConfig(method=method, prompts=8, lr=lr))
    rollouts = trainer.collect()
    batch = trainer.learner.prepare(rollouts)
    logps: list[Tensor] = []
    fresh: dict[int, float] = {}
    for done in range(passes + 1):
        logps.append(trainer.learner.logprobs(batch))
        if done % 2 == 0:
            fresh[done] = evaluate_run(trainer, prompts=40, n=8)["pass@1"]
        if done < passes:
            for part in trainer.learner.minibatches(batch, done):
                trainer.learner.update(part)
    yield Reused(rollouts, batch, logps, fresh)


def reused() -> Mapping[str, Reused]:
    """The three rules on the same 64 answers, and the weighted one at a tenth of the rate."""
    runs = {name: reuse_one_batch(method) for name, method in RULES.items()}
    runs[SLOW] = reuse_one_batch(WEIGHTED, lr=3e-5)
    return side_by_side(runs).last()


def fresh_answers(runs: Mapping[str, Reused]) -> pd.DataFrame:
    """Share of right answers to forty held-out problems, a row per number of passes."""
    return pd.DataFrame({name: run.fresh for name, run in runs.items()}).rename_axis("passes")


def same_weights(
    base: PreTrainedModel, ours: PreTrainedModel, theirs: PreTrainedModel, within: float = 30
) -> float:
    """The largest difference of two trained models in any weight, beside the largest step made.

    Prints both. Raises `ValueError` if the difference is not `within` times smaller than the step.
    """
    pairs = [(m.parameters() for m in two) for two in ((base, ours), (ours, theirs))]
    largest, apart = (
        max((a - b).abs().max().item() for a, b in zip(*pair, strict=True)) for pair in pairs
    )
    print(f"weights moved by up to {largest:.1e}; your loop and Trainer differ by {apart:.1e}")
    if apart >= largest / within:
        raise ValueError("your loop is not the package's: look at what is marked in it")
    return apart


def trained_critic(batches: int = 12, lr: float = 1e-3) -> Trainer:
    """PPO whose critic has learnt from so many batches of the base, which stands still.

    The targets are the rewards themselves (λ = 1); the rate falls linearly to 0.
    """
    trainer = Trainer(RunConfig(method="ppo", lam=1.0))
    critic, optimizer = trainer.learner.critic, trainer.learner.optimizers["critic"]
    for number in range(batches):
        optimizer.param_groups[0]["lr"] = lr * (1 - number / batches)
        batch = trainer.learner.prepare(trainer.collect(seed=1000 + number))
        for part in trainer.learner.minibatches(batch):
            critic_step(critic, optimizer, part, clip=None)
    return trainer


Policy = tuple[PreTrainedModel, PreTrainedTokenizerBase]


def four_answers(policy: Policy, task: SumsTask) -> list[Rollout]:
    """Four answers of a policy to one held-out problem."""
    model, tokenizer = policy
    problem = held_out_problems(task, 9)[8]
    engine = Sampler(model, tokenizer.eos_token_id)
    return collect_rollouts(engine, tokenizer, task, [problem], n=4, seed=1)


def said(policy: Policy, task: SumsTask, trained: PreTrainedModel) -> TextPanel:
    """Four answers before training and after, the former tinted by the change of log π."""
    was, now = (four_answers((model, policy[1]), task) for model in (policy[0], trained))
    change = log_prob_change(was, policy[0], trained)
    how: dict[str, Any] = {"push_name": "change of log π"}
    return before_after(was[0].problem, was, now, change, policy[1], **how)


def said_now(policy: Policy, task: SumsTask, trained: PreTrainedModel) -> TextPanel:
    """Four answers after training."""
    answers: Sequence[Rollout] = four_answers((trained, policy[1]), task)
    return show_answers(answers)
