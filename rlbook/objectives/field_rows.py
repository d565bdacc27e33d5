"""Rows that other trainers ship beside those of the book: what one choice makes of a row.

`FIELD` goes by name wherever `METHODS` does ("method=glm5", `rlbook translate vespo --to trl`); the
chapters draw and count `METHODS` alone. What a row leaves of its paper is in its note. A row of
`NEW` has a paper and golden values so far: no chapter tells it yet. Corrections
of a whole answer are of two reports, [on TIS](https://fengyao.notion.site/off-policy-rl) and
[on masks](https://richardli.xyz/rl-collapse).
"""

from dataclasses import replace
from math import inf
from typing import Any, Literal

from rlbook.objectives import advantages as adv
from rlbook.objectives.method import ROWS, Method
from rlbook.objectives.methods import METHODS
from rlbook.objectives.process import token_credit
from rlbook.objectives.ratios import SamplerCorrection
from rlbook.objectives.selection import CovarianceClip, CovarianceKL, TopEntropy
from rlbook.objectives.soft_regions import RatioWindow, SequenceGamma, SequenceMask, TaperedWeight
from rlbook.objectives.trust_regions import NoTrustRegion, RatioClip

__all__ = ["FIELD"]

GRPO = replace(METHODS["grpo"], kl=None)
OFF_POLICY = "https://fengyao.notion.site/off-policy-rl"
MISMATCH = "https://richardli.xyz/rl-collapse"


NEW: set[str] = set()


def row(
    name: str,
    paper: str,
    base: Method,
    note: str = "",
    status: Literal["told", "new"] = "told",
    **choices: Any,
) -> Method:
    """The base row under another name with these choices."""
    if status == "new":
        NEW.add(name)
    return replace(base, name=name, paper=paper, note=note, **choices)


def corrected(name: str, paper: str, note: str, by: SamplerCorrection) -> Method:
    """GRPO without its KL term, weighed by π_old/μ within bounds."""
    return row(name, paper, GRPO, note, sampler_correction=by)


_ROWS = (
    # π_old is not quite the sampler μ: r = π_old/μ of the token, the answer, or its geometric mean
    corrected("tis", OFF_POLICY, "min(r, C) per token; verl's C.", SamplerCorrection(2.0)),
    corrected(
        "sequence_tis", OFF_POLICY, "SkyRL's C.", SamplerCorrection(5.0, "truncate", "sequence")
    ),
    corrected("icepop", "arXiv:2510.18855", "", SamplerCorrection(5.0, "drop", low=0.5)),
    corrected(
        "mis",
        MISMATCH,
        "As TRL does it unless told otherwise.",
        SamplerCorrection(3.0, "drop", "sequence"),
    ),
    corrected(
        "geometric_mask", MISMATCH, "", SamplerCorrection(1.001, "drop", "geometric", low=0.999)
    ),
    row(
        "m2po",
        "arXiv:2510.01161",
        GRPO,
        "Without a clip, as in the paper; AReaL keeps one.",
        trust_region=NoTrustRegion(),
        aggregation="token_mean",
        sampler_correction=SamplerCorrection(inf, moment=0.04),
    ),
    # the ratio is π/μ itself
    row(
        "glm5",
        "arXiv:2602.15763",
        GRPO,
        "§4.1.2's double-sided mask with GRPO's advantages; ε as in SkyRL's rollout_is.",
        trust_region=RatioWindow(0.2, 0.2),
        old_logprobs="sampler",
        aggregation="token_mean",
    ),
    row(
        "sao",
        "arXiv:2607.07508",
        METHODS["ppo"],
        "One answer per prompt: a critic makes up for the group. ε as in glm5.",
        trust_region=RatioWindow(0.2, 0.2),
        old_logprobs="sampler",
    ),
    row(
        "deepseek_v32",
        "arXiv:2512.02556",
        GRPO,
        "drift is ours, the paper names none. It adds KLPenalty('k3', gradient='score') with a β "
        "of each domain's own.",
        advantage=adv.group_center,
        ratio="sequence",
        trust_region=SequenceMask(0.1),
        old_logprobs="sampler",
    ),
    row(
        "vespo",
        "arXiv:2602.10693",
        GRPO,
        ratio="sequence_product",
        trust_region=SequenceGamma(),
        aggregation="token_mean",
    ),
    row(
        "topr",
        "arXiv:2503.14286",
        METHODS["reinforce"],
        ratio="sequence_product",
        trust_region=TaperedWeight(),
        reward_values=(-1.0, 1.0),
    ),
    row(
        "dro",
        "arXiv:2405.19107",
        METHODS["reinforce"],
        "−A log π + β/2 (log π/π_old)², per token as in verl; Kimi k1.5 (arXiv:2501.12599) squares "
        "the log-ratio of the whole answer.",
        advantage=adv.group_center,
        aggregation="token_mean",
        selection=CovarianceKL(1.0, 0.1, "k2"),  # of all tokens
    ),
    # other averages, tokens and advantages
    row("luspo", "arXiv:2602.05261", METHODS["gspo"], aggregation="sequence_sum"),
    row(
        "clip_cov",
        "arXiv:2505.22617",
        GRPO,
        selection=CovarianceClip(2e-4),
        aggregation="token_mean",
    ),
    row(
        "kl_cov",
        "arXiv:2505.22617",
        GRPO,
        trust_region=NoTrustRegion(),
        selection=CovarianceKL(2e-3),
        aggregation="token_mean",
    ),
    row("top_entropy", "arXiv:2506.01939", METHODS["dapo"], selection=TopEntropy(0.2)),
    row(
        "vapo",
        "arXiv:2504.05118",
        METHODS["ppo"],
        "Its critic is trained before the policy is (chapter 03); here it learns beside it. The "
        "likelihood is a mean over the right answers of the whole batch.",
        advantage=adv.length_adaptive_gae,
        trust_region=RatioClip(0.2, 0.28),
        likelihood=0.1,
    ),
    row("gdpo", "arXiv:2601.05242", GRPO, "verl whitens over tokens.", advantage=adv.gdpo),
    row(
        "pass_at_k",
        "arXiv:2503.19595",
        METHODS["reinforce"],
        "k is the size of the group; verl divides by the group's deviation unless told not to.",
        advantage=adv.best_of_group,
    ),
    row(
        "gigpo",
        "arXiv:2505.10978",
        GRPO,
        "Credit comes with the reward, rlbook.rewards.turns:GiGPOCredit: an episode beside its "
        "group, and a turn beside the group's turns at the same place.",
        advantage=token_credit,
        aggregation="token_mean",
    ),
    row(
        "sdpo",
        "arXiv:2601.20802",
        METHODS["opd"],
        "opd with TeacherReward(told=…): the teacher is the policy itself, with feedback in its "
        "prompt or a right sibling; SDFT (arXiv:2601.19897) puts a demonstration there.",
    ),
)

FIELD: dict[str, Method] = {method.name: method for method in _ROWS}
ROWS.maps.insert(0, FIELD)  # listed after those of the book
