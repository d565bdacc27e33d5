"""`rlbook VERB …`: audit, train, eval, passrate, methods, translate, scale, rehearse, fit, export,
cut, doctor.

Settings are words `section.field=value`, the same for every verb.
"""

import json
import signal
import sys
from argparse import ArgumentTypeError
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from rlbook.verbs import EXPECTED, file_and_settings, parser_of, run_verb

if TYPE_CHECKING:  # a verb imports what it needs: help is there before torch is
    from rlbook.training.config import RunConfig

HELD_OUT = {"prompts": 96, "samples": 16}  # of a measurement, unless the words say otherwise


def train(words: Sequence[str]) -> int:
    """Train a policy with one of the book's methods and write its log and checkpoints.

    Starts from the settings in a file, such as a run's own config.yaml, or from the defaults:
    `rlbook train method=grpo lr=3e-4 method.trust_region.high=0.28`. Ctrl-C ends it after the step
    that is going on, with a checkpoint.
    """
    from rlbook.training.config import RunConfig, load_config, settings_text, with_settings

    parser = parser_of("rlbook train", train, settings_text(RunConfig))
    parser.add_argument("words", nargs="*", metavar="settings.yaml | section.field=value")
    parser.add_argument("--out", type=Path, default=Path("runs/train"), help="folder of the run")
    parser.add_argument("--save-every", type=count, default=20, help="steps between checkpoints")
    parser.add_argument("--resume", action="store_true", help="go on with the run in --out")
    asked = parser.parse(words)
    from tqdm import tqdm

    from rlbook.evaluation import evaluate_run
    from rlbook.policy import set_threads
    from rlbook.policy.prefixes import why_whole
    from rlbook.training import RunLog, Trainer
    from rlbook.training.checkpoint import LATEST, read_state
    from rlbook.training.config import dump_config
    from rlbook.training.filter import NoUpdate
    from rlbook.training.sinks import Sinks

    set_threads()
    file, out = file_and_settings(asked.words)[0], asked.out
    if out.exists() and not out.is_dir():
        raise FileExistsError(f"{out} is a file: name a folder, --out runs/name")
    saved, begun = (out / LATEST).exists(), has_rows(out)
    if asked.resume and not saved and begun:  # it was killed before its first checkpoint
        file = file or str(out / "config.yaml")
    elif asked.resume:
        start = load_config(file) if file else RunConfig(**read_state(out)["config"])
    elif saved or begun:
        with_settings(load_config(file) if file else RunConfig(), asked.settings)  # are they sound?
        raise FileExistsError(
            f"{out} holds a run already: choose another --out, or go on with it with --resume"
        )
    goes_on = asked.resume and saved
    if not goes_on:
        start = load_config(file) if file else RunConfig()
    config = with_settings(start, asked.settings)
    measure = evaluate_run if config.evaluation.every else None
    if goes_on:
        trainer = Trainer.resume(out, config, evaluate=measure)
    else:
        trainer = Trainer(config, evaluate=measure)
    config, writers = trainer.config, None
    if reason := why_whole(trainer.model.base_model):
        print(f"Equal prefixes are computed once for each row that has them: {reason}.")
    what = f"{trainer.method.name} on {trainer.task.name}"
    bar, saved_at = tqdm(trainer, what, total=config.steps, initial=trainer.step), trainer.step
    try:
        with interrupts() as stopped:
            for metrics in bar:
                if writers is None:  # a run that cannot make its first step leaves nothing behind
                    writers = RunLog(out, metrics["step"] - 1), Sinks(config.sinks, out)
                    (out / "config.yaml").write_text(dump_config(config))
                log, sinks = writers
                log(metrics)
                sinks("metrics", metrics)
                bar.set_postfix(accuracy=f"{metrics['accuracy']:.2f}", refresh=False)
                if stopped or trainer.step % asked.save_every == 0 or trainer.step == config.steps:
                    trainer.save(out)
                    saved_at = trainer.step
                if stopped:
                    break
    except FloatingPointError as error:  # weights that have diverged are not worth keeping
        raise ValueError(f"step {trainer.step + 1}: {error}") from error
    except (*EXPECTED, NoUpdate) as error:
        bar.close()
        if trainer.step > saved_at:
            print(f"saved {trainer.save(out)}", file=sys.stderr)
        if isinstance(error, NoUpdate):
            raise ValueError(str(error)) from error
        raise
    finally:
        for writer in writers or ():
            writer.close()
    done = f"{trainer.step} steps; log in {out / 'metrics.jsonl'}, checkpoints in {out}"
    print(f"stopped after {done}; go on with --resume --out {out}" if stopped else done)
    return 130 if stopped else 0


def count(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"a whole number of at least 1, got {text!r}")
    return int(text)


@contextmanager
def interrupts() -> Iterator[list[int]]:
    """Signals that ask a run to end, which go on until it does; the second one ends it at once."""
    came: list[int] = []

    def note(number: int, _: Any) -> None:
        if came:
            raise KeyboardInterrupt
        came.append(number)
        print("\nends after this step; once more ends it at once", file=sys.stderr)

    try:
        before = {s: signal.signal(s, note) for s in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not in the main thread, where no signal arrives
        before = {}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def has_rows(folder: Path) -> bool:
    """Whether a run in the folder has logged a step."""
    log = folder / "metrics.jsonl"
    return log.is_file() and log.stat().st_size > 0


def evaluate(words: Sequence[str]) -> None:
    """Measure a policy on held-out problems: pass@k with intervals.

    The policy is the folder of a run, a checkpoint or a Hugging Face model, or a policy's name. Of
    a run its own settings count where the words say nothing:
    `rlbook eval runs/train evaluation.prompts=200 data.levels=[4,5] --k 1 8`.
    """
    from rlbook.training.config import RunConfig, settings_text

    parser = parser_of("rlbook eval", evaluate, settings_text(RunConfig))
    parser.add_argument("policy")
    parser.add_argument("settings", nargs="*", metavar="section.field=value")
    parser.add_argument("--k", type=int, nargs="+", help="of pass@k; doubling ones if absent")
    parser.add_argument("--out", type=Path, help="JSON file to write as well")
    asked = parser.parse(words)
    from rlbook.evaluation import evaluate as measure
    from rlbook.policy import load_policy, set_threads
    from rlbook.tasks import get_task
    from rlbook.training.rollouts import sampling_of

    set_threads()
    run = run_config(asked.policy, asked.settings)
    row = measure(
        load_policy(asked.policy, device=run.model.device),
        get_task(run.data.task),
        run.evaluation.prompts,
        run.evaluation.samples,
        asked.k,
        levels=run.data.levels,
        **sampling_of(run),
    )
    for name, value in row.items():
        print(f"{name:<20} {value:.4g}" if isinstance(value, float) else f"{name:<20} {value}")
    if asked.out is not None:
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        asked.out.write_text(json.dumps(row, indent=2) + "\n")


def passrate(words: Sequence[str]) -> None:
    """Measure how hard a task's training problems are for a policy, level by level.

    `evaluation.prompts` problems, `evaluation.samples` answers to each; `rollout.group_size` is
    the size of the groups whose share with right and wrong answers is wanted.
    """
    from rlbook.training.config import RunConfig, settings_text

    parser = parser_of("rlbook passrate", passrate, settings_text(RunConfig))
    parser.add_argument("policy")
    parser.add_argument("settings", nargs="*", metavar="section.field=value")
    parser.add_argument("--out", type=Path, help="JSONL file with a row per problem")
    asked = parser.parse(words)
    from rlbook.evaluation import difficulty_rows, difficulty_table
    from rlbook.policy import load_policy, set_threads
    from rlbook.tasks import get_task
    from rlbook.training.rollouts import sampling_of

    set_threads()
    run = run_config(asked.policy, asked.settings)
    task, measured = get_task(run.data.task), run.evaluation
    rows = difficulty_rows(
        load_policy(asked.policy, device=run.model.device),
        task,
        task.sample(run.seed, measured.prompts, run.data.levels),
        measured.samples,
        **sampling_of(run),
    )
    print(difficulty_table(rows, run.rollout.group_size))
    if asked.out is not None:
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        asked.out.write_text("".join(json.dumps(row) + "\n" for row in rows))


def for_evaluation(settings: Sequence[str]) -> list[str]:
    """Settings of a measurement, where plain `prompts` are those of the evaluation."""
    return [f"evaluation.{word}" if word.startswith("prompts=") else word for word in settings]


def run_config(policy: str, settings: Sequence[str]) -> "RunConfig":
    """Settings of the run that wrote this folder, or the defaults, with these and `HELD_OUT`.

    Raises `ValueError` for a run whose task was an object, unless they name a task.
    """
    from rlbook.training.checkpoint import read_state
    from rlbook.training.config import RunConfig, with_settings

    state: dict[str, Any] = {"config": {}}
    with suppress(FileNotFoundError, NotADirectoryError):
        state = read_state(Path(policy))
    start = RunConfig(**state["config"]).replace(evaluation=HELD_OUT)
    tasks = ("data.task=", "task=", "data.mixture=", "mixture=")
    named = any(word.startswith(tasks) for word in settings)
    if (given := state.get("given", {}).get("task")) and not named:
        raise ValueError(
            f"{policy} was trained on a task that was given as an object, {given}: name one, such "
            f"as data.task={given}"
        )
    return with_settings(start, for_evaluation(settings))


def methods(words: Sequence[str]) -> None:
    """Print the table of methods, all that is known of one, or which one a trainer's file is.

    `--like` reads settings of TRL, verl, SkyRL or prime-rl, as YAML, JSON, TOML, the words of a .sh
    or the `GRPOConfig(…)` of a .py: the rows that come nearest, and what is different in the file.
    """
    parser = parser_of("rlbook methods", methods)
    parser.add_argument("name", nargs="?", help="row to print; all of them if absent")
    parser.add_argument(
        "--field", action="store_true", help="rows that other trainers ship besides"
    )
    parser.add_argument(
        "--source", action="store_true", help="the code of NAME, in order of a step"
    )
    parser.add_argument("--like", type=Path, help="file with another trainer's settings")
    asked = parser.parse(words)
    if asked.like:
        from rlbook.interop import comparison_text, read_peer_file

        return print(comparison_text(read_peer_file(asked.like)))
    from rlbook.objectives import (
        FIELD,
        METHODS,
        method_source,
        method_table_markdown,
        method_text,
    )

    if asked.source:
        if not asked.name:
            parser.error("--source prints the code of one method: rlbook methods dapo --source")
        return print(method_source(asked.name))
    rows = FIELD if asked.field else METHODS
    print(method_text(asked.name) if asked.name else method_table_markdown(methods=rows))


def translate(words: Sequence[str]) -> None:
    """Write a method or a run in the settings of TRL, verl, SkyRL or prime-rl, and what is lost.

    Of a run's own settings those that are given, or are not the default, are written or lost.
    `rlbook translate dapo --to verl`, `rlbook translate settings.yaml --to trl`, or
    `rlbook translate method=grpo rollout.prompts=512 --to skyrl --ranks 8`.
    """
    from rlbook.interop import (
        PEERS,
        BatchSizes,
        Turns,
        flat,
        refuse_foreign,
        say_run,
        translation_text,
    )
    from rlbook.interop import translate as written
    from rlbook.objectives import FIELD, METHODS, Method
    from rlbook.tasks.registry import environment
    from rlbook.training.config import (
        RunConfig,
        changed,
        load_config,
        settings_text,
        with_settings,
    )

    parser = parser_of("rlbook translate", translate, settings_text(RunConfig))
    parser.add_argument("words", nargs="*", metavar="method | settings.yaml | section.field=value")
    parser.add_argument("--to", required=True, type=str.lower, choices=PEERS, help="the trainer")
    parser.add_argument("--plugin", action="store_true", help="with this package's advantages")
    parser.add_argument("--ranks", type=int, default=1, help="processes that train")
    parser.add_argument("--micro-batch", type=int, default=1, help="completions at a time")
    asked = parser.parse(words)
    file, settings = file_and_settings(asked.words)[0], asked.settings
    if file and "." not in file and not Path(file).exists():
        Method.from_dict(file)  # names what comes near
    if file in METHODS or file in FIELD:
        file, settings = None, [f"method={file}", *settings]
    if file and Path(file).is_file():
        refuse_foreign(Path(file))
    start = load_config(file) if file else RunConfig()
    run = with_settings(start, settings)
    rollout, optimizer = run.rollout, run.optimizer
    named = [start.model_dump(exclude_unset=True), changed({}, settings, RunConfig)]
    given = {name for document in named for name in flat(document)}
    sizes = BatchSizes(
        rollout.prompts,
        rollout.group_size,
        optimizer.minibatches,
        optimizer.epochs,
        asked.ranks,
        asked.micro_batch,
    )
    counts = sizes.settings(asked.to)
    played = environment(run.data.task) is not None
    turns = Turns(rollout.max_turns, rollout.turn_tokens, run.data.reward or "") if played else None
    chosen = sizes.updates if given & {"optimizer.minibatches", "optimizer.epochs"} else 1
    limits = rollout.group_size, rollout.max_new_tokens
    said = written(run.method, asked.to, *limits, asked.plugin, turns, chosen)
    elsewhere = ("data.task", "data.reward") if played else ()
    read = {
        name: value
        for name, value in flat(run.to_dict()).items()
        if name not in elsewhere and (run.method.needs & {"values"} or "critic." not in name)
    }
    say_run(said, read, flat(RunConfig().to_dict()), given, sizes.updates)
    print(translation_text(said, counts))


STARTING = "--resume", "--rollback"  # flags of `rlbook scale` under which processes are started


def scale(words: Sequence[str]) -> int:
    """Train asynchronously with generator servers, an orchestrator and FSDP2 trainers.

    `rlbook scale configs/cpu-tiny.yaml steps=20 generate.max_staleness=4`; a run's folder stands
    for its settings. `rlbook scale model.policy=Qwen/Qwen3-0.6B data.task=dataset:openai/gsm8k:main
    --gpus 1` plans a run, writes its file and asks whether to start it.
    """
    if not any(word.startswith("-") and word not in STARTING for word in words):
        from rlbook.scale.launch.processes import preload

        preload()  # on the other core, while this process imports as much
    from rlbook.scale.config import ScaleConfig
    from rlbook.scale.config import load_config as load
    from rlbook.training.config import settings_text

    parser = parser_of("rlbook scale", scale, settings_text(ScaleConfig))
    parser.add_argument("words", nargs="*", metavar="settings.yaml | section.field=value")
    for flag, what in {
        "--dry-run": "print memory, time, GPU-hours and this machine, and start nothing",
        "--check-nodes": "ask every node what has to be alike on all, and start nothing",
        "--resume": "go on with the run in the folder that the settings name",
        "--report": "write that folder's report.html, and start nothing",
        "--nano": "take the pipeline in one file, rlbook/scale/nano.py: one server, no recovery",
    }.items():
        parser.add_argument(flag, action="store_true", help=what)
    parser.add_argument(
        "--rollback", type=int, help="go on from the checkpoint of this update, forget the rest"
    )
    parser.add_argument("--gpus", type=int, help="write the file of a run on so many, then start")
    parser.add_argument("--yes", action="store_true", help="with --gpus: start without asking")
    asked = parser.parse(words)
    file, settings = file_and_settings(asked.words)[0], asked.settings
    if file is None and asked.gpus:
        from rlbook.scale.launch.write import write_file

        file, settings = str(write_file(settings, asked.gpus)), []
        print(f"wrote {file}; `rlbook scale {file}` starts it")
        wanted = asked.yes or (sys.stdin.isatty() and input("start it now? [y/N] ") == "y")
        if not wanted and not asked.dry_run:
            return 0
    if file is None:
        raise ValueError(
            "name a file of settings (examples are in configs/), a run's folder, or --gpus N"
        )
    config = load(file, settings)
    if asked.dry_run:
        from rlbook.scale.launch.dry_run import dry_run

        print(dry_run(config))
        return 0
    if asked.check_nodes:
        from rlbook.scale.launch.check_nodes import check_nodes

        return check_nodes(config)
    if asked.nano:
        from rlbook.scale.launch.dry_run import check_machine
        from rlbook.scale.nano import main as run_nano

        check_machine(config)
        run_nano(config)
        return 0
    code = 0
    if not asked.report:
        from rlbook.scale.launch.start import scale as run

        code = run(config, asked.resume, asked.rollback)
    from rlbook.viz.report import write_report

    print(f"wrote {write_report(config.folder)}")
    return code


def rehearse(words: Sequence[str]) -> int:
    """Try a full-scale run in three updates: a trainer and a generator are killed on the way.

    Prints what was measured beside what was planned, and writes it into the file's `budget`.
    """
    from rlbook.scale.config import ScaleConfig
    from rlbook.scale.config import load_config as load
    from rlbook.training.config import settings_text

    parser = parser_of("rlbook rehearse", rehearse, settings_text(ScaleConfig))
    parser.add_argument("words", nargs="*", metavar="settings.yaml | section.field=value")
    asked = parser.parse(words)
    file, settings = file_and_settings(asked.words)[0], asked.settings
    if file is None:
        raise ValueError("name a file of settings (examples are in configs/)")
    from rlbook.scale.launch.rehearse import rehearse as run

    return run(load(file, settings), Path(file))


def fit(words: Sequence[str]) -> None:
    """Fit ScaleRL's compute curve to runs of your own: where they end, how fast, how sure that is.

    Run folders whose settings differ in the seed alone are seeds of one recipe.
    """
    from rlbook.scaling.own_runs import Compute, as_data, as_text, fit_own_runs, read_runs

    parser = parser_of("rlbook fit", fit)
    parser.add_argument("runs", nargs="+", help="folders, .jsonl logs, .csv tables; recipe=path")
    parser.add_argument(
        "--x", choices=get_args(Compute), default="updates", help="what compute is counted in"
    )
    parser.add_argument("--y", help="column; pass@1 of held-out problems, accuracy, … if absent")
    parser.add_argument("--r0", type=float, help="reward before training; fitted if absent")
    parser.add_argument("--drop", type=int, default=0, help="points left out at the start")
    parser.add_argument("--gpus", type=int, help="GPUs that a run held, for gpu-hours")
    parser.add_argument("--out", type=Path, help="folder for fit.json and fit.png")
    asked = parser.parse_intermixed_args(words)
    report = fit_own_runs(read_runs(asked.runs), asked.x, asked.y, asked.r0, asked.drop, asked.gpus)
    print(as_text(report))
    if (out := asked.out) is not None:
        from rlbook.viz.compute import save_fits

        out.mkdir(parents=True, exist_ok=True)
        (out / "fit.json").write_text(json.dumps(as_data(report), indent=2) + "\n")
        recipes = {name: one.runs for name, one in report.fits.items()}
        boots = {name: one.boot for name, one in report.fits.items()}
        save_fits(out / "fit.png", recipes, boots, report.x, report.y)
        print(f"wrote {out / 'fit.json'} and {out / 'fit.png'}")


def export(words: Sequence[str]) -> None:
    """Write the newest checkpoint of a run as a Hugging Face model folder and nothing else.

    An adapter (`model.lora`) is merged into its base; with --adapter it is written alone.
    """
    parser = parser_of("rlbook export", export)
    parser.add_argument("run", type=Path, help="folder of the run, of train or of scale")
    parser.add_argument("folder", type=Path, help="folder to write, which must be new")
    parser.add_argument("--adapter", action="store_true", help="a LoRA run's adapter, for peft")
    asked = parser.parse_args(words)
    from rlbook.training.checkpoint import export as write

    written = write(asked.run, asked.folder, adapter=asked.adapter)
    print(f"wrote {written}; to put it on the hub, with an account there:")
    print(f"  hf upload <your name>/{asked.folder.name} {asked.folder}")


def cut(words: Sequence[str]) -> None:
    """Write a policy with a smaller vocabulary: the first so many tokens of its byte pairs.

    The policy answers 16 held-out problems of `data.task`; printed is the probability that it gives
    to the tokens which stay, where it wrote these answers: `rlbook cut smollm2-135m 4096 small`.
    """
    from rlbook.training.config import RunConfig, settings_text, with_settings

    parser = parser_of("rlbook cut", cut, settings_text(RunConfig))
    parser.add_argument("policy")
    parser.add_argument("tokens", type=int, help="tokens that stay")
    parser.add_argument("folder", type=Path, help="folder to write, which must be new")
    parser.add_argument("settings", nargs="*", metavar="section.field=value")
    asked = parser.parse(words)
    import torch

    from rlbook.evaluation import held_out_rollouts
    from rlbook.policy import load_policy, set_threads
    from rlbook.policy.loading import policy_folder
    from rlbook.policy.vocabulary import cut_vocabulary, share_kept
    from rlbook.tasks import get_task
    from rlbook.training import collate
    from rlbook.training.rollouts import sampling_of

    set_threads()
    if asked.folder.exists():
        raise FileExistsError(f"{asked.folder} exists: name a new folder, nothing is overwritten")
    run = with_settings(RunConfig(), asked.settings)
    kept = cut_vocabulary(policy_folder(asked.policy), asked.tokens, asked.folder)
    whole, task = load_policy(asked.policy), get_task(run.data.task)
    answers = collate(held_out_rollouts(whole, task, 16, 1, run.data.levels, **sampling_of(run)))
    share = share_kept(whole[0], answers.ids, torch.tensor(kept))[:, :-1][answers.mask[:, 1:]]
    print(f"wrote {asked.folder}, a policy of {len(kept)} tokens")
    print(
        f"their probability in answers to {task.name}: {share.mean():.4f}, least {share.min():.4f}"
    )


def doctor(words: Sequence[str]) -> None:
    """Say what ails a run, from its log: of this package, of TRL, of verl, of others.

    A run's folder, a log as JSON lines, a history of wandb or TensorBoard as CSV, event files of
    TensorBoard, TRL's `trainer_state.json`, or what was printed: `rlbook doctor runs/train`.
    """
    parser = parser_of("rlbook doctor", doctor)
    parser.add_argument("log", type=Path)
    parser.add_argument("--beside", type=Path, help="log of another run on the same first batch")
    parser.add_argument("--all", action="store_true", help="also what could not be asked, and why")
    asked = parser.parse(words)
    from rlbook.doctor import read_log, report

    print(report(read_log(asked.log, asked.beside), asked.all))


def audit(words: Sequence[str]) -> int:
    """Judge a data set and its verifier before a policy is trained on them.

    A file, a folder or a hub id: the columns that are read, references that no answer can meet,
    questions that repeat, contradict, leak or tell their answer, and the verifier's error rates on
    true spellings and near misses of each reference; one's own is a function of completion and
    reference. With a policy, verdicts on its answers that math-verify alone does not share. Code 1
    if something speaks against the data:
    `rlbook audit data/train.jsonl --html audit.html`.
    """
    parser = parser_of("rlbook audit", audit)
    parser.add_argument("data")
    parser.add_argument("--policy", help="whose answers are to be judged twice")
    parser.add_argument("--prompts", type=int, default=32, help="problems that the policy answers")
    parser.add_argument("--samples", type=int, default=4, help="answers to each")
    parser.add_argument("--verifier", help="package.module:function, instead of this package's")
    parser.add_argument("--limit", type=float, default=60, help="seconds for all comparisons")
    parser.add_argument("--html", type=Path, help="page with every finding to write as well")
    asked = parser.parse_args(words)
    from rlbook.importing import import_name
    from rlbook.tasks.audit import as_html, as_text, dispute, record, word
    from rlbook.tasks.audit import audit as audited

    verify = import_name(asked.verifier) if asked.verifier else None
    found = audited(asked.data, verify=verify, limit=asked.limit)
    if asked.policy:
        from rlbook.evaluation import ask
        from rlbook.policy import load_policy
        from rlbook.tasks.dataset import BenchmarkTask

        task = BenchmarkTask(asked.data)
        problems = task.held_out(min(asked.prompts, len(task.parts[1])))
        answers = ask(load_policy(asked.policy), task, problems, asked.samples)
        if verify is not None:
            for one in answers:
                one.correct, _ = word(verify, one.text, one.problem.answer)
        dispute(found, ((r.problem, r.answer, r.correct) for r in answers))
    print(as_text(found))
    if asked.html:
        asked.html.write_text(as_html(found), encoding="utf-8")
    record(found)
    return 0 if found.passed else 1


VERBS = {
    "audit": audit,
    "train": train,
    "eval": evaluate,
    "passrate": passrate,
    "methods": methods,
    "translate": translate,
    "scale": scale,
    "rehearse": rehearse,
    "fit": fit,
    "export": export,
    "cut": cut,
    "doctor": doctor,
}


def main(words: Sequence[str] | None = None) -> None:
    """The command `rlbook`."""
    if code := run_verb("rlbook", VERBS, sys.argv[1:] if words is None else words):
        sys.exit(code)
