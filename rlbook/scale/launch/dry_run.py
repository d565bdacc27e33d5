"""`rlbook scale --dry-run`: what a run needs, what speaks against it, and what this machine has."""

from collections.abc import Iterator, Sequence

from transformers import AutoTokenizer

from rlbook.policy.loading import policy_source
from rlbook.scale.config import ScaleConfig
from rlbook.scale.launch.machine import this_machine
from rlbook.scale.plan.budget import Budget, Prompts
from rlbook.scale.plan.fit import check, impossible
from rlbook.scale.plan.table import as_text, table
from rlbook.scale.rollout.evaluate import named_set, untrained
from rlbook.scaling.shape import ModelShape, described_shape, model_shape
from rlbook.tasks import Problem, get_task, held_out_problems
from rlbook.training.pool import training_problems
from rlbook.training.rewards import get_reward
from rlbook.training.rollouts import encode


def dry_run(config: ScaleConfig) -> str:
    """The budget as text, and this machine beside it.

    Raises `ValueError` naming fields and fixes if the run cannot work, on whatever machine.
    """
    budget = Budget(config, measure_shape(config), measure_prompts(config))
    check(budget)
    return f"{table(budget)}\n\n{as_text(this_machine(budget))}"


def check_start(config: ScaleConfig) -> None:
    """What a launcher asks first: the run's own model, context and prompts, whatever the hardware.

    Raises `ValueError` naming fields and fixes, `ImportError` for a task or reward of one's own
    that cannot be found.
    """
    if config.data.reward:
        get_reward(config.data.reward)
    own = config.budget.model_copy(update={"shape": None, "prompt_tokens": None})
    config = config.model_copy(update={"budget": own})
    budget = Budget(config, measure_shape(config), measure_prompts(config))
    if found := [*impossible(budget), *sets_beyond_the_context(config, budget.shape)]:
        raise ValueError("; ".join(found))


def sets_beyond_the_context(config: ScaleConfig, shape: ModelShape) -> Iterator[str]:
    """Sets of an evaluation whose longest prompt leaves too little of the model's context."""
    sets = config.evaluation.sets if config.evaluation.every else {}
    for name, settings in sets.items():
        problems = named_set(name, settings, config).problems
        room = shape.positions - measured(config, problems).longest
        if (limit := settings.max_new_tokens or config.rollout.max_new_tokens) > room:
            yield (
                f"evaluation.sets.{name}: {limit} tokens after its longest prompt exceed the "
                f"model's context of {shape.positions}: set its max_new_tokens to {room} at most"
            )


def measure_shape(config: ScaleConfig) -> ModelShape:
    """Of `model.policy`, or of the published sizes in `budget.shape`."""
    described = config.budget.shape
    return model_shape(config.model.policy) if described is None else described_shape(described)


def measure_prompts(config: ScaleConfig) -> Prompts:
    """Lengths of the run's own prompts, or those in `budget.prompt_tokens`.

    The task is asked for its prompts in both cases, unless it is a data set that is not at hand.
    Raises `ValueError` for a task that does not have the prompts the settings ask for.
    """
    known = config.budget.prompt_tokens
    try:
        problems = problems_of(config)
    except (ImportError, OSError):
        if known is None:
            raise
        return Prompts(*known)
    return Prompts(*known) if known else measured(config, problems)


def problems_of(config: ScaleConfig) -> list[Problem]:
    """The training problems. Raises `ValueError` if there are too few, or too few held out."""
    data, task, needed = config.data, get_task(config.data.task), config.rollout.prompts
    task.sample(config.seed, 1)  # data that cannot be read say so here
    problems = training_problems(task, config)
    if len(problems) < needed:
        raise ValueError(
            f"data.pool: only {len(problems)} different prompts for batches of {needed} "
            "(rollout.prompts): raise data.pool, or choose more data.levels"
        )
    if config.evaluation.every:
        held_out_problems(task, config.evaluation.prompts, data.levels)
        for one in config.evaluation.sets.items():
            untrained(named_set(*one, config), problems)
    return problems


def measured(config: ScaleConfig, problems: Sequence[Problem]) -> Prompts:
    """Mean and longest prompt, with the policy's tokenizer."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(policy_source(config.model.policy))
    except OSError:
        raise ValueError(
            f"model.policy {config.model.policy!r}: no tokenizer at hand to measure prompts with: "
            "set budget.prompt_tokens to their mean and longest length"
        ) from None
    lengths = [len(encode(tokenizer, problem)) for problem in problems]
    return Prompts(sum(lengths) / len(lengths), max(lengths))
