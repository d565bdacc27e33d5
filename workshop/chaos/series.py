"""Several runs under fire told as one: `python -m workshop.chaos.series data/results/chaos/vllm_*`.

Each is a folder as `--out` names it; `vllm.md` is written beside them, with its manifest.
"""

import csv
import json
import shlex
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median

from rlbook.manifest import SUFFIX, manifest, write_manifest
from workshop.chaos.faults import FAULTS
from workshop.chaos.report import table

NAME = "vllm_long_run"


def summary(folders: Sequence[Path]) -> str:
    """The sums over all runs, and each run's own figures."""
    runs = [json.loads((folder / f"{NAME}.json").read_text()) for folder in folders]
    facts = [json.loads((folder / f"{NAME}{SUFFIX}").read_text()) for folder in folders]
    faults: Counter[str] = sum((Counter(run["faults"]) for run in runs), Counter())
    tickets = Counter[str]()
    for run in runs:
        tickets.update(run["tickets"])
    drawn = tickets.pop("drawn")
    broken = [
        f"{f.name}: {promise}"
        for f, run in zip(folders, runs, strict=True)
        for promise in run["broken"]
    ]
    skipped = [
        (fact, f"not done: {reason}")
        for fact, run in zip(facts, runs, strict=True)
        for reason in run["skipped"]
    ]
    hung = sum(number for fault, number in faults.items() if fault.startswith("hang"))
    versions = ", ".join(f"{name} {number}" for name, number in runs[0]["versions"].items())
    own = [
        (
            fact["seed"],
            f"{steps_of(fact):,} | {run['ended_at']:,} | {run['kills']} | {run['minutes']:g} | "
            f"{fact['commit']}",
        )
        for fact, run in zip(facts, runs, strict=True)
    ]
    looked = [
        ("updates, each logged once and in order", f"{total(runs, 'updates'):,}"),
        (
            "prompts asked",
            f"{drawn:,}: "
            + ", ".join(f"{n:,} {name.replace('_', ' ')}" for name, n in tickets.items()),
        ),
        ("verdicts that the task gives again", f"{total(runs, 'verdicts'):,}"),
        (
            "updates replayed, each run's last checkpoint bit for bit",
            f"{total(runs, 'replayed'):,}",
        ),
        ("deaths that the launcher saw", f"{total(runs, 'deaths_seen'):,}"),
        (
            "processes without a sign of life that were ended, slow to load or hung",
            f"{total(runs, 'hung_ended'):,}",
        ),
    ]
    state = f"{len(broken)} promises broken" if broken else "all promises kept"
    return "\n".join(
        [
            f"# Chaos with vLLM: {state}",
            "",
            f"{total(runs, 'kills')} kills and {hung} processes stopped for good in {len(runs)} "
            f"runs, {total(runs, 'asked_again'):,} prompts asked again. {versions}.",
            "",
            *table("seed", "updates asked for | ended at | kills | minutes | commit", own),
            "",
            *table("what was done", "times", [(f, faults[f]) for f in FAULTS if faults[f]]),
            "",
            *table("what was looked at", "found", [] if broken else looked),
            "",
            "Seconds that a fault cost until the next one, beyond the usual time of the updates "
            "made meanwhile, where updates were made before it and after it:",
            "",
            *table("fault", "times | median | worst", cost_rows(folders, runs)),
            "",
            *(f"Seed {fact['seed']}: {why}." for fact, why in skipped),
            *(f"* BROKEN: {promise}" for promise in broken),
        ]
    ).rstrip()


def costs(strikes: Sequence[Mapping[str, str]], usual: float) -> dict[str, list[float]]:
    """Seconds that strikes of one run cost, by fault: time to the next one, less `usual` an update.

    Only those count between which and their neighbours updates were made. Whoever hangs is out for
    longer than that, and whatever comes next costs more meanwhile.
    """
    told = [(float(row["seconds"]), row["fault"], int(row["version"] or -1)) for row in strikes]
    found: dict[str, list[float]] = {}
    for before, (begin, fault, version), after in zip(
        [(0.0, "", -1), *told], told, told[1:], strict=False
    ):
        if before[2] < version < after[2]:
            lost = after[0] - begin - usual * (after[2] - version)
            found.setdefault(fault, []).append(max(0.0, lost))
    return found


def cost_rows(folders: Sequence[Path], runs: Sequence[dict]) -> Iterator[tuple[str, str]]:
    """By fault: how often it was alone, and the median and the worst of what it cost."""
    found: dict[str, list[float]] = {}
    for folder, run in zip(folders, runs, strict=True):
        with (folder / f"{NAME}.csv").open() as file:
            own = costs(list(csv.DictReader(file)), run["usual_seconds"])
        for fault, seconds in own.items():
            found.setdefault(fault, []).extend(seconds)
    for fault in FAULTS:
        if lost := found.get(fault):
            yield fault, f"{len(lost)} | {median(lost):.1f} | {max(lost):.1f}"


def steps_of(facts: dict) -> int:
    """The updates that a run's settings asked for."""
    (steps,) = (word for word in facts["overrides"] if word.startswith("steps="))
    return int(steps.removeprefix("steps="))


def total(runs: Sequence[dict], name: str) -> int:
    """The sum of a figure over all runs."""
    return sum(run[name] for run in runs)


def main() -> None:
    """Write the report of the folders on the command line."""
    folders = sorted(map(Path, sys.argv[1:]))
    report = folders[0].parent / "vllm.md"
    command = shlex.join(["python", "-m", "workshop.chaos.series", *sys.argv[1:]])
    told = [json.loads((folder / f"{NAME}{SUFFIX}").read_text()) for folder in folders]
    facts = manifest(command=command, seconds=total(told, "seconds"))
    report.write_text(summary(folders) + "\n")
    write_manifest(report.with_suffix(SUFFIX), facts, [report])
    print(f"wrote {report}")


if __name__ == "__main__":
    main()
