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


@dataclass(frozen=True)
class Layout:
    """Paths inside one run folder."""

    root: Path

    @property
    def config(self) -> Path:
        """Settings of the run."""
        return self.root / "config.yaml"

    @property
    def spool(self) -> Path:
        """The batch log: a folder per batch, and END."""
        return self.root / "spool"

    @property
    def weights(self) -> Path:
        """Folders of published weights."""
        return self.root / "weights"

    @property
    def checkpoints(self) -> Path:
        """Folder of step_000020/ and latest: the run's own, as for `rlbook train`."""
        return self.root

    @property
    def status(self) -> Path:
        """How far the trainer is."""
        return self.root / "status.json"

    @property
    def servers(self) -> Path:
        """Addresses of the servers, a file each."""
        return self.root / "servers"

    def server(self, name: str) -> Path:
        """Address of one server."""
        return self.servers / f"{name}.json"

    @property
    def run_id(self) -> Path:
        """Tells this run's weights from another's."""
        return self.root / "run_id"

    @property
    def processes(self) -> Path:
        """Processes of the launcher."""
        return self.root / "processes.json"

    @property
    def sent(self) -> Path:
        """The last rows that the sinks have."""
        return self.root / "sent.json"

    @property
    def pinned(self) -> Path:
        """Names the generator that an evaluation has to itself."""
        return self.root / "pinned"

    def alive(self, name: str) -> Path:
        """Sign of life of a process."""
        return self.root / "alive" / name

    @property
    def logs(self) -> Path:
        """What the processes print."""
        return self.root / "logs"

    @property
    def report(self) -> Path:
        """The report of the run."""
        return self.root / "report.html"

    def log(self, name: str) -> Path:
        """`metrics`, `rollouts`, `samples`, `eval` or `events`: rows as JSON lines."""
        return self.root / f"{name}.jsonl"

    def batch(self, step: int) -> Path:
        """Rollouts of update `step`."""
        return self.spool / f"batch_{step:06d}"

    def version(self, version: int) -> Path:
        """Weights of one version."""
        return self.weights / f"v{version:06d}"
