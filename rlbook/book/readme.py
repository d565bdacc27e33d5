"""The README's picture, from a reference experiment, and the tables of speed, from the benchmarks.

`python -m rlbook.book.readme` writes `data/results/habits.png`, and what stands between the two
marks in README.md (three figures) and in rlbook/bench/README.md (all of them).
"""

import json
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from rlbook.bench.figures import learning_gap
from rlbook.manifest import SUFFIX
from rlbook.paths import ROOT, data_dir
from rlbook.viz.curves import load_results
from rlbook.viz.evidence import draw_families
from rlbook.viz.style import use_style

README, BENCH = ROOT / "README.md", ROOT / "rlbook/bench/README.md"
BEGIN, END = "<!-- performance: python -m rlbook.book.readme -->", "<!-- end of performance -->"


def habits_figure() -> Figure:
    """How often each family of habits is answered rightly, step by step, under MaxRL and RLOO."""
    use_style()
    figure, axes = plt.subplots(1, 2, figsize=(9.4, 3.6), sharey=True)
    table = load_results("habits")
    findings = {
        "RLOO": "the likelier the right rule, the sooner",
        "MaxRL": "rare rules sooner, and plain sums pay",
    }
    for ax, (arm, finding) in zip(axes, findings.items(), strict=True):
        draw_families(ax, table, arm)
        ax.set_title(f"{arm}: {finding}")
    axes[1].set_ylabel("")
    return figure


def three_figures() -> list[str]:
    """A training step beside TRL's, sampling beside `generate`, an update beside the machine."""
    step = load_results("bench/trl").query("method == 'grpo' and completions == 128")
    sampler = load_results("bench/sampler").query("batch == 128")
    return [
        *_step_rows(step),
        *_sampler_rows(sampler),
        *_train_rows(load_results("bench/train_step")),
    ]


def all_figures() -> list[str]:
    """Every committed benchmark that has a row to show."""
    parts = {"trl": _step_rows, "trl_learning": _learning_rows, "sampler": _sampler_rows}
    parts |= {"train_step": _train_rows, "head": _head_rows, "startup": _startup_rows}
    lines = []
    for part, rows in parts.items():
        if (data_dir() / f"results/bench/{part}.csv").is_file():
            lines += rows(load_results(f"bench/{part}"))
    return lines


def measured_on() -> str:
    """Processor, threads and version of PyTorch of the committed benchmarks."""
    facts = json.loads((data_dir() / f"results/bench/sampler{SUFFIX}").read_text())
    threads = facts["torch_threads"]
    where = f"{facts['cpu']}, {threads} thread{'s' * (threads > 1)}, PyTorch "
    return f"Measured on: {where}{facts['versions']['torch']}."


def _step_rows(table: pd.DataFrame) -> list[str]:
    lines = []
    for (method, completions), pair in table.groupby(["method", "completions"], sort=False):
        row = pair.set_index("program")
        ours, trl = row.loc["rlbook"], row.loc["trl"]
        spread = f"{ours.speedup:.1f}× ({ours.speedup_low:.1f}–{ours.speedup_high:.1f})"
        lines.append(
            f"| {method.upper()} step, {completions} completions | {_step(ours)} | "
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
    return [f"| `{what}` | {seconds[what]:.2g} s | |" for what in wanted if what in seconds]


PAGES = {README: three_figures, BENCH: all_figures}


def with_performance(page: Path) -> str:
    """The page with current figures between its marks."""
    head, rest = page.read_text().split(BEGIN)
    _, tail = rest.split(END)
    lines = ["| | measured | next to it |", "|---|---|---|", *PAGES[page](), "", measured_on()]
    return "\n".join([f"{head}{BEGIN}", "", *lines, "", f"{END}{tail}"])


def main() -> list[Path]:
    picture = data_dir() / "results" / "habits.png"
    habits_figure().savefig(picture, dpi=120, metadata={"Software": None})
    for page in PAGES:
        page.write_text(with_performance(page))
    return [picture, *PAGES]


if __name__ == "__main__":
    for path in main():
        print(f"wrote {path}")
