"""`rlbook scale … --check-nodes`: what has to be alike on all nodes of a run, before it starts.

A process on every node of the Ray cluster, or one per trainer process on this machine, started as
those of a run are. Each says what it finds (`rlbook.scale.launch.node`).
"""

import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from tempfile import TemporaryDirectory

from pandas import DataFrame

from rlbook.scale.config import ScaleConfig
from rlbook.scale.launch.dry_run import measure_shape
from rlbook.scale.launch.processes import Report, meeting, visit
from rlbook.scale.plan.budget import GB, Budget, Prompts
from rlbook.scale.process import LOCALHOST, free_port

PROGRAM = "rlbook.scale.launch.node"
SKEW = 2.0  # seconds that clocks may differ
MENDS = {
    "python": "use one environment, at the same path on all nodes",
    "packages": "install the same requirements there",
    "environment": "export it alike before `ray start`: processes inherit that, not the launcher's",
    "folder": "start from a folder that is there on all nodes",
    "run folder": "set run to a folder of a file system that all nodes share",
    "model": "put HF_HOME, or the model's folder, on the shared file system",
    "GPU": "install one driver, and end what else uses the GPUs",
    "memory": "choose nodes with more, or a smaller model",
    "disk": "free some, or set run to another",
    "clock": "run chrony or ntpd there",
    "all-reduce": "open all ports between the nodes; GLOO_SOCKET_IFNAME names the interface",
}
ALIKE = ("python", "packages", "environment", "model", "GPU")
Fault = tuple[str, str, str]  # node, check, what is wrong


def check_nodes(config: ScaleConfig) -> int:
    """Print a row per node and a line per fault; 1 if there is one."""
    folder, device = config.folder.absolute(), config.model.device
    known = folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".nodes-", dir=folder) as scratch:
        argv = [sys.executable, "-m", PROGRAM, scratch, config.model.policy, device]
        if config.launch.engine == "ray":
            from rlbook.scale.launch.cluster import on_every_node

            reports = on_every_node(argv, os.getcwd(), device == "cuda")
        else:
            reports = here([argv] * config.train.processes)
    if not known:
        folder.rmdir()
    budget = Budget(config, measure_shape(config), Prompts(0, 0))
    needed = {"memory": budget.host_memory, "disk": sum(budget.disk.values())}
    faults = [*judged(reports, needed)]
    print(table(reports, faults))
    for node, check, what in faults:
        print(f"\n{node}: {check}: {what}: {MENDS[check]}")
    if not faults:
        print(f"\nnothing speaks against a run on {len(reports)} of these")
    return int(bool(faults))


def here(commands: Sequence[Sequence[str]]) -> list[Report]:
    """The reports of processes on this machine, each by its command line."""
    port, count = free_port(LOCALHOST), len(commands)
    envs = [meeting(rank, count, LOCALHOST, port, rank) for rank in range(count)]
    with ThreadPoolExecutor(count) as threads:
        return [*threads.map(visit, commands, [os.getcwd()] * count, envs)]


def judged(reports: Sequence[Report], needed: Mapping[str, float]) -> Iterator[Fault]:
    """What is wrong on a node, too little there, or not as on most of the others."""
    skew = skews(reports)
    for report in reports:
        for check, what in report.wrong.items():
            yield report.node, check, what
        for check, least in needed.items():
            if (free := report.values.get(check, least)) < least:
                what = f"{free / GB:.1f} GB free, the run needs {least / GB:.3g}"
                yield report.node, check, what
        if abs(off := skew.get(report.node, 0.0)) > SKEW:
            yield report.node, "clock", f"{off:+.1f} s beside the others'"
    for check in ALIKE:
        known = ((one.node, one.values.get(check)) for one in reports)
        found = {
            node: value if isinstance(value, dict) else {check: value}
            for node, value in known
            if value is not None
        }
        for name in sorted({name for own in found.values() for name in own}):
            usual, _ = Counter(own.get(name) for own in found.values()).most_common(1)[0]
            for node, own in found.items():
                if own.get(name) != usual:
                    yield node, check, f"{name} {own.get(name)}, elsewhere {usual}"


def skews(reports: Sequence[Report]) -> dict[str, float]:
    """Seconds of each clock beside the median one, in the round in which it was nearest."""
    times = {one.node: one.values["clock"] for one in reports if "clock" in one.values}
    middles = [median(moments) for moments in zip(*times.values(), strict=True)]
    return {
        node: min((own - middle for own, middle in zip(clock, middles, strict=True)), key=abs)
        for node, clock in times.items()
    }


def table(reports: Sequence[Report], faults: Sequence[Fault]) -> str:
    """A row per node, a column per check."""
    wrong, skew = {(node, check) for node, check, _ in faults}, skews(reports)

    def cell(report: Report, check: str) -> str:
        value = skew.get(report.node) if check == "clock" else report.values.get(check)
        if (report.node, check) in wrong or value is None:
            return "✗" if (report.node, check) in wrong else "–"
        if check in ("memory", "disk"):
            return f"{value / GB:,.0f} GB"
        if isinstance(value, float):
            return f"{value:+.2f} s" if check == "clock" else f"{value:.2f} GB/s"
        if check in ("packages", "environment", "folder"):
            return "alike"
        return str(value["GPUs"] if check == "GPU" else value)

    rows = {one.node: {check: cell(one, check) for check in MENDS} for one in reports}
    return DataFrame.from_dict(rows, orient="index").to_string()
