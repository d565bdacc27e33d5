"""What ails a training run, from its log: of this package, of TRL, of verl, of others.

A symptom is data (`doctor.yaml`: what one sees, its cause, its fix, the columns it needs and those
to look at) and a rule of the same name in `RULES`, which shows the rows that decided. A rule that
sees one thing or another says which: each such branch has words of its own. Rules need no settings
and no model, only what trainers write. A rule whose columns a log has not got is not asked.
Thresholds were set on some seeds and judged on others: `python -m workshop troubles`.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise, takewhile
from pathlib import Path
from statistics import fmean, median, pvariance, variance
from typing import Any

import yaml

from rlbook.logs import OUT_OF_MEMORY, Log, Row, bare, is_fresh, is_number, numbers, read_log

__all__ = ["RULES", "Log", "Symptom", "askable", "diagnose", "read_log", "report", "symptoms"]


@dataclass(frozen=True)
class Sight:
    """What a rule saw: these columns in these rows, or a line; `branch` has words of its own."""

    columns: Sequence[str] = ()
    rows: Sequence[Row] = ()
    branch: str = ""
    line: str = ""


@dataclass(frozen=True)
class Symptom:
    """What is seen, why, what to do, where it is explained and asked; `harmless` needs no cure.

    `needs` are columns without which its rule is not asked: of names with a bar between, one. What
    a branch has in `branches` stands in place of the symptom's own; `sight` is of one log.
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
    branches: dict[str, dict[str, Any]] = field(default_factory=dict)
    sight: Sight = Sight()


@cache
def symptoms() -> dict[str, Symptom]:
    """All that the doctor knows, by name, in the order of `RULES`."""
    text = Path(__file__).with_suffix(".yaml").read_text()
    return {name: Symptom(name, **said) for name, said in yaml.safe_load(text).items()}


def having(log: Log, *names: str) -> list[Row]:
    """The rows that have a finite number in each of these columns."""
    return [row for row in log.rows if len(numbers(map(row.get, names))) == len(names)]


def ends_of(rows: Sequence[Row]) -> list[Row]:
    """The first row and the last."""
    return [rows[0], rows[-1]]


def last_part(rows: Sequence[Row], test: Callable[[Row], bool]) -> list[Row]:
    """The rows at the end that all pass, if they are five and a tenth of all at least."""
    found = list(takewhile(test, reversed(rows)))[::-1]
    return found if len(found) >= max(5, len(rows) / 10) else []


def loses_its_place(log: Log) -> Sight | None:
    """Steps begin again where they began; or a fall from one row to the next that does not mend.

    Steps that go back to a checkpoint's are a restart that worked.
    """
    rows = having(log, "step")
    for before, after in pairwise(rows):
        if rows[0]["step"] >= after["step"] < before["step"]:
            return Sight(["step", "accuracy"], [before, after])
    for name in WORTH:
        rows = having(log, name)
        if at := sudden_fall([row[name] for row in rows]):
            return Sight([name], rows[at - 1 : at + 1], "falls_back")
    return None


def sudden_fall(values: Sequence[float], width: int = 10) -> int:
    """Where half of all that was gained, and not all there was, is lost for good within one row.

    0 if nowhere: the fall is six errors of the two means beside it, and one row has half of it.
    """
    start = fmean(values[:width] or [0.0])
    for at in range(width, len(values) - width + 1):
        before, after = values[at - width : at], values[at : at + width]
        error = math.sqrt((variance(before) + variance(after)) / width)
        was, fall = fmean(before), fmean(before) - fmean(after)
        alone = values[at - 1] - values[at] > fall / 2
        learnt = fall / 2 < was - start < 2 * fall
        later = max(fmean(values[at:]), fmean(values[-width:]))
        for_good = 0.2 * was < later < was - fall / 2
        if alone and learnt and for_good and fall > 6 * error:
            return at
    return 0


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


def other_from_the_start(log: Log) -> Sight | None:
    """KL to the reference at the first step; others' is a mean over all of that step's updates."""
    most = 3e-4 if log.trainer == "rlbook" else 0.02
    if log.first("step") <= 1 and log.first("kl_ref") > most:
        return Sight(["kl_ref"], having(log, "kl_ref")[:1])
    return None


def negative_divergence(log: Log) -> bool:
    """What a teacher pays is −KL on average, so its mean cannot lie above 0."""
    parts = {name for row in log.rows for name in row}
    paid = [n for n in parts if re.fullmatch(r"rewards/.*(teacher|distil|kl).*/mean", n)]
    return any(median(log.all(name)) > 0 for name in paid)


def pays_for_other_things(log: Log) -> Sight | None:
    """Reward, or a part of it, rises while accuracy falls, or while held-out answers get worse;
    or wrong answers earn by length, or by being cut off more than by ending."""
    parts = {name for row in log.rows for name in row if re.match(r"reward$|rewards/", name)}
    rising = [name for name in sorted(parts) if change(log.all(name)) > 0]
    if rising and change(log.all("accuracy")) < 0:
        return Sight([rising[0], "accuracy"], ends_of(having(log, rising[0], "accuracy")))
    if forgotten := worse_held_out(log):
        return forgotten
    if log.mean("reward_by_length") > 0.8:
        return Sight(["reward_by_length"], log.rows, "paid_by_length")
    cut = having(log, "reward_cut", "reward_wrong")
    if cut and fmean(row["reward_cut"] - row["reward_wrong"] for row in cut) > 0.2:
        return Sight(["reward_cut", "reward_wrong"], log.rows, "paid_when_cut")
    return None


def worse_held_out(log: Log) -> Sight | None:
    """What held-out answers are worth has fallen from its best, and reward in training rose on."""
    for held in sorted({name for row in log.rows for name in row if name.startswith("heldout/")}):
        rows = having(log, held)
        values = [row[held] for row in rows]
        if not (best := fallen_from(values)):
            continue
        place = next(i for i, row in enumerate(log.rows) if row is rows[best])
        since = Log(log.rows[place:])
        for name in WORTH:
            if change(since.all(name)) > 0:
                paid = ends_of(having(since, name))
                seen = [*(only(held, row) for row in (rows[best], rows[-1])),
                        *(only(name, row) for row in paid)]  # fmt: skip
                return Sight([held, name], seen, "held_out")
    return None


def only(name: str, row: Row) -> Row:
    """One column of a row, and its step."""
    return {key: row[key] for key in ("step", name) if key in row}


def fallen_from(values: Sequence[float], width: int = 3) -> int:
    """The middle of the best window, if the last lies far below it; else 0.

    Far is a tenth, and five errors by the scatter from one value to the next, to which a trend
    adds nothing, and the fall itself neither: the largest is left out.
    """
    means = [fmean(values[i : i + width]) for i in range(len(values) - width + 1)]
    if len(values) < 2 * width:
        return 0
    scatter = math.sqrt(fmean(sorted((b - a) ** 2 for a, b in pairwise(values))[:-1]) / 2)
    fall = max(means) - means[-1]
    far = fall > max(0.1 * abs(max(means)), 5 * scatter * math.sqrt(2 / width))
    return means.index(max(means)) + width // 2 if far else 0


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


def entropy_runs_away(log: Log) -> Sight | None:
    """Upwards while nothing gets better, or down to nothing, or there from the first step."""
    rows, seen = having(log, "entropy"), log.all("entropy")
    right = log.all("accuracy") or log.all("reward")
    if len(seen) < 4:
        return None
    better = change(right) > 0 or (len(right) > 3 and fmean(right[-2:]) > fmean(right[:2]) + 0.1)
    if seen[-1] > 1.5 * seen[0] and not better:
        return Sight(["entropy"], ends_of(rows))
    alike = seen[0] < 0.05 and log.mean("equal_rewards") > 0.6
    if alike or seen[-1] < (0.05 if better else 0.1) * seen[0]:
        return Sight(["entropy"], ends_of(rows), "no_entropy")
    return None


def change(values: Sequence[float]) -> float:
    """The mean of the last third less that of the first; 0 if it is lost in the scatter."""
    third = len(values) // 3
    if third < 2:
        return 0.0
    early, late = values[:third], values[-third:]
    error = math.sqrt((pvariance(early) + pvariance(late)) / third)
    moved = fmean(late) - fmean(early)
    return moved if abs(moved) > max(3 * error, 0.05 * abs(fmean(values))) else 0.0


def cut_off(log: Log) -> Sight | None:
    """All answers from the start; or all for three rows on end, or more and more while they get
    worse, after steps that a policy can survive."""
    found = log.windows("truncated")
    if found[0] > 0.95:
        return Sight(["truncated", "grad_norm"], log.rows)
    worse = any(change(log.all(name)) < 0 for name in WORTH)
    later = max(found) > 0.95 or (worse and change(log.all("truncated")) > 0.2)
    if not later or log.most("kl") > 0.1:
        return None
    return Sight(["truncated"], ends_of(having(log, "truncated")), "cut_later")


def spikes(log: Log) -> Sight | None:
    """One row in ten at most is above 1 and above twenty times the others; or all that come late
    are, and the growth does not slow down."""
    for name in LOUD:
        rows = having(log, name)
        seen = sorted(row[name] for row in rows)
        others = seen[int(0.9 * (len(seen) - 1))] if seen else 0.0
        high = [row for row in rows if row[name] > max(1, 20 * others)]
        if len(rows) > 7 and high:
            return Sight([name], high)
    for name in LOUD:
        rows = having(log, name)
        if grows_without_end([row[name] for row in rows]):
            return Sight([name], [rows[0], rows[len(rows) // 2], rows[-1]], "runaway")
    return None


def grows_without_end(values: Sequence[float]) -> bool:
    """Above 1 and a hundredfold, the last third above five times the second: no line, no square."""
    third = len(values) // 3
    if third < 4:
        return False
    early, middle, late = (median(values[i * third : (i + 1) * third]) for i in range(3))
    last = median(values[-max(3, len(values) // 10) :])
    return last > max(1, 100 * early) and late > 5 * middle > 0


def falls_to_nothing(log: Log) -> Sight | None:
    """A fifth is left of what answers were worth; or KL(π_old‖π) of a batch is above 0.1 and they
    get no better; or a twentieth is left of their length."""
    for name in WORTH:
        seen, rows = log.windows(name), having(log, name)
        best = fallen_from(log.all(name))
        if best and min(seen) >= 0 and seen[-1] < 0.2 * max(seen) > 0.04:
            return Sight([name], [rows[best], rows[-1]])
    far = [row for row in having(log, "kl") if row["kl"] > 0.1]
    if far and not any(change(log.all(name)) > 0 for name in WORTH):
        return Sight(["kl", "ratio_max", "accuracy"], far, "far_steps")
    lengths, rows = log.windows("length"), having(log, "length")
    if len(lengths) > 7 and lengths[-1] < 0.05 * lengths[0]:
        return Sight(["length"], ends_of(rows), "short_answers")
    return None


def goes_silent(log: Log) -> Sight | None:
    """Nearly all groups have equal rewards, in all rows or in those from some row to the end."""
    if log.mean("equal_rewards") > 0.9:
        return Sight(["equal_rewards", "accuracy", "reward"], log.rows)
    rows = having(log, "equal_rewards")
    silent = last_part(rows, lambda row: row["equal_rewards"] > 0.9)
    if not silent:
        return None
    for name in WORTH:
        before, after = (numbers(row.get(name) for row in part)
                         for part in (rows[: -len(silent)], silent))  # fmt: skip
        if before and after:
            branch = "all_solved" if fmean(after) >= max(before) else "silent_at_last"
            return Sight(["equal_rewards", name], ends_of(silent), branch)
    return Sight(["equal_rewards"], ends_of(silent), "silent_at_last")


def differs(log: Log) -> Sight | None:
    """Log-probs of engine and trainer are apart in most rows, or grow so; where the newest weights
    wrote the tokens."""
    for name, most in APART.items():
        rows = [row for row in having(log, name) if is_fresh(row)]
        gaps = [apart(name, row) for row in rows]
        third = len(gaps) // 3
        if third > 2 and median(gaps[-third:]) > max(most, 3 * median(gaps[:third])):
            return Sight([name], ends_of(rows), "parted")
        if gaps and median(gaps) > most:
            return Sight([name], log.rows)
    return None


def apart(name: str, row: Row) -> float:
    """How far engine and trainer are apart, by a column of which some are 1 where they agree."""
    return float(1 - row[name] if name == "mismatch_correlation" else row[name])


def lost_gradient(log: Log) -> Sight | None:
    """The gradient is exactly 0 in rows whose groups have unequal rewards."""
    rows = [row for row in having(log, "grad_norm") if row.get("equal_rewards", 1.0) < 0.99]
    lost = [row for row in rows if row["grad_norm"] == 0]
    if len(rows) > 2 and len(lost) > len(rows) / 2:
        return Sight(["grad_norm", "equal_rewards"], lost)
    return None


def overflows(log: Log) -> Sight | None:
    """An update was skipped, or what it logs is no finite number."""
    updated = [row for row in log.rows if row.get("updates") != 0]  # a step without one has no loss
    for row in updated:
        lost = [n for n in FINITE if is_number(row.get(n)) and not math.isfinite(row[n])]
        if row.get("skipped_updates", 0) > 0:
            return Sight(["skipped_updates", *lost], [row], "skipped")
        if lost:
            return Sight(lost, [row])
    return None


def memory_is_full(log: Log) -> Sight | None:
    """The text says so."""
    named = [line for line in log.text.splitlines() if re.search(OUT_OF_MEMORY, line)]
    return Sight(line=bare(named[0])) if named else None


def many_clipped(log: Log) -> Sight | None:
    """Some tokens although the policy hardly moved, or a third of all."""
    share = log.mean("clip_fraction")
    if share > 0.05 and log.most("kl") < 0.01:
        return Sight(["clip_fraction", "kl"], log.rows)
    return Sight(["clip_fraction"], log.rows, "much_clipped") if share > 0.33 else None


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
LOUD = ("kl", "kl_ref", "kl_ref_sum", "grad_norm")
# From where engine and trainer are apart. A KL of 0.05 is a mean gap of a quarter nat, wrong in any
# precision; a log that has the KL alone does not tell in which one it was.
APART = {"mismatch": 0.03, "mismatch_correlation": 0.02, "mismatch_kl": 0.05, "mismatch_prob": 0.05}
Rule = Callable[[Log], Sight | bool | None]
RULES: dict[str, Rule] = {
    "out_of_memory": memory_is_full,
    "overflow": overflows,
    "resume_jumps": loses_its_place,
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
    "mismatch": differs,
    "wrong_reference": other_from_the_start,
    "wrong_divergence": negative_divergence,
    "wrong_sign": lambda log: log.mean("advantage_by_reward") < -0.2,
    "gradient_lost": lost_gradient,
    "gamed": pays_for_other_things,
    "silent_groups": goes_silent,
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
    "region_too_narrow": many_clipped,
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


PARTS = {"rewards/": "parts", "heldout/": "heldout"}  # columns that are needed by their kind


def missing(symptom: Symptom, has: set[str]) -> list[str]:
    """What a symptom needs and the log has not got."""
    has = has | {word for start, word in PARTS.items() if any(n.startswith(start) for n in has)}
    return [need for need in symptom.needs if not has & set(need.split("|"))]


LATE = ("all_solved", "silent_at_last")


def diagnose(log: Log) -> list[Symptom]:
    """Symptoms that the log shows, the most fundamental first; it may explain those after it.

    Groups that fall silent late are what others lead to.
    """
    found = [(symptoms()[name], RULES[name](log)) for name in askable(log)]
    seen = [as_seen(one, log, sight) for one, sight in found if sight]
    return sorted(seen, key=lambda one: (one.harmless, one.sight.branch in LATE))


def as_seen(symptom: Symptom, log: Log, sight: Sight | bool) -> Symptom:
    """A symptom in the words of what was seen; with all its columns where the rule names none."""
    if not isinstance(sight, Sight):
        sight = Sight(symptom.look, log.rows)
    words: dict[str, Any] = {"thread": ""} | symptom.branches[sight.branch] if sight.branch else {}
    return replace(symptom, sight=sight, **words)


def shown(sight: Sight, log: Log) -> str:
    """The numbers of a sight: first and last of a whole log, else each with its step."""
    parts = []
    for name in sight.columns:
        rows = [row for row in sight.rows if is_number(row.get(name))]
        if sight.rows is log.rows:
            parts += [f"{name} {rows[0][name]:.3g} … {rows[-1][name]:.3g}"] if rows else []
        elif rows:
            said = [f"{row[name]:.3g}{at_step(row)}" for row in rows[:3]]
            more = [f"and {len(rows) - 3} more"] if len(rows) > 3 else []
            parts.append(f"{name} {', '.join(said + more)}")
    return sight.line or (", " if sight.rows is log.rows else "; ").join(parts)


def at_step(row: Row) -> str:
    """Where a row stands, if it says so."""
    return f" (step {row['step']:.0f})" if is_number(row.get("step")) else ""


def report(log: Log, everything: bool = False) -> str:
    """What the log shows, in words, and how many of the questions could be asked of it.

    With `everything`, also which could not, and which columns say nothing here. Raises
    `ValueError` where none could.
    """
    found, asked = diagnose(log), askable(log)
    if not asked:
        columns = ", ".join({name: "" for row in log.rows for name in row}) or "none"
        raise ValueError(
            f"none of {len(RULES)} questions can be asked: of its columns, {columns} is known"
        )
    parts = [
        f"{one.sight.branch or one.name}: {one.seen}\n  log    {shown(one.sight, log)}\n"
        f"  cause  {one.cause}\n  fix    {one.fix}\n"
        f"  more   {'; '.join(filter(None, (one.chapter, one.thread)))}"
        for one in found
    ]
    if len(found) > 1:
        parts.insert(0, "The first explains most; those after it may follow from it.")
    if log.crash and "out_of_memory" not in [one.name for one in found]:
        last = at_step(log.rows[-1]) if log.rows else ""
        parts.append(f"It ends in an error{last}: {log.crash}")
    parts.append(coverage(log, asked, bool(found)))
    return "\n\n".join([*parts, *(not_asked(log, asked) if everything else [])])


# Columns of trainers whose logs have other troubles than those here.
OTHER_TRAINING = {
    "rewards/chosen/mean": "preference pairs", "mean_token_accuracy": "imitation",
}  # fmt: skip


def coverage(log: Log, asked: Sequence[str], found: bool) -> str:
    """How many questions could be asked, and what it is worth that none found anything."""
    whose = f" of {log.trainer}" if log.trainer not in ("", "rlbook") else ""
    columns = {name for row in log.rows for name in row}
    paid = "reward" in columns
    for column, kind in OTHER_TRAINING.items():
        if column in columns or (column in log.unknown and not paid):
            whose = f" of {kind}, no log of reinforcement learning"
    could = f"{len(asked)} of {len(RULES)} questions could be asked"
    rows = f"{len(log.rows)} rows{whose}: "
    if found:
        return f"{rows}{could}."
    if len(asked) < FEW:
        return f"{rows}only {could}; they found nothing, which says little."
    return f"{rows}no symptom; {could}."


FEW = 6  # questions that tell no healthy run from a sick one


def not_asked(log: Log, asked: Sequence[str]) -> list[str]:
    """What the other questions lack, and which columns say nothing here."""
    has = {name for row in log.rows for name in row}
    lacks = [f"{name} ({', '.join(needed)})" for name, one in symptoms().items()
             if name not in asked and name not in ("out_of_memory", "micro_batches")
             and (needed := missing(one, has))]  # fmt: skip
    lines = [f"Not asked, for want of a column: {'; '.join(lacks)}."] if lacks else []
    if log.unknown and log.trainer != "rlbook":
        lines.append(f"Columns not known: {', '.join(log.unknown)}.")
    return lines
