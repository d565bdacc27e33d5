"""Where a run keeps its things.

<run>/config.yaml           settings
<run>/spool/batch_000012/   rollouts of update 12: a log that is replayed after a crash
<run>/spool/END             no further batch will come: the version at which to stop, and why
<run>/weights/v000012/      weights after 12 updates, for generators that read files
<run>/step_000020/          checkpoint after 20 updates: a Hugging Face folder and more
<run>/latest                names the newest checkpoint
<run>/status.json           the trainer's version, and whether the run is done
<run>/events.jsonl          a row per start, death and end of a process (launcher)
<run>/processes.json        process ids by name (launcher)
<run>/alive/<process>       its sign of life: see `rlbook.scale.process.Heartbeat`
<run>/pinned                the generator that an evaluation has to itself (orchestrator)
<run>/run_id                tells this run's weights from another's
<run>/servers/<name>.json   a generator's URL, which it writes itself
<run>/metrics.jsonl         a row per update (trainer)
<run>/rollouts.jsonl        a row per batch (orchestrator)
<run>/samples.jsonl         some answers of every batch, to be read (orchestrator)
<run>/eval.jsonl            a row per evaluation and set of problems (orchestrator)
<run>/sent.json             the last row of each that the sinks have (launcher)
<run>/logs/<process>.log    what each process printed
<run>/report.html           the report
"""

from dataclasses import dataclass
from pathlib import Path

from rlbook.durable import read_json as read_json
from rlbook.durable import sync_to_disk as sync_to_disk
from rlbook.durable import write_json as write_json


class Inside:
    """A path in the run folder, of this name."""

    def __init__(self, name: str):
        self.name = name

    def __get__(self, layout: "Layout", owner: type) -> Path:
        return layout.root / self.name


@dataclass(frozen=True)
class Layout:
    """Paths inside one run folder."""

    root: Path

    config = Inside("config.yaml")
    spool = Inside("spool")
    weights = Inside("weights")
    checkpoints = Inside("")  # the run folder itself, as for `rlbook train`
    status = Inside("status.json")
    servers = Inside("servers")
    run_id = Inside("run_id")
    processes = Inside("processes.json")
    sent = Inside("sent.json")
    pinned = Inside("pinned")
    logs = Inside("logs")
    report = Inside("report.html")

    def server(self, name: str) -> Path:
        """Address of one server."""
        return self.servers / f"{name}.json"

    def alive(self, name: str) -> Path:
        """Sign of life of a process."""
        return self.root / "alive" / name

    def log(self, name: str) -> Path:
        """`metrics`, `rollouts`, `samples`, `eval` or `events`: rows as JSON lines."""
        return self.root / f"{name}.jsonl"

    def batch(self, step: int) -> Path:
        """Rollouts of update `step`."""
        return self.spool / f"batch_{step:06d}"

    def version(self, version: int) -> Path:
        """Weights of one version."""
        return self.weights / f"v{version:06d}"
