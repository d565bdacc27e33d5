"""Where a run keeps its things, and with which settings it may be opened again.

<run>/config.yaml           settings
<run>/batches/batch_000012/   rollouts of update 12: a log that is replayed after a crash
<run>/batches/END             no further batch will come: the version at which to stop, and why
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

import secrets
import shutil
from pathlib import Path

from rlbook.durable import read_json, replace_text, write_json
from rlbook.scale.config import ScaleConfig, dump_config, load_config
from rlbook.training.resume import fixed_differences

# What a resumed run may change: how long it goes on, where it runs, what it may use, how it is
# watched. Up to rounding, nothing of it decides what is learnt, as `evaluation.prompts` does:
# training leaves held-out problems out.
RESUMABLE = (
    *("run", "steps", "sinks", "launch", "checkpoint", "budget", "model.device"),
    *("evaluation.every", "evaluation.samples", "evaluation.sets"),
    *("optimizer.micro_batch_tokens", "generate.python", "generate.count", "generate.token"),
    *("generate.tensor_parallel", "generate.colocated", "generate.gpu_memory", "generate.slots"),
    *("generate.transport", "generate.timeout", "generate.verifiers", "generate.vllm"),
    *("train.processes", "train.shard", "train.activation_checkpointing", "train.accumulate"),
    *("train.compile_layers", "train.compile_head"),
)
ROLLED_BACK = ("optimizer.lr",)  # settings that may be others after a rollback, besides those


class Layout:
    """Paths inside one run folder, and how far the run has come."""

    def __init__(self, root: Path):
        self.root = self.checkpoints = root  # checkpoints as for `rlbook train`
        self.config, self.run_id = root / "config.yaml", root / "run_id"
        self.status, self.processes = root / "status.json", root / "processes.json"
        self.sent, self.report = root / "sent.json", root / "report.html"
        self.batches, self.weights = root / "batches", root / "weights"
        self.servers, self.logs, self.pinned = root / "servers", root / "logs", root / "pinned"

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
        return self.batches / f"batch_{step:06d}"

    def version(self, version: int) -> Path:
        """Weights of one version."""
        return self.weights / f"v{version:06d}"

    def trained(self) -> int:
        """The version that the trainer has made, as it says itself; 0 before it says so."""
        return read_json(self.status, {}).get("version", 0)


def check_same_settings(layout: Layout, config: ScaleConfig, *changeable: str) -> None:
    """Raise `ValueError`, naming them, for settings that a run cannot go on with.

    Those `RESUMABLE` and `changeable` may be others. It raises also where there is no run.
    """
    if not layout.config.exists():
        raise ValueError(f"{layout.root} holds no run to resume: leave --resume out to start one")
    saved = load_config(layout.config)
    differing = fixed_differences(saved, config, (*RESUMABLE, *changeable))
    changed = [f"{name} was {old!r}, is {new!r}" for name, (old, new) in differing.items()]
    if changed:
        raise ValueError(
            f"the run in {layout.root} was started with other settings ({'; '.join(changed)}): "
            f"resume {layout.config} without these, or start a new run with run=…"
        )


def open_run(
    layout: Layout, config: ScaleConfig, resume: bool = False, rolled_back: bool = False
) -> None:
    """Make the run folder, or check that `config` continues the run in it.

    Raises `ValueError` for a folder that is taken, nothing to resume, or settings that differ (it
    names them). A run that is `rolled_back` is resumed, and may have another `ROLLED_BACK` too.
    """
    if layout.config.exists() and not (resume or rolled_back):
        raise ValueError(f"{layout.root} already holds a run: add --resume, or take another run=…")
    if resume or rolled_back:
        check_same_settings(layout, config, *(ROLLED_BACK if rolled_back else ()))
        status = read_json(layout.status, {})
        if status.get("done") and status["version"] < config.steps:  # it is given more to do
            write_json(layout.status, {**status, "done": False})
    layout.root.mkdir(parents=True, exist_ok=True)
    replace_text(layout.config, dump_config(config), mode=0o600)  # it holds the servers' secret
    shutil.rmtree(layout.servers, ignore_errors=True)  # those of an earlier start
    layout.pinned.unlink(missing_ok=True)
    if not layout.run_id.exists():
        replace_text(layout.run_id, secrets.token_hex(4))
