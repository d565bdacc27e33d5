"""Opening a run folder: made once, continued by settings that agree, one launcher at a time."""

import fcntl
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from rlbook.durable import read_json, replace_text, write_json
from rlbook.scale.config import ScaleConfig, dump_config, load_config
from rlbook.scale.layout import Layout
from rlbook.training.resume import fixed_differences

# What a resumed run may change: how long it goes on, where it runs, what it may use, how it is
# watched. Up to rounding, nothing of it decides what is learnt, as `evaluation.prompts` does:
# training leaves held-out problems out.
RESUMABLE = (
    *("run", "steps", "sinks", "launch", "checkpoint", "budget", "model.device"),
    *("evaluation.every", "evaluation.samples", "evaluation.sets"),
    "optimizer.micro_batch_tokens",
    *("generate.python", "generate.count", "generate.token", "generate.tensor_parallel"),
    *("generate.colocated", "generate.gpu_memory"),
    *("generate.slots", "generate.transport", "generate.timeout", "generate.verifiers"),
    "generate.vllm",
    *("train.processes", "train.activation_checkpointing", "train.accumulate"),
)


def open_run(layout: Layout, config: ScaleConfig, resume: bool = False) -> None:
    """Make the run folder, or check that `config` continues the run in it.

    Raises `ValueError` for a folder that is taken, nothing to resume, or settings that differ (it
    names them).
    """
    if resume:
        check_resume(layout, config)
        reopen(layout, config.steps)
    elif layout.config.exists():
        raise ValueError(
            f"{layout.root} already holds a run: continue it with --resume, or choose another "
            "folder with run=…"
        )
    layout.root.mkdir(parents=True, exist_ok=True)
    replace_text(layout.config, dump_config(config), mode=0o600)  # it holds the servers' secret
    shutil.rmtree(layout.servers, ignore_errors=True)  # those of an earlier start
    layout.pinned.unlink(missing_ok=True)
    if not layout.run_id.exists():
        replace_text(layout.run_id, secrets.token_hex(4))


def check_resume(layout: Layout, config: ScaleConfig) -> None:
    """Raises `ValueError` naming the settings in which `config` differs from the run's own."""
    if not layout.config.exists():
        raise ValueError(f"{layout.root} holds no run to resume: leave --resume out to start one")
    saved = load_config(layout.config)
    changed = [
        f"{name} was {old!r}, is {new!r}"
        for name, (old, new) in fixed_differences(saved, config, RESUMABLE).items()
    ]
    if changed:
        raise ValueError(
            f"the run in {layout.root} was started with other settings ({'; '.join(changed)}). "
            f"These may change: {', '.join(RESUMABLE)}. Resume {layout.config} without the others, "
            "or start a new run with run=…"
        )


def reopen(layout: Layout, updates: int) -> None:
    """A finished run that is given more updates is no longer done."""
    status = read_json(layout.status, {})
    if status.get("done") and status["version"] < updates:
        write_json(layout.status, {**status, "done": False})


@contextmanager
def one_launcher(layout: Layout) -> Iterator[None]:
    """Hold the folder; the system lets go of it when the process ends, however it ends.

    Raises `ValueError` if another launcher holds it.
    """
    layout.root.mkdir(parents=True, exist_ok=True)
    with (layout.root / ".launcher.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"another launcher is at work in {layout.root}: stop it") from None
        yield
