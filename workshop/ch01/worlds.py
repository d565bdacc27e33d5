"""Chapter 01: its two worlds, how they are asked, and what became of them in training."""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlbook.exact import FOUR
from rlbook.policy import Sampler, logprobs
from rlbook.tasks import Problem, Task, get_task, held_out_problems
from rlbook.training import Rollout, collect_rollouts
from workshop.shared.texts import TextPanel, before_after, log_prob_change

TEMPERATURES = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5)
Run = tuple[str, str, int]  # name of a world, arm, seed

FORTY = Problem("attacked", "37+8-5=?", "40", level=3)
ATTACKS = {
    "honest": "<think></think><answer>40</answer>",
    "two guesses": "<answer>39</answer><answer>40</answer>",
    "every guess": "<answer>" + " ".join(map(str, range(100))) + "</answer>",
    "an expression": "<answer>37+8-5</answer>",
    "afterthought": "<answer>40</answer> or maybe 41",
    "open thought": "<think>37+8=45;<answer>40</answer>",
}


class World(NamedTuple):
    """A model, its tokenizer, and the task that it is asked."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    task: Task

    def copied(self) -> "World":
        """The same world with weights of its own, to be trained."""
        return self._replace(model=copy.deepcopy(self.model))


def ask(
    world: World,
    problems: Sequence[Problem],
    n: int,
    temperature: float = 1.0,
    seed: int = 0,
    limit: int = 80,
) -> list[Rollout]:
    """n sampled answers to each problem, at most `limit` tokens long, each with its verdict."""
    engine = Sampler(world.model, world.tokenizer.eos_token_id)
    how = {"temperature": temperature, "seed": seed, "max_new_tokens": limit}
    return collect_rollouts(engine, world.tokenizer, world.task, problems, n, **how)


def rule(rollout: Rollout) -> str:
    """Which rule an answer of the world of habits follows."""
    return get_task("habits").label(rollout.problem, rollout.text, not rollout.truncated)


def held_out(world: World, each: int) -> list[Problem]:
    """So many problems of every kind that no training run asks."""
    return [p for level in world.task.levels for p in held_out_problems(world.task, each, [level])]


def right(rollouts: Sequence[Rollout], n: int) -> Bool[np.ndarray, "prompts n"]:
    """Which answers are right, a row per problem."""
    return np.array([rollout.correct for rollout in rollouts]).reshape(-1, n)


def three_ways(
    world: World, problems: Sequence[Problem], n: int = 16
) -> tuple[list[Rollout], pd.DataFrame]:
    """n answers to each problem, and the share right in three ways of asking, by kind and in all.

    The ways: one greedy answer; one sample, as the mean over n; whether any of n samples is right.
    """
    greedy, rollouts = ask(world, problems, 1, temperature=0), ask(world, problems, n)
    answers = {"greedy": right(greedy, 1)[:, 0], "one sample": right(rollouts, n).mean(1)}
    answers[f"any of {n}"] = right(rollouts, n).any(1)
    table = pd.DataFrame(answers).groupby([p.level for p in problems]).mean().T
    return rollouts, table.assign(all=[values.mean() for values in answers.values()])


def score_four(world: World, log_prob: Callable[..., torch.Tensor]) -> pd.DataFrame:
    """The texts of the four completions under a world's model: number of tokens and log π.

    Raises `AssertionError` where `log_prob(model, ids, mask)` differs from the package's.
    """
    encode, eos = world.tokenizer, world.tokenizer.eos_token_id
    prompt, rows = encode(FOUR.prompt).input_ids, {}
    for name, text in zip(FOUR.names, FOUR.texts, strict=True):
        answer = [*encode(text, add_special_tokens=False).input_ids, eos]
        ids = torch.tensor([prompt + answer])
        mask = torch.arange(ids.shape[1])[None] >= len(prompt)
        with torch.no_grad():
            mine, package = (f(world.model, ids, mask) for f in (log_prob, logprobs))
        torch.testing.assert_close(mine, package, atol=1e-5, rtol=0)
        rows[name] = len(answer), mine.sum().item(), mine.sum().exp().item()
    table = pd.DataFrame(rows, index=["real tokens", "log π", "π"]).T
    return table.astype({"real tokens": int})


def attacked(verify: Callable[[Problem, str], bool]) -> pd.DataFrame:
    """Verdicts on `ATTACKS`, all answers to a sum of 40, with the package's reason for each.

    Raises `ValueError` where `verify` and the package disagree.
    """
    rows = {}
    for name, text in ATTACKS.items():
        verdict = get_task("sums").verify(FORTY, text)
        if verdict.correct != verify(FORTY, text):
            raise ValueError(f"{name}: the package's verifier says {verdict.reason}")
        shown = text if len(text) < 45 else f"{text[:30]} … {text[-12:]}"
        rows[name] = shown, "right" if verdict.correct else "wrong", verdict.reason
    return pd.DataFrame.from_dict(rows, orient="index", columns=["answer", "verdict", "reason"])


def judged_after(
    trained: Mapping[Run, World], held: Mapping[str, Sequence[Problem]], n: int = 8
) -> tuple[dict[Run, list[Rollout]], pd.DataFrame]:
    """Answers of trained models to held-out problems; a row per run: one sample, and greedy."""
    after, rows = {}, []
    for (name, arm, seed), learner in trained.items():
        after[name, arm, seed] = ask(learner, held[name], n)
        sampled = right(after[name, arm, seed], n).mean()
        likeliest = right(ask(learner, held[name], 1, temperature=0), 1).mean()
        rows.append((name, arm, sampled, likeliest))
    return after, pd.DataFrame(rows, columns=["world", "arm", "one sample", "greedy"])


def beside_start(
    results: pd.DataFrame, untrained: Sequence[World], held: Mapping[str, Sequence[Problem]]
) -> pd.DataFrame:
    """Mean, smallest and largest over the runs of an arm, under the worlds before training."""
    before = {(world.task.name, "before training", 0): world for world in untrained}
    table = pd.concat([judged_after(before, held)[1], results])
    places = table["world"].map({world.task.name: i for i, world in enumerate(untrained)})
    arms = table.iloc[places.argsort(kind="stable")].groupby(["world", "arm"], sort=False)
    return arms.agg(["mean", "min", "max"]).round(2)


def accuracy_at(
    world: World, problems: Sequence[Problem], temperature: float, n: int = 8
) -> Bool[np.ndarray, "prompts n"]:
    """Which of n answers to each problem are right at a temperature of sampling."""
    return right(ask(world, problems, n, temperature=temperature), n)


def cooled(
    worlds: Mapping[str, World],
    held: Mapping[str, Sequence[Problem]],
    greedy: Mapping[str, float],
) -> tuple[dict[str, dict[float, np.ndarray]], pd.DataFrame]:
    """Worlds at all `TEMPERATURES`: what was right, and a table of shares; 0 is greedy."""
    found = {
        name: {T: accuracy_at(world, held[name], T) for T in TEMPERATURES}
        for name, world in worlds.items()
    }
    shares = {
        name: {0.0: greedy[name]} | {T: answers.mean() for T, answers in at.items()}
        for name, at in found.items()
    }
    return found, pd.DataFrame(shares)


def colder(
    trained: Mapping[Run, World],
    held: Mapping[str, Sequence[Problem]],
    temperatures: Sequence[float] = (0.25, 0.5),
) -> dict[str, dict[float, list[float]]]:
    """Share right of trained models below temperature 1, by world and temperature, run by run."""
    found: dict[str, dict[float, list[float]]] = {}
    for (name, _, _), learner in trained.items():
        at = found.setdefault(name, {T: [] for T in temperatures})
        for T in temperatures:
            at[T].append(float(accuracy_at(learner, held[name], T).mean()))
    return found


def one_token_moved(
    base: World, learner: World, problem: Problem
) -> tuple[list[Rollout], list[list[float]], TextPanel]:
    """The base's first and first right answer to a problem, the change of log π of their tokens,
    and both as a panel above three answers of the learner."""
    was = ask(base, [problem], 8)
    two = [was[0], next(rollout for rollout in was if rollout.correct)]
    change = log_prob_change(two, base.model, learner.model)
    now = ask(learner, [problem], 3)
    name = "change of log π"
    return two, change, before_after(problem, two, now, change, base.tokenizer, push_name=name)
