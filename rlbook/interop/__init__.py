"""A row of the book in the words of other trainers, and back.

    translate("dapo", "verl").settings          what to write there, and .lost: what has no word
    like({"loss_type": "dapo", …})              which row is this, and how does it deviate?
    BatchSizes(prompts=512, group_size=16, …)   what "batch size" means in each of them

The tables name what exists in the versions that each module states. `make interop` holds the
settings against the libraries' own parsers and the gradients against their own losses.
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import yaml

from rlbook.interop import prime_rl, skyrl, trl, verl
from rlbook.interop.batch_sizes import WORDS, BatchSizes, read_batch_sizes
from rlbook.interop.peer_files import READERS, flat, near_name, read_peer_file
from rlbook.interop.run_settings import NAMES, in_short, say_run
from rlbook.interop.translation import BIG, Run, Settings, Translation
from rlbook.interop.turns import Turns, say_turns
from rlbook.objectives import FIELD, METHODS, Method
from rlbook.verbs import value_of

__all__ = ["PEERS", "BatchSizes", "Likeness", "Run", "Translation", "Turns", "comparison_text"]
__all__ += ["flat", "like", "likeness_text", "read_batch_sizes", "read_peer_file", "refuse_foreign"]
__all__ += ["say_run", "translate", "translation_text"]

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
    updates: int = 1,
) -> Translation:
    """A row, or a method of your own, as settings of the trainer `to`, and what they leave out.

    `plugin`: with `rlbook.interop`'s advantages where the trainer's own do not reach. `turns`: of a
    run whose answers are episodes with an environment. `updates`: that its batch makes.
    Raises `ValueError` for an unknown trainer or method.
    """
    if to not in PEERS:
        raise ValueError(f"no trainer {to!r}: choose from {', '.join(PEERS)}")
    method = Method.from_dict(method)
    said: Translation = PEERS[to].translate(
        method, Run(group_size, max_new_tokens, plugin, updates)
    )
    if method.reward_values != (0.0, 1.0):
        wrong, right = method.reward_values
        said.notes["rewards"] = f"the reward function has to give {wrong:g} and {right:g}"
    if turns:
        say_turns(said, turns)
    return said


GROUPS = {  # what a trainer calls completions per prompt
    "trl": "num_generations",
    "verl": "actor_rollout_ref.rollout.n",
    "skyrl": "generator.n_samples_per_prompt",
    "prime-rl": "orchestrator.group_size",
}
BESIDE = {  # settings that there are too, and that are no misspelling of one of ours
    "trl": "per_device_eval_batch_size num_generations_eval entropy_coef_min entropy_coef_max",
    "verl": "actor_rollout_ref.actor.ppo_micro_batch_size actor_rollout_ref.actor.clip_ratio "
    "algorithm.rollout_correction.rollout_rs algorithm.rollout_correction.rollout_rs_threshold",
    "skyrl": "trainer.algorithm.zero_variance_filter_tol trainer.micro_forward_batch_size_per_gpu "
    "generator.eval_n_samples_per_prompt generator.eval_sampling_params.stop "
    "generator.eval_sampling_params.temperature generator.eval_sampling_params.max_generate_length",
}


class Likeness(NamedTuple):
    """A row beside settings of a trainer: `differ` has (there, in the row) by setting.

    `assumed` are those of them that were not given: there the trainer's default counts.
    """

    row: str
    peer: str
    differ: dict[str, tuple[Any, Any]]
    lost: dict[str, str]
    assumed: frozenset[str] = frozenset()


def like(settings: Mapping[str, Any]) -> list[Likeness]:
    """Rows in order of likeness to a trainer's settings, the likest first.

    `settings` by dotted name or nested, as a file has them; what is not given counts as the
    trainer's default, and weighs less than anything given. A choice that differs weighs more than
    any number. Rows that the trainer cannot say come after equally like ones that it can.
    Raises `ValueError` where no trainer has any of the names, and for a count that is none.
    """
    peer, given = read_settings(settings)
    defaults: Settings = PEERS[peer].DEFAULTS
    if not defaults.keys() & given.keys():
        raise ValueError(f"none of {in_short(', '.join(given))} says {peer} which method it is")
    theirs = completed(peer, given)
    group = max(count_of(given, GROUPS[peer], 8), 2)
    limit = count_of(given, str(NAMES[peer]["rollout.max_new_tokens"]), 1024)
    found = []
    for name, method in (METHODS | FIELD).items():
        said = translate(method, peer, group, limit)
        row = completed(peer, said.settings)
        differ = {k: (theirs[k], row[k]) for k in defaults if not same(theirs[k], row[k])}
        assumed = frozenset(differ.keys() - given.keys())
        found.append(Likeness(name, peer, differ, said.lost, assumed))
    return sorted(found, key=distance)


def read_settings(settings: Any) -> tuple[str, Settings]:
    """Which trainer has most of these names, and the settings in its words of today."""
    if not isinstance(settings, Mapping) or not settings:
        raise ValueError(
            f"no settings: expected `name: value`, as a trainer's file has it, got {settings!r}"
        )
    given = {
        name.lstrip("+"): value_of(value) if isinstance(value, str) else value
        for name, value in flat(settings).items()
    }
    peer = peer_of(given)
    if peer is None:
        names = in_short(", ".join(given) or "nothing")
        raise ValueError(f"none of {names} is a setting of {', '.join(PEERS)}")
    renamed, words = (getattr(PEERS[peer], table, {}) for table in ("RENAMED", "MEANT"))
    given = {renamed.get(name, name): value for name, value in given.items()}
    for name in words.keys() & given.keys():
        given[name] = next((v for k, v in words[name].items() if k is given[name]), given[name])
    return peer, given


def peer_of(names: Collection[str]) -> str | None:
    """The trainer that has most of these names, if any has one."""
    shared = {peer: len(names_of(peer) & {*names}) for peer in PEERS}
    peer = max(shared, key=shared.__getitem__)
    return peer if shared[peer] else None


def names_of(peer: str) -> set[str]:
    """The settings of a trainer that are known here, and what it called them before."""
    of_a_run = NAMES[peer].values()
    words = {w for word in of_a_run for w in (word if isinstance(word, tuple) else [word])}
    renamed, read = (getattr(PEERS[peer], table, {}) for table in ("RENAMED", "READ_BY"))
    return words | {*PEERS[peer].DEFAULTS, *WORDS[peer], *renamed, *read.values()}


def refuse_foreign(path: Path) -> None:
    """Raise `ValueError` for a file of another trainer, with the verb that reads it."""
    try:
        names = {*read_peer_file(path)}
    except ValueError:  # whoever reads it says so
        names = set()
    ours = {name.rpartition(".")[2] for name in [*NAMES["trl"], *WORDS["rlbook"]]}
    a_run = {name.partition(".")[0] for name in names} & {"method", "rollout", "optimizer"}
    if not a_run and (peer := peer_of(names - ours)):
        raise ValueError(f"{path} has settings of {peer}: `rlbook methods --like {path}` reads it")
    if path.suffix in READERS:
        raise ValueError(f"{path} holds no settings of {', '.join(PEERS)}, and no YAML of a run")


def not_compared(settings: Mapping[str, Any]) -> tuple[dict[str, str], list[str]]:
    """Names that are near misses, each with what is meant, and others that say no method."""
    peer, given = read_settings(settings)
    known, fine = names_of(peer), BESIDE.get(peer, "").split()
    rest = [name for name in given if name not in PEERS[peer].DEFAULTS]
    missed = {name: near_name(name, known) for name in rest if name not in {*known, *fine}}
    missed = {name: near for name, near in missed.items() if near}
    return missed, [name for name in rest if name not in missed]


def comparison_text(settings: Mapping[str, Any]) -> str:
    """The likest rows to a file's settings, with what of them is misspelt and what says nothing."""
    found = like(settings)
    missed, rest = not_compared(settings)
    lines = [f"# no setting {name} in {found[0].peer}, did you mean {near}?" for name, near in
             missed.items()]  # fmt: skip
    lines += [likeness_text(found)]
    lines += [f"\n# not compared: {', '.join(rest)}"] if rest else []
    return "\n".join(lines)


def count_of(given: Settings, name: str, otherwise: int) -> int:
    """A count among settings; `ValueError` naming one that is none."""
    value = given.get(name)
    if value is not None and not (is_number(value) and value >= 1):
        raise ValueError(f"{name} is a count of at least 1, got {value!r}")
    return otherwise if value is None else int(value)


def completed(peer: str, settings: Settings) -> Settings:
    """All settings that matter of a trainer, the defaults where none are given."""
    defaults: Settings = PEERS[peer].DEFAULTS
    read = getattr(PEERS[peer], "READ_BY", {})
    unread = {name: False for name, switch in read.items() if not settings.get(switch)}
    full = {name: settings.get(name, default) for name, default in (defaults | unread).items()}
    follows = getattr(PEERS[peer], "FOLLOWS", {})
    return full | {k: full[other] for k, other in follows.items() if full[k] is None}


def likeness_text(found: list[Likeness], rows: int = 3) -> str:
    """The likest rows, and setting by setting what is different."""
    parts = []
    for row, peer, differ, lost, assumed in found[:rows]:
        lines = [f"{row}, as {peer} says it" + ("" if differ else ": the same")]
        for name, (there, here) in differ.items():
            place = "by default" if name in assumed else "here"
            lines.append(f"    {name}: {there!r} {place}, {here!r} in the row")
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


def distance(found: Likeness) -> tuple[int, ...]:
    """Choices that differ or have no word, numbers that differ; then the same of what is assumed.

    Last the other columns without a word.
    """
    counts = {(said, number): 0 for said in (True, False) for number in (False, True)}
    for name, pair in found.differ.items():
        a_number = all(is_number(one) and one < BIG for one in pair)  # no bound is a choice
        counts[name not in found.assumed, a_number] += 1
    counts[True, False] += len(found.lost.keys() & {"advantage", "trust region", "aggregation"})
    return *counts.values(), len(found.lost)


def is_number(value: Any) -> bool:
    """Whether a setting is a number and no switch."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def same(one: Any, other: Any) -> bool:
    """Equal, or the same number but for rounding."""
    if is_number(one) and is_number(other):
        return abs(one - other) <= 1e-9 * max(abs(one), abs(other))
    return one == other
