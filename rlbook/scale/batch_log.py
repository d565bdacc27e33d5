"""The log of batches between orchestrator and trainer: published whole, kept until superseded.

batches/batch_000012/tokens.safetensors   what was sampled, flat, with the offsets of each rollout
batches/batch_000012/rollouts.json        everything else about the rollouts
batches/batch_000012/state.json           the orchestrator's state once this batch was formed
batches/batch_000012/checksums.json       SHA-256 of each of these
"""

import json
import math
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from rlbook.durable import CHECKSUMS, checksums, damage, publish_folder, read_json, write_json
from rlbook.policy.loading import newest
from rlbook.scale.layout import Layout
from rlbook.training import Rollout
from rlbook.training.packing import load_rollouts, save_rollouts


def write_batch(layout: Layout, step: int, rollouts: Sequence[Rollout], state: dict) -> Path:
    """Publish batch `step`: once this returns, the batch survives any crash.

    `state` names the batch in `state["step"]` and holds whatever its writer has to find again.
    Raises `FileExistsError` if the batch exists: it may have been trained. Chapter 18.
    """
    if has_batch(layout, step):
        raise FileExistsError(
            f"batch {step} is in {layout.batches} already: does another orchestrator write to it?"
        )

    def write(folder: Path) -> None:
        save_rollouts(folder, rollouts)
        (folder / "state.json").write_text(json.dumps(state))
        write_json(folder / CHECKSUMS, checksums(folder))

    return publish_folder(layout.batch(step), write)


def read_batch(layout: Layout, step: int) -> tuple[list[Rollout], dict]:
    """Rollouts and orchestrator state of batch `step`.

    Raises `FileNotFoundError` if it is not published, or pruned already, and `DamagedBatch`.
    """
    folder = layout.batch(step)
    found = damage(folder)
    if not has_batch(layout, step):  # also if it was pruned while its files were looked at
        raise FileNotFoundError(f"no batch {step} in {layout.batches}, but {published(layout)}")
    if found:
        raise DamagedBatch(
            f"{folder} is damaged ({found}): restore it, or forget it and what came after with "
            "`rlbook scale <run folder> --rollback <step of a checkpoint>`"
        )
    return load_rollouts(folder), json.loads((folder / "state.json").read_text())


class DamagedBatch(ValueError):
    """The files of a batch are not those that were written: nobody trains it or goes on from it."""


def has_batch(layout: Layout, step: int) -> bool:
    """Whether this batch has been published whole."""
    return layout.batch(step).is_dir()


def published(layout: Layout) -> list[int]:
    """Numbers of all batches in the log, in order."""
    numbers = (path.name.removeprefix("batch_") for path in layout.batches.glob("batch_*"))
    return sorted(int(number) for number in numbers if number.isdigit())


def newest_state(layout: Layout) -> tuple[int, dict | None]:
    """The next batch to form and the orchestrator's state after the one before; (0, None) at first.

    From the log, or from the newest checkpoint if that has made every batch superfluous.
    """
    state = None
    if steps := published(layout):
        with suppress(FileNotFoundError):  # it is being pruned right now
            _, state = read_batch(layout, steps[-1])
    state = state or saved_state(layout)
    return (state["step"] + 1, state) if state else (0, None)


def saved_state(layout: Layout) -> dict | None:
    """The orchestrator's state in the newest checkpoint; None without one."""
    return read_json(newest(layout.checkpoints) / "orchestrator.json")


def prune(layout: Layout, before: int = 0, since: float = math.inf) -> None:
    """Delete the batches before one, which a durable checkpoint has made superfluous, or since one.

    A folder loses its name first: what a crash leaves of it is no batch.
    """
    for step in published(layout):
        if step < before or step >= since:
            folder = layout.batch(step)
            nameless = folder.with_name(f".{folder.name}.pruned")
            if nameless.exists():  # what a crash left of an earlier batch of this number
                shutil.rmtree(nameless)
            folder.rename(nameless)
    for leftover in layout.batches.glob(".batch_*.pruned"):
        shutil.rmtree(leftover, ignore_errors=True)


def end_log(layout: Layout, step: int, reason: str, failed: bool = False) -> None:
    """Announce that batch `step` will never come, and why: the trainer stops at that version."""
    write_json(layout.batches / "END", {"version": step, "reason": reason, "failed": failed})


def log_end(layout: Layout) -> dict:
    """What `end_log` announced: {"version", "reason", "failed"}; empty if nothing."""
    return read_json(layout.batches / "END", {})
