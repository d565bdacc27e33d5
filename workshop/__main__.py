"""`python -m workshop VERB …`: runs, bases, measurements, chapters, the site, a course."""

import sys
from collections.abc import Sequence
from pathlib import Path

from rlbook.verbs import configured, parser_of, run_verb


def experiments(words: Sequence[str]) -> None:
    """Run a reference experiment (resumable) and write its tables to data/results."""
    parser = parser_of("python -m workshop experiments", experiments)
    parser.add_argument("name", nargs="?", help="experiment to run; lists them all if absent")
    parser.add_argument("--seeds", type=int, nargs="+", help="the experiment's own if absent")
    parser.add_argument("--workers", type=int, default=0, help="processes; 0: one per core")
    parser.add_argument(
        "--so-far", action="store_true", help="write what has finished, run nothing"
    )
    parser.add_argument(
        "--second", action="store_true", help="each arm's next best rate with all seeds as well"
    )
    asked = parser.parse_intermixed_args(words)
    from workshop.experiments import EXPERIMENTS, run_experiment

    if asked.name in (None, "list"):
        for key, experiment in EXPERIMENTS.items():
            print(f"{key:<14} {experiment.question}")
    else:
        asked_for = asked.name, asked.seeds, asked.workers, asked.so_far, asked.second
        print(f"wrote {run_experiment(*asked_for)}")


def pretrain(words: Sequence[str]) -> None:
    """Make a tiny base model of `data` again, from nothing but a seed: `pretrain world=habits`."""
    from workshop.bases.pretrain import PretrainConfig, print_progress
    from workshop.bases.pretrain import pretrain as make_base

    parser = parser_of("python -m workshop pretrain", pretrain, PretrainConfig.__doc__ or "")
    parser.add_argument("settings", nargs="*", metavar="field=value")
    make_base(configured(PretrainConfig, parser.parse_args(words).settings), print_progress)


def bench(words: Sequence[str]) -> None:
    """Measure the package against its peers and this machine; results in data/results/bench.

    `bench gpu` alone asks one GPU for everything, in 25 minutes, or in calls of some of its stages:
    `bench gpu --stages resume head --seconds 480`; results in data/results/gpu.
    """
    parser = parser_of("python -m workshop bench", bench)
    parser.add_argument("parts", nargs="*", help="all that need no GPU if none is named")
    parser.add_argument("--size", default="full", help="full, or smoke to see only that they run")
    parser.add_argument("--tiny", action="store_true", help="of gpu: the tiny model on the CPU")
    parser.add_argument("--policy", help="of gpu: a model; random weights of 0.6B if absent")
    parser.add_argument("--stages", nargs="+", help="of gpu: some of its stages, in this order")
    parser.add_argument("--seconds", type=float, help="of gpu: most seconds in all; 1,500")
    parser.add_argument("--folder", type=Path, help="of gpu: of its tables")
    asked = parser.parse_intermixed_args(words)
    from rlbook.policy import set_threads
    from workshop.bench import PARTS
    from workshop.bench import main as run_parts

    set_threads()
    if asked.parts == ["gpu"]:
        from workshop.bench import gpu

        stages, seconds = asked.stages or tuple(gpu.STAGES), asked.seconds or gpu.SECONDS
        gpu.main(asked.tiny, asked.policy, asked.folder, stages, seconds)
        return
    for path in run_parts(asked.parts or tuple(PARTS), asked.size):
        print(f"wrote {path}")


def book(words: Sequence[str]) -> int:
    """Execute chapters top to bottom and refresh their outputs."""
    parser = parser_of("python -m workshop book", book)
    parser.add_argument("chapters", type=Path, nargs="*", help="notebooks; all if none is named")
    chapters = parser.parse_args(words).chapters
    from workshop.tools import build

    return 0 if build(chapters) else 1


def shape(words: Sequence[str]) -> None:
    """Measure the main line of every chapter: words, code cells, pictures, minutes of reading."""
    parser = parser_of("python -m workshop shape", shape)
    parser.add_argument("chapters", type=Path, nargs="*", help="notebooks; all chapters if none")
    named = parser.parse_args(words).chapters
    from workshop.tools import chapters
    from workshop.tools.main_line import report

    print(report(named or [path for path in chapters() if path.name[:2].isdigit()]))


def chaos(words: Sequence[str]) -> int:
    """Strike at a real run for some minutes, and see what it keeps of its promises."""
    from workshop.chaos.__main__ import main as strike

    return strike(words)


def site(words: Sequence[str]) -> None:
    """Build the web edition from the notebooks as they are stored, into build/site/html."""
    parser = parser_of("python -m workshop site", site)
    parser.parse_args(words)
    from workshop.site.build import build as build_site

    print(build_site())


def pdf(words: Sequence[str]) -> None:
    """Print the built site as one PDF, into build/site/rlbook.pdf."""
    parser = parser_of("python -m workshop pdf", pdf)
    parser.add_argument("pages", nargs="*", help="such as 05_grpo; the whole book if none is named")
    chosen = parser.parse_args(words).pages
    from workshop.site.pdf import book_pdf

    path = book_pdf(chosen=chosen)
    print(f"wrote {path}, {path.stat().st_size / 1e6:.1f} MB")


def troubles(words: Sequence[str]) -> None:
    """Put faults into the trainer and count how many of them `rlbook doctor` names."""
    parser = parser_of("python -m workshop troubles", troubles)
    parser.add_argument("--workers", type=int, default=0, help="processes; 0: one per core")
    workers = parser.parse_args(words).workers
    from workshop.symptoms.judge import judge, load_named, summary

    written = judge(workers)
    print(summary(load_named()), *(f"wrote {path}" for path in written), sep="\n")


def course(words: Sequence[str]) -> None:
    """Write the book as a course of 6 or 12 weeks, or mark notebooks that were handed in."""
    parser = parser_of("python -m workshop course", course)
    parser.add_argument("--weeks", type=int, choices=(6, 12), default=12)
    parser.add_argument("--out", type=Path, help="build/course-WEEKS if absent")
    parser.add_argument("--grade", type=Path, nargs="+", metavar="HAND_IN", help="marks, no course")
    parser.add_argument("--seed", type=int, default=0, help="of the hidden numbers")
    asked = parser.parse_args(words)
    if asked.grade:
        import nbformat

        from workshop.course.grade import grade

        for path in asked.grade:
            marks = grade(nbformat.read(path, as_version=4), asked.seed)
            print(path, *marks, sep="\n")
            print(f"{sum(m.points for m in marks)}/{sum(m.worth for m in marks)}")
        return
    from workshop.course.build import build as build_course

    print(f"wrote {build_course(asked.weeks, asked.out or Path(f'build/course-{asked.weeks}'))}")


VERBS = {
    "experiments": experiments,
    "pretrain": pretrain,
    "bench": bench,
    "book": book,
    "shape": shape,
    "site": site,
    "pdf": pdf,
    "course": course,
    "chaos": chaos,
    "troubles": troubles,
}


def main(words: Sequence[str] | None = None) -> None:
    """The command `python -m workshop`."""
    words = sys.argv[1:] if words is None else words
    if code := run_verb("python -m workshop", VERBS, words):
        sys.exit(code)


if __name__ == "__main__":
    main()
