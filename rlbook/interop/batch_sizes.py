"""What "batch size" means: one set of counts, and every trainer's numbers for it, both ways.

A step asks `prompts` prompts `group_size` times; the answers are cut into `minibatches` updates
per pass, `epochs` passes. An update's answers go to `ranks` processes, `micro_batch` at a time.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

ACTOR = "actor_rollout_ref.actor."


@dataclass(frozen=True)
class BatchSizes:
    """The counts of one step.

    `micro_batch` completions of one rank go through the model at once. Raises `ValueError`
    where the counts do not divide.
    """

    prompts: int
    group_size: int
    minibatches: int = 1
    epochs: int = 1
    ranks: int = 1
    micro_batch: int = 1

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value != int(value) or value < 1:
                raise ValueError(f"{field.name} is a count of at least 1, got {value}")
            object.__setattr__(self, field.name, int(value))
        if self.prompts % self.minibatches:
            raise ValueError(f"{self.prompts} prompts do not make {self.minibatches} minibatches")
        if self.per_update % (self.ranks * self.micro_batch):
            raise ValueError(
                f"{self.per_update} completions of an update do not fill {self.ranks} ranks with "
                f"micro-batches of {self.micro_batch}"
            )

    @property
    def completions(self) -> int:
        """Completions of a step."""
        return self.prompts * self.group_size

    @property
    def per_update(self) -> int:
        """Completions of an optimizer update."""
        return self.completions // self.minibatches

    @property
    def accumulation(self) -> int:
        """Forward and backward passes of a rank per update."""
        return self.per_update // (self.ranks * self.micro_batch)

    @property
    def updates(self) -> int:
        """Optimizer updates per step."""
        return self.minibatches * self.epochs

    def settings(self, to: str) -> dict[str, int]:
        """The same step in the words of "rlbook", "trl", "verl", "skyrl" or "prime-rl".

        Raises `ValueError` for another name and for a step that the trainer cannot take.
        """
        if to not in WORDS:
            raise ValueError(f"no trainer {to!r}: choose from {', '.join(WORDS)}")
        if to == "prime-rl" and self.updates > 1:
            raise ValueError("prime-rl makes one update per batch: minibatches=1, epochs=1")
        if to == "trl" and self.group_size < 2:
            raise ValueError("TRL compares at least 2 answers of a prompt: group_size=2")
        return {name: count(self) for name, count in WORDS[to].items()}


Count = Callable[[BatchSizes], int]

# Beside each name what it counts; TRL counts completions, verl and SkyRL prompts.
WORDS: Mapping[str, Mapping[str, Count]] = {
    "rlbook": {
        "rollout.prompts": lambda b: b.prompts,
        "rollout.group_size": lambda b: b.group_size,
        "optimizer.minibatches": lambda b: b.minibatches,
        "optimizer.epochs": lambda b: b.epochs,
    },
    "trl": {
        "per_device_train_batch_size": lambda b: b.micro_batch,
        "gradient_accumulation_steps": lambda b: b.accumulation,
        "steps_per_generation": lambda b: b.accumulation * b.minibatches,
        "num_generations": lambda b: b.group_size,
        "num_iterations": lambda b: b.epochs,
    },
    "verl": {
        "data.train_batch_size": lambda b: b.prompts,
        "actor_rollout_ref.rollout.n": lambda b: b.group_size,
        ACTOR + "ppo_mini_batch_size": lambda b: b.prompts // b.minibatches,
        ACTOR + "ppo_micro_batch_size_per_gpu": lambda b: b.micro_batch,
        ACTOR + "ppo_epochs": lambda b: b.epochs,
    },
    "skyrl": {
        "trainer.train_batch_size": lambda b: b.prompts,
        "generator.n_samples_per_prompt": lambda b: b.group_size,
        "trainer.policy_mini_batch_size": lambda b: b.prompts // b.minibatches,
        "trainer.micro_train_batch_size_per_gpu": lambda b: b.micro_batch,
        "trainer.update_epochs_per_batch": lambda b: b.epochs,
    },
    "prime-rl": {
        "orchestrator.batch_size": lambda b: b.completions,
        "orchestrator.group_size": lambda b: b.group_size,
    },
}


def read_batch_sizes(settings: Mapping[str, Any], ranks: int = 1) -> BatchSizes:
    """The counts behind a trainer's settings, by dotted name; `ranks` processes train.

    Raises `ValueError` where no trainer has all these names, and for counts that do not divide.
    """
    of = {name: int(value) for name, value in settings.items()}
    peer = next((peer for peer, words in WORDS.items() if words.keys() <= of.keys()), None)
    if peer is None:
        known = "; ".join(f"{peer}: {', '.join(words)}" for peer, words in WORDS.items())
        raise ValueError(f"these settings are not all that a trainer needs ({known})")
    n = [of[name] for name in WORDS[peer]]
    if peer == "trl":
        per_rank, accumulation, steps, group, epochs = n
        prompts = per_rank * ranks * steps / group
        if steps < accumulation:
            raise ValueError(
                f"batches do not divide: gradient_accumulation_steps={accumulation} and "
                f"steps_per_generation={steps} make an update of {accumulation / steps:g} "
                "generations, each sampled anew; here a step samples once: sample "
                f"{whole(prompts * accumulation / steps)} prompts a step and make one update"
            )
        return BatchSizes(whole(prompts), group, whole(steps / accumulation), epochs, ranks, n[0])
    if peer == "prime-rl":
        return BatchSizes(whole(n[0] / n[1]), n[1], ranks=ranks)
    if peer == "rlbook":
        return BatchSizes(n[0], n[1], n[2], n[3], ranks)
    prompts, group, mini, micro, epochs = n
    return BatchSizes(prompts, group, whole(prompts / mini), epochs, ranks, micro)


def whole(number: float) -> int:
    """The number, if it is whole; `ValueError` where a batch is cut through."""
    if number != int(number):
        raise ValueError(f"batches do not divide: {number:g} is not whole")
    return int(number)
