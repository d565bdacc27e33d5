"""Where a run keeps its things, and the two ways in which processes publish them.

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

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CHECKSUMS = "checksums.json"  # SHA-256 of a folder's other files


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


def write_json(path: Path, value: Any) -> None:
    """Replace a small JSON file in one step: see `replace_text`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, json.dumps(value))


def replace_text(path: Path, text: str, mode: int = 0o666) -> None:
    """Replace a file in one step, also if the machine loses power: old or new, never half.

    `mode` says who may read it, as in `open(2)`.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    partial.unlink(missing_ok=True)
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as file:
        file.write(text)
    sync_to_disk(partial)
    os.replace(partial, path)
    sync_to_disk(path.parent)


def read_json(path: Path, default: Any = None) -> Any:
    """The file's content, or `default` if it does not exist yet, or is torn."""
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, json.JSONDecodeError, UnicodeDecodeError):
        return default


def publish_folder(final: Path, write: Callable[[Path], None], durable: bool = True) -> Path:
    """Let `write` fill a scratch folder, make it durable, then give it its final name.

    A folder under its final name is complete, whenever the writer was killed; if it is `durable`,
    also if the machine lost power.
    """
    partial = final.with_name(f".{final.name}.{os.getpid()}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        write(partial)
        for path in (*partial.rglob("*"), partial) if durable else ():
            sync_to_disk(path)
        shutil.rmtree(final, ignore_errors=True)
        os.replace(partial, final)
        if durable:
            sync_to_disk(final.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return final


def sync_to_disk(path: Path) -> None:
    """Wait until a file or folder would outlive a loss of power."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def checksums(folder: Path) -> dict[str, str]:
    """SHA-256 of every file in a folder, but of these themselves."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {
        str(path.relative_to(folder)): checksum(path) for path in files if path.name != CHECKSUMS
    }


def checksum(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def damage(folder: Path, part: int = 0, parts: int = 1) -> str | None:
    """What is wrong with a folder's files; None if they are as they were written.

    Those who look together take every `parts`-th file each.
    """
    known = read_json(folder / CHECKSUMS)
    if known is None:
        return f"no {CHECKSUMS}"
    names = sorted(known)[part::parts]
    changed = [name for name in names if not unchanged(folder / name, known[name])]
    return f"changed or missing: {', '.join(changed)}" if changed else None


def unchanged(path: Path, known: str) -> bool:
    """Whether a file is there with this SHA-256."""
    return path.is_file() and checksum(path) == known
