"""What ails a training run, from its log: of this package, of TRL, of verl, of others.

A symptom is data (`doctor.yaml`: what one sees, its cause, its fix, the columns it needs and those
to look at) and a rule of the same name in `RULES`. Rules need no settings and no model, only what
trainers write. A rule whose columns a log has not got is not asked, and the report says so.
Thresholds were set on some seeds and judged on others: `python -m workshop troubles`.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median, pvariance

import yaml

from rlbook.logs import OUT_OF_MEMORY, Log, is_fresh, numbers, read_log

__all__ = ["RULES", "Log", "Symptom", "askable", "diagnose", "read_log", "report", "symptoms"]


@dataclass(frozen=True)
class Symptom:
    """What is seen, why, what to do, where it is explained and asked; `harmless` needs no cure.

    `needs` are columns without which its rule is not asked: of names with a bar between, one.
    """

    name: str
    seen: str
    cause: str
    fix: str
    needs: list[str]
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


def other_from_the_start(log: Log) -> bool:
    """KL to the reference at the first step; others' is a mean over all of that step's updates."""
    return log.first("step") <= 1 and log.first("kl_ref") > (
        3e-4 if log.trainer == "rlbook" else 0.02
    )


def negative_divergence(log: Log) -> bool:
    """What a teacher pays is −KL on average, so its mean cannot lie above 0."""
    parts = {name for row in log.rows for name in row}
    paid = [n for n in parts if re.fullmatch(r"rewards/.*(teacher|distil|kl).*/mean", n)]
    return any(median(log.all(name)) > 0 for name in paid)


def pays_for_other_things(log: Log) -> bool:
    """Reward, or a part of it, rises while accuracy falls; or wrong answers earn by length, or by
    being cut off more than by ending."""
    rows = [
        row for row in log.rows if len(numbers(map(row.get, ("reward_cut", "reward_wrong")))) == 2
    ]
    more = [row["reward_cut"] - row["reward_wrong"] for row in rows]
    parts = {name for row in log.rows for name in row if re.match(r"reward$|rewards/", name)}
    other = change(log.all("accuracy")) < 0 and any(change(log.all(name)) > 0 for name in parts)
    return other or log.mean("reward_by_length") > 0.8 or (bool(more) and fmean(more) > 0.2)


def stands_still(log: Log) -> bool:
    """A learning rate of 0 throughout; or several updates a batch, gradients, and ratios of 1."""
    if log.most("learning_rate") == 0:
        return log.most("grad_norm") > 0
    moved = max(log.most("ratio_max") - 1, 1 - min(log.all("ratio_min"), default=math.nan))
    return log.mean("updates") > 1 and moved < 1e-4 and log.mean("grad_norm") > 0


def wild_ratio(log: Log) -> bool:
    """E[ρ] = 1 where the policy sampled: a mean far from it, nothing clipped, is noise."""
    off = max((abs(weight - 1) for weight in log.all("mean_weight")), default=0.0)
    return off > 0.4 and log.most("clip_fraction") < 0.01


def entropy_runs_away(log: Log) -> bool:
    """Upwards while accuracy does not rise, or down to nothing, or there from the first step."""
    seen, right = log.all("entropy"), log.all("accuracy")
    better = len(right) > 3 and fmean(right[-2:]) > fmean(right[:2]) + 0.1
    grows = len(seen) > 3 and seen[-1] > 1.5 * seen[0] and not better
    alike = log.mean("equal_rewards") > 0.6
    gone = len(seen) > 3 and (seen[-1] < 0.05 * seen[0] or (seen[0] < 0.05 and alike))
    return grows or gone


def change(values: Sequence[float]) -> float:
    """The mean of the last third less that of the first; 0 if it is lost in the scatter."""
    third = len(values) // 3
    if third < 2:
        return 0.0
    early, late = values[:third], values[-third:]
    error = math.sqrt((pvariance(early) + pvariance(late)) / third)
    moved = fmean(late) - fmean(early)
    return moved if abs(moved) > max(3 * error, 0.05 * abs(fmean(values))) else 0.0


def cut_off(log: Log) -> bool:
    """All answers from the start; or all for three rows on end, or more and more while they get
    worse, after steps that a policy can survive."""
    found = log.windows("truncated")
    worse = any(change(log.all(name)) < 0 for name in WORTH)
    later = max(found) > 0.95 or (worse and change(log.all("truncated")) > 0.2)
    return found[0] > 0.95 or (later and not log.most("kl") > 0.1)


def spikes(log: Log) -> bool:
    """One row in ten at most is above 1 and above a hundred times the median."""
    for name in ("kl", "kl_ref", "grad_norm"):
        seen = log.all(name)
        high = [v for v in seen if v > max(1, 100 * median(map(abs, seen)))]
        if len(seen) > 7 and 0 < len(high) <= max(1, len(seen) // 10):
            return True
    return False


def falls_to_nothing(log: Log) -> bool:
    """KL(π_old‖π) of a batch above 0.1; or a fifth is left of what answers were worth."""
    seen = [found for name in WORTH if len(found := log.windows(name)) > 3]
    lost = any(min(found) >= 0 and found[-1] < 0.2 * max(found) > 0.04 for found in seen)
    return lost or log.most("kl") > 0.1


def lost_gradient(log: Log) -> bool:
    """The gradient is exactly 0 in rows whose groups have unequal rewards."""
    rows = [row for row in log.rows if row.get("equal_rewards", 1.0) < 0.99]
    norms = [row["grad_norm"] for row in rows if "grad_norm" in row]
    return len(norms) > 2 and norms.count(0.0) > len(norms) / 2


def same_accuracy(log: Log) -> bool:
    """It does not change by a single answer, at neither end of its range.

    As the only part of the reward it would hold that still as well, and a log in which nothing
    changes measures nothing.
    """
    found, names = log.all("accuracy"), {name for row in log.rows for name in row}
    alone = len([name for name in names if re.match("rewards/.*/mean", name)]) == 1
    constant = {name for name in names if len(set(log.all(name))) < 2}
    believed = "reward" in constant and names - constant - {"step"} if alone else True
    return len(found) > 4 and 0 < found[0] < 1 and "accuracy" in constant and bool(believed)


def critic_stands_still(log: Log) -> bool:
    """Its rate or its gradient is 0, or it never explains anything."""
    still = [log.most(name) == 0 for name in ("critic_lr", "critic_grad_norm")]
    explained = log.all("explained_variance")
    return any(still) or (len(explained) > 7 and max(map(abs, explained)) < 1e-6)


def deaf(log: Log) -> bool:
    """Being right and being paid go together by less than 0.4, where both verdicts occur."""
    rows = [row for row in log.rows if 0 < row.get("accuracy", 0) < 1]
    found = numbers(row.get("reward_by_correct") for row in rows)
    return len(found) > 2 and fmean(found) < 0.4


def one_update(log: Log) -> bool:
    """Nothing is clipped, and nothing could be: no log says that there were more updates."""
    return not log.mean("updates") > 1 and log.most("clip_fraction") == 0


WORTH = ("accuracy", "reward")  # of answers
FINITE = ("loss", "grad_norm", "kl", "kl_ref")
Rule = Callable[[Log], bool]
RULES: dict[str, Rule] = {
    "out_of_memory": lambda log: re.search(OUT_OF_MEMORY, log.text) is not None,
    "overflow": lambda log: (
        log.most("skipped_updates") > 0
        or any(
            not math.isfinite(row.get(name, 0.0))
            for row in log.rows
            for name in FINITE
            if row.get("updates") != 0  # a step without one has no loss
        )
    ),
    "resume_jumps": steps_back,
    "micro_batches": other_gradient,
    "group_of_one": lambda log: (
        log.first("groups") == log.first("completions") > 1
        and (log.most("grad_norm") == 0 or not any(log.all("advantage_by_reward") or [1]))
    ),
    "all_truncated": cut_off,
    "answers_unread": lambda log: (
        log.mean("format_ok") > 0.3
        and (log.mean("answered") < 0.02 or (not log.all("answered") and log.most("accuracy") == 0))
    ),
    "right_unread": lambda log: log.mean("right_unread") > 0.003 and log.mean("answered") > 0.02,
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
    "wrong_reference": other_from_the_start,
    "wrong_divergence": negative_divergence,
    "wrong_sign": lambda log: log.mean("advantage_by_reward") < -0.2,
    "gradient_lost": lost_gradient,
    "gamed": pays_for_other_things,
    "silent_groups": lambda log: log.mean("equal_rewards") > 0.9,
    "reward_elsewhere": lambda log: log.most("mixed_groups") > 0 or deaf(log),
    "policy_stands_still": stands_still,
    "critic_stands_still": critic_stands_still,
    "same_problems": lambda log: fmean(log.all("asked_again")[1:] or [0]) > 0.9,
    "heldout_trained": lambda log: log.most("heldout_asked") > 0,
    "ratio_explodes": wild_ratio,
    "collapse": falls_to_nothing,
    "spike": spikes,
    "entropy": entropy_runs_away,
    "accuracy_constant": same_accuracy,
    "region_too_narrow": lambda log: log.mean("clip_fraction") > 0.05 and log.most("kl") < 0.01,
    "loss_is_zero": lambda log: (
        one_update(log)
        and log.mean("grad_norm") > 1e-3
        and max(map(abs, log.all("loss")), default=math.nan) < 1e-4
    ),
    "nothing_clipped": one_update,
}


def askable(log: Log) -> list[str]:
    """Names of the rules whose columns the log has; of one that needs its text, where it has some.

    A run on record beside it counts as a column of its own.
    """
    has = {
        name for row in log.rows for name, value in row.items() if isinstance(value, int | float)
    }
    has |= {"text"} if log.text else set()
    has |= {"beside"} if log.beside is not None else set()
    return [name for name, one in symptoms().items() if not missing(one, has)]


def missing(symptom: Symptom, has: set[str]) -> list[str]:
    """What a symptom needs and the log has not got."""
    parts = {name for name in has if name.startswith("rewards/")}
    has = has | ({"parts"} if parts else set())
    return [need for need in symptom.needs if not has & set(need.split("|"))]


def diagnose(log: Log) -> list[Symptom]:
    """Symptoms that the log shows, the most fundamental first; it may explain those after it."""
    return [symptoms()[name] for name in askable(log) if RULES[name](log)]


def report(log: Log) -> str:
    """What the log shows, in words, and how many of the questions could be asked of it.

    Raises `ValueError` where none could.
    """
    found, asked = diagnose(log), askable(log)
    if not asked:
        columns = ", ".join({name: "" for row in log.rows for name in row}) or "none"
        raise ValueError(
            f"none of {len(RULES)} questions can be asked: of its columns, {columns} is known"
        )
    parts = []
    for one in found:
        seen = {name: log.all(name) for name in one.look}
        shown = [f"{k} {v[0]:.3g} … {v[-1]:.3g}" for k, v in seen.items() if v]
        parts.append(
            f"{one.name}: {one.seen}\n  log    {', '.join(shown) or 'the text'}\n"
            f"  cause  {one.cause}\n  fix    {one.fix}\n  more   {one.chapter}; {one.thread}"
        )
    first = "The first explains most; those after it may follow from it.\n\n"
    whose = f" of {log.trainer}" if log.trainer not in ("", "rlbook") else ""
    said = (first if len(found) > 1 else "") + "\n\n".join(parts)
    rows = f"{len(log.rows)} rows{whose}"
    return f"{said or f'{rows}: no symptom'}\n\n{coverage(log, asked)}"


def coverage(log: Log, asked: Sequence[str]) -> str:
    """How many questions could be asked, what the others lack, which columns say nothing here."""
    has = {name for row in log.rows for name in row}
    lacks = [f"{name} ({', '.join(needed)})" for name, one in symptoms().items()
             if name not in asked and name not in ("out_of_memory", "micro_batches")
             and (needed := missing(one, has))]  # fmt: skip
    lines = [
        f"{len(asked)} of {len(RULES)} questions could be asked of these {len(log.rows)} rows."
    ]
    if lacks:
        lines.append(f"Not asked, for want of a column: {'; '.join(lacks)}.")
    if log.unknown and log.trainer != "rlbook":
        more = f" and {len(log.unknown) - 12} more" if len(log.unknown) > 12 else ""
        lines.append(f"Columns not known: {', '.join(log.unknown[:12])}{more}.")
    return "\n".join(lines)
