"""Credit for steps: rewards that say, token by token, what a completion's steps have changed.

Each is a reward (`rlbook.training.Reward`) whose part `credit` is an advantage already, for the
estimator `rlbook.objectives.process.token_credit`. They differ in what they believe a prefix to be
worth: nothing but the final reward, a judge's word on the steps so far, answers sampled from there
on, or a reward model that is a policy itself.
"""

import copy
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import cast

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlbook.objectives.process import implicit_reward_loss, implicit_rewards, prime, step_gains
from rlbook.policy import logprobs
from rlbook.tasks import Problem, Task
from rlbook.tasks.base import verdict_of
from rlbook.training import Engine, Rollout, collate
from rlbook.training.chat import decode, text_of
from rlbook.training.config import derive_seed
from rlbook.training.engine import checked_completions
from rlbook.training.sft import descend

__all__ = ["PrimeCredit", "SiblingCredit", "Steps", "VerdictCredit", "VineCredit"]

Judge = Callable[[Problem, str], bool]
PerStep = Sequence[Sequence[float]]


@dataclass(frozen=True)
class Steps:
    """Where a step ends: after each token in `ends`; what follows the last of them is one more."""

    ends: frozenset[int]

    @classmethod
    def after(cls, tokenizer: PreTrainedTokenizerBase, *tokens: str) -> "Steps":
        """Steps that end after these tokens; by default after `=` and `;`: a call, its result."""
        ids = cast(list[int], tokenizer.convert_tokens_to_ids(list(tokens or ("=", ";"))))
        return cls(frozenset(ids))

    def starts(self, token_ids: Sequence[int]) -> list[int]:
        """Position of each step's first token."""
        last = len(token_ids) - 1
        return [0, *(t + 1 for t, token in enumerate(token_ids) if token in self.ends and t < last)]

    def numbers(self, token_ids: Sequence[int]) -> list[int]:
        """The step of each token, 0 for those of the first."""
        starts = set(self.starts(token_ids)[1:])
        numbers, step = [], 0
        for t in range(len(token_ids)):
            step += t in starts
            numbers.append(step)
        return numbers

    def prefixes(self, rollout: Rollout) -> list[tuple[int, ...]]:
        """The tokens before each step, none before the first."""
        return [tuple(rollout.token_ids[:start]) for start in self.starts(rollout.token_ids)]

    def spread(self, rollouts: Sequence[Rollout], per_step: PerStep) -> list[list[float]]:
        """A number per step, given to each of its tokens."""
        return [
            [values[step] for step in self.numbers(r.token_ids)]
            for r, values in zip(rollouts, per_step, strict=True)
        ]


@dataclass(frozen=True)
class SiblingCredit:
    """The final reward, less what siblings earned that stood at the same place before the step.

    A = r − mean of r over the siblings with the same prefix; all of the prompt's other answers
    where there is none. The first step is RLOO's. Unbiased: what others do from a prefix says
    nothing of what this one does there. The idea of step-level groups is GiGPO's, arXiv:2505.10978,
    which adds them to the group of whole answers.
    """

    steps: Steps

    def __call__(self, rollouts: Sequence[Rollout]) -> dict[str, list[list[float]]]:
        states = [self.steps.prefixes(r) for r in rollouts]
        earned = [[float(r.correct)] * len(s) for r, s in zip(rollouts, states, strict=True)]
        return {"credit": self.steps.spread(rollouts, beside_siblings(rollouts, earned, states))}


@dataclass(frozen=True)
class VerdictCredit:
    """A judge's word on the steps so far, as the value of a prefix: 1 on track, 0 off it.

    A = u − mean of u over the siblings that were as much on track before the step, with u the
    word on the prefix after the step, and after the last step the final reward.
    """

    steps: Steps
    judge: Judge
    tokenizer: PreTrainedTokenizerBase

    def __call__(self, rollouts: Sequence[Rollout]) -> dict[str, list[list[float]]]:
        states = [self.verdicts(r) for r in rollouts]
        after = [
            [*map(float, words[1:]), float(r.correct)]
            for r, words in zip(rollouts, states, strict=True)
        ]
        return {"credit": self.steps.spread(rollouts, beside_siblings(rollouts, after, states))}

    def verdicts(self, rollout: Rollout) -> list[bool]:
        """Whether the answer is on track before each step; before the first it is."""
        _, *prefixes = self.steps.prefixes(rollout)
        texts = (decode(self.tokenizer, list(prefix)) for prefix in prefixes)
        return [True, *(self.judge(rollout.problem, text) for text in texts)]


def beside_siblings(
    rollouts: Sequence[Rollout], after: PerStep, states: Sequence[Sequence[Hashable]]
) -> list[list[float]]:
    """`after[i][j]` less its mean over the siblings that stood in the same state before step j.

    Where no sibling stood there, less the mean final reward of the prompt's other answers; 0 for
    an answer that has no sibling at all.
    """
    keys = [
        [(r.group, step, place) for step, place in enumerate(places)]
        for r, places in zip(rollouts, states, strict=True)
    ]
    final = of_others([[float(r.correct)] for r in rollouts], [[r.group] for r in rollouts])
    return [
        [less(value, met or whole) for value, met in zip(values, others, strict=True)]
        for values, others, (whole,) in zip(after, of_others(after, keys), final, strict=True)
    ]


def of_others(values: PerStep, keys: Sequence[Sequence[Hashable]]) -> list[list[list[float]]]:
    """For each value those of the *other* answers at an equal key, whatever their number.

    An answer may be at one key several times; none of its own visits is among them, or it would be
    compared with its own reward.
    """
    met: dict[Hashable, list[tuple[int, float]]] = defaultdict(list)
    for owner, (row, places) in enumerate(zip(values, keys, strict=True)):
        for value, key in zip(row, places, strict=True):
            met[key].append((owner, value))
    return [
        [[value for other, value in met[key] if other != owner] for key in places]
        for owner, places in enumerate(keys)
    ]


def less(value: float, others: Sequence[float]) -> float:
    """A value less the mean of the others; 0 without any."""
    return value - fmean(others) if others else 0.0


@dataclass(frozen=True)
class VineCredit:
    """Monte-Carlo values: `k` answers sampled from every prefix at which a step begins.

    A = V(after the step) − V(before it), with V the mean reward of the answers from there; the
    prompt's value is the mean of the group. Costs answers: count them. A prefix that several
    siblings share is asked once and its value given to all of them: cheaper than the paper, which
    asks anew for each answer, but what they share then is the noise as well.
    Source: VinePPO, arXiv:2410.01679 (there k = 9).
    """

    engine: Engine
    tokenizer: PreTrainedTokenizerBase
    task: Task
    steps: Steps
    k: int = 4
    limit: int = 80
    temperature: float = 1.0

    def __call__(self, rollouts: Sequence[Rollout]) -> dict[str, list[list[float]]]:
        batch, values = collate(rollouts), self.values(rollouts)
        width = max(map(len, values))
        table = torch.tensor([v + [v[-1]] * (width - len(v)) for v in values])
        numbers = torch.zeros_like(batch.ids)
        for row, r in enumerate(rollouts):
            start, stop = len(r.prompt_ids), len(r.prompt_ids) + r.length
            numbers[row, start:stop] = torch.tensor(self.steps.numbers(r.token_ids))
        return {"credit": rows_of(step_gains(table, numbers, batch.mask), rollouts)}

    def values(self, rollouts: Sequence[Rollout]) -> list[list[float]]:
        """For each rollout the value before every step, and its reward at the end."""
        groups: dict[int, list[float]] = defaultdict(list)
        for r in rollouts:
            groups[r.group].append(float(r.correct))
        places = {
            (tuple(r.prompt_ids), prefix): r.problem
            for r in rollouts
            for prefix in self.steps.prefixes(r)[1:]
        }
        seed = derive_seed(0, [r.token_ids for r in rollouts])
        met = self.from_prefixes(places, seed)
        return [
            [
                fmean(groups[r.group]),
                *(met[tuple(r.prompt_ids), prefix] for prefix in self.steps.prefixes(r)[1:]),
                float(r.correct),
            ]
            for r in rollouts
        ]

    def from_prefixes(
        self, places: dict[tuple[tuple[int, ...], tuple[int, ...]], Problem], seed: int
    ) -> dict[tuple[tuple[int, ...], tuple[int, ...]], float]:
        """Share of right ones among `k` answers that go on from each (prompt, prefix)."""
        if not places:
            return {}
        room = max(1, self.limit - min(len(prefix) for _, prefix in places))
        asked = [[*prompt, *prefix] for prompt, prefix in places]
        written = self.engine.generate(
            asked,
            n=self.k,
            max_new_tokens=room,
            temperature=self.temperature,
            seed=seed,
        )
        engine = type(self.engine).__name__
        answers = checked_completions(written, len(asked), self.k, engine, room)
        values = {}
        for i, (place, problem) in enumerate(places.items()):
            prefix, right = place[1], 0
            for one in answers[i * self.k : (i + 1) * self.k]:
                whole = decode(self.tokenizer, list(prefix)) + text_of(self.tokenizer, one)
                within = len(prefix) + len(one.token_ids) <= self.limit
                finished = within and one.finish_reason == "stop"
                right += verdict_of(self.task, problem, whole, finished).correct
            values[place] = right / self.k
        return values


class PrimeCredit:
    """PRIME: token rewards of an implicit process reward model that learns from outcomes alone.

    The model starts as a copy of the policy and learns by cross-entropy on the answers it has just
    rewarded, one update a batch; the reference is the policy at the start. `beta` scales the
    log-ratio. Source: PRIME, arXiv:2502.01456.
    """

    def __init__(self, policy: PreTrainedModel, lr: float = 3e-4, beta: float = 0.05):
        self.reference = copy.deepcopy(policy).requires_grad_(False)
        self.model, self.beta = copy.deepcopy(policy), beta
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr, betas=(0.9, 0.95))

    def __call__(self, rollouts: Sequence[Rollout]) -> dict[str, list[list[float]]]:
        batch = collate(rollouts)
        outcomes = torch.tensor([float(r.correct) for r in rollouts])
        rewards = self.learn(rollouts)
        return {"credit": rows_of(prime(rewards, outcomes, batch.groups, batch.mask), rollouts)}

    def learn(self, rollouts: Sequence[Rollout]) -> torch.Tensor:
        """The token rewards (N, T) of the model as it is; then one update on these outcomes."""
        batch = collate(rollouts)
        outcomes = torch.tensor([float(r.correct) for r in rollouts])
        with torch.no_grad():
            reference = logprobs(self.reference, batch.ids, batch.mask)
        logp = logprobs(self.model, batch.ids, batch.mask)
        rewards = implicit_rewards(logp, reference, batch.mask, self.beta)
        descend(self.model, self.optimizer, implicit_reward_loss(rewards, outcomes))
        return rewards.detach()


def rows_of(values: torch.Tensor, rollouts: Collection[Rollout]) -> list[list[float]]:
    """Token tensors (N, T) as one list per rollout, of its completion's tokens."""
    return [
        row[len(r.prompt_ids) : len(r.prompt_ids) + r.length]
        for row, r in zip(values.tolist(), rollouts, strict=True)
    ]
