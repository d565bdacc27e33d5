"""What a notebook hands to a trainer, checked as kindly as a line in a file."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from rlbook.importing import check_call
from rlbook.tasks.base import number, task_name
from rlbook.tasks.registry import checked
from rlbook.training.config import RunConfig

ASKED = "n", "max_new_tokens", "temperature", "seed"  # of an engine, besides its prompts


def check_given(policy: Any, task: Any, reward: Any, engine: Any, evaluate: Any) -> None:
    """Require each of a trainer's objects, where there is one, to be what it stands for.

    Raises `ValueError` naming the object, what it lacks, and what to hand over instead.
    """
    if policy is not None:
        check_policy(policy)
    if task is not None:
        checked(task_name(task), task)
    if engine is not None:
        name = f"engine {named(engine)}"
        if isinstance(engine, type) or not callable(getattr(engine, "generate", None)):
            raise ValueError(
                f"{name} has no generate: an engine is an object with generate(prompts, n=…, "
                "max_new_tokens=…, temperature=…, seed=…) (rlbook.training.Engine)"
            )
        check_call(f"{name}: generate", engine.generate, ("prompts",), ASKED)
        if hasattr(engine, "load_weights"):
            check_call(f"{name}: load_weights", engine.load_weights, ("model",))
    for what, function, argument in (
        ("reward", reward, "rollouts"),
        ("evaluate", evaluate, "trainer"),
    ):
        if function is not None:
            check_function(what, function, argument)


def check_asked(policy: Any, task: Any, engine: Any = None) -> None:
    """`check_given` for whoever needs both a policy and a task."""
    check_policy(policy)
    checked(task_name(task), task)
    check_given(None, None, None, engine, None)


def check_config(config: Any) -> None:
    """Require the settings of a run, as an object."""
    if isinstance(config, type):
        raise ValueError(f"config is the class {named(config)}: make one, {named(config)}(…)")
    if not isinstance(config, RunConfig):
        raise ValueError(
            f'config is {named(config)}: hand over a RunConfig, such as RunConfig(method="grpo"), '
            'or load_config("run.yaml")'
        )


def check_policy(policy: Any) -> None:
    """Require a (model, tokenizer) pair that belongs together."""
    wanted = "a policy is the pair (model, tokenizer), such as rlbook.policy.load_policy gives"
    if not (isinstance(policy, tuple | list) and len(policy) == 2):
        raise ValueError(f"policy is {named(policy)}: {wanted}")
    model, tokenizer = policy
    if not isinstance(model, nn.Module) or not hasattr(tokenizer, "decode"):
        raise ValueError(f"policy is ({named(model)}, {named(tokenizer)}): {wanted}")
    head = getattr(model, "get_output_embeddings", None)
    if head is None or head() is None:
        raise ValueError(
            f"policy: {named(model)} is no causal language model: load one, such as "
            "transformers.AutoModelForCausalLM.from_pretrained does"
        )
    if not hasattr(tokenizer, "eos_token_id"):
        raise ValueError(
            f"policy: tokenizer {named(tokenizer)} has no eos_token_id, the token that ends an "
            "answer: load one, such as transformers.AutoTokenizer.from_pretrained does"
        )


def check_trainable(model: nn.Module) -> None:
    """Require a weight that training may change."""
    if not any(weight.requires_grad for weight in model.parameters()):
        raise ValueError(
            f"policy: all weights of {named(model)} are frozen, so that nothing can be trained: "
            "call model.requires_grad_(True), or train an adapter (model.lora)"
        )


def check_function(what: str, function: Any, argument: str) -> None:
    """Require a function of one argument, and no class whose object is meant."""
    name = f"{what} {named(function)}"
    if isinstance(function, type):
        raise ValueError(f"{name} is a class: make one, {what}={named(function)}(…)")
    if not callable(function):
        raise ValueError(f"{name} is no function of {argument}, and {what} is called as one")
    check_call(name, function, (argument,))


def measured(evaluate: Callable[[Any], Mapping[str, Any]], trainer: Any) -> float:
    """The pass@1 that `evaluate(trainer)` gives; `ValueError` where it gives none."""
    found = evaluate(trainer)
    if not isinstance(found, Mapping) or "pass@1" not in found:
        raise ValueError(
            f"evaluate {named(evaluate)} returned {found!r:.60}: return a dictionary with "
            '"pass@1", such as rlbook.evaluation.evaluate_run does'
        )
    what, mend = f'evaluate {named(evaluate)}: "pass@1"', "give the share of right answers, 0 to 1"
    share = number(what, found["pass@1"], mend)
    if not 0 <= share <= 1:
        raise ValueError(f"{what} is {share:g}: {mend}")
    return share


def named(thing: Any) -> str:
    """What messages call an object: its own name, or that of its class; text as it is."""
    if isinstance(thing, str):
        return repr(thing)
    return str(getattr(thing, "__name__", type(thing).__name__))
