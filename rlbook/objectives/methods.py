"""A method is a row of choices: the summary table of the field, as code.

    advantage        rewards -> advantages                              (`advantages`)
    ratio            importance ratio: none, per token, per sequence    (`ratios`)
    trust region     what happens to tokens that have already moved     (`trust_regions`)
    aggregation      per-token losses -> one number                     (`aggregation`)
    kl               penalty towards a reference policy                 (`kl`)

An ablation is `dataclasses.replace(METHODS["grpo"], aggregation="token_mean")`.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rlbook.objectives import advantages as adv
from rlbook.objectives.aggregation import Aggregation, Totals, aggregate
from rlbook.objectives.kl import KLPenalty, kl_estimate, kl_loss
from rlbook.objectives.ratios import sequence_ratio, token_ratio
from rlbook.objectives.shapes import check_tokens, per_token, zero_padding
from rlbook.objectives.trust_regions import (
    DivergenceMask,
    NoTrustRegion,
    RatioClip,
    Surrogate,
    TrustRegion,
    WeightClip,
)

Ratio = Literal["none", "token", "sequence"]


@dataclass(frozen=True)
class Method:
    """One row of the table.

    `constant` is the normaliser of `aggregation="constant"`. `anchor` says whose log-probs the
    paper calls π_old: the trainer's, recomputed, or the sampler's own. `reward_values` are the
    rewards of a (wrong, right) answer. `reward_shaping` and `prompt_filter` name what happens to
    rewards and prompts before the objective; the trainer does it ("overlong": DAPO's ramp;
    "overlong_filter": truncated completions count in the baseline but are not trained on).
    `note` records where papers and code disagree.
    Raises `ValueError` for an unknown option or a combination that cannot run.
    """

    name: str
    paper: str
    advantage: Callable[..., Any]
    ratio: Ratio = "none"
    trust_region: TrustRegion = field(default_factory=NoTrustRegion)
    aggregation: Aggregation = "token_sum"
    constant: float | None = None
    kl: KLPenalty | None = None
    anchor: Literal["recomputed", "sampler"] = "recomputed"
    reward_values: tuple[float, float] = (0.0, 1.0)
    reward_shaping: Literal["none", "overlong", "overlong_filter"] = "none"
    prompt_filter: Literal["none", "drop_zero_variance", "resample_zero_variance"] = "none"
    note: str = ""

    def __post_init__(self) -> None:
        for f in fields(self):
            value, options = getattr(self, f.name), get_args(f.type)
            if f.name in CHOICES and value not in options:
                raise ValueError(f"{f.name} must be one of {options}, got {value!r}")
        if self.ratio == "none" and not isinstance(self.trust_region, NoTrustRegion):
            raise ValueError(
                f'{type(self.trust_region).__name__} needs ratio="token" or "sequence"'
            )

    @property
    def needs(self) -> frozenset[str]:
        """Names of what the advantage is computed from, e.g. {"rewards", "groups"}."""
        parameters = inspect.signature(self.new_advantage()).parameters.values()
        return frozenset(p.name for p in parameters if p.name in INPUTS)

    @property
    def needs_critic(self) -> bool:
        return "values" in self.needs

    @property
    def needs_greedy(self) -> bool:
        return "greedy_rewards" in self.needs

    @property
    def needs_reference(self) -> bool:
        return self.kl is not None and self.kl.beta > 0

    def new_advantage(self) -> Callable[..., Any]:
        """The estimator for one run: a stateful one is made afresh."""
        return self.advantage() if isinstance(self.advantage, type) else self.advantage


CHOICES = ("ratio", "aggregation", "anchor", "reward_shaping", "prompt_filter")
INPUTS = ("rewards", "groups", "mask", "lengths", "greedy_rewards", "values", "gamma", "lam")


def compute_advantages(estimator: Callable[..., Any], **inputs: Any) -> Any:
    """Call an estimator with those of the named `inputs` that it takes.

    Raises `ValueError` naming an input it needs and did not get (names: `INPUTS`).
    """
    parameters = inspect.signature(estimator).parameters.values()
    given = {p.name: inputs[p.name] for p in parameters if inputs.get(p.name) is not None}
    for p in parameters:
        if p.default is p.empty and p.name not in given:
            raise ValueError(f"{describe(estimator)} needs {p.name!r}; it got {sorted(inputs)}")
    return estimator(**given)


class Loss(NamedTuple):
    """`loss` to call backward on; `per_token` (N, T), 0 outside the mask; `sums` for metrics."""

    loss: Float[Tensor, ""]
    per_token: Float[Tensor, "N T"]
    sums: dict[str, Tensor]

    @property
    def metrics(self) -> dict[str, Tensor]:
        """Detached scalars of this call alone; see `summarize` for several parts."""
        return summarize(self.sums)


def policy_loss(
    method: Method,
    logp: Float[Tensor, "N T"],
    logp_old: Float[Tensor, "N T"],
    advantages: Float[Tensor, "..."],
    mask: Bool[Tensor, "N T"],
    groups: Int[Tensor, " N"] | None = None,
    totals: Totals | None = None,
    logp_ref: Float[Tensor, "N T"] | None = None,
    divergence: Float[Tensor, "N T"] | None = None,
    correction: Float[Tensor, "N T"] | None = None,
) -> Loss:
    """The loss that a method minimises, for one batch or one slice of it.

    `advantages` (N,) or (N, T) are constants. Pass the `totals` of the whole update to let slices
    add up to it. `divergence` replaces the binary one of a `DivergenceMask`; `correction` (see
    `sampler_correction`) multiplies the surrogate, not the KL term.
    Raises `ValueError` where a shape is wrong or the method needs an argument that is missing.
    """
    check_tokens(
        mask, logp=logp, logp_old=logp_old, logp_ref=logp_ref, divergence=divergence,
        correction=correction,
    )  # fmt: skip
    advantages = per_token(advantages, mask).detach()
    logp, logp_old, advantages = zero_padding(mask, logp, logp_old.detach(), advantages)
    ratio = importance_ratio(method.ratio, logp, logp_old, mask)
    extra = {} if divergence is None else {"divergence": divergence}
    surrogate = method.trust_region(logp, logp_old, ratio, advantages, **extra)
    per_token_loss = surrogate.loss
    if correction is not None:
        per_token_loss = per_token_loss * zero_padding(mask, correction.detach())[0]
    if method.kl is not None and method.kl.where == "loss":
        per_token_loss = per_token_loss + kl_term(method.kl, logp, logp_ref, logp_old, mask)
    loss = aggregate(per_token_loss, mask, method.aggregation, groups, method.constant, totals)
    per_token_loss = torch.where(mask, per_token_loss, 0.0)
    return Loss(loss, per_token_loss, loss_sums(logp, logp_old, advantages, mask, surrogate))


def importance_ratio(
    kind: Ratio,
    logp: Float[Tensor, "N T"],
    logp_old: Float[Tensor, "N T"],
    mask: Bool[Tensor, "N T"],
) -> Float[Tensor, "N T"] | None:
    """The ratio a method uses, per token; None for "none"."""
    if kind == "none":
        return None
    if kind == "token":
        return token_ratio(logp, logp_old)
    return sequence_ratio(logp, logp_old, mask)


def kl_term(
    kl: KLPenalty,
    logp: Float[Tensor, "N T"],
    logp_ref: Float[Tensor, "N T"] | None,
    logp_old: Float[Tensor, "N T"],
    mask: Bool[Tensor, "N T"],
) -> Float[Tensor, "N T"]:
    """β times the per-token KL loss; padding must already be 0 in `logp` and `logp_old`."""
    if logp_ref is None:
        raise ValueError("this method has a KL term: pass logp_ref, or replace(method, kl=None)")
    (logp_ref,) = zero_padding(mask, logp_ref)
    ratio = token_ratio(logp, logp_old) if kl.gradient == "score" else None
    return kl.beta * kl_loss(logp, logp_ref, kl.kind, kl.gradient, ratio)


@torch.no_grad()
def loss_sums(
    logp: Float[Tensor, "N T"],
    logp_old: Float[Tensor, "N T"],
    advantages: Float[Tensor, "N T"],
    mask: Bool[Tensor, "N T"],
    surrogate: Surrogate,
) -> dict[str, Tensor]:
    """Numerators, denominators and extremes from which `summarize` makes the metrics."""
    ratio, signal = (logp - logp_old).exp(), mask & (advantages != 0)
    drift = kl_estimate(logp_old, logp, "k3")
    return {
        "tokens": mask.sum(),
        "signal_tokens": signal.sum(),
        "masked_tokens": (signal & ~surrogate.keep).sum(),
        "weight_sum": torch.where(mask, surrogate.weight, 0.0).sum(),
        "kl_sum": torch.where(mask, drift, 0.0).sum(),
        "ratio_min": torch.where(mask, ratio, torch.inf).min(),
        "ratio_max": torch.where(mask, ratio, -torch.inf).max(),
    }


def summarize(*parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Metrics of the micro-batches whose `Loss.sums` are given, as if they were one batch.

    clip_fraction   masked gradients / tokens with A ≠ 0 (a token with A = 0 has none to mask)
    mean_weight     mean coefficient of A·∇log π over trained tokens, masked ones counting as 0
    kl              k3 estimate of KL(π_old ‖ π_θ) per trained token, nats
    ratio_min/max   extremes of the token ratio π_θ/π_old, whatever ratio the method uses
    """
    total = {name: sum(part[name] for part in parts) for name in parts[0]}
    tokens, signal = total["tokens"].clamp(min=1), total["signal_tokens"].clamp(min=1)
    return {
        "clip_fraction": total["masked_tokens"] / signal,
        "mean_weight": total["weight_sum"] / tokens,
        "kl": total["kl_sum"] / tokens,
        "ratio_min": torch.stack([part["ratio_min"] for part in parts]).min(),
        "ratio_max": torch.stack([part["ratio_max"] for part in parts]).max(),
    }


_ROWS = (
    Method("reinforce", "doi:10.1007/BF00992696", adv.no_baseline),
    Method("reinforce_batch_mean", "doi:10.1007/BF00992696", adv.batch_mean_baseline),
    Method("reinforce_ema", "doi:10.1007/BF00992696", adv.EMABaseline),
    Method(
        "ppo",
        "arXiv:1707.06347",
        adv.gae,
        ratio="token",
        trust_region=RatioClip(0.2, 0.2),
        aggregation="token_mean",
        note="Eq. 7 averages over time steps. RLHF adds −β k1 to the reward; the paper does not.",
    ),
    Method(
        "grpo",
        "arXiv:2402.03300",
        adv.group_normalize,
        ratio="token",
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
        trust_region=RatioClip(0.2, 0.2),
        aggregation="constant",
        constant=3000,
        note="3000 is the paper's generation limit: set `constant` to yours.",
    ),
    Method(
        "dapo",
        "arXiv:2503.14476",
        adv.group_normalize,
        ratio="token",
        trust_region=RatioClip(0.2, 0.28),
        aggregation="token_mean",
        reward_values=(-1.0, 1.0),
        reward_shaping="overlong",
        prompt_filter="resample_zero_variance",
        note="Eq. 8 is a mean per prompt, the official code a mean over the minibatch's tokens; "
        "the code also has a dual clip at 10.",
    ),
    Method(
        "cispo",
        "arXiv:2506.13585",
        adv.group_normalize,
        ratio="token",
        trust_region=WeightClip(max=5.0),
        aggregation="prompt_mean",
        reward_shaping="overlong",
        prompt_filter="resample_zero_variance",
        note="The paper's cap 1 + ε_high is unpublished; 5 is among the caps ScaleRL tested.",
    ),
    Method(
        "gspo",
        "arXiv:2507.18071",
        adv.group_normalize,
        ratio="sequence",
        trust_region=RatioClip(3e-4, 4e-4),
        aggregation="sequence_mean",
        note="ScaleRL found 4e-3/5e-3 to work where the paper's values did not.",
    ),
    Method(
        "maxrl",
        "arXiv:2602.02710",
        adv.max_rl,
        aggregation="token_mean",
        note="Rewards 0/1 only. Algorithm 1 averages over samples (token_sum); the language-model "
        "runs average over tokens.",
    ),
    Method(
        "dppo",
        "arXiv:2602.04879",
        adv.group_center,
        ratio="token",
        trust_region=DivergenceMask("tv", 0.15, 0.15),
        anchor="sampler",
        note="δ 0.15 in the stability study, 0.2 in most scaling runs, which cap the weight at 5.",
    ),
    Method(
        "dppo_kl",
        "arXiv:2602.04879",
        adv.group_center,
        ratio="token",
        trust_region=DivergenceMask("kl", 0.05, 0.05),
        anchor="sampler",
    ),
    Method(
        "scalerl",
        "arXiv:2510.13786",
        adv.batch_normalize,
        ratio="token",
        trust_region=WeightClip(max=5.0),
        aggregation="prompt_mean",
        anchor="sampler",
        reward_values=(-1.0, 1.0),
        prompt_filter="drop_zero_variance",
        note="Caps 4, 5 and 8 made no significant difference; the main runs' value is unstated.",
    ),
    Method(
        "lite_ppo",
        "arXiv:2508.08221",
        partial(adv.batch_normalize, population="raw"),
        ratio="token",
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
)

METHODS: dict[str, Method] = {method.name: method for method in _ROWS}


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
            "anchor": m.anchor if m.ratio != "none" else "none",
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


def describe(choice: object) -> str:
    """A function with its bound arguments, or a trust region with its settings, in one line."""
    if isinstance(choice, NoTrustRegion):
        return "none"
    if isinstance(choice, partial):
        bound = ", ".join(f"{k}={v}" for k, v in choice.keywords.items())
        return f"{choice.func.__name__}({bound})"
    if hasattr(choice, "__name__"):
        return choice.__name__
    settings = {f.name: getattr(choice, f.name) for f in fields(choice)}
    shown = ", ".join(f"{k}={v}" for k, v in settings.items() if v is not None)
    return f"{type(choice).__name__}({shown})"
