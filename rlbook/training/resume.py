"""Is it the same run? What a resumed run may change, and how it names what differs."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from rlbook.importing import name_of
from rlbook.training.checkpoint import read_state
from rlbook.training.config import RunConfig

RESUMABLE = ("steps", "sinks", "evaluation", "model.device")


def saved_run(
    folder: Path, config: RunConfig | None, seams: dict[str, Any]
) -> tuple[RunConfig, dict[str, Any]]:
    """Settings with which the run saved in `folder` goes on, and its state.

    They are `config`, or those it was saved with; `seams` are the objects that it is given.

    Raises `ValueError` naming what differs, and for the folder of a full-scale run.
    """
    state = read_state(folder)
    if "given" not in state:
        raise ValueError(
            f"{folder} is a full-scale run: go on with `rlbook scale {folder} --resume`"
        )
    saved = RunConfig(**state["config"])
    config = from_the_step(saved, config or saved)
    check_same_run(saved, config, state["given"], described(seams))
    return config, state


def from_the_step(saved: RunConfig, config: RunConfig) -> RunConfig:
    """The settings with the step that the saved run began with, where they name that step's run."""
    step, named = Path(saved.model.policy), Path(config.model.policy).expanduser()
    same = step.name.startswith("step_") and step.parent == named
    return config.replace(model={"policy": str(step)}) if same else config


def check_same_run(
    saved: RunConfig, config: RunConfig, saved_seams: dict[str, str], seams: dict[str, str]
) -> None:
    """Raise `ValueError` naming every field in which a run would not be the one that was saved."""
    differ = [
        f"{field} is {old!r} in the run and {new!r} here"
        for field, (old, new) in fixed_differences(saved, config, RESUMABLE).items()
    ]
    differ += [
        f"{name} was {saved_seams.get(name, 'not given')} in the run and is "
        f"{seams.get(name, 'not given')} here"
        for name in sorted(saved_seams.keys() | seams.keys())
        if saved_seams.get(name) != seams.get(name)
    ]
    if differ:
        raise ValueError(
            f"not the same run: {'; '.join(differ)}. Only {', '.join(RESUMABLE)} may change; "
            "start a new run for the rest"
        )


def fixed_differences(
    saved: RunConfig, config: RunConfig, resumable: Collection[str]
) -> dict[str, tuple[Any, Any]]:
    """What differs and may not, by dotted name."""
    found = differences(saved.to_dict(), config.to_dict())
    return {name: values for name, values in found.items() if not may_change(name, resumable)}


def may_change(name: str, resumable: Collection[str]) -> bool:
    """Whether a setting, by its dotted name, is `resumable` itself or by its section."""
    return any(name == one or name.startswith(f"{one}.") for one in resumable)


def differences(
    old: dict[str, Any], new: dict[str, Any], prefix: str = ""
) -> dict[str, tuple[Any, Any]]:
    """Dotted names of what differs between two nested dictionaries, with both values."""
    found: dict[str, tuple[Any, Any]] = {}
    for name in old.keys() | new.keys():
        left, right = old.get(name), new.get(name)
        if isinstance(left, dict) and isinstance(right, dict):
            found |= differences(left, right, f"{prefix}{name}.")
        elif left != right:
            found[f"{prefix}{name}"] = (left, right)
    return dict(sorted(found.items()))


def described(seams: dict[str, Any]) -> dict[str, str]:
    """Names of the objects a trainer was given, by which a resumed run knows them again."""
    return {name: label_of(thing) for name, thing in seams.items() if thing is not None}


def label_of(thing: Any) -> str:
    """`module:name` of a function or class, of an object its class's."""
    thing = thing[0] if isinstance(thing, tuple) else thing  # of a policy, the model
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    try:
        return name_of(named)
    except ValueError:
        return f"{named.__module__}:{named.__qualname__}"
