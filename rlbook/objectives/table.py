"""The rows of `METHODS`, or others, as text."""

import inspect
from collections.abc import Mapping
from functools import partial
from typing import Any

from rlbook.objectives.aggregation import AGGREGATIONS
from rlbook.objectives.estimators import describe
from rlbook.objectives.kl import kl_loss
from rlbook.objectives.loss import imitation_weights, with_entropy_bonus
from rlbook.objectives.method import Method
from rlbook.objectives.methods import METHODS
from rlbook.objectives.prompts import Filter, PromptFilter
from rlbook.objectives.ratios import sequence_ratio, token_ratio
from rlbook.objectives.shaping import overlong_filter, overlong_penalty, token_rewards
from rlbook.objectives.trust_regions import NoTrustRegion

__all__ = ["method_source", "method_table", "method_table_markdown", "method_text"]

SHORT = ("method", "advantage", "ratio", "trust region", "aggregation")


# Columns that are shown where a row uses them.
RARE = ("sampler correction", "selection", "entropy bonus", "likelihood", "format bonus")


def method_table(methods: Mapping[str, Method] = METHODS) -> list[dict[str, str]]:
    """Rows as text, one dictionary per method, ready for a data frame."""
    rows = [row_text(method) for method in methods.values()]
    for column in RARE:
        if all(row[column] == "none" for row in rows):
            rows = [{k: v for k, v in row.items() if k != column} for row in rows]
    return rows


def row_text(method: Method) -> dict[str, str]:
    """Every choice of one method as text."""
    m, region, correction = method, method.trust_region, method.sampler_correction
    limit = f" ({'limit' if m.constant is None else f'{m.constant:g}'})"
    limit = limit if m.aggregation == "constant" else ""
    cache = f" (last {m.overlong_cache} tokens)" if m.overlong_cache else ""
    return {
        "method": m.name,
        "paper": m.paper,
        "advantage": describe(m.advantage),
        "ratio": describe(m.ratio).replace("_", " "),
        "trust region": "none" if isinstance(region, NoTrustRegion) else describe(region),
        "aggregation": describe(m.aggregation) + limit,
        "KL": f"{m.kl.kind} in {m.kl.where}, β={m.kl.beta:g}" if m.kl else "none",
        "old log-probs": m.old_logprobs if m.ratio != "none" or correction else "none",
        "sampler correction": describe(correction) if correction else "none",
        "selection": describe(m.selection) if m.selection else "none",
        "entropy bonus": f"{m.entropy_bonus:g}" if m.entropy_bonus else "none",
        "likelihood": f"{m.likelihood:g} on right answers" if m.likelihood else "none",
        "rewards": "{:g} / {:g}".format(*m.reward_values),
        "format bonus": f"{m.format_bonus:g}" if m.format_bonus else "none",
        "shaping": m.reward_shaping + cache,
        "prompts": filter_text(m.prompt_filter),
        "note": m.note,
    }


def filter_text(prompts: Filter | None) -> str:
    """Which prompts learn, in words."""
    if not isinstance(prompts, PromptFilter):
        return "all" if prompts is None else describe(prompts)
    return f"differ by {prompts.by}" + (", resampled" if prompts.resample else "")


def method_text(method: str | Method) -> str:
    """One method, a line per choice, with what it needs: what `rlbook methods NAME` prints."""
    method = Method.from_dict(method)
    lines = row_text(method) | {"needs": needs_text(method)}
    note = lines.pop("note")
    width = max(map(len, lines))
    text = "\n".join(f"{name:<{width}}  {value}" for name, value in lines.items())
    return f"{text}\n\n{note}" if note else text


def method_source(method: str | Method) -> str:
    """The code behind one method's choices, in the order of a step: `rlbook methods NAME --source`.

    Plain numbers, such as those of the rewards, have no code of their own.
    """
    m = Method.from_dict(method)
    ratio = {"none": None, "token": token_ratio}.get(str(m.ratio), sequence_ratio)
    shaping = {"overlong": overlong_penalty, "overlong_filter": overlong_filter}
    chosen: dict[str, Any] = {
        "shaping": shaping.get(m.reward_shaping),
        "prompts": m.prompt_filter,
        "old log-probs": m.sampler_correction,
        "KL in the reward": token_rewards if m.kl and m.kl.where == "reward" else None,
        "advantage": m.advantage,
        "selection": m.selection,
        "ratio": ratio if isinstance(m.ratio, str) else m.ratio,
        "trust region": m.trust_region,
        "KL in the loss": kl_loss if m.kl and m.kl.where == "loss" else None,
        "entropy bonus": with_entropy_bonus if m.entropy_bonus else None,
        "likelihood": imitation_weights if m.likelihood else None,
        "aggregation": AGGREGATIONS.get(str(m.aggregation), m.aggregation),
    }
    parts = [f"# {column}: {source_of(choice)}" for column, choice in chosen.items() if choice]
    return "\n\n".join(parts)


def source_of(choice: Any) -> str:
    """Settings, file and code of a function, or of the class of an object."""
    function = choice.func if isinstance(choice, partial) else choice
    owner = function if hasattr(function, "__name__") else type(function)
    lines, start = inspect.getsourcelines(owner)
    where = f"{owner.__module__.replace('.', '/')}.py:{start}"
    return f"{describe(choice)}, {where}\n{''.join(lines).rstrip()}"


def needs_text(method: Method) -> str:
    """What a run of the method must provide beside samples and rewards."""
    wanted = method.requirements()
    needed = {
        "several answers per prompt": "groups" in method.needs,
        "one more greedy answer per prompt": "greedy" in wanted,
        "a critic": "critic" in wanted,
        "a reference model": "reference" in wanted,
        "recomputed log-probs": "recomputed" in wanted,
        f"log-probs of the {method.top_k} likeliest tokens": "top-k" in wanted,
    }
    return ", ".join(thing for thing, wanted in needed.items() if wanted) or "nothing more"


def method_table_markdown(
    columns: tuple[str, ...] = SHORT, methods: Mapping[str, Method] = METHODS
) -> str:
    """Some columns of `method_table` as Markdown, aligned to be read in a terminal as well.

    Raises `ValueError` for a column that the table does not have.
    """
    rows = method_table(methods)
    for column in columns:
        if column not in rows[0]:
            raise ValueError(f"no column {column!r}: choose from {', '.join(rows[0])}")
    cells = [columns, *([row[column] for column in columns] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [cells[0], ["-" * width for width in widths], *cells[1:]]
    return "\n".join(
        "| " + " | ".join(f"{c:<{w}}" for c, w in zip(line, widths, strict=True)) + " |"
        for line in lines
    )
