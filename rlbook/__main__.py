"""`python -m rlbook`: train, scale, doctor, eval, fit, methods, export, experiments, book …"""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Literal

import tyro
from pydantic import ValidationError
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from rlbook.objectives import Method
from rlbook.tiny.pretrain import PretrainConfig
from rlbook.training.checkpoint import LATEST, read_state
from rlbook.training.config import (
    RunConfig,
    apply_override,
    dump_config,
    explain,
    find_section,
    load_config,
)

app = tyro.extras.SubcommandApp()
registry = ConstructorRegistry()
RUN = Path("runs/train")


@registry.primitive_rule
def method_by_name(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
    """A method on the command line is the name of its row."""
    if info.type is not Method:
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="ROW",
        instance_from_str=lambda words: Method.from_dict(words[0]),
        is_instance=lambda value: isinstance(value, Method),
        str_from_instance=lambda method: [method.name],
    )


def train_command(default: RunConfig, overrides: Sequence[str]) -> Callable[..., None]:
    """The command `train`, its flags showing these settings."""

    def train(
        config: Annotated[RunConfig, tyro.conf.arg(name="")] = default,
        out: Path = RUN,
        save_every: int = 20,
        resume: bool = False,
    ) -> None:
        """Train a policy with one of the book's methods and write its log and checkpoints.

        `rlbook train [settings.yaml]` starts from the settings in a file, such as a run's own
        config.yaml. A section's name may be left out where that is clear (`--lr 3e-4`), and every
        choice of a method can be changed: `--method grpo --method.trust-region.high 0.28`.

        Args:
            config: Settings of the run.
            out: Folder of the run log and the checkpoints; a new one, unless --resume.
            save_every: Steps between checkpoints.
            resume: Continue the run in `out`; only how long and where it runs may change.
        """
        from rlbook.policy import set_threads
        from rlbook.training import RunLog, Trainer
        from rlbook.training.sinks import Sinks

        set_threads()
        config = with_overrides(config, overrides)
        if resume:
            trainer = Trainer.resume(out, config)
        else:
            refuse_existing_run(out)
            trainer = Trainer(config)
        log, sinks = RunLog(out, trainer.step), Sinks(config.sinks, out)
        (out / "config.yaml").write_text(dump_config(config))
        for metrics in trainer.progress(f"{trainer.method.name} on {trainer.task.name}"):
            log(metrics)
            sinks("metrics", metrics)
            if trainer.step % save_every == 0 or trainer.step == config.steps:
                trainer.save(out)
        log.close()
        sinks.close()
        print(f"{trainer.step} steps; log in {log.path}, checkpoints in {out}")

    return train


def with_overrides(config: RunConfig, overrides: Sequence[str]) -> RunConfig:
    """The settings with `method.<choice>=value` changes of their method."""
    if not overrides:
        return config
    document = {"method": config.method.to_dict()}
    for override in overrides:
        apply_override(document, override)
    return config.replace(method=document["method"])


def refuse_existing_run(folder: Path) -> None:
    """Raise `FileExistsError` if there is a run in the folder."""
    if (folder / "metrics.jsonl").exists() or (folder / LATEST).exists():
        raise FileExistsError(
            f"{folder} holds a run already: choose another --out, or go on with it with --resume"
        )


@app.command(name="eval")
def evaluate(
    policy: tyro.conf.Positional[str],
    task: str | None = None,
    prompts: int = 96,
    n: int = 16,
    k: tuple[int, ...] | None = None,
    levels: tuple[int, ...] | None = None,
    max_new_tokens: int | None = None,
    temperature: float | None = None,
    device: str = "cpu",
    out: Path | None = None,
) -> None:
    """Measure a policy on held-out problems: pass@k with intervals.

    Args:
        policy: Folder of a run, a checkpoint or a Hugging Face model, or a policy's name.
        task: What to ask; the task of a run, "sums" for anything else.
        prompts: Held-out problems.
        n: Completions of each.
        k: Values of k for pass@k; doubling ones up to `n` if absent.
        levels: Difficulty levels; all if absent.
        max_new_tokens: Completion limit; the run's, or 80.
        temperature: Of sampling; the run's, or 1.
        device: Where the policy runs.
        out: JSON file to write as well.
    """
    from rlbook.evaluation import evaluate as measure
    from rlbook.policy import load_policy, set_threads
    from rlbook.tasks import get_task

    set_threads()
    run = run_config(Path(policy))
    row = measure(
        load_policy(policy, device=device),
        get_task(task or run.data.task),
        prompts,
        n,
        k,
        levels=levels or run.data.levels,
        **sampling(run, max_new_tokens, temperature),
    )
    for name, value in row.items():
        print(f"{name:<20} {value:.4g}" if isinstance(value, float) else f"{name:<20} {value}")
    if out is not None:
        out.write_text(json.dumps(row, indent=2) + "\n")


@app.command
def passrate(
    policy: tyro.conf.Positional[str],
    task: str | None = None,
    problems: int = 96,
    samples: int = 16,
    group_size: int = 8,
    levels: tuple[int, ...] | None = None,
    max_new_tokens: int | None = None,
    temperature: float | None = None,
    seed: int = 0,
    device: str = "cpu",
    out: Path | None = None,
) -> None:
    """Measure how hard a task's training problems are for a policy, level by level.

    Args:
        policy: Folder of a run, a checkpoint or a Hugging Face model, or a policy's name.
        task: What to ask; the task of a run, "sums" for anything else.
        problems: Training problems.
        samples: Completions of each.
        group_size: Size of the groups whose share with right and wrong answers is wanted.
        levels: Difficulty levels; all if absent.
        max_new_tokens: Completion limit; the run's, or 80.
        temperature: Of sampling; the run's, or 1.
        seed: Which problems, and which completions.
        device: Where the policy runs.
        out: JSONL file with a row per problem, to write as well.
    """
    from rlbook.passrate import difficulty_table, pass_rates
    from rlbook.policy import load_policy, set_threads
    from rlbook.tasks import get_task

    set_threads()
    run = run_config(Path(policy))
    asked = get_task(task or run.data.task)
    rows = pass_rates(
        load_policy(policy, device=device),
        asked,
        asked.sample(seed, problems, levels or run.data.levels),
        samples,
        **sampling(run, max_new_tokens, temperature),
    )
    print(difficulty_table(rows, group_size))
    if out is not None:
        out.write_text("".join(json.dumps(row) + "\n" for row in rows))


def sampling(
    run: RunConfig, max_new_tokens: int | None, temperature: float | None
) -> dict[str, float]:
    """What was asked for on the command line; the run's own settings where nothing was."""
    return {
        "max_new_tokens": max_new_tokens or run.rollout.max_new_tokens,
        "temperature": run.rollout.temperature if temperature is None else temperature,
    }


def run_config(folder: Path) -> RunConfig:
    """Settings of the run that wrote this folder; the defaults for anything else."""
    try:
        return RunConfig(**read_state(folder)["config"])
    except (FileNotFoundError, NotADirectoryError):
        return RunConfig()


@app.command
def methods(name: tyro.conf.Positional[str | None] = None) -> None:
    """Print the table of methods, or all that is known of one.

    Args:
        name: Row to print; all of them, if absent.
    """
    from rlbook.objectives import method_table_markdown, method_text

    print(method_text(name) if name else method_table_markdown())


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
    """Make a tiny base model of `data` again, from nothing but a seed.

    Args:
        config: Settings of the run; the defaults made the committed models.
    """
    from rlbook.tiny.pretrain import pretrain as make_base
    from rlbook.tiny.pretrain import print_progress

    make_base(config, print_progress)


@app.command
def bench(
    parts: tyro.conf.Positional[tuple[str, ...]] = (),
    size: str = "full",
    tiny: bool = False,
    policy: str | None = None,
) -> None:
    """Measure the package against its peers and this machine; results in data/results/bench.

    `bench gpu` alone asks one GPU for everything, in 25 minutes; results in data/results/gpu.

    Args:
        parts: Parts to run, all that need no GPU if none is named.
        size: `full`, or `smoke` to see only that they run.
        tiny: Of `gpu`: the tiny model on the CPU, to see only that it runs.
        policy: Of `gpu`: a model to measure, instead of random weights of Qwen3-0.6B's sizes.
    """
    from rlbook.bench import PARTS
    from rlbook.bench import main as run_parts
    from rlbook.policy import set_threads

    set_threads()
    if parts == ("gpu",):
        from rlbook.bench import gpu

        gpu.main(tiny, policy)
        return
    for path in run_parts(parts or tuple(PARTS), size):
        print(f"wrote {path}")


@app.command
def scale(
    config: tyro.conf.Positional[Path],
    overrides: Annotated[tuple[str, ...], tyro.conf.arg(name="set")] = (),
    dry_run: bool = False,
    resume: bool = False,
    rollback: int | None = None,
    report: bool = False,
) -> None:
    """Train asynchronously with generator servers, an orchestrator and FSDP2 trainers.

    Args:
        config: YAML file of settings (examples in `configs`), or the folder of a run.
        overrides: Settings to replace, as `section.field=value`.
        dry_run: Print memory, time, staleness and GPU-hours, and start nothing.
        resume: Go on with the run in the folder that the settings name.
        rollback: Go on from its checkpoint of this update, and forget what came after.
        report: Write that folder's report.html, and start nothing.
    """
    from rlbook.scale.config import load_config

    settings = load_config(config, overrides)
    if dry_run:
        from rlbook.scale.launch.dry_run import dry_run as plan

        print(plan(settings))
        return
    code = 0
    if not report:
        from rlbook.scale.launch.start import scale as run

        code = run(settings, resume, rollback)
    from rlbook.viz.report import write_report

    print(f"wrote {write_report(settings.folder)}")
    sys.exit(code)


@app.command
def doctor(
    config: tyro.conf.Positional[Path | None] = None,
    overrides: Annotated[tuple[str, ...], tyro.conf.arg(name="set")] = (),
) -> None:
    """Look whether this machine is fit for a run: devices, memory, disk, ports, libraries.

    Ends with exit code 1 if something would stop the run.

    Args:
        config: YAML file of the run's settings, or its folder; a small run on the CPU if absent.
        overrides: Settings to replace, as `section.field=value`.
    """
    from rlbook.policy import set_threads
    from rlbook.scale.config import ScaleConfig, load_config
    from rlbook.scale.launch.doctor import examine

    set_threads()
    failed = False
    for finding in examine(ScaleConfig() if config is None else load_config(config, overrides)):
        failed |= finding.state == "fail"
        print(finding, flush=True)
    sys.exit(int(failed))


@app.command
def fit(
    runs: tyro.conf.Positional[tuple[str, ...]],
    x: Literal["updates", "answers", "tokens", "seconds", "gpu-hours"] = "updates",
    y: str | None = None,
    r0: float | None = None,
    drop: int = 0,
    gpus: int | None = None,
    out: Path | None = None,
) -> None:
    """Fit ScaleRL's compute curve to runs of your own: where they end, how fast, how sure that is.

    Args:
        runs: Run folders, .jsonl logs or .csv tables; `name=path` says of which recipe. Folders
            whose settings differ in the seed alone are seeds of one recipe.
        x: What compute is counted in.
        y: Column to fit; pass@1 of held-out problems, heldout, accuracy or reward if absent.
        r0: Reward before training; that of evaluations at step 0, or fitted, if absent.
        drop: Points left out at the start of every run.
        gpus: GPUs that a run held, for gpu-hours.
        out: Folder for fit.json and fit.png.
    """
    from rlbook.experiments.own_runs import as_data, as_text, fit_own_runs, read_runs

    report = fit_own_runs(read_runs(runs), x, y, r0, drop, gpus)
    print(as_text(report))
    if out is not None:
        from rlbook.viz.compute import save_fits

        out.mkdir(parents=True, exist_ok=True)
        (out / "fit.json").write_text(json.dumps(as_data(report), indent=2) + "\n")
        recipes = {name: one.runs for name, one in report.fits.items()}
        boots = {name: one.boot for name, one in report.fits.items()}
        save_fits(out / "fit.png", recipes, boots, report.x, report.y)
        print(f"wrote {out / 'fit.json'} and {out / 'fit.png'}")


@app.command
def export(run: tyro.conf.Positional[Path], folder: tyro.conf.Positional[Path]) -> None:
    """Write the newest checkpoint of a run as a Hugging Face model folder and nothing else.

    Args:
        run: Folder of the run, of `train` or of `scale`.
        folder: Folder to write, which must be new.
    """
    from rlbook.scale.train.checkpoint import export as write

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


def main(arguments: Sequence[str] | None = None) -> None:
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        words, default, overrides = settings_of(words)
        app.command(train_command(default, overrides), name="train")
        with registry:
            app.cli(prog="rlbook", args=words)
    except ValidationError as error:
        print(f"rlbook: {explain(error)}", file=sys.stderr)
        sys.exit(2)
    except (ValueError, FileNotFoundError, FileExistsError, ImportError) as error:
        print(f"rlbook: {error}", file=sys.stderr)
        sys.exit(2)


def settings_of(words: list[str]) -> tuple[list[str], RunConfig, list[str]]:
    """For `train`: the words left for flags, the settings they change, changes of the method.

    The settings come from a YAML file among the words, from the run that is resumed, or are the
    defaults.
    """
    if words[:1] != ["train"]:
        return words, RunConfig(), []
    files = [word for word in words if word.endswith((".yaml", ".yml")) and word[0] != "-"]
    if "--tensorboard" in words:
        raise ValueError("--tensorboard is a sink: write --sinks tensorboard")
    words, overrides = method_overrides([word for word in words if word not in files])
    words = [in_full(word) for word in words]
    if files:
        return words, load_config(files[0]), overrides
    resumed = RunConfig(**read_state(out_of(words))["config"]) if "--resume" in words else None
    return words, resumed or RunConfig(), overrides


def method_overrides(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """`--method.<choice> value` taken out of the words, as `method.<choice>=value`."""
    left, found, rest = [], [], iter(words)
    for word in rest:
        if word.startswith("--method."):
            found.append(word[2:] if "=" in word else f"{word[2:]}={next(rest, '')}")
        else:
            left.append(word)
    return left, found


def in_full(word: str) -> str:
    """A flag with its section: `--lr` is `--optimizer.lr`."""
    if not word.startswith("--"):
        return word
    name, *value = word[2:].split("=", 1)
    home = find_section(RunConfig, name.replace("-", "_"))
    return "=".join([f"--{'.'.join(home)}" if home else f"--{name}", *value])


def out_of(words: Sequence[str]) -> Path:
    """The run folder that the words name."""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word == "--out":
            return Path(following)
        if word.startswith("--out="):
            return Path(word.removeprefix("--out="))
    return RUN


if __name__ == "__main__":
    main()
