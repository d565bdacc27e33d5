"""SkyRL 0.4: settings, their defaults, and the estimator that brings what they cannot say.

Its losses are sums: the average is folded into the advantages there as well.
"""

from typing import Any

from rlbook.interop.fold import RowAdvantages
from rlbook.interop.translation import BIG, Run, Settings, Translation, Words, region, table, unsaid
from rlbook.objectives import FIELD, METHODS, Method, PromptFilter

VERSION, DEFAULTS = table("skyrl")
PREFIX = "trainer.algorithm."
CORRECTION = "off_policy_correction."
TOKEN_BOUNDS = ("token_mask_is_threshold_low", "token_mask_is_threshold_high")


AVERAGES = {
    "token_mean": "token_mean",
    "sequence_mean": "sequence_mean",
    "prompt_mean": "prompt_mean",
    "constant": "seq_mean_token_sum_norm",
    "sequence_sum": "seq_mean_token_sum_norm",  # by a maximum of 1
}
ADVANTAGES = {
    "group_normalize": Words(
        {"advantage_estimator": "grpo", "grpo_norm_by_std": True}, only={"ddof": 1}
    ),
    "group_center": Words({"advantage_estimator": "grpo", "grpo_norm_by_std": False}),
    "leave_one_out": Words({"advantage_estimator": "rloo"}),
    "max_rl": Words({"advantage_estimator": "maxrl"}, only={"form": "algorithm_1"}),
    "reinforce_plus_plus": Words(
        {"advantage_estimator": "reinforce++"},
        only={"baseline": "none", "population": "tokens"},
        nearly="the variance is over n − 1, and an untrained token inside an answer cuts the "
        "reward off from what comes before it",
    ),
    "gae": Words({"advantage_estimator": "gae"}, otherwise="whitened over the batch's tokens"),
}


def translate(method: Method, run: Run) -> Translation:
    """The row as SkyRL's settings; names and defaults are checked by `make interop`."""
    out, m = Translation("skyrl"), method.resolved(run.max_new_tokens)
    out.estimates(m, ADVANTAGES, PREFIX)
    trust_region(out, m, run)
    say(out, {"loss_reduction": out.averages(m, AVERAGES)})
    if m.aggregation in ("constant", "sequence_sum"):
        per = m.constant if m.aggregation == "constant" and m.constant else 1
        say(out, {"max_seq_len": int(per)})
    settled = kl(out, m) | sampler(out, m)
    if m.reward_shaping == "overlong_filter":
        out.say({"generator.apply_overlong_filtering": True})
        settled["shaping"] = True
    if isinstance(m.prompt_filter, PromptFilter) and m.prompt_filter.by == "reward":
        resampled = m.prompt_filter.resample
        say(out, {"dynamic_sampling.type": "filter"} if resampled else {})
        say(out, {} if resampled else {"zero_variance_filter": True})
        settled["prompts"] = True
    out.lost |= unsaid(m, settled)
    if m.selection is not None and type(m.selection).__name__ != "TopEntropy":
        # in clip_cov and kl_cov, whose bounds and penalty then mean another thing
        out.lost["selection"] = "covariances of advantages that are divided already"
    if run.plugin and out.carry(m):
        say(out, {"advantage_estimator": f"rlbook_{m.name}"})
    return out


def say(out: Translation, settings: Settings) -> None:
    """State settings below `PREFIX`, where SkyRL keeps those of the algorithm."""
    out.say(settings, PREFIX)


def trust_region(out: Translation, m: Method, run: Run) -> None:
    """The row's trust region in SkyRL's words, and what is lost."""
    t: Any = m.trust_region
    by_sampler = m.old_logprobs == "sampler"
    match region(m):
        case "NoTrustRegion" | "NoTrustRegion/none":
            words = {"policy_loss_type": "regular", "eps_clip_low": BIG, "eps_clip_high": BIG}
            if m.ratio == "none":
                one = "policy_mini_batch_size = train_batch_size"
                out.notes["ratio"] = run.one_update(one)
        case "RatioClip" | "RatioClip/sequence" if not (m.ratio == "sequence" and t.dual):
            plain = "gspo" if m.ratio == "sequence" else "regular"
            words = {"policy_loss_type": "dual_clip" if t.dual else plain}
            words |= {"eps_clip_low": t.low, "eps_clip_high": t.high}
            words |= {"clip_ratio_c": t.dual} if t.dual else {}
        case "WeightClip":
            bounds = {"cispo_eps_clip_low": 1 - t.min, "cispo_eps_clip_high": t.max - 1}
            words = {f"cispo.{name}": value for name, value in bounds.items()}
            anchor = "rollout" if by_sampler else "old"
            words |= {"policy_loss_type": "cispo", "cispo.cispo_anchor": anchor}
        case "DivergenceMask" if t.ratio_cap is None and t.top_k is None:
            words = {"policy_loss_type": "dppo", "dppo.dppo_type": f"binary_{t.kind}"}
            words |= {"dppo.delta_low": t.low, "dppo.delta_high": t.high}
        case "SoftGate":
            words = {"policy_loss_type": "sapo"}
            words |= {"sapo.tau_pos": t.tau_high, "sapo.tau_neg": t.tau_low}
        case "RatioWindow" if by_sampler:
            words = {"policy_loss_type": "rollout_is"}
            words |= {"eps_clip_low": t.low, "eps_clip_high": t.high}
        case name:
            out.lost["trust region"] = f"no {name}"
            words = {}
    say(out, words)


def kl(out: Translation, m: Method) -> dict[str, bool]:
    """Its KL term, as a loss or within the reward."""
    as_is = m.kl is not None and (m.kl.gradient == "naive" or m.kl.kind == m.kl.gradient == "k2")
    in_loss = as_is and m.kl is not None and m.kl.where == "loss"
    in_reward = m.kl is not None and m.kl.where == "reward"
    say(out, {"use_kl_loss": in_loss})
    if m.kl is None or not (in_loss or in_reward):
        return {}
    say(out, {"use_kl_in_reward": in_reward, "kl_loss_coef": m.kl.beta})
    say(out, {"kl_estimator_type": m.kl.kind})
    # in the loss it is averaged per sequence, whatever loss_reduction says
    return {"KL": m.kl.cap is None and (in_reward or m.aggregation == "sequence_mean")}


def sampler(out: Translation, m: Method) -> dict[str, bool]:
    """Its correction for the sampler, and where π_old comes from."""
    loss = out.settings.get(PREFIX + "policy_loss_type", "")
    always = loss in ("dppo", "rollout_is")  # these take the sampler's log-probs, cispo as told
    right = loss == "cispo" or always == (m.old_logprobs == "sampler")
    correction, settled = m.sampler_correction, {"old log-probs": right}
    if correction is None or correction.level == "geometric" or correction.moment is not None:
        return settled
    dropped, level = correction.mode == "drop", correction.level
    if correction.low and not dropped:
        return settled
    cap = f"{level}_tis_ratio_clip_high"
    words: Settings = {"tis_ratio_type": level, cap: BIG if dropped else correction.cap}
    if dropped and level == "token":
        bounds = (correction.low, correction.cap)
        words |= dict(zip(TOKEN_BOUNDS, bounds, strict=True))
    elif dropped:
        words |= {"sequence_mask_metric": "product", "product_mask_high": correction.cap}
        words |= {"product_mask_low": correction.low}
    say(out, {CORRECTION + name: value for name, value in words.items()})
    return settled | {"sampler correction": True}


def register(*methods: Method) -> None:
    """Make `advantage_estimator=rlbook_NAME` known to SkyRL, for these rows or all of them."""
    from skyrl.backends.skyrl_train.utils.ppo_utils import AdvantageEstimatorRegistry as known

    for method in methods or (METHODS | FIELD).values():
        base = translate(method, Run(plugin=True)).base
        known.register(f"rlbook_{method.name}", RowAdvantages(method, base))
