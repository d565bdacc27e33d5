"""A reader's own words lead to the chapter that answers them."""

import nbformat
import pytest

from rlbook.paths import ROOT
from workshop.site.keywords import entries, page_named

CHAPTERS = sorted((ROOT / "chapters").glob("*.ipynb"))
QUERIES = {  # words: where the answer stands; the first fourteen were asked before there was a list
    "why divide by std": {"grpo"},
    "clip higher": {"dapo"},
    "KL k3": {"ppo"},
    "vllm mismatch": {"dppo", "appendix_operations"},
    "entropy collapse": {"tricks_or_traps"},
    "max tokens truncated": {"dapo"},
    "length bias": {"dr_grpo"},
    "reward hacking": {"rlhf"},
    "how many samples per prompt": {"grpo"},
    "learning rate": {"reinforce"},
    "importance sampling": {"ppo", "cispo_gspo"},
    "GRPO vs PPO": {"grpo"},
    "reward not increasing": {"appendix_troubles", "appendix_operations"},
    "advantage zero": {"grpo"},
    "all advantages are zero": {"grpo"},
    "responses keep getting longer": {"dr_grpo"},
    "my answers are cut off": {"dapo"},
    "goodhart's law": {"rlhf"},
    "train a reward model": {"rlhf"},
    "direct preference optimization": {"rlhf"},
    "num_generations": {"grpo"},
    "group size": {"grpo"},
    "do I need a reference model": {"rlhf", "grpo"},
    "value function": {"ppo"},
    "ppo epochs": {"ppo"},
    "loss_agg_mode": {"dr_grpo"},
    "rejection sampling": {"policy"},
    "parse the answer": {"policy"},
    "model loses diversity": {"maxrl"},
    "pass@k goes down": {"maxrl", "policy"},
    "mixture of experts": {"dppo"},
    "spurious rewards": {"reality_check"},
    "majority voting reward": {"reality_check"},
    "overthinking": {"efficient_reasoning"},
    "on-policy distillation": {"efficient_reasoning"},
    "process reward model": {"credit_assignment"},
    "tool calls": {"credit_assignment", "several_turns"},
    "how old may samples be": {"scalerl"},
    "scaling laws": {"scalerl"},
    "out of memory": {"appendix_operations"},
    "grad norm spikes": {"appendix_troubles"},
    "translate verl config": {"appendix_fidelity"},
}


def test_every_section_that_is_named_exists():
    """In a chapter, or in what a cell of it writes; a few may wait for their new names."""
    lost = []
    for entry in entries():
        notebook = nbformat.read(page_named(entry["page"], CHAPTERS), as_version=4)
        written = [str(o.get("data", {})) for c in notebook.cells for o in c.get("outputs", [])]
        heads = [line for c in notebook.cells for line in c.source.splitlines() if line[:2] == "##"]
        if not any(entry["section"] in text for text in heads + written):
            lost.append((entry["page"], entry["section"]))
    assert len(lost) < 0.15 * len(entries()), lost


def test_forty_queries_find_their_chapter_first(node):
    """At least nine of ten: some words mean two things."""
    listed = [{"words": f"{e['section']} {e['words']}", "url": e["page"]} for e in entries()]
    call = "job.asked.map((query) => meant(query, job.listed).map(({ url }) => url))"
    found = node("keywords.js", "meant", call, asked=[*QUERIES], listed=listed)
    firsts = dict(zip(QUERIES, found, strict=True))
    wrong = {
        query: pages[:2] for query, pages in firsts.items() if not {*pages[:1]} & QUERIES[query]
    }
    assert len(QUERIES) >= 40 and len(wrong) <= 4, wrong


@pytest.mark.parametrize("query", ["", "the", "banana", "how is the weather in Paris", "zzz"])
def test_what_nobody_wrote_about_finds_nothing(node, query):
    listed = [{"words": e["words"], "url": e["page"]} for e in entries()]
    assert (
        node("keywords.js", "meant", "meant(job.query, job.listed)", query=query, listed=listed)
        == []
    )
