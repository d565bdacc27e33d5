"""Every row: where it is told, whose loss has its gradient, what says it whole, its ladder.

`PEERS` without prime-rl: their losses are compared by `make interop`. `python -m
workshop.tools.rows` prints what rows lack: one that has `status="new"` may lack all of it.
"""

import re
from collections.abc import Iterator, Mapping
from functools import cache

import nbformat

from rlbook.interop import PEERS, translate
from rlbook.objectives import FIELD, METHODS, Method
from rlbook.objectives.field_rows import NEW
from rlbook.paths import ROOT
from workshop.shared.evidence import load_results
from workshop.shared.ladder_arms import BESIDE, rungs
from workshop.tools.runner import chapters

OF_THE_LOSS = {"trust region", "KL", "selection", "sampler correction", "entropy bonus"}
OF_THE_LOSS |= {"likelihood"}
WORLDS = ("sums", "habits")
TOLD = {
    "02": "reinforce reinforce_batch_mean reinforce_ema",
    "03": "ppo vapo sao",
    "05": "grpo gdpo",
    "06": "rloo remax reinforce_plus_plus opo",
    "07": "dr_grpo",
    "08": "dapo",
    "09": "cispo gspo luspo",
    "10": "maxrl pass_at_k",
    "11": "dppo dppo_kl gmpo sapo glm5 m2po deepseek_v32 vespo topr dro tis sequence_tis icepop "
    "mis geometric_mask",
    "12": "lite_ppo gpg clip_cov kl_cov top_entropy",
    "14": "opd sdpo",
    "16": "gigpo",
    "17": "scalerl",
}
CHAPTER: Mapping[str, str] = {row: at for at, rows in TOLD.items() for row in rows.split()}
SPOKEN = {  # where a chapter writes a row in another way
    "mis": "MIS",
    "tis": "TIS",
    "icepop": "IcePop",
    "geometric_mask": "geometric",
    "sapo": "SAPO",
}
SPOKEN |= {
    "gigpo": "GiGPO",
    "sequence_tis": "whole answer",
    "deepseek_v32": "DeepSeek-V3.2",
    "vespo": "VESPO",
}
SPOKEN |= {"topr": "TOPR", "clip_cov": "Clip-Cov", "kl_cov": "KL-Cov", "top_entropy": "TopEntropy"}
EXACT_SAMPLER = "GRPO: the sampler is the policy there"
NOT_ALONE = {  # why a row has no line of its own on the ladder
    **dict.fromkeys(("tis", "sequence_tis", "icepop", "mis", "geometric_mask"), EXACT_SAMPLER),
    "m2po": "no region: the sampler is the policy there",
    "deepseek_v32": "GRPO without σ, until answers drift",
    "gdpo": "GRPO, whitened: one part of reward there",
    "luspo": "GSPO, times the length",
    "sao": "PPO within GLM-5's window",
    **dict.fromkeys(("clip_cov", "kl_cov", "top_entropy"), "chapter 12, dials of entropy"),
    **dict.fromkeys(("opd", "sdpo"), "chapter 14: it needs a teacher"),
    "gigpo": "chapter 16: GRPO, where an answer is one turn",
    "gmpo": "GSPO, until a token leaves its own window",
    "vespo": "GRPO over all tokens, until answers drift",
    "topr": "REINFORCE on ±1, until answers drift",
    "pass_at_k": "chapter 10: groups with one right answer alone, for pass@k",
}


def same_gradient(method: Method, peer: str) -> bool:
    """Whether the trainer's loss has the row's gradient, its advantages given token by token."""
    return not OF_THE_LOSS & translate(method, peer, plugin=True).lost.keys()


def on_the_ladder() -> dict[str, str]:
    """Mean pass@1 over ten seeds at the row's own rate, on sums and on habits, by name of the row.

    Only of rows that have run in both worlds.
    """
    label_of: dict[str, str] = {}
    for label, (method, _) in (rungs(0.5) | dict(BESIDE)).items():
        label_of.setdefault(method.name, label)
    means = {world: dict(means_in(world)) for world in WORLDS}
    known = {row for row, label in label_of.items() if all(label in m for m in means.values())}
    return {
        row: " · ".join(f"{means[world][label_of[row]]:.2f}" for world in WORLDS) for row in known
    }


def means_in(world: str) -> Iterator[tuple[str, float]]:
    """(label, pass@1) of the rows of the book and, once they have run, of those beside them."""
    for table in (f"ladder_{world}_eval", f"beside_{world}_eval"):
        try:
            ends = load_results(table)
        except FileNotFoundError:
            continue
        by_arm = ends.groupby("arm")
        whole = by_arm.seed.nunique() == 10
        yield from ((arm, float(x)) for arm, x in by_arm["pass@1"].mean()[whole].items())


def matrix() -> list[dict[str, str]]:
    """A row of text per method: chapter, whose gradient, whose settings say it, the ladder."""
    learned = on_the_ladder()
    rows = []
    for name, method in (METHODS | FIELD).items():
        compared = [peer for peer in PEERS if peer != "prime-rl"]
        gradient = [peer for peer in compared if same_gradient(method, peer)]
        whole = [peer for peer in PEERS if translate(method, peer).exact]
        rows.append(
            {
                "row": name,
                "chapter": CHAPTER.get(name, "none yet"),
                "gradient equal in": ", ".join(gradient) or "none",
                "said whole by settings of": ", ".join(whole) or "none",
                "pass@1 on the ladder": learned.get(name) or NOT_ALONE.get(name, "not run"),
            }
        )
    return rows


def missing(method: Method) -> list[str]:
    """What the row lacks of what a row of the book has."""
    name, lacks = method.name, []
    if name not in CHAPTER:
        lacks.append("a chapter that tells it: `TOLD`")
    elif not named_in(CHAPTER[name], name):
        lacks.append(f"its name in chapter {CHAPTER[name]}, or a spelling in `SPOKEN`")
    if name not in NOT_ALONE.keys() | {row.name for row in on_some_rung()}:
        lacks.append("a rung of the ladder with its runs (`BESIDE`), or a reason: `NOT_ALONE`")
    if name in NEW:
        if not golden(name):
            lacks.append("golden values: a test in `tests/rlbook/objectives` that names it")
        unsaid = [to for to in PEERS if not same_gradient(method, to)]
        lacks += [f"a loss in the settings of {to}, or its place in `WITHOUT`" for to in unsaid]
    return lacks


def golden(row: str) -> bool:
    """Whether a test of the mathematics names the row."""
    return f'"{row}"' in tests_of_the_mathematics()


@cache
def tests_of_the_mathematics() -> str:
    """Their code."""
    tests = (ROOT / "tests/rlbook/objectives").glob("test_*.py")
    return "\n".join(path.read_text(encoding="utf-8") for path in tests)


def on_some_rung() -> Iterator[Method]:
    """The rows of the ladder's rungs and of those beside them, run or not."""
    yield from (method for method, _ in (rungs(0.5) | dict(BESIDE)).values())


def named_in(chapter: str, row: str) -> bool:
    """Whether a chapter's notebook writes the name of the row."""
    (path,) = (path for path in chapters() if path.match(f"chapters/{chapter}_*.ipynb"))
    text = "\n".join(cell.source for cell in nbformat.read(path, 4).cells)
    spelt = SPOKEN.get(row, "\0")
    return spelt in text or re.search(rf'["` ]{row}["`\n]', text) is not None


if __name__ == "__main__":
    for name, method in (METHODS | FIELD).items():
        for lack in missing(method):
            print(f"{name}{' (new)' if name in NEW else ''}: {lack}")
