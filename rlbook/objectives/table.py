"""The rows of `METHODS` as text."""

from rlbook.objectives.method import describe
from rlbook.objectives.methods import METHODS


def method_table() -> list[dict[str, str]]:
    """The rows of `METHODS` as text, one dictionary per method, ready for a data frame."""
    return [
        {
            "method": m.name,
            "paper": m.paper,
            "advantage": describe(m.advantage),
            "ratio": m.ratio,
            "trust region": describe(m.trust_region),
            "aggregation": m.aggregation + (f" ({m.constant:g})" if m.constant else ""),
            "KL": f"{m.kl.kind} in {m.kl.where}, β={m.kl.beta:g}" if m.kl else "none",
            "old log-probs": m.old_logprobs if m.ratio != "none" else "none",
            "rewards": "{:g} / {:g}".format(*m.reward_values),
            "shaping": m.reward_shaping,
            "prompts": m.prompt_filter.replace("_", " "),
            "note": m.note,
        }
        for m in METHODS.values()
    ]


def method_table_markdown() -> str:
    """`method_table` as a Markdown table."""
    rows = method_table()
    lines = [rows[0].keys(), ["---"] * len(rows[0]), *(row.values() for row in rows)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
