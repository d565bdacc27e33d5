"""What an experiment is: a question, arms, what is tried for each of them, seeds, measures."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from rlbook.objectives import METHODS, Method
from rlbook.training import Rollout, RunConfig, Trainer
from workshop.bases.decisions import decisions

World = Callable[[RunConfig], Trainer]
Measure = Callable[[Trainer], dict[str, float]]
Watch = Callable[[Trainer, list[Rollout]], dict[str, float]]

TUNING_SEEDS = (100, 101, 102)


@dataclass(frozen=True)
class Variant:
    """An arm with one choice of what is varied: the values, as columns of a table, and the run."""

    values: Mapping[str, Any]
    config: RunConfig


@dataclass(frozen=True)
class Arm:
    """One line of a figure: a label, what it trains, and what is tried for it."""

    label: str
    config: RunConfig
    variants: tuple[Variant, ...] = ()

    @property
    def tried(self) -> tuple[Variant, ...]:
        """The variants; the arm as it is where nothing is varied."""
        return self.variants or (Variant({}, self.config),)


def sums_decisions(trainer: Trainer) -> dict[str, float]:
    """What the trained policy decides on fixed prefixes of running sums."""
    return decisions(trainer.model, trainer.tokenizer)


def no_columns(*_: Any) -> dict[str, float]:
    return {}


@dataclass(frozen=True)
class Experiment:
    """A question, the arms that answer it, and the seeds each arm is run with.

    Where arms have variants (learning rates, widths), all are run with `tuning_seeds`, and the one
    with the highest mean of the column `chosen_by` is run again with `seeds`, none of which has
    helped to choose it. With `chosen_by=None` all variants are run with `seeds`: a map.

    world         builds the trainer of a run
    begins        builds the trainer whose policy is where a run begins, if `world` trains one first
    measure       adds columns to the evaluation of a trained policy
    watch         adds columns to the metrics of every step
    evaluation    how the trained policy is evaluated
    answers       a run ends with the batch after which it has written about so many, resampled ones
                  counted; after its steps if absent
    columns       what the table of steps keeps of a step's metrics; everything if absent
    planned       its runs are still to come: there is no table
    """

    question: str
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...] = tuple(range(10))
    tuning_seeds: tuple[int, ...] = TUNING_SEEDS
    chosen_by: str | None = "pass@1"
    world: World = Trainer
    begins: World | None = None
    measure: Measure = sums_decisions
    watch: Watch = no_columns
    evaluation: Mapping[str, Any] = field(
        default_factory=lambda: {"prompts": 96, "n": 16, "ks": (1, 4, 8, 16)}
    )
    answers: int | None = None
    columns: tuple[str, ...] | None = None
    planned: bool = False

    @property
    def tunes(self) -> bool:
        """Whether variants are tried first and one of each arm is chosen."""
        return self.chosen_by is not None and any(arm.variants for arm in self.arms)


def arm(label: str, method: str | Method, **settings: Any) -> Arm:
    """An arm as the reference runs train it: π_old from the sampler, the loss's constant stated.

    Rows whose paper recomputes π_old do not do so here. It saves a forward pass, and on one machine
    in float32 the two agree to 1e-6. Where the sampler's weights are stale (`sync_every` > 1) they
    differ: the ratio is then one to the stale sampler. A row with a correction for the sampler
    keeps the recomputed π_old that it is about.
    """
    row = METHODS[method] if isinstance(method, str) else method
    return Arm(label, trained_by(RunConfig(**settings), row))


def vary(one: Arm, **values: tuple) -> Arm:
    """The arm with every combination of settings to try: `vary(a, lr=(1e-4, 2e-4))`."""
    variants = tuple(
        Variant({**tried.values, **chosen}, tried.config.replace(**chosen))
        for tried in one.tried
        for chosen in combinations(values)
    )
    return replace(one, variants=variants)


def vary_methods(one: Arm, column: str, methods: Mapping[Any, Method]) -> Arm:
    """The arm with other methods to try, each under its value in a column: widths of a clip."""
    variants = tuple(
        Variant({**tried.values, column: value}, trained_by(tried.config, method))
        for tried in one.tried
        for value, method in methods.items()
    )
    return replace(one, variants=variants)


def over_choices(one: Arm, column: str, choices: Mapping[str, Mapping[str, Any]]) -> Arm:
    """The arm with other choices of its method to try, each a few of its fields under a name.

    Composes, so that several columns make a full factorial.
    """
    variants = tuple(
        Variant(
            {**tried.values, column: name},
            trained_by(tried.config, replace(tried.config.method, **fields)),
        )
        for tried in one.tried
        for name, fields in choices.items()
    )
    return replace(one, variants=variants)


def trained_by(config: RunConfig, method: Method) -> RunConfig:
    """The run with another method, π_old from the sampler and the constant stated as in `arm`."""
    old = "recomputed" if method.sampler_correction else "sampler"
    config = config.replace(method=replace(method, old_logprobs=old))
    return config.replace(method=config.resolved_method)


def combinations(values: Mapping[str, tuple]) -> Iterator[dict[str, Any]]:
    for chosen in product(*values.values()):
        yield dict(zip(values, chosen, strict=True))
