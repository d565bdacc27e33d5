"""What ails a training run, from its log: of this package, of TRL, of verl.

A symptom is data (`doctor.yaml`: what one sees, its cause, its fix, the columns to look at) and a
rule of the same name in `RULES`. Rules need no settings and no model, only what trainers
write, and a rule whose columns a log has not got stays silent. Thresholds were set on some seeds
and judged on others: `python -m workshop troubles`.
"""

import ast
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

import yaml

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Log:
    """A run's rows under this package's names (`rlbook.training.metrics`), what else it printed.

    `beside` is the log of another run on the same first batch, such as one with other
    micro-batches.
    """

    rows: Sequence[Row]
    text: str = ""
    beside: "Log | None" = None

    def all(self, name: str) -> list[float]:
        """The numbers in a column; none where there is no such column."""
        return numbers(row.get(name) for row in self.rows)

    def fresh(self, name: str) -> list[float]:
        """The same of rows whose tokens the newest weights wrote."""
        return numbers(row.get(name) for row in self.rows if is_fresh(row))

    def mean(self, name: str) -> float:
        """The mean of a column; NaN, which no comparison finds, where there is none."""
        return fmean(found) if (found := self.all(name)) else math.nan

    def first(self, name: str) -> float:
        """The first number in a column; NaN where there is none."""
        return next(iter(self.all(name)), math.nan)

    def most(self, name: str) -> float:
        """The largest number in a column; NaN where there is none."""
        return max(self.all(name), default=math.nan)


def is_fresh(row: Row) -> bool:
    """Whether the newest weights wrote the row's tokens, as far as the log says."""
    return not row.get("staleness")


def numbers(values: Iterable[Any]) -> list[float]:
    """Those that are finite numbers."""
    return [float(v) for v in values if isinstance(v, int | float) and math.isfinite(v)]


@dataclass(frozen=True)
class Symptom:
    """What is seen, why, what to do, where it is explained and asked; `harmless` needs no cure."""

    name: str
    seen: str
    cause: str
    fix: str
    look: list[str]
    family: str
    chapter: str
    thread: str
    harmless: bool = False


@cache
def symptoms() -> dict[str, Symptom]:
    """All that the doctor knows, by name, in the order of `RULES`."""
    text = Path(__file__).with_suffix(".yaml").read_text()
    return {name: Symptom(name, **said) for name, said in yaml.safe_load(text).items()}


def steps_back(log: Log) -> bool:
    """A step that is not after the one before it."""
    return any(after <= before for before, after in pairwise(log.all("step")))


def other_gradient(log: Log) -> bool:
    """The first batch is that of the log beside it, and its first gradients are not."""
    if log.beside is None:
        return False
    other, norm = log.beside, log.first("grad_norm")
    same = all(log.first(name) == other.first(name) for name in ("reward", "length"))
    return same and abs(norm - other.first("grad_norm")) > 0.02 * norm


def falls_behind(log: Log) -> bool:
    """Staleness grows with every update."""
    behind, updates = log.all("staleness"), max(log.mean("updates"), 1)
    return len(behind) > 2 and behind[-1] - behind[0] > 0.9 * updates * (len(behind) - 1)


def surprise(log: Log) -> float:
    """All steps' surprise over its standard error: E[−log π] = H holds for samples of π alone.

    Not the mean of the steps' own z: a step that met no rare token takes its error for too small.
    """
    read = [numbers(map(row.get, ("surprise", "surprise_z"))) for row in log.rows if is_fresh(row)]
    found = [pair for pair in read if len(pair) == 2 and pair[1]]
    errors = [mean / z for mean, z in found]
    return sum(mean for mean, _ in found) / math.hypot(*errors) if any(errors) else 0.0


def few_tokens(log: Log) -> bool:
    """KL over (mean gap)² is 0.8 for gaps of one size, and 1/2f where a share f has all of it."""
    gap, drift = log.fresh("mismatch"), log.fresh("mismatch_kl")
    return bool(gap and drift) and fmean(drift) > 5 * fmean(gap) ** 2 and fmean(gap) > 1e-3


def negative_divergence(log: Log) -> bool:
    """What a teacher pays is −KL on average, so its mean cannot lie above 0."""
    parts = {name for row in log.rows for name in row}
    paid = [n for n in parts if re.fullmatch(r"rewards/.*(teacher|distil|kl).*/mean", n)]
    return any(median(log.all(name)) > 0 for name in paid)


def pays_for_other_things(log: Log) -> bool:
    """Wrong answers that ended earn by length; or being cut off pays more than ending wrong."""
    rows = [
        row for row in log.rows if len(numbers(map(row.get, ("reward_cut", "reward_wrong")))) == 2
    ]
    more = [row["reward_cut"] - row["reward_wrong"] for row in rows]
    return log.mean("reward_by_length") > 0.8 or (bool(more) and fmean(more) > 0.2)


def stands_still(log: Log) -> bool:
    """Several updates a batch, gradients, and ratios of 1."""
    moved = max(log.most("ratio_max") - 1, 1 - min(log.all("ratio_min"), default=math.nan))
    return log.mean("updates") > 1 and moved < 1e-4 and log.mean("grad_norm") > 0


def wild_ratio(log: Log) -> bool:
    """E[ρ] = 1 where the policy sampled: a mean far from it, nothing clipped, is noise."""
    off = max((abs(weight - 1) for weight in log.all("mean_weight")), default=0.0)
    return off > 0.4 and log.most("clip_fraction") < 0.01


def entropy_runs_away(log: Log) -> bool:
    """Upwards while accuracy does not rise, or down to nothing."""
    seen, right = log.all("entropy"), log.all("accuracy")
    better = len(right) > 3 and fmean(right[-2:]) > fmean(right[:2]) + 0.1
    grows = len(seen) > 3 and seen[-1] > 1.5 * seen[0] and not better
    return grows or (len(seen) > 3 and seen[-1] < 0.05 * seen[0])


def one_update(log: Log) -> bool:
    """Nothing is clipped, and nothing could be: no log says that there were more updates."""
    return not log.mean("updates") > 1 and log.most("clip_fraction") == 0


Rule = Callable[[Log], bool]
RULES: dict[str, Rule] = {
    "out_of_memory": lambda log: re.search("out of memory|OutOfMemory", log.text) is not None,
    "overflow": lambda log: (
        log.most("skipped_updates") > 0
        or any(not math.isfinite(row.get("grad_norm", 0.0)) for row in log.rows)
    ),
    "resume_jumps": steps_back,
    "micro_batches": other_gradient,
    "group_of_one": lambda log: (
        log.first("groups") == log.first("completions") > 1 and log.most("grad_norm") == 0
    ),
    "all_truncated": lambda log: log.first("truncated") > 0.95,
    "answers_unread": lambda log: log.mean("format_ok") > 0.3 and log.mean("answered") < 0.02,
    "ends_untrained": lambda log: log.mean("untrained") > 0.5,
    "stale": falls_behind,
    "retokenised": lambda log: (
        surprise(log) > 5 and max(log.fresh("mismatch_max"), default=0.0) > 5
    ),
    "temperature": lambda log: abs(surprise(log)) > 5,
    "routers": few_tokens,
    "mismatch": lambda log: (
        fmean(log.fresh("mismatch") or [0.0]) > 0.03 or log.mean("mismatch_correlation") < 0.98
    ),
    "wrong_reference": lambda log: log.first("step") <= 1 and log.first("kl_ref") > 3e-4,
    "wrong_divergence": negative_divergence,
    "wrong_sign": lambda log: log.mean("advantage_by_reward") < -0.2,
    "gamed": pays_for_other_things,
    "silent_groups": lambda log: log.mean("equal_rewards") > 0.9,
    "policy_stands_still": stands_still,
    "ratio_explodes": wild_ratio,
    "collapse": lambda log: log.most("kl") > 0.1,
    "entropy": entropy_runs_away,
    "region_too_narrow": lambda log: log.mean("clip_fraction") > 0.05 and log.most("kl") < 0.01,
    "loss_is_zero": lambda log: (
        one_update(log)
        and log.mean("grad_norm") > 1e-3
        and max(map(abs, log.all("loss")), default=math.nan) < 1e-4
    ),
    "nothing_clipped": one_update,
}


def diagnose(log: Log) -> list[Symptom]:
    """Symptoms that the log shows, the most fundamental first; it may explain those after it."""
    return [symptoms()[name] for name, found in RULES.items() if found(log)]


# Reading

TRL = {
    "frac_reward_zero_std": "equal_rewards",
    "completions/mean_length": "length",
    "completions/clipped_ratio": "truncated",
    "sampling/sampling_logp_difference/mean": "mismatch",
    "sampling/sampling_logp_difference/max": "mismatch_max",
    "clip_ratio/region_mean": "clip_fraction",
    "kl": "kl_ref",
}
VERL = {
    "training/global_step": "step",
    "actor/pg_loss": "loss",
    "actor/grad_norm": "grad_norm",
    "actor/entropy": "entropy",
    "actor/ppo_kl": "kl",
    "actor/pg_clipfrac": "clip_fraction",
    "actor/kl_loss": "kl_ref",
    "critic/score/mean": "reward",
    "response_length/mean": "length",
    "response_length/clip_ratio": "truncated",
    "rollout_corr/k3_kl": "mismatch_kl",
    "training/rollout_actor_probs_pearson_corr": "mismatch_correlation",
}
SUMMARY = "train_runtime"  # of the row of totals that ends a log of TRL, under its last step
SCALE = {"mismatch_fresh": "mismatch"}
NUMBER = r"-?(?:\d[\d.]*(?:e[+-]?\d+)?|nan|inf)"
VERL_PAIR = re.compile(rf"([\w/@.-]+):(?:np\.\w+\()?({NUMBER})\b")


def read_log(path: str | Path, beside: str | Path | None = None) -> Log:
    """The log in a run's folder, or a file: JSON lines, TRL's `trainer_state.json`, console text.

    Lines without numbers are kept as text, for tracebacks. Raises `ValueError` for a log without a
    row of metrics.
    """
    path, files = Path(path), [Path(path)]
    if path.is_dir():
        known = [path / "metrics.jsonl", path / "trainer_state.json"]
        files = [file for file in known if file.exists()] + sorted(path.glob("*.log"))
    lines = [line for file in files for line in lines_of(file)]
    parsed = [(line, row_of(line)) for line in lines]
    rows = [in_our_words(row) for _, row in parsed if row]
    if not rows:
        names = ", ".join(file.name for file in files) or "no file"
        raise ValueError(f"{path}: no row of metrics of rlbook, TRL or verl in {names}")
    text = "\n".join(str(line) for line, row in parsed if not row)
    return Log(rows, text, None if beside is None else read_log(beside))


def lines_of(file: Path) -> Iterable[Any]:
    """Lines of a log, or the rows of a state that TRL saved."""
    if file.suffix == ".json":
        history: list[Any] = json.loads(file.read_text())["log_history"]
        return history
    return file.read_text(errors="replace").splitlines()


def row_of(line: Any) -> dict[str, float]:
    """The numbers in a line: JSON, a dictionary as Python prints it, verl's `step:1 - a/b:0.5`."""
    given = line
    if isinstance(line, str) and " - " in line and "step:" in line:
        given = dict(VERL_PAIR.findall(line[line.find("step:") :]))
    elif isinstance(line, str):
        given = literal(line[max(line.find("{"), 0) :])
    if not isinstance(given, Mapping):
        return {}
    given = {**given, **given["data"]} if isinstance(given.get("data"), Mapping) else given
    row = {}
    for name, value in given.items():
        with suppress(TypeError, ValueError):
            row[name] = float(value)
    return row if len(row) > 2 and SUMMARY not in row else {}


def literal(text: str) -> Any:
    """What JSON, or Python, reads in a text; None for anything else."""
    for read in (json.loads, ast.literal_eval):
        with suppress(ValueError, SyntaxError):
            return read(text.strip())
    return None


def in_our_words(row: Mapping[str, float]) -> dict[str, float]:
    """A row of another trainer under this package's names; what has no name here keeps its own.

    verl writes no share of silent groups: advantages between 0 and 0 are as good.
    """
    theirs = max((SCALE, VERL, TRL), key=lambda names: len(names.keys() & row.keys() - {"kl"}))
    named = {theirs.get(name, name): value for name, value in row.items()}
    if theirs is VERL and row.get("critic/advantages/max") == row.get("critic/advantages/min") == 0:
        named["equal_rewards"] = 1.0
    return named


def report(log: Log) -> str:
    """What the log shows, in words."""
    found = diagnose(log)
    if not found:
        return f"{len(log.rows)} rows: no symptom of the {len(RULES)} that are known"
    parts = []
    for one in found:
        seen = {name: log.all(name) for name in one.look}
        numbers = [f"{k} {v[0]:.3g} … {v[-1]:.3g}" for k, v in seen.items() if v]
        parts.append(
            f"{one.name}: {one.seen}\n  log    {', '.join(numbers) or 'the text'}\n"
            f"  cause  {one.cause}\n  fix    {one.fix}\n  more   {one.chapter}; {one.thread}"
        )
    first = "The first explains most; those after it may follow from it.\n\n"
    return (first if len(found) > 1 else "") + "\n\n".join(parts)
