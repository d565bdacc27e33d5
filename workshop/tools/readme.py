"""README's pictures, clone line, findings and table of speed, each from where it is known.

`python -m workshop.tools.readme` writes `data/results/{eight_answers,field_map}*.png`, for light
pages and dark ones, and what stands between marks in README.md and in workshop/bench/README.md,
where it also writes what readers wait for.
"""

import io
import json
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import torch
from matplotlib.figure import Figure
from PIL import Image

from rlbook.manifest import SUFFIX
from rlbook.objectives import METHODS, Method
from rlbook.paths import ROOT, data_dir
from rlbook.policy import Sampler
from rlbook.tasks import Problem
from rlbook.training import Rollout, RunConfig, Trainer
from rlbook.training.rollouts import collect_rollouts
from rlbook.viz.style import use_style
from workshop.bench.plots import learning_gap
from workshop.shared.evidence import load_results
from workshop.site.dark import dark_png
from workshop.site.owner import Owner, read_owner
from workshop.tools.runner import recorded_times

README, BENCH = ROOT / "README.md", ROOT / "workshop/bench/README.md"
BEGIN, END = "<!-- performance: python -m workshop.tools.readme -->", "<!-- end of performance -->"

WAIT = "<!-- waiting: python -m workshop.tools.readme -->"
END_OF_WAIT, LONGEST = "<!-- end of waiting -->", 20

SUM, ANSWER = "37+8-5+9=?", "49"
STEPS, SEED = 60, 0  # the seed of chapter 1, whose eight answers these are
WIDTH = 92  # characters of an answer in a line of the picture
LAB = "make lab      # a few minutes the first time; then JupyterLab opens chapter 1"
FINDINGS = (  # claim and world in the table of verdicts, and plain words
    ("a KL penalty", "plain sums, own rates", "GRPO's **KL penalty** changed nothing"),
    (
        "dynamic sampling, at equal answers",
        "3 of 4 prompts unsolvable, own rates",
        "**Dynamic sampling** teaches nothing more for each answer that is written",
    ),
    (
        "a majority vote",
        "habits, lr 3e-4",
        "**Majority votes** as a reward ruin a model that is mostly wrong",
    ),
    (
        "tokens up to 8 updates old",
        "plain sums, a pipeline, lr 4e-4",
        "**Samples eight updates old** cost half of what could be learned, at a high learning rate",
    ),
)


def eight_answers() -> tuple[list[Rollout], list[Rollout]]:
    """Eight answers of the base model to one sum, and eight after its training, on one thread."""
    torch.set_num_threads(1)
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
    """Both lists, one below the other: right answers in one colour and wrong ones in another."""
    use_style()
    lists = {"before training": before, f"after {STEPS} training steps": after}
    lines = [[wrapped(answer) for answer in answers] for answers in lists.values()]
    heights = [sum(map(len, texts)) + 1.6 for texts in lines]
    figure, axes = plt.subplots(
        2, 1, figsize=(8.4, 0.2 * sum(heights)), gridspec_kw={"height_ratios": heights}
    )
    for ax, (title, answers), texts, height in zip(
        axes, lists.items(), lines, heights, strict=True
    ):
        right = sum(answer.correct for answer in answers)
        ax.set_title(f"{SUM}   {title}: {right} of {len(answers)} right", loc="left")
        row = 0
        for answer, text in zip(answers, texts, strict=True):
            mark, colour = ("✓", "#0072B2") if answer.correct else ("✗", "#C05500")
            for line, part in enumerate(text):
                told = f"{' ' if line else mark} {part}"
                ax.text(0, -row, told, family="DejaVu Sans Mono", size=9.5, color=colour)
                row += 1
        ax.set(xlim=(0, 1), ylim=(-height + 1, 0.9))
        ax.axis("off")
    return figure


def wrapped(answer: Rollout) -> list[str]:
    """The whole answer, in lines that fit."""
    return textwrap.wrap(" ".join(answer.text.split()), WIDTH, subsequent_indent="  ")


def map_figure() -> Figure:
    """What a method of the table chooses at each step, and which methods choose it."""
    use_style()
    columns = {
        title: grouped(choice)
        for title, choice in (
            ("better than what?", lambda m: named(m.advantage)),
            ("which tokens still learn?", lambda m: region_of(m)),
            ("who gets how much?", lambda m: str(m.aggregation)),
        )
    }
    figure, axes = plt.subplots(1, 3, figsize=(8.4, 4.6))
    figure.suptitle("sample answers  →  verify  →  three choices  →  one update", fontsize=12)
    for ax, (title, groups) in zip(axes, columns.items(), strict=True):
        ax.set_title(title, loc="left")
        shared = {choice: names for choice, names in groups.items() if len(names) > 1}
        single = [f"{choice} ({names[0]})" for choice, names in groups.items() if len(names) == 1]
        row = 0.0
        for choice, names in [*shared.items(), ("one method each", single)]:
            text = textwrap.wrap(", ".join(names), 34)
            if text:
                ax.text(0, -row, choice, size=9.5, weight="bold")
                ax.text(0, -row - 0.5, "\n".join(text), size=8.5, color="#5f5f5f", va="top")
                row += 2 + len(text)
        ax.set(xlim=(0, 1), ylim=(-24, 0.8))
        ax.axis("off")
    return figure


def grouped(choice: Callable[[Method], str]) -> dict[str, list[str]]:
    """Methods of the table by one of their choices, the commonest first."""
    found: dict[str, list[str]] = {}
    for name, method in METHODS.items():
        found.setdefault(choice(method), []).append(name)
    return dict(sorted(found.items(), key=lambda pair: -len(pair[1])))


def named(function: object) -> str:
    """A function's name in words."""
    function = getattr(function, "func", function)
    return getattr(function, "__name__", type(function).__name__).replace("_", " ")


def region_of(method: Method) -> str:
    """A trust region in words."""
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(method.trust_region).__name__).lower()
    return spaced + (" of the answer" if method.ratio == "sequence" else "")


def clone_lines(owner: Owner) -> list[str]:
    """How to get the book; without an address, a placeholder that no shell takes for one."""
    address = owner.repository or "ADDRESS-OF-THIS-REPOSITORY"
    return ["```sh", f"git clone --depth 1 {address} rlbook", "cd rlbook", LAB, "```"]


def findings() -> list[str]:
    """Results of the table of verdicts, as a list."""
    table = load_results("verdicts").set_index(["claim", "world"])
    lines = []
    for claim, world, words in FINDINGS:
        row = table.loc[(claim, world)]
        mean, low, high = (f"{row[key]:+.3f}".replace("-", "−") for key in ("mean", "low", "high"))
        number = str(row["chapter"]).zfill(2)
        path = next((ROOT / "chapters").glob(f"{number}_*.ipynb"))
        lines.append(
            f"* {words}: {mean} [{low}, {high}]. [Chapter {int(number)}](chapters/{path.name})"
        )
    return lines


def between(text: str, name: str, lines: Iterable[str]) -> str:
    """The page with these lines between its marks of this name."""
    begin, end = f"<!-- {name}: python -m workshop.tools.readme -->", f"<!-- end of {name} -->"
    head, rest = text.split(begin)
    _, tail = rest.split(end)
    return "\n".join([f"{head}{begin}", "", *lines, "", f"{end}{tail}"])


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
        threads, version = facts["torch_threads"], facts["versions"]["torch"]
        where = f"{facts['cpu']}, {threads} thread{'s' * (threads > 1)}, PyTorch {version}"
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
    README: {"trl": STEP},
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
    drawn = {"eight_answers": eight_answers_figure(*eight_answers()), "field_map": map_figure()}
    pictures = []
    for name, figure in drawn.items():
        picture = data_dir() / "results" / f"{name}.png"
        figure.savefig(picture, dpi=120, metadata={"Software": None})
        picture.write_bytes(small(picture.read_bytes()))
        dark = picture.with_stem(f"{name}_dark")
        dark.write_bytes(small(dark_png(picture.read_bytes())))
        pictures += [picture, dark]
    for page in PAGES:
        page.write_text(with_performance(page))
    front = between(README.read_text(), "clone", clone_lines(read_owner()))
    README.write_text(between(front, "findings", findings()))
    BENCH.write_text(with_waiting(BENCH.read_text()))
    return [*pictures, *PAGES]


def small(png: bytes) -> bytes:
    """A picture of text in 32 colours."""
    buffer = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").quantize(32).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


if __name__ == "__main__":
    for path in main():
        print(f"wrote {path}")
