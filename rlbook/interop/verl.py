"""verl 0.9.1: settings, their defaults, and the estimator that brings what they cannot say.

rlbook.interop.verl.register(my_method)                  before verl starts, or for all rows
VERL_USE_EXTERNAL_MODULES=rlbook.interop.verl_rows python -m verl.trainer.main_ppo …
"""

from typing import Any

from rlbook.interop.fold import RowAdvantages
from rlbook.interop.translation import (
    BIG,
    Run,
    Settings,
    Translation,
    Words,
    estimator,
    region,
    table,
    unsaid,
)
from rlbook.objectives import FIELD, METHODS, Method, PromptFilter

VERSION, DEFAULTS = table("verl")
ACTOR, ALGORITHM = "actor_rollout_ref.actor.", "algorithm."
CORRECTION = ALGORITHM + "rollout_correction."
DISTILLATION = "distillation."
RENAMED = {"reward_model.reward_manager": "reward.reward_manager.name"}
CLIPS = ("clip_ratio_low", "clip_ratio_high", "clip_ratio_c")


AVERAGES = {
    "token_mean": "token-mean",
    "sequence_mean": "seq-mean-token-mean",
    "sequence_sum": "seq-mean-token-sum",
    "constant": "seq-mean-token-sum-norm",
}
OWN_AVERAGE = {"sapo": "sequence_mean", "geo_mean": "sequence_mean"}  # whatever loss_agg_mode says
KINDS = {"k1": "kl", "k2": "mse", "k3": "low_var_kl"}

PLUS_PLUS = {"baseline": "none", "population": "tokens"}
ADVANTAGES = {
    "group_normalize": Words(
        {"adv_estimator": "grpo", "norm_adv_by_std_in_grpo": True}, only={"ddof": 1}
    ),
    "group_center": Words({"adv_estimator": "grpo", "norm_adv_by_std_in_grpo": False}),
    "leave_one_out": Words({"adv_estimator": "rloo"}),
    "greedy_baseline": Words({"adv_estimator": "remax"}),
    "length_weighted_baseline": Words({"adv_estimator": "opo"}),
    "reinforce_plus_plus": Words(
        {"adv_estimator": "reinforce_plus_plus"}, PLUS_PLUS, nearly="the variance is over n − 1"
    ),
    "gae": Words({"adv_estimator": "gae"}, otherwise="whitened over the batch's tokens"),
    "gpg": Words(
        {"adv_estimator": "gpg"},
        otherwise="α counts rewards that are not 0, not groups that differ",
    ),
    "best_of_group": Words({"adv_estimator": "grpo_passk", "norm_adv_by_std_in_grpo": False}),
    "gdpo": Words(
        {"adv_estimator": "gdpo"},
        {"weights": None},
        otherwise="whitened over the batch's tokens; +algorithm.gdpo_reward_keys lists them",
    ),
}


def translate(method: Method, run: Run) -> Translation:
    """The row as verl's settings; names and defaults are checked by `make interop`."""
    out, m = Translation("verl"), method.resolved(run.max_new_tokens)
    if estimator(m) == ("reward_to_go", {"gamma": 0.0}):
        out.say({"enabled": True}, DISTILLATION)
        how = {"loss_mode": "k1", "use_policy_gradient": True, "use_task_rewards": False}
        out.say(how, DISTILLATION + "distillation_loss.")
    else:
        out.estimates(m, ADVANTAGES, ALGORITHM)
    loss = trust_region(out, m)
    mode = out.averages(m, AVERAGES, OWN_AVERAGE.get(loss, ""))
    if "aggregation" in out.lost and loss not in OWN_AVERAGE:
        # a mean over sequences cuts into minibatches without a remainder
        out.base, mode = "sequence_sum", AVERAGES["sequence_sum"]
    out.say({"loss_agg_mode": mode}, ACTOR)
    if m.aggregation == "constant" and m.constant is not None:
        out.say({"loss_scale_factor": int(m.constant)}, ACTOR)
    settled = kl(out, m) | sampler(out, m) | selection(out, m)
    if m.entropy_bonus and out.base == m.aggregation:
        out.say({"entropy_coeff": m.entropy_bonus}, ACTOR)
        settled["entropy bonus"] = True
    if m.reward_shaping == "overlong":
        out.say({"reward.reward_manager.name": "dapo", **overlong(m, run.max_new_tokens)})
        settled["shaping"] = True
    if isinstance(m.prompt_filter, PromptFilter) and m.prompt_filter.resample:
        metric = {"reward": "reward", "correct": "acc"}[m.prompt_filter.by]
        out.say({"enable": True, "metric": metric}, ALGORITHM + "filter_groups.")
        settled["prompts"] = True
    out.lost |= unsaid(m, settled)
    if run.plugin and out.carry(m):
        out.say({"adv_estimator": f"rlbook_{m.name}"}, ALGORITHM)
    return out


def overlong(m: Method, limit: int) -> Settings:
    """What its dapo manager asks for before it punishes anything; "+" adds a key to Hydra's."""
    cache = m.overlong_cache or max(limit // 5, 1)
    buffer = {"enable": True, "len": cache, "penalty_factor": 1.0, "log": False}
    words = {f"overlong_buffer_cfg.{name}": value for name, value in buffer.items()}
    return {f"+reward.reward_kwargs.{k}": v for k, v in ({"max_resp_len": limit} | words).items()}


def trust_region(out: Translation, m: Method) -> str:
    """Say the trust region; the name of verl's loss."""
    t: Any = m.trust_region
    unbounded = dict.fromkeys(CLIPS, BIG)
    words: Settings
    match region(m):
        case "NoTrustRegion/none":
            words = {"policy_loss.loss_mode": "gpg"}
        case "NoTrustRegion":
            words = {"policy_loss.loss_mode": "vanilla"} | unbounded
        case "RatioClip" | "RatioClip/sequence":
            loss = "vanilla" if m.ratio == "token" else "gspo"
            words = {"policy_loss.loss_mode": loss, **clips(t.low, t.high, t.dual)}
            if m.ratio == "sequence" and t.dual:
                out.lost["trust region"] = "gspo has no dual clip"
        case "WeightClip":
            words = {"policy_loss.loss_mode": "cispo", **clips(1 - t.min, t.max - 1, None)}
        case "DivergenceMask" if t.top_k is None:
            words = {
                "policy_loss.loss_mode": f"dppo_{t.kind}",
                **clips(t.low, t.high, t.ratio_cap),
            }
        case "SoftGate":
            words = {"policy_loss.loss_mode": "sapo", "tau_pos": t.tau_high, "tau_neg": t.tau_low}
        case "RatioWindow" if m.old_logprobs == "sampler":
            window = f"{1 - t.low:g}_{1 + t.high:g}"
            icepop = {"bypass_mode": True, "loss_type": "reinforce", "rollout_is": "token"}
            said = icepop | {"rollout_is_threshold": window}
            out.say(said, f"+{ACTOR}policy_loss.rollout_correction.")
            words = {"policy_loss.loss_mode": "bypass_mode"}
        case "GeometricClip":
            words = {"policy_loss.loss_mode": "geo_mean", **clips(t.low, t.high, None)}
        case name:
            out.lost["trust region"] = f"no {name}"
            words = {"policy_loss.loss_mode": "vanilla"}
    out.say(words, ACTOR)
    return words["policy_loss.loss_mode"]


def clips(low: float, high: float, c: float | None) -> Settings:
    """verl's three bounds, of which a loss reads what it wants."""
    return dict(zip(CLIPS, (low, high, c or BIG), strict=True))


def kl(out: Translation, m: Method) -> dict[str, bool]:
    """The row's KL term, as a loss or within the reward."""
    if m.kl is None or m.kl.cap not in (None, 10.0 if m.kl.kind == "k3" else None):
        return {}
    if m.kl.where == "reward":
        words = {"use_kl_in_reward": True, "kl_penalty": KINDS[m.kl.kind]}
        out.say(words | {"kl_ctrl.kl_coef": m.kl.beta}, ALGORITHM)
        return {"KL": True}
    if m.kl.gradient == "score" or out.base != m.aggregation:
        return {}
    through = "+" if m.kl.gradient == "k2" else ""
    words = {"use_kl_loss": True, "kl_loss_coef": m.kl.beta}
    out.say(words | {"kl_loss_type": KINDS[m.kl.kind] + through}, ACTOR)
    return {"KL": True}


def sampler(out: Translation, m: Method) -> dict[str, bool]:
    """Its correction for the sampler, and where π_old comes from."""
    out.say({"bypass_mode": m.old_logprobs == "sampler" and m.ratio != "none"}, CORRECTION)
    correction, settled = m.sampler_correction, {"old log-probs": True}
    if correction is None:
        return settled
    if correction.level == "geometric" or (correction.mode == "truncate" and correction.low):
        return settled
    if correction.moment is not None:
        return settled
    dropped = correction.mode == "drop"
    bounds = f"{correction.low or 1 / BIG}_{correction.cap}" if dropped else correction.cap
    out.say({"rollout_is": correction.level, "rollout_is_threshold": bounds}, CORRECTION)
    return settled | {"sampler correction": True}


def selection(out: Translation, m: Method) -> dict[str, bool]:
    """Which tokens it picks, where verl has a loss for that."""
    s: Any = m.selection
    loss: Settings
    clipped = region(m) == "RatioClip" and m.trust_region.dual is None  # type: ignore[union-attr]
    match type(s).__name__:
        case "CovarianceClip" if clipped:
            loss = {"clip_cov_ratio": s.share, "clip_cov_lb": s.low, "clip_cov_ub": s.high}
            name = "clip_cov"
        case "CovarianceKL" if region(m) == "NoTrustRegion" and s.kind == "abs":
            loss = {"kl_cov_ratio": s.share, "ppo_kl_coef": s.beta}
            name = "kl_cov"
        case "CovarianceKL" if m.ratio == "none" and (s.share, s.kind) == (1, "k2"):
            out.say({"loss_mode": "dro", "dro_beta": s.beta}, ACTOR + "policy_loss.")
            return {"selection": True}
        case _:
            return {}
    out.say({"loss_mode": name} | loss, ACTOR + "policy_loss.")
    out.notes["selection"] = "made per micro-batch with the policy of that moment"
    return {"selection": True}


def register(*methods: Method) -> None:
    """Make `algorithm.adv_estimator=rlbook_NAME` known to verl, for these rows or all of them."""
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, register_adv_est

    for method in methods or (METHODS | FIELD).values():
        ADV_ESTIMATOR_REGISTRY.pop(f"rlbook_{method.name}", None)
        base = translate(method, Run(plugin=True)).base
        register_adv_est(f"rlbook_{method.name}")(RowAdvantages(method, base))
