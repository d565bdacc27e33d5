"""The README's picture, from a training run, and the tables of speed, from the benchmarks.

`python -m workshop.tools.readme` writes `data/results/eight_answers.png`, and what stands between
the two marks in README.md (three figures) and in workshop/bench/README.md (all of them), where it
also writes what readers wait for.
"""

import json
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from rlbook.manifest import SUFFIX
from rlbook.paths import ROOT, data_dir
from rlbook.policy import Sampler
from rlbook.tasks import Problem
from rlbook.training import RunConfig, Trainer
from rlbook.training.rollouts import Rollout, collect_rollouts
from rlbook.viz.style import use_style
from workshop.bench.plots import learning_gap
from workshop.shared.evidence import load_results
from workshop.tools.runner import recorded_times

README, BENCH = ROOT / "README.md", ROOT / "workshop/bench/README.md"
BEGIN, END = "<!-- performance: python -m workshop.tools.readme -->", "<!-- end of performance -->"

WAIT = "<!-- waiting: python -m workshop.tools.readme -->"
END_OF_WAIT, LONGEST = "<!-- end of waiting -->", 20

SUM, ANSWER = "37+8-5+9=?", "49"
STEPS, SEED = 60, 4
WIDTH = 74  # characters of an answer that the picture has room for


def eight_answers() -> tuple[list[Rollout], list[Rollout]]:
    """Eight answers of the base model to one sum, and eight after its training."""
    trainer = Trainer(RunConfig(method="rloo", steps=STEPS, lr=2e-4))
    engine = Sampler(trainer.model, trainer.tokenizer.eos_token_id)

    def asked() -> list[Rollout]:
        problems = [Problem("readme", SUM, ANSWER, 4)]
        return collect_rollouts(engine, trainer.tokenizer, trainer.task, problems, 8, seed=SEED)

    before = asked()
    for _ in trainer:
        pass
    return before, asked()


def eight_answers_figure(before: Sequence[Rollout], after: Sequence[Rollout]) -> Figure:
    """Both lists side by side, right answers in one colour and wrong ones in another."""
    use_style()
    figure, axes = plt.subplots(1, 2, figsize=(11.6, 2.7))
    titles = ("before", f"after {STEPS} training steps")
    for ax, title, answers in zip(axes, titles, (before, after), strict=True):
        right = sum(answer.correct for answer in answers)
        ax.set_title(f"{SUM}   {title}: {right} of {len(answers)} right", loc="left")
        for row, answer in enumerate(answers):
            text = textwrap.shorten(answer.text, 1000)
            text = text if len(text) <= WIDTH else f"{text[: WIDTH - 2]} …"
            mark, colour = ("✓", "#0072B2") if answer.correct else ("✗", "#C05500")
            ax.text(0, -row, f"{mark} {text}", family="DejaVu Sans Mono", size=7, color=colour)
        ax.set(xlim=(0, 1), ylim=(-len(answers) + 0.5, 0.8))
        ax.axis("off")
    return figure


def figures_of(parts: Mapping[str, str | None]) -> list[str]:
    """Rows of the committed benchmarks among `parts`, each perhaps narrowed by a query."""
    lines: list[str] = []
    for part, narrowed in parts.items():
        table = load_results(f"bench/{part}")
        lines += ROWS[part](table.query(narrowed) if narrowed else table)
    return lines


def measured_on(parts: Iterable[str]) -> str:
    """Processor, threads and version of PyTorch behind each of the committed benchmarks."""
    machines: dict[str, list[str]] = {}
    for part in parts:
        facts = json.loads((data_dir() / f"results/bench/{part}{SUFFIX}").read_text())
        threads, torch = facts["torch_threads"], facts["versions"]["torch"]
        where = f"{facts['cpu']}, {threads} thread{'s' * (threads > 1)}, PyTorch {torch}"
        machines.setdefault(where, []).append(f"`{part}`")
    if len(machines) == 1:
        return f"Measured on: {next(iter(machines))}."
    each = (f"{where}: {', '.join(names)}" for where, names in machines.items())
    return f"Measured on {'; on '.join(each)}."


def _step_rows(table: pd.DataFrame) -> list[str]:
    lines = []
    for (method, completions), pair in table.groupby(["method", "completions"], sort=False):
        row = pair.set_index("program")
        ours, trl = row.loc["rlbook"], row.loc["trl"]
        late = f", after {ours.trained} steps" if "trained" in ours else ""
        spread = f"{ours.speedup:.1f}× ({ours.speedup_low:.1f}–{ours.speedup_high:.1f})"
        lines.append(
            f"| {method.upper()} step, {completions} completions{late} | {_step(ours)} | "
            f"TRL: {_step(trl)}; **{spread}** |"
        )
    return lines


def _step(row: pd.Series) -> str:
    return f"{row.seconds:.2f} s, {row.tokens_per_second:,.0f} tokens/s, {row.peak_mib:,.0f} MiB"


def _learning_rows(table: pd.DataFrame) -> list[str]:
    return [
        f"| What {method.upper()} has learned after {table['step'].max()} steps | "
        f"{gap.mean:+.3f} right answers [{gap.low:+.3f}, {gap.high:+.3f}] | "
        f"TRL, same prompts, {table['seed'].nunique()} seeds |"
        for method, gap in learning_gap(table).items()
    ]


def _version_rows(table: pd.DataFrame) -> list[str]:
    return [
        f"| {row.method.upper()} step, {row.completions} completions, after {row.trained} steps | "
        f"{row.today:.2f} s | before prefixes were shared: {row.older:.2f} s; "
        f"**{row.speedup:.1f}× ({row.speedup_low:.1f}–{row.speedup_high:.1f})** |"
        for row in table[table["part"] == "step"].itertuples()
    ]


def _sampler_rows(table: pd.DataFrame) -> list[str]:
    return [
        f"| Sampling {row.batch} completions at once | {row.tokens_per_second:,.0f} tokens/s | "
        f"{row.speedup:.1f}× `model.generate`; {row.share_of_limit:.0%} of the machine's limit |"
        for row in table[table["engine"] == "rlbook"].itertuples()
    ]


def _train_rows(table: pd.DataFrame) -> list[str]:
    best = table.loc[table["share_of_limit"].idxmax()]
    return [
        f"| Forward, backward, AdamW | {best.microseconds_per_token:.0f} µs per token | "
        f"{best.share_of_limit:.0%} of the machine's limit |"
    ]


def _head_rows(table: pd.DataFrame) -> list[str]:
    return [
        f"| Log-probabilities, vocabulary {row.vocabulary:,}, width {row.width} | "
        f"{row.seconds:.1f} s, {row.peak_mib:,.0f} MiB | "
        f"{row.time_ratio:.2f}× the time, {row.memory_ratio:.2f}× the memory of the plain form |"
        for row in table[table["form"] == "chunked"].itertuples()
    ]


def _startup_rows(table: pd.DataFrame) -> list[str]:
    seconds = table.set_index("what")["seconds"]
    wanted = ("import rlbook", "import rlbook.training", "make lab")
    rows = [f"| `{what}` | {seconds[what]:.2g} s | |" for what in wanted if what in seconds]
    for what in (what for what in seconds.index if ", forked" in what):
        started = seconds[what.replace("forked", "started")]
        rows.append(
            f"| `rlbook scale`: {what.replace(', forked', '')} | {seconds[what]:.2g} s | "
            f"processes started anew: {started:.2g} s; **{started / seconds[what]:.1f}×** |"
        )
    return rows


ROWS: dict[str, Callable[[pd.DataFrame], list[str]]] = {
    "trl": _step_rows,
    "trl_late": _step_rows,
    "trl_learning": _learning_rows,
    "versions": _version_rows,
    "sampler": _sampler_rows,
    "train_step": _train_rows,
    "head": _head_rows,
    "startup": _startup_rows,
}
STEP = "method == 'grpo' and completions == 128"
PAGES: dict[Path, Mapping[str, str | None]] = {
    README: {"trl": STEP, "trl_late": STEP, "sampler": "batch == 128"},
    BENCH: dict.fromkeys(ROWS),
}


def with_performance(page: Path) -> str:
    """The page with current figures between its marks."""
    head, rest = page.read_text().split(BEGIN)
    _, tail = rest.split(END)
    parts = PAGES[page]
    lines = ["| | measured | next to it |", "|---|---|---|", *figures_of(parts)]
    return "\n".join([f"{head}{BEGIN}", "", *lines, "", measured_on(parts), "", f"{END}{tail}"])


def with_waiting(page: str) -> str:
    """The page with the longest cells of the chapters, from `chapter_times.json`."""
    head, rest = page.split(WAIT)
    _, tail = rest.split(END_OF_WAIT)
    cells = [
        (*seconds, f"{name[:2]}, *{cell.partition(' ')[2]}*")
        for name, entry in recorded_times().items()
        for cell, seconds in entry.get("cells", {}).items()
        if "/" not in name
    ]
    longest = sorted(cells, key=lambda row: row[1], reverse=True)[:LONGEST]
    lines = ["| chapter and section | one core | two | eight |", "|---|---|---|---|"]
    lines += [
        f"| {cell} | {one:.0f} s | {two:.0f} | {eight:.0f} |" for one, two, eight, cell in longest
    ]
    return "\n".join([f"{head}{WAIT}", "", *lines, "", f"{END_OF_WAIT}{tail}"])


def main() -> list[Path]:
    """Draw README's figure and write its table anew; the files written."""
    picture = data_dir() / "results" / "eight_answers.png"
    eight_answers_figure(*eight_answers()).savefig(picture, dpi=120, metadata={"Software": None})
    for page in PAGES:
        page.write_text(with_performance(page))
    BENCH.write_text(with_waiting(BENCH.read_text()))
    return [picture, *PAGES]


if __name__ == "__main__":
    for path in main():
        print(f"wrote {path}")
