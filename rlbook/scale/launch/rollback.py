"""Going back to an older checkpoint of a run."""

import shutil
import time

from rlbook.durable import damage, read_json, replace_text, write_json
from rlbook.scale.batch_log import remove_batches
from rlbook.scale.layout import Layout
from rlbook.scale.train.checkpoint import step_folders
from rlbook.training import RunLog
from rlbook.training.checkpoint import LATEST

LOGS = ("metrics", "rollouts", "eval", "samples")


def roll_back(layout: Layout, step: int) -> None:
    """Make the checkpoint of update `step` the newest, as if the run had not gone on from there.

    Later checkpoints are set aside as `step_….undone`; later batches, weights and rows of logs go:
    new prompts are asked, so the run does not repeat what it is to forget. Nothing may be running.
    Raises `ValueError` for a step that is not kept, or damaged.
    """
    folders = step_folders(layout.checkpoints)
    kept = {int(folder.name.removeprefix("step_")): folder for folder in folders}
    if step not in kept:
        steps = ", ".join(map(str, kept)) or "none"
        raise ValueError(f"{layout.root} keeps no checkpoint of update {step}: it has {steps}")
    if found := damage(kept[step]):
        raise ValueError(f"{kept[step]} is damaged ({found}): choose another step")
    replace_text(layout.checkpoints / LATEST, f"{kept[step].name}\n")
    remove_batches(layout, lambda batch: batch >= step)
    (layout.spool / "END").unlink(missing_ok=True)
    for later, folder in kept.items():
        if later > step:
            undone = folder.with_name(f"{folder.name}.undone")
            shutil.rmtree(undone, ignore_errors=True)
            folder.rename(undone)
    for name in LOGS:
        if layout.log(name).exists():
            RunLog(layout.root, step, name=name).close()
    sent = read_json(layout.sent, {})
    write_json(layout.sent, {log: min(last, step) for log, last in sent.items()})
    write_json(layout.status, {"version": step, "done": False, "time": time.time()})
