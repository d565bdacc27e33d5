"""A row of the book in the words of other trainers, and back.

    translate("dapo", "verl").settings          what to write there, and .lost: what has no word
    like({"loss_type": "dapo", …})              which row is this, and how does it deviate?
    BatchSizes(prompts=512, group_size=16, …)   what "batch size" means in each of them

The tables name what exists in the versions that each module states. `make interop` holds the
settings against the libraries' own parsers and the gradients against their own losses.
"""

from collections.abc import Mapping
from types import ModuleType
from typing import Any, NamedTuple

import yaml

from rlbook.interop import prime_rl, skyrl, trl, verl
from rlbook.interop.batch_sizes import BatchSizes, read_batch_sizes
from rlbook.interop.run_settings import say_run
from rlbook.interop.translation import Run, Settings, Translation
from rlbook.interop.turns import Turns, say_turns
from rlbook.objectives import FIELD, METHODS, Method
from rlbook.verbs import value_of

__all__ = ["PEERS", "BatchSizes", "Likeness", "Run", "Translation", "Turns", "flat", "like"]
__all__ += ["likeness_text", "read_batch_sizes", "say_run", "translate", "translation_text"]

PEERS: Mapping[str, ModuleType] = {
    "trl": trl,
    "verl": verl,
    "skyrl": skyrl,
    "prime-rl": prime_rl,
}


def translate(
    method: "str | Mapping[str, Any] | Method",
    to: str,
    group_size: int = 8,
    max_new_tokens: int = 1024,
    plugin: bool = False,
    turns: Turns | None = None,
) -> Translation:
    """A row, or a method of your own, as settings of the trainer `to`, and what they leave out.

    `plugin`: with `rlbook.interop`'s advantages where the trainer's own do not reach. `turns`: of a
    run whose answers are episodes with an environment.
    Raises `ValueError` for an unknown trainer or method.
    """
    if to not in PEERS:
        raise ValueError(f"no trainer {to!r}: choose from {', '.join(PEERS)}")
    method = Method.from_dict(method)
    said: Translation = PEERS[to].translate(method, Run(group_size, max_new_tokens, plugin))
    if method.reward_values != (0.0, 1.0):
        wrong, right = method.reward_values
        said.notes["rewards"] = f"the reward function has to give {wrong:g} and {right:g}"
    if turns:
        say_turns(said, turns)
    return said


# What a trainer calls completions per prompt and the limit of their length.
GROUPS = ("num_generations", "actor_rollout_ref.rollout.n", "generator.n_samples_per_prompt")
LIMITS = ("max_completion_length", "data.max_response_length")


class Likeness(NamedTuple):
    """A row beside settings of a trainer: `differ` has (there, in the row) by setting."""

    row: str
    peer: str
    differ: dict[str, tuple[Any, Any]]
    lost: dict[str, str]


def like(settings: Mapping[str, Any]) -> list[Likeness]:
    """Rows in order of likeness to a trainer's settings, the likest first.

    `settings` by dotted name or nested, as a file has them; what is not given counts as the
    trainer's default. A choice that differs weighs more than any number. Rows that the trainer
    cannot say come after equally like ones that it can.
    Raises `ValueError` where no trainer has any of the names.
    """
    if not isinstance(settings, Mapping) or not settings:
        raise ValueError(
            f"no settings: expected `name: value`, as a trainer's file has it, got {settings!r}"
        )
    given = {k: value_of(v) if isinstance(v, str) else v for k, v in flat(settings).items()}
    peer = max(PEERS, key=lambda name: len(PEERS[name].DEFAULTS.keys() & given.keys()))
    defaults: Settings = PEERS[peer].DEFAULTS
    if not defaults.keys() & given.keys():
        raise ValueError(f"none of {', '.join(given) or 'nothing'} is a setting of {list(PEERS)}")
    theirs = completed(peer, given)
    group = next((given[name] for name in GROUPS if name in given), 8)
    limit = next((given[name] for name in LIMITS if name in given), 1024)
    found = []
    for name, method in (METHODS | FIELD).items():
        said = translate(method, peer, group, limit)
        row = completed(peer, said.settings)
        differ = {k: (theirs[k], row[k]) for k in defaults if not same(theirs[k], row[k])}
        found.append(Likeness(name, peer, differ, said.lost))
    return sorted(found, key=distance)


def completed(peer: str, settings: Settings) -> Settings:
    """All settings that matter of a trainer, the defaults where none are given."""
    defaults: Settings = PEERS[peer].DEFAULTS
    full = {name: settings.get(name, default) for name, default in defaults.items()}
    follows = getattr(PEERS[peer], "FOLLOWS", {})
    return full | {k: full[other] for k, other in follows.items() if full[k] is None}


def likeness_text(found: list[Likeness], rows: int = 3) -> str:
    """The likest rows, and setting by setting what is different."""
    parts = []
    for row, peer, differ, lost in found[:rows]:
        lines = [f"{row}, as {peer} says it" + ("" if differ else ": the same")]
        lines += [f"    {k}: {there!r} here, {here!r} in the row" for k, (there, here) in
                  differ.items()]  # fmt: skip
        lines += [f"    {column} of the row: {why}" for column, why in lost.items()]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def translation_text(said: Translation, sizes: Settings | None = None) -> str:
    """A translation as YAML, the rest of it as comments."""
    lines = ["# carried by rlbook.interop: " + ", ".join(said.carried)] if said.carried else []
    for heading, columns in (("lost", said.lost), ("a little different", said.notes)):
        lines += [f"# {heading}: {column}: {text}" for column, text in columns.items()]
    settings = (sizes or {}) | said.settings
    return "\n".join([*lines, yaml.safe_dump(settings, sort_keys=False).rstrip()])


def distance(found: Likeness) -> tuple[int, int, int]:
    """Choices that differ or have no word, numbers that differ, other columns without a word."""
    choices = [not all(map(is_number, pair)) for pair in found.differ.values()]
    core = len(found.lost.keys() & {"advantage", "trust region", "aggregation"})
    return sum(choices) + core, len(choices) - sum(choices), len(found.lost)


def is_number(value: Any) -> bool:
    """Whether a setting is a number and no switch."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def same(one: Any, other: Any) -> bool:
    """Equal, or the same number but for rounding."""
    if is_number(one) and is_number(other):
        return abs(one - other) <= 1e-9 * max(abs(one), abs(other))
    return one == other


def flat(settings: Mapping[str, Any], prefix: str = "") -> Settings:
    """Nested settings by dotted name."""
    out: Settings = {}
    for name, value in settings.items():
        inner = flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else None
        out |= {f"{prefix}{name}": value} if inner is None else inner
    return out
