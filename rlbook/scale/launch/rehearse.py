"""`rlbook rehearse`: three updates of a run and two deaths, before it is started in earnest."""

import os
import re
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean, median
from textwrap import indent

import yaml
from pandas import DataFrame

from rlbook.durable import replace_text
from rlbook.jsonl import read_jsonl
from rlbook.scale.batch_log import published, read_batch
from rlbook.scale.config import ScaleConfig
from rlbook.scale.launch.dry_run import measure_prompts, measure_shape
from rlbook.scale.launch.start import Interrupted, launch
from rlbook.scale.launch.supervisor import Supervisor, TooManyDeaths, say
from rlbook.scale.layout import Layout
from rlbook.scale.plan.budget import Budget

UPDATES = 3
VICTIMS = ("trainer", "generator0")  # killed once an update is made
BUSY = 0.5  # share of the cores that others may keep busy where speeds are to be believed


def rehearse(config: ScaleConfig, file: Path) -> int:
    """Make a run's first updates in a folder beside its own; 0 if it went on after both deaths.

    Says what was measured beside the plan. If it went on, and on a machine that nobody else keeps
    busy, the settings' `file` gets the `budget` that it should have; otherwise that is printed. The
    folder with all its logs stays.
    """
    others = kept_busy()
    name = time.strftime("rehearsal-%Y%m%d-%H%M%S")
    config = config.replace(
        run=str(config.folder.with_name(f"{config.folder.name}-{name}")),
        steps=UPDATES,
        evaluation={"every": 0},
        checkpoint={"every": 1, "keep": 2},
    )
    layout = Layout(config.folder)
    killer = Killer(layout)
    try:
        launch(config, tick=killer)
    except (TooManyDeaths, Interrupted) as error:
        say(f"stopped: {error}; logs in {layout.logs}")
        return 1
    budget = Budget(config, measure_shape(config), measure_prompts(config))
    found, failed = measured(layout, budget), len(killer.killed) < len(VICTIMS)
    planned = {
        "update_seconds": budget.update_seconds,
        "decode_seconds": budget.decode_seconds,
        "push_gb": config.budget.push_gb,
        "mean_tokens": budget.lengths.expected,
    }
    table = DataFrame({"measured": found, "planned": planned})
    print(f"\n{table.to_string(float_format='{:.3g}'.format)}")
    dead = " and ".join(killer.killed) or "nobody, for the run was over too soon"
    print(f"\nkilled: {dead}; next update after {killer.lost:.0f} s")
    if failed or others:
        print(f"\nWhat the plan should know{others}:\n\n{yaml.safe_dump({'budget': found})}")
    else:
        replace_text(file, with_budget(file.read_text(), found))
        print(f"\nwrote what was measured into the budget of {file}")
    return int(failed)


def kept_busy() -> str:
    """That others keep this machine so busy that no speed measured here is the run's own."""
    load, cores = os.getloadavg()[1], os.cpu_count() or 1
    if load <= BUSY * cores:
        return ""
    return (
        f", measured again: in the minutes before, others kept {load:.1f} of {cores} cores busy, "
        "so these speeds are not written into the file"
    )


def with_budget(text: str, found: Mapping[str, float]) -> str:
    """The text of a settings file with these values in its `budget`; all else is as it was."""
    text = re.sub(rf"^[ \t]+({'|'.join(found)}):.*\n", "", text, flags=re.M)
    if not re.search(r"^budget:", text, re.M):
        text += "\nbudget:\n"
    first = re.search(r"^budget:.*\n(?:[ \t]*(?:#.*)?\n)*([ \t]+)\w", text, re.M)
    lines = indent(yaml.safe_dump(dict(found), sort_keys=False), first[1] if first else "  ")
    return re.sub(r"^budget:.*\n", rf"\g<0>{lines}", text, flags=re.M)


class Killer:
    """Called after every look of the supervisor: kills the victims once there is a version.

    `lost` are the seconds from then to the next one.
    """

    def __init__(self, layout: Layout):
        self.layout = layout
        self.killed: list[str] = []
        self.version, self.since, self.lost = 0, 0.0, 0.0

    def __call__(self, supervisor: Supervisor) -> None:
        version = self.layout.trained()
        if version and not self.killed:
            self.version, self.since = version, time.monotonic()
        if version <= self.version:
            self.lost = time.monotonic() - self.since
        for one in supervisor.watched if version else ():
            if one.name in VICTIMS and one.name not in self.killed and one.processes:
                self.killed.append(one.name)
                one.signal(signal.SIGKILL)


def measured(layout: Layout, budget: Budget) -> dict[str, float]:
    """Settings of `budget` by what the last updates took; the first one also warms up."""
    trained, sampled = (read_jsonl(layout.log(name))[1:] for name in ("metrics", "rollouts"))
    pushes = [row["push_seconds"] for row in trained if row["push_seconds"] > 0]
    rate = budget.config.budget.push_gb
    found = {
        "update_seconds": median(row["train_seconds"] for row in trained),
        "decode_seconds": decode_seconds(layout, sampled[-1]["group_seconds"]),
        "push_gb": rate * budget.push_seconds / median(pushes) if pushes else rate,
    }
    tokens = round(fmean(row["length"] for row in sampled))
    return {name: float(f"{n:.3g}") for name, n in found.items()} | {"mean_tokens": tokens}


def decode_seconds(layout: Layout, group_seconds: float) -> float:
    """Of a token, at most: a group takes as long as its longest answer, and its verdicts."""
    rollouts, _ = read_batch(layout, published(layout)[-1])  # three updates were made
    groups = {rollout.group for rollout in rollouts}
    return group_seconds / fmean(max(r.length for r in rollouts if r.group == g) for g in groups)
