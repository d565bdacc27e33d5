"""Chapter 13: the book's verdicts, asked again of a pretrained model that was never told a sum."""

import random
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pandas as pd

from rlbook.evaluation import held_out_rollouts, right_counts
from rlbook.grouping import mean
from rlbook.objectives import METHODS, Method, PromptFilter, RatioClip
from rlbook.stats import Interval, pass_at_k, t_interval
from rlbook.tasks import AnyTask, Example, FewShotTask, Problem, Reply, Session, Verdict
from rlbook.tasks.arithmetic import value_of
from rlbook.training import Rollout, RunConfig, Trainer, derive_seed
from rlbook.training.chat import encode
from rlbook.training.sft import Answer, sft
from workshop.ch13.experiments import Untrained
from workshop.shared.design import Arm, Experiment, arm, vary
from workshop.shared.experiments import GRPO, REGIONS, RLOO, bounded

ONE, IN_STEPS = LEVELS = (1, 2)
SMOLLM2: dict[str, Any] = {
    "policy": "smollm2-135m",
    "dtype": "bfloat16",
    "vocabulary": 4096,
    "trainable_layers": 15,
}
RATES = (1.5e-5, 3e-5)
WORDS_RATES = (2.5e-5, 5e-5)
PASSES = {"rloo_after_one_pass": 1, "rloo_after_four_passes": 4}  # of SFT; two for all other arms
LABEL_FREE = "rlbook.rewards.label_free"
HELD_OUT, CURVE, EVERY = 64, 32, 10  # problems at the end and on the way, steps between these
SHOWN = 8  # held-out problems whose first answer is kept as text


def sum_of(rng: random.Random, level: int) -> Example:
    """`48 + 3 = 51`, and in steps `76 + 9 + 9 = 85 + 9 = 94`."""
    a, b, c = rng.randint(10, 89), rng.randint(2, 9), rng.randint(2, 9)
    if level == ONE:
        return Example(f"{a} + {b}", str(a + b), str(a + b))
    return Example(f"{a} + {b} + {c}", f"{a + b} + {c} = {a + b + c}", str(a + b + c))


def sums_in_steps() -> FewShotTask:
    """Sums of two numbers and of three behind two lines of each; those of three are in steps."""
    return FewShotTask("sums_in_steps", sum_of, LEVELS, shots=(ONE, IN_STEPS, ONE, IN_STEPS))


def shows_steps(rollout: Rollout) -> bool:
    """Whether an answer writes more than a number."""
    return "+" in rollout.text or "=" in rollout.text


COMPUTATION = re.compile(r"\d+ *[-+*] *\d+ *$")
EQUATION = re.compile(r"(\d+ *[-+*] *\d+) *= *(-?\d+)")
SIGNS = {"sums": "+", "differences": "-", "products": "*"}
THINGS = ("books", "cards", "balls", "stones", "plants", "keys", "boxes", "eggs")
PEOPLE = ("Tom", "Mary", "John", "David", "Paul", "James", "Mark", "Peter")


def word_problem(rng: random.Random, level: int) -> Example:
    """A question of a line or two, and its two steps: `4 * 6 = 24. 11 + 24 = 35.`"""
    who, things = rng.choice(PEOPLE), rng.choice(THINGS)
    a, b, n, m = rng.randint(5, 30), rng.randint(5, 30), rng.randint(2, 6), rng.randint(2, 6)
    asked = f"How many {things} does {who} have now?"
    if level == 1:
        told = f"{who} has {a} {things} and buys {n} bags with {m} {things} in each."
        worked, answer = f"{n} * {m} = {n * m}. {a} + {n * m} = {a + n * m}.", a + n * m
    elif level == 2:
        m += 2
        lost = rng.randint(2, n * m - 2)
        told = f"{who} has {n} bags with {m} {things} in each and gives {lost} {things} away."
        worked, answer = f"{n} * {m} = {n * m}. {n * m} - {lost} = {n * m - lost}.", n * m - lost
    else:
        lost = rng.randint(3, a + b - 3)
        told = f"{who} has {a} {things}, finds {b} more and then gives {lost} away."
        worked, answer = f"{a} + {b} = {a + b}. {a + b} - {lost} = {a + b - lost}.", a + b - lost
    return Example(f"{told} {asked}", worked, str(answer))


def word_problems() -> FewShotTask:
    """Word problems of two steps, three kinds, with nothing worked out before them."""
    line = "Q: {question}\nA: {worked}"
    return FewShotTask("word_problems", word_problem, (1, 2, 3), shots=(), line=line)


class Calculated(Session):
    """A word problem in which a calculator writes what stands behind an `=`."""

    def __init__(self, task: FewShotTask, problem: Problem):
        self.task, self.problem, self.text = task, problem, ""

    def turn(self, text: str, finished: bool = True) -> Reply:
        self.text += text
        computed = COMPUTATION.search(text)
        value = value_of(computed[0].replace(" ", "")) if finished and computed else None
        if value is None:
            return Reply(done=True)
        self.text += f" = {value}."
        return Reply(f" {value}.")

    def verdict(self) -> Verdict:
        return self.task.verify(self.problem, self.text)


class WithCalculator:
    """The word problems, each an episode whose turns end at an `=`, or with the line."""

    name, levels = "word problems with a calculator", (1, 2, 3)
    ends = ("\u0120=", "\u010a")  # " =" and a new line, as byte-level vocabularies spell them

    def __init__(self) -> None:
        self.task = word_problems()
        self.sample, self.held_out = self.task.sample, self.task.held_out

    def begin(self, problem: Problem, seed: int) -> Calculated:
        return Calculated(self.task, problem)


def slips(rollouts: Sequence[Rollout], signs: str = "+-*") -> float:
    """Which share of the computations with these signs that answers write out is wrong."""
    written = [found for one in rollouts for found in EQUATION.findall(one.text)]
    return mean(
        value_of(asked.replace(" ", "")) != int(said)
        for asked, said in written
        if set(asked) & set(signs)
    )


SETTINGS: dict[str, Any] = SMOLLM2 | {
    "task": "workshop.ch13.real_model:sums_in_steps",
    "prompts": 8,
    "group_size": 8,
    "max_new_tokens": 15,
    "warmup": 3,
    "patience": None,
}


def sums() -> Iterator[Arm]:
    """One update a batch: the start, a verifier at both rates, and rewards without the truth."""
    settings = dict(SETTINGS)
    yield vary(arm("start", RLOO, minibatches=1, steps=1, **settings), lr=RATES[:1])
    settings |= {"minibatches": 1, "steps": 40}
    for label, method, reward in (
        ("RLOO", RLOO, None),
        ("format only", RLOO, f"{LABEL_FREE}:format_only"),
        ("majority vote", RLOO, f"{LABEL_FREE}:majority_vote"),
        ("GRPO", GRPO, None),
    ):
        one = arm(label, without_idle(method), reward=reward, **settings)
        yield vary(one, lr=RATES[:1] if reward else RATES)


def more_sums() -> Iterator[Arm]:
    """The other rows, and a coin, at both rates: one update a batch, or four that are bounded."""
    settings = SETTINGS | {"steps": 40}
    gspo = replace(bounded("clip 0.2"), ratio="sequence", trust_region=RatioClip(0.03, 0.03))
    for label, method, minibatches, reward in (
        ("MaxRL", METHODS["maxrl"], 1, None),
        ("no baseline", METHODS["reinforce"], 1, None),
        ("Dr. GRPO", METHODS["dr_grpo"], 1, None),
        ("coin", RLOO, 1, f"{LABEL_FREE}:random_reward"),
        ("CISPO", bounded("CISPO"), 4, None),
        ("clip-higher 0.28", bounded("clip-higher 0.28"), 4, None),
        ("GSPO", gspo, 4, None),
    ):
        one = arm(label, without_idle(method), minibatches=minibatches, reward=reward, **settings)
        yield vary(one, lr=RATES)


def off_policy() -> Iterator[Arm]:
    """Four updates a batch, on answers up to three batches old, under each trust region."""
    settings = SETTINGS | {"minibatches": 4, "sync_every": 4, "steps": 40}
    for name in REGIONS:
        yield vary(arm(name, without_idle(bounded(name)), **settings), lr=RATES)


def thinking() -> Iterator[Arm]:
    """What ends the thinking: too few questions that need it, or a limit that cuts it off?"""
    settings = SETTINGS | {"minibatches": 1, "steps": 40}
    for share, levels, limit in (
        ("none", (ONE,), 15),
        ("a quarter", (ONE, ONE, ONE, IN_STEPS), 15),
        ("half", None, 30),  # with 15 tokens it is RLOO of the experiment above
        ("three quarters", (ONE, IN_STEPS, IN_STEPS, IN_STEPS), 15),
        ("all", (IN_STEPS,), 30),
        ("all", (IN_STEPS,), 15),
    ):
        how = settings | {"levels": levels, "max_new_tokens": limit, "lr": RATES[0]}
        yield arm(f"{share} in steps, {limit} tokens", without_idle(RLOO), **how)
    after = replace(without_idle(RLOO), name="rloo_after_sft")
    how = settings | {"levels": (IN_STEPS,), "lr": RATES[0]}
    yield arm("all in steps, after SFT", after, **how)
    yield arm("all in steps, SFT alone", after, **how | {"steps": 1})


IN_WORDS: dict[str, Any] = SETTINGS | {
    "task": "workshop.ch13.real_model:word_problems",
    "prompts": 12,
    "group_size": 12,
    "max_new_tokens": 30,
    "minibatches": 1,
}


def words() -> Iterator[Arm]:
    """What RL adds to a light SFT on worked answers, with a verifier and with a null reward."""
    yield vary(arm("SFT alone", RLOO, steps=1, **IN_WORDS), lr=WORDS_RATES[:1])
    for label, reward in (("RLOO", None), ("format only", f"{LABEL_FREE}:format_only")):
        one = arm(label, without_idle(RLOO), reward=reward, steps=120, **IN_WORDS)
        yield vary(one, lr=WORDS_RATES[:1])


def more_words() -> Iterator[Arm]:
    """The same at twice the rate, for two other rows, longer, and behind less and more SFT."""
    rate, twice = WORDS_RATES
    for label, method, how in (
        ("RLOO, twice the rate", RLOO, {"lr": twice}),
        ("GRPO", GRPO, {"lr": rate}),
        ("MaxRL", METHODS["maxrl"], {"lr": rate}),
        ("RLOO, 300 steps", RLOO, {"lr": rate, "steps": 300}),
    ):
        yield arm(label, without_idle(method), **IN_WORDS | {"steps": 120} | how)
    for passes, name in zip(("one pass", "four passes"), PASSES, strict=True):
        after = replace(without_idle(RLOO), name=name)
        yield arm(f"SFT alone, {passes}", after, **IN_WORDS, steps=1, lr=rate)
        yield arm(f"RLOO after {passes}", after, **IN_WORDS, steps=120, lr=rate)


def without_idle(method: Method) -> Method:
    """The method without a KL term, and without groups whose gradient is 0: these cost half."""
    idle = None if method.name == "reinforce" else PromptFilter(by="reward")
    return replace(method, kl=None, prompt_filter=idle)


class Timed(Trainer):
    """A trainer that knows how much of the processor's time it has had."""

    def __init__(self, config: RunConfig, **seams: Any):
        self.began = time.process_time()
        super().__init__(config, **seams)


class Start(Timed, Untrained):
    """The policy as it is."""


def on_sums(config: RunConfig) -> Trainer:
    """The trainer of an arm; the start is an arm of one step that learns nothing."""
    trainer = (Start if config.steps == 1 else Timed)(config)
    if config.method.name == "rloo_after_sft":
        imitate(trainer, answers=192, levels=(IN_STEPS,))
    return trainer


def on_words(config: RunConfig) -> Trainer:
    """The same behind a light SFT on worked answers, of which all arms begin."""
    trainer = (Start if config.steps == 1 else Timed)(config)
    imitate(trainer, answers=192, epochs=PASSES.get(config.method.name, 2))
    return trainer


def imitate(
    trainer: Trainer, answers: int, levels: tuple[int, ...] | None = None, epochs: int = 2
) -> None:
    """Teach the trainer's policy so many worked answers, made from a seed that no step draws."""
    problems = trainer.task.sample(derive_seed(0, "worked"), answers, levels)
    worked = [
        Answer(prompt, trainer.tokenizer(f" {problem.meta['worked']}\n").input_ids)
        for problem in problems
        for prompt in [encode(trainer.tokenizer, problem)]
    ]
    for _ in sft(trainer.model, worked, epochs=epochs, batch=16, lr=5e-5):
        pass
    trainer.sync()


def answers(
    trainer: Trainer, problems: int, n: int, temperature: float, task: AnyTask | None = None
) -> list[Rollout]:
    """Held-out answers, drawn with a seed of the run's own."""
    how: dict[str, Any] = {
        "max_new_tokens": trainer.config.rollout.max_new_tokens,
        "temperature": temperature,
        "seed": derive_seed(trainer.config.seed, "held out", temperature),
    }
    policy = (trainer.model, trainer.tokenizer)
    return held_out_rollouts(policy, task or trainer.task, problems, n, **how)


def of_level(rollouts: Sequence[Rollout], level: int) -> list[Rollout]:
    return [r for r in rollouts if r.problem.level == level]


def on_the_way(trainer: Trainer, rollouts: Sequence[Rollout]) -> dict[str, float]:
    """How many answers show steps; every ten steps also held-out pass@1 of each level."""
    levels = trainer.task.levels
    columns = {f"steps_{k}": mean(map(shows_steps, of_level(rollouts, k))) for k in levels}
    if trainer.step % EVERY == 0:
        asked = answers(trainer, CURVE, 4, 1.0)
        for level in levels:
            some = of_level(asked, level)
            columns[f"heldout_{level}"] = mean(r.correct for r in some)
            columns[f"heldout_steps_{level}"] = mean(map(shows_steps, some))
    return columns


def at_the_end(trainer: Trainer, **shares: Callable[[Sequence[Rollout]], float]) -> dict[str, Any]:
    """Held-out answers of each level at temperature 1 and ½ and greedy, and some of their texts.

    `shares` are columns besides, of a level's answers at each temperature.
    """
    row: dict[str, Any] = {}
    for name, temperature, n in (("", 1.0, 8), ("half_", 0.5, 4), ("greedy_", 0.0, 1)):
        asked = answers(trainer, HELD_OUT, n, temperature)
        for level in trainer.task.levels:
            some = of_level(asked, level)
            right = right_counts(some)
            row[f"{name}pass@1_{level}"] = float(right.mean() / n)
            row[f"{name}steps_{level}"] = mean(map(shows_steps, some))
            row[f"{name}length_{level}"] = mean(r.length for r in some)
            row |= {f"{name}{column}_{level}": share(some) for column, share in shares.items()}
            if n == 8:
                row |= {f"pass@{k}_{level}": float(pass_at_k(n, right, k).mean()) for k in (4, 8)}
                row |= {f"right_{level}_{i}": int(count) for i, count in enumerate(right)}
        if n == 8:
            for i, first in enumerate(asked[::n][:SHOWN]):
                row[f"answer_{i}"] = f"{first.problem.id} = {first.text.strip()}"
    if isinstance(trainer, Timed):
        row["cpu_seconds"] = time.process_time() - trainer.began
    return row


def at_the_end_of_words(trainer: Trainer) -> dict[str, Any]:
    """The same, how many computations are wrong, and what a calculator makes of the answers."""
    of_sign = {name: partial(slips, signs=sign) for name, sign in SIGNS.items()}
    row, calculator = at_the_end(trainer, slips=slips, **of_sign), WithCalculator()
    for name, temperature, n in (("", 1.0, 8), ("greedy_", 0.0, 1)):
        helped = answers(trainer, HELD_OUT, n, temperature, calculator)
        for level in calculator.levels:
            right = right_counts(of_level(helped, level))
            row[f"{name}calculated_{level}"] = float(right.mean() / n)
            if n == 8:
                row |= {f"calculated_{level}_{i}": int(count) for i, count in enumerate(right)}
    return row


def asked(
    question: str,
    arms: Iterator[Arm],
    seeds: tuple[int, ...],
    world: Callable[[RunConfig], Trainer] = on_sums,
    levels: tuple[int, ...] = LEVELS,
    measure: Callable[[Trainer], dict[str, Any]] = at_the_end,
    planned: bool = False,
) -> Experiment:
    """An experiment with this model; `planned`: its runs are still to come."""
    by_level = ("accuracy_level", "steps", "heldout", "heldout_steps")
    return Experiment(
        question,
        tuple(arms),
        chosen_by=None,
        seeds=seeds,
        world=world,
        planned=planned,
        measure=measure,
        watch=on_the_way,
        evaluation={"prompts": HELD_OUT, "n": 4, "ks": (1, 4)},
        columns=(
            *("accuracy", "reward", "format_ok", "length", "entropy", "grad_norm"),
            *("clip_fraction", "mismatch", "mismatch_max", "completions", "updates"),
            *(f"{name}_{level}" for name in by_level for level in levels),
        ),
    )


REAL_MODEL: dict[str, Experiment] = {
    "real_sums": asked(
        "Which verdicts of the small worlds hold for a pretrained model that learns sums?",
        sums(),
        seeds=(0, 1, 2, 3, 4),
    ),
    "real_thinking": asked(
        "What ends its thinking: too few questions in steps, or the limit?",
        thinking(),
        seeds=(0, 1, 2),
    ),
    "real_more_sums": asked(
        "... for the other rows, and at twice the rate?",
        more_sums(),
        seeds=(0, 1, 2, 3, 4),
    ),
    "real_off_policy": asked(
        "... and which of those on trust regions, where answers are four batches old?",
        off_policy(),
        seeds=(0, 1, 2, 3, 4),
    ),
    "real_words": asked(
        "What does RL add to a light SFT where an answer needs two steps in words?",
        words(),
        seeds=(0, 1, 2, 3, 4),
        world=on_words,
        levels=(1, 2, 3),
        measure=at_the_end_of_words,
    ),
    "real_more_words": asked(
        "... at twice the rate, by other rows, for longer, and behind less and more SFT?",
        more_words(),
        seeds=(0, 1, 2),
        world=on_words,
        levels=(1, 2, 3),
        measure=at_the_end_of_words,
        planned=True,
    ),
}


def by_seed(evaluations: pd.DataFrame) -> pd.DataFrame:
    """Right at one try on sums of two and three numbers, greedy, and any of eight, per run."""
    columns = {
        "two numbers": "pass@1_1",
        "greedy": "greedy_pass@1_1",
        "any of 8": "pass@8_1",
        "steps shown": "steps_2",
        "three numbers": "pass@1_2",
    }
    runs = evaluations.set_index(["arm", "seed"])[list(columns.values())]
    return runs.set_axis(list(columns), axis=1)


def over_problems(evaluations: pd.DataFrame, level: int = ONE) -> pd.DataFrame:
    """Right at one try on a level's held-out problems, an arm's runs averaged, with its interval.

    The interval is over the problems: it speaks of others like them, not of another seed.
    """
    rows = {
        name: t_interval(runs.filter(regex=rf"^right_{level}_").mean() / 8)._asdict()
        for name, runs in evaluations.groupby("arm", sort=False)
    }
    return pd.DataFrame(rows).T[["mean", "low", "high"]]


def eight_answers(evaluations: pd.DataFrame, arms: Sequence[str]) -> pd.DataFrame:
    """The first answers to eight held-out sums of the arms' first runs, side by side."""
    first = evaluations.drop_duplicates("arm").set_index("arm").loc[list(arms)]
    shown = first[[f"answer_{i}" for i in range(SHOWN)]].T
    asked = [str(text).partition(" = ")[0] for text in shown[arms[0]]]
    answers = {arm: [str(text).partition(" = ")[2] for text in shown[arm]] for arm in arms}
    return pd.DataFrame(answers, index=pd.Index(asked, name="asked"))


def by_rate(evaluations: pd.DataFrame, column: str) -> pd.DataFrame:
    """A column of every run: a row per arm, a column per learning rate and seed."""
    table = evaluations.pivot_table(index="arm", columns=["lr", "seed"], values=column, sort=False)
    return table.sort_index(axis=1).rename(columns="{:g}".format, level="lr")


def in_words(evaluations: pd.DataFrame) -> pd.DataFrame:
    """Right at one try, also asked colder and by a calculator, and any of eight; the mean of kinds.

    And which share of the computations that are written out at temperature 1 is wrong.
    """
    columns = {
        "T = 1": r"^pass@1_\d$",
        "T = ½": r"^half_pass@1_\d$",
        "greedy": r"^greedy_pass@1_\d$",
        "any of 8": r"^pass@8_\d$",
        "wrong computations": r"^slips_\d$",
        "wrong, greedy": r"^greedy_slips_\d$",
        "T = 1, calculator": r"^calculated_\d$",
    }
    return over_levels(evaluations, columns)


def wrong_by_sign(evaluations: pd.DataFrame) -> pd.DataFrame:
    """Which share of the written sums, differences and products is wrong, where they are needed."""
    needed = {"sums": "13", "differences": "23", "products": "12"}  # by the kinds of question
    return over_levels(evaluations, {name: rf"^{name}_[{of}]$" for name, of in needed.items()})


def over_levels(evaluations: pd.DataFrame, columns: Mapping[str, str]) -> pd.DataFrame:
    """Means over runs and levels: a row per arm, a column per name and pattern of columns."""
    runs = evaluations.groupby("arm", sort=False).mean(numeric_only=True)
    return pd.DataFrame({name: runs.filter(regex=of).mean(axis=1) for name, of in columns.items()})


def gain(evaluations: pd.DataFrame, arm: str, against: str, counted: str = "right") -> Interval:
    """Right at one try, an arm's runs minus another's, over their common held-out problems.

    `counted` is "right", or "calculated" for the answers that had a calculator.
    """
    means = evaluations.groupby("arm").mean(numeric_only=True)
    right = means.filter(regex=rf"^{counted}_\d_") / 8
    return t_interval((right.loc[arm] - right.loc[against]).to_numpy())


def seed_gap(evaluations: pd.DataFrame, arm: str, against: str, column: str = "pass@1") -> Interval:
    """A column's mean over kinds of question: an arm minus another, over the seeds of both."""
    share = evaluations.filter(regex=rf"^{column}_\d$").mean(axis=1)
    runs = share.groupby([evaluations.seed, evaluations.arm]).first().unstack()
    return t_interval((runs[arm] - runs[against]).dropna().to_numpy())
