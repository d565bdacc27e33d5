"""The book's effects as one table: what differs, in which world, on how many seeds, by how much."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pandas as pd

from rlbook.stats.differences import paired_differences
from rlbook.tasks.habits import FAMILIES
from rlbook.viz.curves import load_results
from rlbook.viz.rates import short

Load = Callable[[str], pd.DataFrame]
Reading = Callable[[Load, str], pd.DataFrame]


def at_the_end(column: str) -> Reading:
    """A column of the evaluation of every run."""

    def read(load: Load, name: str) -> pd.DataFrame:
        return load(f"{name}_eval").rename(columns={column: "value"})

    return read


def in_step(column: str, step: int) -> Reading:
    """A column of the metrics of one step of every run."""

    def read(load: Load, name: str) -> pd.DataFrame:
        table = load(name)
        return table[table["step"] == step].rename(columns={column: "value"})

    return read


def mean_over_steps(column: str, first: int, last: int) -> Reading:
    """The mean of a column over the steps from `first` to `last`, run by run."""

    def read(load: Load, name: str) -> pd.DataFrame:
        table = load(name)
        steps = table[table["step"].between(first, last)]
        return by_run(steps)[column].mean().rename("value").reset_index()

    return read


def steps_until(column: str, level: float) -> Reading:
    """The first step after which a column exceeds a level; one more than all where none does."""

    def read(load: Load, name: str) -> pd.DataFrame:
        table = load(name)
        never = table["step"].max() + 1
        reached = table["step"].where(table[column] > level, never)
        return by_run(table.assign(value=reached))["value"].min().reset_index()

    return read


def in_blocks(column: str, factor: str) -> Reading:
    """A column's mean at each level of a factor, over all that the grid crosses it with.

    A "seed" is a block: base or trained policy, easy or hard data, learning rate and seed.
    """

    def read(load: Load, name: str) -> pd.DataFrame:
        tables = load(f"{name}_eval"), load(f"{name}_trained_eval")
        runs = pd.concat([table.assign(policy=i) for i, table in enumerate(tables)])
        blocks = ["policy", "arm", "lr", "seed"]
        means = runs.groupby([factor, *blocks])[column].mean().rename("value").reset_index()
        return means.assign(seed=list(means[blocks].itertuples(index=False, name=None)))

    return read


def by_run(steps: pd.DataFrame) -> Any:
    """Rows of each run together: of an arm, at a learning rate where it varies, with a seed."""
    return steps.groupby([c for c in ("arm", "lr", "seed") if c in steps], sort=False)


@dataclass(frozen=True)
class Effect:
    """One arm minus another in one world, paired by seed, as a committed experiment measured it.

    With a `factor` it is one level of that column of a grid minus another.
    """

    claim: str
    chapter: str
    world: str
    experiment: str
    arm: str
    against: str
    reading: Reading
    unit: str
    where: Mapping[str, Any] = field(default_factory=dict)
    factor: str = "arm"

    def measured(self, load: Load = load_results) -> dict[str, Any]:
        """Seeds, mean difference with its 95 % interval, and what would have been detected."""
        rows = self.reading(load, self.experiment)
        for column, value in self.where.items():
            rows = rows[rows[column] == value]
        runs = {
            arm: dict(zip(some["seed"], some["value"], strict=True))
            for arm, some in rows.groupby(self.factor)
            if arm in (self.arm, self.against)
        }
        (row,) = paired_differences(runs, self.against)
        return row


def effects_table(effects: tuple[Effect, ...]) -> pd.DataFrame:
    """A row per effect: where it is told, its world, seeds, difference with interval, power."""
    rows, load = [], cache(load_results)
    for effect in effects:
        row = effect.measured(load)
        rows.append(
            {
                "chapter": effect.chapter,
                "effect": effect.claim,
                "world": effect.world,
                "seeds": row["seeds"],
                "difference": row["mean"],
                "low": row["low"],
                "high": row["high"],
                "detectable": row["detectable"],
                "unit": effect.unit,
                "clear": row["low"] > 0 or row["high"] < 0,
            }
        )
    return pd.DataFrame(rows)


def rare_opening(claim: str, chapter: str, arm: str, against: str, lr: float) -> Effect:
    """Batches until a rare opening is chosen every other time, at one of three learning rates."""
    reading = steps_until("opens_rarely", 0.5)
    world = f"rare opening, lr {short(lr)}"
    return Effect(
        claim, chapter, world, "rare_opening", arm, against, reading, "batches", {"lr": lr}
    )


def lost(claim: str, arm: str, against: str, lr: float) -> Effect:
    """Length of answers that start lost, in the last of 20 batches."""
    reading, world = in_step("length_lost", 20), f"answers that start lost, lr {short(lr)}"
    return Effect(claim, "07", world, "lost_answers", arm, against, reading, "tokens", {"lr": lr})


def limited(claim: str, arm: str, column: str, unit: str) -> Effect:
    """A tight limit on the length, against the rule that a truncated answer earns nothing."""
    world, reading = "limit of 32 tokens", at_the_end(column)
    return Effect(claim, "08", world, "tight_limit", arm, "cliff", reading, unit)


def solvable(claim: str, arm: str, against: str) -> Effect:
    """Accuracy on plain sums after training where three problems in four have no right answer."""
    reading = at_the_end("pass@1_solvable")
    world = "3 of 4 prompts unsolvable"
    return Effect(claim, "08", world, "unsolvable", arm, against, reading, "pass@1")


def at_best(
    claim: str, chapter: str, experiment: str, arm: str, against: str, use: str = ""
) -> Effect:
    """Plain sums, every arm at the best of the learning rates (and widths) it was tried with."""
    world, reading = f"plain sums, own rates{use}", at_the_end("pass@1")
    return Effect(claim, chapter, world, experiment, arm, against, reading, "pass@1")


def never_lost(claim: str, column: str, unit: str, lr: float) -> Effect:
    """Plain sums, where no answer starts lost: dividing by its length against a constant."""
    world, reading = f"plain sums, lr {short(lr)}", at_the_end(column)
    name, arm, against = "lost_answers_control", "mean per answer", "constant"
    return Effect(claim, "07", world, name, arm, against, reading, unit, {"lr": lr})


def shared(claim: str, column: str, arm: str, lr: float) -> Effect:
    """One opening for short and long sums: coverage after 30 batches, against RLOO."""
    world, reading = f"a shared opening, lr {short(lr)}", at_the_end(column)
    return Effect(claim, "10", world, "shared_choice", arm, "RLOO", reading, column, {"lr": lr})


def rare_rule(claim: str, chapter: str, arm: str, against: str, lr: float) -> Effect:
    """Share of answers by the right rule in the family of powers, mean over 12 batches."""
    world, reading = (
        f"habits, 16 minibatches, lr {short(lr)}",
        mean_over_steps("right_rule_level_5", 1, 12),
    )
    return Effect(claim, chapter, world, "rare_habits", arm, against, reading, "share", {"lr": lr})


def found(claim: str, level: int, lr: float) -> Effect:
    """MaxRL's accuracy on one family of habits in steps 6 to 15 of 40, against RLOO's."""
    world = f"habits, {list(FAMILIES)[level - 1]}, steps 6–15, lr {short(lr)}"
    reading = mean_over_steps(f"accuracy_level_{level}", 6, 15)
    return of_weight(claim, world, reading, lr)


def at_last(claim: str, lr: float) -> Effect:
    """MaxRL's greedy accuracy on the rarest family of habits after 40 steps, against RLOO's."""
    return of_weight(claim, f"habits, square, lr {short(lr)}", at_the_end("greedy_level_6"), lr)


def of_weight(claim: str, world: str, reading: Reading, lr: float) -> Effect:
    arms, where = ("MaxRL", "RLOO"), {"lr": lr}
    return Effect(claim, "10", world, "habits_rates", *arms, reading, "accuracy", where)


def proxied(claim: str, arm: str, against: str) -> Effect:
    """True accuracy in the last five of thirty steps of PPO on a reward model."""
    world, reading = "habits, 1000 pairs, lr 6e-4", mean_over_steps("accuracy", 26, 30)
    return Effect(claim, "04", world, "overoptimisation", arm, against, reading, "accuracy")


def exchanged(claim: str, world: str, experiment: str, arm: str, lr: float) -> Effect:
    """LitePPO with one choice exchanged, against LitePPO at the same rate."""
    reading, where = at_the_end("pass@1"), {"lr": lr}
    world = f"{world}, lr {short(lr)}"
    return Effect(claim, "12", world, experiment, arm, "LitePPO", reading, "pass@1", where)


def over_the_grid(claim: str, factor: str, level: str, against: str) -> Effect:
    """A choice averaged over all the others, on two policies, two kinds of data, two rates."""
    reading = in_blocks("pass@1_room", factor)
    world, arms = "sums, all choices crossed", (level, against)
    return Effect(claim, "12", world, "tricks_grid", *arms, reading, "pass@1", factor=factor)


def voted(claim: str, arm: str, level: int, lr: float) -> Effect:
    """Accuracy on one family of habits in steps 16 to 20, against a verifier in the same place."""
    world = f"habits, {list(FAMILIES)[level - 1]}, lr {short(lr)}"
    reading, where = mean_over_steps(f"accuracy_level_{level}", 16, 20), {"lr": lr}
    return Effect(claim, "13", world, "label_free", arm, "verifier", reading, "accuracy", where)


def voted_control(claim: str, arm: str, lr: float) -> Effect:
    reading, where = mean_over_steps("accuracy", 16, 20), {"lr": lr}
    world, arms = f"plain sums, lr {short(lr)}", (arm, "verifier")
    return Effect(claim, "13", world, "label_free_control", *arms, reading, "accuracy", where)


def distilled(claim: str, arm: str) -> Effect:
    """Accuracy in steps 31 to 40, of 64 answers each, each arm at its own rate."""
    reading = mean_over_steps("accuracy", 31, 40)
    return Effect(claim, "14", "habits", "distillation", arm, "RL", reading, "accuracy")


def credited(claim: str, arm: str, lr: float) -> Effect:
    """Accuracy in steps 10 to 20 where a step may slip."""
    world = f"habits, an unreliable tool, lr {short(lr)}"
    reading = mean_over_steps("accuracy", 10, 20)
    arms, where = (arm, "outcome"), {"lr": lr}
    return Effect(claim, "15", world, "process_rewards", *arms, reading, "accuracy", where)


def aged(claim: str, arm: str, against: str, rate: str) -> Effect:
    """Accuracy after 80 updates of ScaleRL's recipe in a pipeline, by age of samples and loss."""
    world, reading = f"plain sums, a pipeline, lr {rate}", in_step("pass@1", 80)
    return Effect(claim, "16", world, "pipeline", arm, against, reading, "pass@1")


EFFECTS = (
    at_best("one point more for every answer costs", "02", "baselines", "none, 1/2", "none, 0/1"),
    at_best("a batch mean against no baseline", "02", "baselines", "batch mean", "none, 0/1"),
    *(
        at_best(claim, "03", "reuse", arm, against)
        for claim, arm, against in (
            ("sixteen clipped updates against one", "16 minibatches, clip 0.2", "one update"),
            ("sixteen without a clip", "16 minibatches, no trust region", "one update"),
            ("four passes or one", "4 passes of 4, clip 0.2", "16 minibatches, clip 0.2"),
        )
    ),
    proxied("a reward model instead of the verifier", "1000 pairs", "verifier"),
    proxied("... and what a leash of 0.1 gives back", "1000 pairs, β = 0.1", "1000 pairs"),
    *(
        at_best(claim, chapter, "siblings", arm, against)
        for claim, chapter, arm, against in (
            ("λ = 0.95 against 1", "03", "PPO, critic, λ = 0.95", "PPO, critic, λ = 1"),
            ("siblings against a critic", "05", "PPO's loss, siblings", "PPO, critic, λ = 1"),
            ("siblings against the batch mean", "05", "PPO's loss, siblings", "batch mean"),
            ("a mean per answer costs", "05", "GRPO", "PPO's loss, siblings"),
            ("a KL penalty", "05", "GRPO + KL", "GRPO"),
            ("σ where nothing is hard", "07", "GRPO", "GRPO, no σ"),
        )
    ),
    at_best("groups of two against eight", "06", "group_sizes", "k = 2", "k = 8"),
    *(
        at_best(claim, chapter, f"regions_{use}", arm, against, f", {words}")
        for use, words in (
            ("minibatches", "16 minibatches"),
            ("stale", "sampler 4 batches old"),
        )
        for claim, chapter, arm, against in (
            ("a clip where nothing is rare", "03", "clip 0.2", "no trust region"),
            ("clip-higher where nothing is rare", "08", "clip-higher 0.28", "clip 0.2"),
            ("CISPO where nothing is rare", "09", "CISPO", "clip 0.2"),
            ("GSPO at its own width", "09", "GSPO", "clip 0.2"),
            ("DPPO where nothing is rare", "11", "DPPO", "clip 0.2"),
        )
    ),
    *(
        effect
        for lr in (5e-5, 1e-4, 2e-4)
        for effect in (
            rare_opening(
                "clip-higher frees a rare token", "08", "clip-higher 0.28", "clip 0.2", lr
            ),
            rare_opening("a clipped weight frees it sooner", "09", "CISPO", "clip 0.2", lr),
            rare_opening("a divergence mask frees it as soon", "11", "DPPO", "clip 0.2", lr),
            rare_opening(
                "CISPO's cap itself does nothing here", "09", "CISPO", "no trust region", lr
            ),
        )
    ),
    *(
        effect
        for lr in (1.5e-4, 3e-4)
        for effect in (
            lost(
                "dividing by its length lets a lost answer grow", "mean per answer", "constant", lr
            ),
            lost("a mean over the prompt does so too", "prompt mean", "constant", lr),
            lost("a mean over all tokens, less", "token mean", "constant", lr),
        )
    ),
    *(
        effect
        for lr in (1.5e-4, 3e-4)
        for effect in (
            never_lost("... and where none starts lost, the answers", "length", "tokens", lr),
            never_lost("... and their accuracy", "pass@1", "pass@1", lr),
        )
    ),
    *(
        effect
        for lr in (1e-4, 2e-4)
        for effect in (
            rare_rule("clip-higher on a rare rule", "08", "clip-higher 0.28", "clip 0.2", lr),
            rare_rule("CISPO on a rare rule", "09", "CISPO", "clip 0.2", lr),
            rare_rule("DPPO on a rare rule", "11", "DPPO", "clip 0.2", lr),
        )
    ),
    limited("the ramp gives up thinking", "ramp", "answers_at_once", "share"),
    limited("what that costs when there is room", "ramp", "pass@1_limit_80", "pass@1"),
    limited("the filter keeps it", "filter", "pass@1_limit_80", "pass@1"),
    solvable("dynamic sampling, at equal updates", "+ dynamic sampling", "GRPO"),
    solvable("... against twice the updates", "+ dynamic sampling", "GRPO, twice the batches"),
    *(
        effect
        for lr in (3e-4, 6e-4)
        for effect in (
            found("MaxRL finds rare rules sooner", 4, lr),
            found("... the rarer the rule, the more", 5, lr),
            found("... and what is known pays meanwhile", 1, lr),
            at_last("... and its mode on the rarest has changed", lr),
        )
    ),
    *(
        effect
        for lr in (0.03, 0.1)
        for effect in (
            shared("MaxRL keeps what RLOO gives up", "pass@64", "MaxRL", lr),
            shared("GRPO keeps some of it", "pass@64", "GRPO", lr),
            shared("... and pays in one try", "pass@1", "MaxRL", lr),
        )
    ),
    *(
        over_the_grid(claim, factor, level, against)
        for claim, factor, level, against in (
            ("σ of the group against none", "normalisation", "group σ", "none"),
            ("σ of the batch against none", "normalisation", "batch σ", "none"),
            ("a mean over tokens", "average", "over tokens", "per answer"),
            ("clip-higher", "clip", "higher", "symmetric"),
            ("the overlong filter, the limit lifted", "overlong", "filtered", "wrong"),
        )
    ),
    *(
        exchanged(claim, "habits", "lite_habits", arm, lr)
        for lr in (3e-4, 6e-4)
        for claim, arm in (
            ("the batch's mean for a baseline", "batch mean and σ"),
            ("the fifth of the tokens with most entropy", "top 20 %"),
            ("a fifth drawn blindly", "random 20 %"),
            ("all tokens but that fifth", "lowest 80 %"),
        )
    ),
    *(
        exchanged(claim, "plain sums", "entropy_dial", arm, lr)
        for lr in (1e-4, 2e-4)
        for claim, arm in (
            ("a bonus of 0.2 on entropy", "bonus"),
            ("entropy held by a controller", "adaptive"),
            ("Clip-Cov", "Clip-Cov"),
            ("KL-Cov by an absolute value", "KL-Cov"),
            ("KL-Cov by a smooth estimate", "KL-Cov, k3"),
        )
    ),
    *(
        effect
        for lr in (1.5e-4, 3e-4)
        for effect in (
            voted("a majority vote where the mode is right", "majority vote", 1, lr),
            voted("... and where it is wrong", "majority vote", 3, lr),
            voted_control("a majority vote", "majority vote", lr),
            voted_control("confidence as the reward", "confidence", lr),
        )
    ),
    distilled("SFT on the answers of a teacher, against RL", "SFT on the teacher"),
    distilled("on-policy distillation, against RL", "on-policy distillation"),
    *(
        effect
        for lr in (3e-4, 6e-4)
        for effect in (
            credited("a verdict on each step", "process", lr),
            credited("Monte-Carlo values of prefixes", "VinePPO, k = 2", lr),
        )
    ),
    *(
        aged(claim, arm + slower, against + slower, rate)
        for rate, slower in (("4e-4", ""), ("2e-4", ", half the rate"))
        for claim, arm, against in (
            ("tokens up to 2 updates old", "PipelineRL-2", "PipelineRL-0"),
            ("tokens up to 8 updates old", "PipelineRL-8", "PipelineRL-0"),
            ("DAPO's clip for CISPO, up to 2 old", "DAPO's clip", "PipelineRL-2"),
            ("DAPO's clip for CISPO, up to 8 old", "DAPO's clip, k = 8", "PipelineRL-8"),
        )
    ),
)


def markdown(effects: pd.DataFrame) -> str:
    """`effects_table` as Markdown, for a notebook or a page."""
    lines = [
        "| chapter | effect | world | seeds | difference [95 %] | detectable |",
        "|---" * 6 + "|",
    ]
    for row in effects.itertuples():
        difference = f"{row.difference:+.2g} [{row.low:.2g}, {row.high:.2g}] {row.unit}"
        difference = f"**{difference}**" if row.clear else difference
        lines.append(
            f"| {row.chapter} | {row.effect} | {row.world} | {row.seeds} | {difference} "
            f"| {row.detectable:.2g} |"
        )
    return "\n".join(lines)
