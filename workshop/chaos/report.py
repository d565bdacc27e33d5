"""What was done to a run, what was looked at afterwards, and what was found."""

import json
import re
import shlex
from bisect import bisect
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any

from rlbook.durable import read_json
from rlbook.jsonl import read_jsonl
from rlbook.manifest import manifest, write_manifest
from rlbook.scale.batch_log import published, read_batch
from rlbook.scale.config import ScaleConfig
from rlbook.scale.generate.vllm_adapter import check_version, chosen_engine, vllm_python
from rlbook.scale.layout import Layout
from rlbook.training.runlog import write_csv
from workshop.chaos.faults import FAULTS
from workshop.chaos.promises import LEFT, last_update, replayable, tickets
from workshop.chaos.run import Chaos, Struck

LOGGED_ONCE = "updates, each logged once and in order"
SAME_VERDICTS = "verdicts that the task gives again"
REPLAYED = "updates replayed from the first policy"
PROMISES = (LOGGED_ONCE, SAME_VERDICTS, REPLAYED)  # said of no run that has broken one


def report(
    chaos: Chaos,
    minutes: float,
    broken: Sequence[str],
    skipped: Sequence[str],
    facts: Mapping[str, Any] = MappingProxyType({}),
) -> dict:
    """All figures of a run under fire, as plain values, and the `facts` of what it ran on."""
    config, layout = chaos.config, chaos.layout
    counts, events = chaos.counts, [row["event"] for row in read_jsonl(layout.log("events"))]
    kills = sum(number for fault, number in counts.items() if fault.startswith("kill"))
    return {
        "engine": chosen_engine(config),
        "generators": config.generate.count,
        **{name: facts[name] for name in ("commit", "versions") if name in facts},
        "ended_at": read_json(layout.status, {}).get("version"),
        "faults": counts,
        "skipped": list(skipped),
        "kills": kills,
        "deaths_seen": events.count("death"),
        "hung_ended": events.count("hung"),
        "asked_again": asked_again((layout.logs / "orchestrator.log").read_text(errors="replace")),
        "minutes": round(minutes, 1),
        "updates": last_update(layout, config),
        **ledger(chaos.kept),
        "replayed": last_update(layout, config) if replayable(config) else 0,
        "broken": list(broken),
        **seconds_lost(chaos.struck, chaos.updates),
    }


def seconds_lost(struck: Sequence[Struck], updates: Sequence[float]) -> dict[str, Any]:
    """What each fault cost: times alone, the median and the worst, in seconds.

    `updates` are the times at which updates were made. A fault has cost whatever the intervals
    between updates, from the one it fell into to the next fault, exceed the usual one: a batch that
    lies ready may hide it at first. Only faults that were alone in their interval tell anything.
    """
    intervals = [later - earlier for earlier, later in pairwise(updates)]
    usual = median(intervals) if intervals else 0.0
    began = [bisect(updates, one.seconds) - 1 for one in struck]
    lost: dict[str, list[float]] = {}
    for one, begin, end in zip(struck, began, [*began[1:], len(intervals)], strict=False):
        if 0 <= begin < end and began.count(begin) == 1:
            excess = sum(intervals[begin:end]) - usual * (end - begin)
            lost.setdefault(one.fault, []).append(max(0.0, excess))
    table = {
        fault: [len(found), round(median(found), 1), round(max(found), 1)]
        for fault, found in lost.items()
    }
    return {"usual_seconds": round(usual, 2), "lost": {f: table[f] for f in FAULTS if f in table}}


def asked_again(log: str) -> int:
    """Prompts that the orchestrator asked once more: after a failure, or after its own restart."""
    opened = re.findall(r"(\d+) prompts were open and are asked again", log)
    return log.count("asked in vain") + sum(map(int, opened))


def ledger(kept: Layout) -> dict[str, Any]:
    """Tickets by what became of them, and how many answers have a verdict."""
    left, trained, answers, state = dict.fromkeys(LEFT, 0), 0, 0, {"next_ticket": 0, "open": {}}
    for step in published(kept):
        rollouts, state = read_batch(kept, step)
        trained, answers = trained + len(tickets(rollouts)), answers + len(rollouts)
        for name in LEFT:
            left[name] += state["statistics"][name]
    open_ = len(state["open"])
    return {
        "tickets": {"drawn": state["next_ticket"], "trained": trained, **left, "open": open_},
        "verdicts": answers,
    }


def markdown(found: dict) -> str:
    """The report for a reader."""
    lost = sum("verdict" in promise or "tickets" in promise for promise in found["broken"])
    state = f"{len(found['broken'])} promises broken" if found["broken"] else "all promises kept"
    drawn, *fates = found["tickets"].items()
    rows = [
        (LOGGED_ONCE, f"{found['updates']:,}"),
        (
            "prompts asked",
            f"{drawn[1]:,}: " + ", ".join(f"{n:,} {name.replace('_', ' ')}" for name, n in fates),
        ),
        (SAME_VERDICTS, f"{found['verdicts']:,}"),
        (
            REPLAYED,
            f"{found['replayed']:,}: the last checkpoint, bit for bit"
            if found["replayed"]
            else "none: only one CPU rank adds up in the same order again",
        ),
        ("deaths that the launcher saw", f"{found['deaths_seen']:,}"),
        ("processes that hung and were ended", f"{found['hung_ended']:,}"),
    ]
    rows = [row for row in rows if not (found["broken"] and row[0] in PROMISES)]
    return "\n".join(
        [
            f"# Chaos: {state}",
            "",
            f"{found['kills']} kills, {found['asked_again']:,} prompts asked again, {lost} "
            f"verdicts lost, in {found['minutes']:g} minutes.",
            *ran_on(found),
            "",
            *table("what was done", "times", found["faults"].items()),
            "",
            *table("what was looked at", "found", rows),
            *costs(found),
            "",
            *(f"Not done: {reason}." for reason in found["skipped"]),
            *(f"* BROKEN: {promise}" for promise in found["broken"]),
        ]
    ).rstrip()


def ran_on(found: dict) -> list[str]:
    """A paragraph on what it was that ran, and how far; nothing for reports that do not say it."""
    if "commit" not in found:
        return []
    versions = ", ".join(f"{name} {number}" for name, number in found["versions"].items())
    return [
        "",
        f"It ended at update {found['ended_at']:,} of {found['updates']:,}, on "
        f"{found['generators']} generators ({found['engine']}); {versions}; "
        f"commit {found['commit']}.",
    ]


def costs(found: dict) -> list[str]:
    """The table of seconds lost; nothing for a run in which no fault was alone."""
    if not found.get("lost"):
        return []
    rows = ((fault, " | ".join(f"{n:g}" for n in row)) for fault, row in found["lost"].items())
    usual = f"beyond the usual {found['usual_seconds']:g} between two updates"
    heading = f"Seconds that a fault cost, {usual}, where it was the only one:"
    return ["", heading, "", *table("fault", "times | median | worst", rows)]


def table(left: str, right: str, rows) -> list[str]:
    """A Markdown table: names, and one or more figures of each."""
    return [
        f"| {left} | {right} |",
        "| --- " + "| ---: " * (1 + right.count("|")) + "|",
        *(f"| {name} | {value} |" for name, value in rows),
    ]


def write_report(chaos: Chaos, found: dict, folder: Path, facts: dict) -> Path:
    """`long_run.json`, `.md` and `.csv` (every strike) with their manifest; returns the folder.

    Of faults that came alone it is `alone.json` and so on, of a run with vLLM `vllm_long_run.json`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    engine = "vllm_" if found["engine"] == "vllm" else ""
    name = engine + ("alone" if chaos.in_turn else "long_run")
    paths = [folder / f"{name}.{kind}" for kind in ("json", "md", "csv")]
    paths[0].write_text(json.dumps(found, indent=2) + "\n")
    paths[1].write_text(markdown(found) + "\n")
    write_csv(paths[2], chaos.rows)
    run = {
        "config": chaos.path.name,
        "overrides": [*chaos.overrides[:-1]],
        "seconds": round(60 * found["minutes"]),
    }
    write_manifest(folder / f"{name}.manifest.json", {**facts, **run}, paths)
    return folder


def facts_of(seed: int, words: Sequence[str], config: ScaleConfig) -> dict[str, Any]:
    """What produced the report; vLLM may be in an environment of its own."""
    command = shlex.join(["python", "-m", "workshop.chaos", *words])
    facts = manifest(command=command, seed=seed)
    python = vllm_python(config.generate.python, config.model.device)
    if python and chosen_engine(config) == "vllm":
        facts["versions"] |= {"vllm": check_version(python)}
    return facts
