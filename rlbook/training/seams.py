"""What a notebook hands to a trainer, checked as kindly as a line in a file."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from rlbook.importing import check_call
from rlbook.tasks.registry import checked

ASKED = "n", "max_new_tokens", "temperature", "seed"  # of an engine, besides its prompts


def check_given(policy: Any, task: Any, reward: Any, engine: Any, evaluate: Any) -> None:
    """Require each of a trainer's objects, where there is one, to be what it stands for.

    Raises `ValueError` naming the object, what it lacks, and what to hand over instead.
    """
    if policy is not None:
        check_policy(policy)
    if task is not None:
        checked(str(getattr(task, "name", type(task).__name__)), task)
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


def check_policy(policy: Any) -> None:
    """Require a (model, tokenizer) pair that belongs together."""
    wanted = "a policy is the pair (model, tokenizer), such as rlbook.policy.load_policy gives"
    if not (isinstance(policy, tuple | list) and len(policy) == 2):
        raise ValueError(f"policy is {named(policy)}: {wanted}")
    model, tokenizer = policy
    if not isinstance(model, nn.Module) or not hasattr(tokenizer, "decode"):
        raise ValueError(f"policy is ({named(model)}, {named(tokenizer)}): {wanted}")


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
    return float(found["pass@1"])


def named(thing: Any) -> str:
    """What messages call an object: its own name, or that of its class; text as it is."""
    if isinstance(thing, str):
        return repr(thing)
    return str(getattr(thing, "__name__", type(thing).__name__))
