"""A method is a row of choices: the summary table of the field, as code.

    advantage        rewards -> advantages                              (`advantages`)
    ratio            importance ratio: none, per token, per sequence    (`ratios`)
    trust region     what happens to tokens that have already moved     (`trust_regions`)
    aggregation      per-token losses -> one number                     (`aggregation`)
    kl               penalty towards a reference policy                 (`kl`)

An ablation is `dataclasses.replace(METHODS["grpo"], aggregation="token_mean")`, or in a file
{"name": "grpo", "aggregation": "token_mean"}, which `Method.from_dict` reads.
"""

from functools import partial

from rlbook.objectives import advantages as adv
from rlbook.objectives.kl import KLPenalty
from rlbook.objectives.method import ROWS, Method
from rlbook.objectives.prompts import PromptFilter
from rlbook.objectives.soft_regions import GeometricClip, SoftGate
from rlbook.objectives.trust_regions import DivergenceMask, RatioClip, WeightClip

__all__ = ["METHODS"]

_ROWS = (
    Method("reinforce", "doi:10.1007/BF00992696", adv.no_baseline),
    Method("reinforce_batch_mean", "doi:10.1007/BF00992696", adv.batch_mean_baseline),
    Method("reinforce_ema", "doi:10.1007/BF00992696", adv.EMABaseline),
    Method(
        "ppo",
        "arXiv:1707.06347",
        adv.gae,
        ratio="token",
        old_logprobs="recomputed",
        trust_region=RatioClip(0.2, 0.2),
        aggregation="token_mean",
        note="Eq. 7 averages over time steps. RLHF adds −β k1 to the reward; the paper does not.",
    ),
    Method(
        "grpo",
        "arXiv:2402.03300",
        adv.group_normalize,
        ratio="token",
        old_logprobs="recomputed",
        trust_region=RatioClip(0.2, 0.2),
        aggregation="sequence_mean",
        kl=KLPenalty("k3", 0.04, "loss", gradient="naive"),
        note="Neither ε nor ddof is published; DeepSeek-R1 used ε = 10 and β = 0.001.",
    ),
    Method(
        "rloo",
        "arXiv:2402.14740",
        adv.leave_one_out,
        kl=KLPenalty("k1", 0.03, "reward"),
        note="β is 0.03 on TL;DR, 0.10 on HH. TRL adds a clipped ratio of whole completions.",
    ),
    Method(
        "remax",
        "arXiv:2310.10505",
        adv.greedy_baseline,
        kl=KLPenalty("k1", 0.05, "reward"),
        note="β from the official code, which keeps each token's penalty to itself and averages "
        "over tokens.",
    ),
    Method(
        "reinforce_plus_plus",
        "arXiv:2501.03262",
        adv.reinforce_plus_plus,
        ratio="token",
        old_logprobs="recomputed",
        trust_region=RatioClip(0.2, 0.2),
        aggregation="token_mean",
        note="One completion per prompt; the paper's −β k1 in the reward is set per run. "
        'REINFORCE++-baseline: advantage=partial(reinforce_plus_plus, baseline="group") '
        "and a k2 loss.",
    ),
    Method("opo", "arXiv:2505.23585", adv.length_weighted_baseline),
    Method(
        "dr_grpo",
        "arXiv:2503.20783",
        adv.group_center,
        ratio="token",
        old_logprobs="recomputed",
        trust_region=RatioClip(0.2, 0.2),
        aggregation="constant",
        note="The constant is the run's generation limit (the paper's: 3000), unless one is set.",
    ),
    Method(
        "dapo",
        "arXiv:2503.14476",
        adv.group_normalize,
        ratio="token",
        old_logprobs="recomputed",
        trust_region=RatioClip(0.2, 0.28),
        aggregation="token_mean",
        reward_values=(-1.0, 1.0),
        reward_shaping="overlong",
        prompt_filter=PromptFilter(by="correct", resample=True),
        note="Eq. 8 is a mean per prompt, the official code a mean over the minibatch's tokens; "
        "the code also has a dual clip at 10.",
    ),
    Method(
        "cispo",
        "arXiv:2506.13585",
        adv.group_normalize,
        ratio="token",
        old_logprobs="recomputed",
        trust_region=WeightClip(max=5.0),
        aggregation="prompt_mean",
        reward_shaping="overlong",
        prompt_filter=PromptFilter(by="correct", resample=True),
        note="The paper's cap 1 + ε_high is unpublished; 5 is among the caps ScaleRL tested.",
    ),
    Method(
        "gspo",
        "arXiv:2507.18071",
        adv.group_normalize,
        ratio="sequence",
        old_logprobs="recomputed",
        trust_region=RatioClip(3e-4, 4e-4),
        aggregation="sequence_mean",
        note="ScaleRL found 4e-3/5e-3 to work where the paper's values did not.",
    ),
    Method(
        "gmpo",
        "arXiv:2507.20673",
        adv.group_normalize,
        ratio="token",
        old_logprobs="recomputed",
        trust_region=GeometricClip(0.4, 0.4),
        aggregation="sequence_mean",
    ),
    Method(
        "sapo",
        "arXiv:2511.20347",
        adv.group_normalize,
        ratio="token",
        old_logprobs="recomputed",
        trust_region=SoftGate(),
        aggregation="sequence_mean",
    ),
    Method(
        "maxrl",
        "arXiv:2602.02710",
        adv.max_rl,
        aggregation="token_mean",
        note="Rewards 0/1 only. Algorithm 1 averages over samples (sequence_sum); the "
        "language-model runs average over tokens.",
    ),
    Method(
        "dppo",
        "arXiv:2602.04879",
        adv.group_center,
        ratio="token",
        old_logprobs="sampler",
        trust_region=DivergenceMask("tv", 0.15, 0.15),
        note="δ 0.15 in the stability study, 0.2 in most scaling runs, which cap the weight at 5.",
    ),
    Method(
        "dppo_kl",
        "arXiv:2602.04879",
        adv.group_center,
        ratio="token",
        old_logprobs="sampler",
        trust_region=DivergenceMask("kl", 0.05, 0.05),
    ),
    Method(
        "scalerl",
        "arXiv:2510.13786",
        adv.batch_normalize,
        ratio="token",
        old_logprobs="sampler",
        trust_region=WeightClip(max=5.0),
        aggregation="prompt_mean",
        reward_values=(-1.0, 1.0),
        prompt_filter=PromptFilter(by="reward"),
        note="Caps 4, 5 and 8 made no significant difference; the main runs' value is unstated.",
    ),
    Method(
        "lite_ppo",
        "arXiv:2508.08221",
        partial(adv.batch_normalize, population="raw"),
        ratio="token",
        old_logprobs="recomputed",
        trust_region=RatioClip(0.2, 0.2),
        aggregation="token_mean",
    ),
    Method(
        "gpg",
        "arXiv:2504.02546",
        adv.gpg,
        aggregation="token_mean",
        note="Prompts are added until 60 % of the groups carry signal. Its R1-V code averages "
        "per sequence.",
    ),
    Method(
        "opd",
        "arXiv:2306.13649",
        partial(adv.reward_to_go, gamma=0.0),
        aggregation="token_mean",
        note="Its reward per token is log π_T − log π_θ (rlbook.rewards.TeacherReward). GKD takes "
        "the KL of each state whole; this is the estimate of it from the sampled token.",
    ),
)

METHODS: dict[str, Method] = {method.name: method for method in _ROWS}
ROWS.maps[:] = [METHODS]
