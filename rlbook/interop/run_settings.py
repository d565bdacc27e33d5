"""What of a run's own settings each trainer has words for, in the versions of `peers.yaml`."""

from collections.abc import Collection, Mapping
from typing import Any

from rlbook.interop.batch_sizes import WORDS
from rlbook.interop.translation import Settings, Translation

OPTIM, SKY = "actor_rollout_ref.actor.optim.", "trainer.policy.optimizer_config."
SAMPLING = "orchestrator.train.sampling."

# A setting's name there, or the names of a pair's two parts.
NAMES: Mapping[str, Mapping[str, str | tuple[str, str]]] = {
    "trl": {
        "steps": "max_steps",
        "seed": "seed",
        "rollout.temperature": "temperature",
        "rollout.max_new_tokens": "max_completion_length",
        "optimizer.lr": "learning_rate",
        "optimizer.warmup": "warmup_steps",
        "optimizer.betas": ("adam_beta1", "adam_beta2"),
        "optimizer.eps": "adam_epsilon",
        "optimizer.weight_decay": "weight_decay",
        "optimizer.max_grad_norm": "max_grad_norm",
    },
    "verl": {
        "steps": "trainer.total_training_steps",
        "rollout.temperature": "actor_rollout_ref.rollout.temperature",
        "rollout.max_new_tokens": "data.max_response_length",
        "optimizer.lr": OPTIM + "lr",
        "optimizer.warmup": OPTIM + "lr_warmup_steps",
        "optimizer.betas": OPTIM + "betas",
        "optimizer.weight_decay": OPTIM + "weight_decay",
        "optimizer.max_grad_norm": OPTIM + "clip_grad",  # nobody reads the actor's grad_clip
        "critic.lr": "critic.optim.lr",
        "critic.gamma": "algorithm.gamma",
        "critic.lam": "algorithm.lam",
        "critic.value_clip": "critic.cliprange_value",
    },
    "skyrl": {
        "steps": "trainer.max_training_steps",
        "seed": "trainer.seed",
        "rollout.temperature": "generator.sampling_params.temperature",
        "rollout.max_new_tokens": "generator.sampling_params.max_generate_length",
        "rollout.stop": "generator.sampling_params.stop",
        "optimizer.lr": SKY + "lr",
        "optimizer.warmup": SKY + "num_warmup_steps",
        "optimizer.betas": SKY + "adam_betas",
        "optimizer.weight_decay": SKY + "weight_decay",
        "optimizer.max_grad_norm": SKY + "max_grad_norm",
        "critic.lr": "trainer.critic.optimizer_config.lr",
        "critic.gamma": "trainer.algorithm.gamma",
        "critic.lam": "trainer.algorithm.lambd",
        "critic.value_clip": "trainer.algorithm.value_clip",
    },
    "prime-rl": {
        "steps": "max_steps",
        "rollout.temperature": SAMPLING + "temperature",
        "rollout.max_new_tokens": SAMPLING + "max_completion_tokens",
        "optimizer.lr": "trainer.optim.lr",
        "optimizer.warmup": "trainer.scheduler.warmup_steps",
        "optimizer.betas": ("trainer.optim.betas1", "trainer.optim.betas2"),
        "optimizer.weight_decay": "trainer.optim.weight_decay",
        "optimizer.max_grad_norm": "trainer.optim.max_norm",
    },
}
SCHEDULES: Mapping[str, Settings] = {  # a rate that rises and stays, where that is not the default
    "trl": {"lr_scheduler_type": "constant_with_warmup"},
    "prime-rl": {"trainer.scheduler.type": "linear", "trainer.scheduler.decay_steps": 0},
}
COUNTED = {*WORDS["rlbook"], "rollout.max_turns", "rollout.turn_tokens"}  # said by others


def say_run(
    said: Translation,
    run: Mapping[str, Any],
    default: Mapping[str, Any],
    given: Collection[str],
    updates: int,
) -> None:
    """Add to a translation the settings of a run, by dotted name, that are `given` or no `default`.

    What the trainer has no word for is lost. A batch makes so many `updates`.
    """
    chosen = {k: v for k, v in run.items() if k in given or v != default.get(k)}
    chosen = {k: v for k, v in chosen.items() if not (k in COUNTED or k.startswith("method"))}
    for name, value in chosen.items():
        word = NAMES[said.peer].get(name)
        if word is None or value is None:
            if value != default.get(name):
                said.lost[name] = "not translated: " + in_short(value)
        elif isinstance(word, tuple):
            said.say(dict(zip(word, value, strict=True)))
        else:
            said.say({word: value})
    if said.peer == "trl" and "steps" in chosen:
        said.say({"max_steps": chosen["steps"] * updates})
    say_schedule(said, chosen, updates)


def say_schedule(said: Translation, chosen: Mapping[str, Any], updates: int) -> None:
    """Add what makes of a trainer's schedule a rate that rises for `warmup` updates and stays."""
    warmup = chosen.get("optimizer.warmup", 0)
    if warmup or (said.peer == "trl" and "optimizer.lr" in chosen):
        said.say(SCHEDULES.get(said.peer, {}))
    elif said.peer == "prime-rl":
        said.settings.pop("trainer.scheduler.warmup_steps", None)  # its default has none
    if warmup and said.peer == "verl":
        said.say({OPTIM + "lr_warmup_steps": max(1, round(warmup / updates))})
        said.notes["warm-up"] = f"counts steps of {updates} updates, the first at rate 0"
    elif warmup:
        said.notes["warm-up"] = "its first update has rate 0, here lr / warmup"


def in_short(value: Any, most: int = 60) -> str:
    """A value on one line."""
    text = " ".join(str(value).split())
    return text if len(text) <= most else text[: most - 1] + "…"
