"""`python -m rlbook`: train, scale, export, pretrain, experiments, bench and book."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import tyro
from pydantic import ValidationError

from rlbook.tiny.pretrain import PretrainConfig
from rlbook.training.config import TrainConfig

app = tyro.extras.SubcommandApp()


@app.command
def train(
    config: Annotated[TrainConfig, tyro.conf.arg(name="")],
    out: Path = Path("runs/train"),
    save_every: int = 20,
    resume: bool = False,
    tensorboard: bool = False,
) -> None:
    """Train a policy with one of the book's methods and write its log and checkpoints.

    Args:
        config: Settings of the run.
        out: Folder of the run log and the checkpoints.
        save_every: Steps between checkpoints.
        resume: Continue the run in `out` with its own settings.
        tensorboard: Also log to TensorBoard.
    """
    from rlbook.policy import set_threads
    from rlbook.training import RunLog, Trainer

    set_threads()
    trainer = Trainer.resume(out) if resume else Trainer(config)
    log = RunLog(out, trainer.step, tensorboard)
    for metrics in trainer.progress(f"{trainer.method.name} on {trainer.task.name}"):
        log(metrics)
        if trainer.step % save_every == 0 or trainer.step == trainer.config.steps:
            trainer.save(out)
    log.close()
    print(f"{trainer.step} steps; log in {log.path}, checkpoints in {out}")


@app.command
def experiments(
    name: tyro.conf.Positional[str] = "list",
    seeds: tuple[int, ...] | None = None,
    workers: int = 0,
) -> None:
    """Run a reference experiment (resumable) and write its tables to data/results.

    Args:
        name: Experiment to run; `list` prints them all.
        seeds: Seeds to run; the experiment's own if absent.
        workers: Processes, one thread each; 0 means one per core.
    """
    from rlbook.experiments import EXPERIMENTS, run_experiment

    if name == "list":
        for key, experiment in EXPERIMENTS.items():
            print(f"{key:<14} {experiment.question}")
    else:
        print(f"wrote {run_experiment(name, seeds, workers)}")


@app.command
def pretrain(config: Annotated[PretrainConfig, tyro.conf.arg(name="")]) -> None:
    """Make the tiny base model of `data/tiny-sums` again, from nothing but a seed.

    Args:
        config: Settings of the run; the defaults made the committed model.
    """
    from rlbook.tiny.pretrain import pretrain as make_base
    from rlbook.tiny.pretrain import print_progress

    make_base(config, print_progress)


@app.command
def bench(parts: tyro.conf.Positional[tuple[str, ...]] = (), size: str = "full") -> None:
    """Measure the package against its peers and this machine; results in data/results/bench.

    Args:
        parts: Parts to run, all if none is named.
        size: `full`, or `smoke` to see only that they run.
    """
    from rlbook.bench import PARTS
    from rlbook.bench import main as run_parts
    from rlbook.policy import set_threads

    set_threads()
    for path in run_parts(parts or tuple(PARTS), size):
        print(f"wrote {path}")


@app.command
def scale(
    config: tyro.conf.Positional[Path],
    overrides: Annotated[tuple[str, ...], tyro.conf.arg(name="set")] = (),
    dry_run: bool = False,
    resume: bool = False,
    report: bool = False,
    role: Literal["all", "trainer", "generators"] = "all",
) -> None:
    """Train asynchronously with generator servers, an orchestrator and FSDP2 trainers.

    Args:
        config: YAML file of settings; examples in `configs`, a run's own is its `config.yaml`.
        overrides: Settings to replace, as `section.field=value`.
        dry_run: Print memory, time, staleness and GPU-hours, and start nothing.
        resume: Go on with the run in the folder that the settings name.
        report: Write that folder's report.html, and start nothing.
        role: What this machine runs, if there are several: see `rlbook.scale.commands`.
    """
    from rlbook.scale.config import load_config

    settings = load_config(config, overrides)
    if dry_run:
        from rlbook.scale.dry_run import dry_run as plan

        print(plan(settings))
        return
    code = 0
    if not report:
        from rlbook.scale.launch import scale as run

        code = run(settings, resume, role)
    if role == "all":
        from rlbook.viz.report import write_report

        print(f"wrote {write_report(settings.folder)}")
    sys.exit(code)


@app.command
def export(run: tyro.conf.Positional[Path], folder: tyro.conf.Positional[Path]) -> None:
    """Write the newest checkpoint of a full-scale run as an ordinary Hugging Face model folder.

    Args:
        run: Folder of the run.
        folder: Folder to write, which must be new.
    """
    from rlbook.scale.checkpoint import export as write

    print(f"wrote {write(run, folder)}")


@app.command
def book(chapters: tyro.conf.Positional[tuple[Path, ...]] = ()) -> None:
    """Execute chapters top to bottom and refresh their outputs.

    Args:
        chapters: Notebooks to execute, the whole book if none is named.
    """
    from rlbook.book import build

    if not build(list(chapters)):
        sys.exit(1)


def main() -> None:
    try:
        app.cli(prog="rlbook")
    except ValidationError as error:
        for problem in error.errors():
            field = ".".join(map(str, problem["loc"])) or "settings"
            print(f"rlbook: {field}: {problem['msg']}", file=sys.stderr)
        sys.exit(2)
    except (ValueError, FileNotFoundError, FileExistsError, ImportError) as error:
        print(f"rlbook: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
