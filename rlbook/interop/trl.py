"""TRL 1.16: settings of `GRPOConfig`, their defaults, and a trainer that brings a row's advantages.

settings = translate("scalerl", "trl", plugin=True).settings
trainer = row_trainer(METHODS["scalerl"])(model, rewards, GRPOConfig(**settings), …)
"""

from typing import Any

import torch

from rlbook.interop.fold import folded
from rlbook.interop.translation import (
    BIG,
    Run,
    Translation,
    Words,
    estimator,
    region,
    table,
    unsaid,
)
from rlbook.objectives import Method, compute_advantages

VERSION, DEFAULTS = table("trl")


AVERAGES = {
    "token_mean": "dapo",
    "sequence_mean": "grpo",
    "constant": "dr_grpo",
    "sequence_sum": "luspo",
}
OWN_AVERAGE = {"cispo": "token_mean", "sapo": "sequence_mean", "vespo": "token_mean"}
SCALED = "1e-4 is added to the deviation"
ADVANTAGES = {
    "group_normalize": Words({"scale_rewards": "group"}, {"ddof": 1}, SCALED),
    "group_center": Words({"scale_rewards": "none"}),
    "leave_one_out": Words({"scale_rewards": "none"}),
    "batch_normalize": Words({"scale_rewards": "batch"}, {"population": "raw", "ddof": 1}, SCALED),
    "gdpo": Words({"multi_objective_aggregation": "normalize_then_sum"}, {"weights": None}, SCALED),
}
MODES = {"truncate": "truncate", "drop": "mask"}
CORRECTION = "vllm_importance_sampling_"
FOLLOWS = {"epsilon_high": "epsilon"}  # what None stands for
READ_BY = {CORRECTION + "correction": "use_vllm"}  # off without, whatever its default says
RENAMED = {CORRECTION + "cap": CORRECTION + "clip_max"}
MEANT = {"scale_rewards": {True: "group", False: "none"}}


def translate(method: Method, run: Run) -> Translation:
    """The row as arguments of `GRPOConfig`; names and defaults are checked by `make interop`."""
    out, m = Translation("trl"), method.resolved(run.max_new_tokens)
    out.estimates(m, ADVANTAGES)
    if estimator(m)[0] == "leave_one_out":  # the centred reward, times this
        out.say({"reward_weights": [run.leave_one_out]})
    loss = trust_region(out, m, run)
    word = out.averages(m, AVERAGES, OWN_AVERAGE.get(loss, ""))
    out.say({"loss_type": loss or word, "max_completion_length": run.max_new_tokens})
    if m.aggregation == "constant" and m.constant != run.max_new_tokens:
        out.lost["aggregation"] = "the constant is max_completion_length"
    settled = kl(out, m) | sampler(out, m)
    if type(m.selection).__name__ == "TopEntropy":
        out.say({"top_entropy_quantile": m.selection.share})  # type: ignore[union-attr]
        out.notes["selection"] = "the quantile is that of a micro-batch, on all processes"
        settled["selection"] = True
    if m.entropy_bonus and m.aggregation == out.base == "token_mean":
        out.say({"entropy_coef": m.entropy_bonus})
        settled["entropy bonus"] = True
    if m.reward_shaping == "overlong_filter":
        out.say({"mask_truncated_completions": True})
    if m.reward_shaping == "overlong":
        out.notes["shaping"] = "add get_soft_overlong_punishment to the reward functions"
    settled["shaping"] = True
    out.lost |= unsaid(m, settled)
    if run.plugin:
        out.carry(m)
    return out


def trust_region(out: Translation, m: Method, run: Run) -> str:
    """Say the trust region; TRL's loss where that decides it, else ""."""
    t: Any = m.trust_region
    level, token = {"importance_sampling_level": m.ratio}, {"importance_sampling_level": "token"}
    match region(m):
        case "NoTrustRegion/none":
            out.say({"num_iterations": 1, "epsilon": BIG, "epsilon_high": BIG})
            one = "steps_per_generation = gradient_accumulation_steps"
            out.notes["ratio"] = run.one_update(one)
        case "NoTrustRegion" | "NoTrustRegion/sequence":
            out.say(level | {"epsilon": BIG, "epsilon_high": BIG})
        case "RatioClip" | "RatioClip/sequence":
            out.say(level | {"epsilon": t.low, "epsilon_high": t.high, "delta": t.dual})
        case "WeightClip" | "WeightClip/sequence" if t.min == 0:
            out.say(level | {"epsilon_high": t.max})
            return "cispo"
        case "SoftGate":
            out.say(token | {"sapo_temperature_pos": t.tau_high, "sapo_temperature_neg": t.tau_low})
            return "sapo"
        case "SequenceGamma/sequence_product":
            out.say({"vespo_k_pos": t.k_high, "vespo_lambda_pos": t.lambda_high})
            out.say({"vespo_k_neg": t.k_low, "vespo_lambda_neg": t.lambda_low})
            return "vespo"
        case "SequenceMask/sequence":
            out.say(token | {"epsilon": t.low, "epsilon_high": t.high})
            out.say({"off_policy_mask_threshold": t.drift})
        case name:
            out.lost["trust region"] = f"no {name}"
    return ""


def kl(out: Translation, m: Method) -> dict[str, bool]:
    """The row's KL term in TRL's words."""
    if m.kl is None or m.kl.where == "reward" or m.kl.kind != "k3" or m.kl.gradient == "k2":
        out.say({"beta": 0.0})
        return {}
    if out.base != m.aggregation or m.kl.cap is not None:
        return {}
    out.say({"beta": m.kl.beta, "use_bias_correction_kl": m.kl.gradient == "score"})
    return {"KL": True}


def sampler(out: Translation, m: Method) -> dict[str, bool]:
    """Its correction for the sampler, and where π_old comes from."""
    correction, settled = m.sampler_correction, {"old log-probs": m.old_logprobs == "recomputed"}
    known = correction is not None and correction.level in ("token", "sequence")
    known &= correction is None or correction.moment is None
    out.say({CORRECTION + "correction": known})
    if correction is None or not known:
        return settled
    mode = f"{correction.level}_{MODES[correction.mode]}"
    words = {"mode": mode, "clip_max": correction.cap, "clip_min": correction.low or None}
    out.say(words, CORRECTION)
    return settled | {"sampler correction": True}


def row_trainer(method: Method) -> type:
    """A `GRPOTrainer` whose advantages are the row's, its average folded in, (N, T).

    The rest of the row is in the settings. Raises `ValueError` where an estimator needs what the
    trainer has not, such as a critic.
    """
    from trl import GRPOTrainer

    base = translate(method, Run(plugin=True)).base
    remembered = method.new_advantage()

    class RowTrainer(GRPOTrainer):
        def _calculate_rewards(self, *args: Any, **kwargs: Any) -> torch.Tensor:
            rewards = super()._calculate_rewards(*args, **kwargs)  # of all processes
            self._row_rewards = (rewards * self.reward_weights.to(rewards.device)).nansum(1)
            return rewards

        def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
            output = super()._generate_and_score_completions(inputs)
            mask = output["completion_mask"]
            mask = (mask * output.get("tool_mask", 1)).bool()
            if not self.model.training:
                return output
            padded = self.accelerator.pad_across_processes(mask.long(), dim=1)
            everyone = self.accelerator.gather(padded).bool()
            groups = torch.arange(len(everyone), device=mask.device) // self.num_generations
            advantages = compute_advantages(
                remembered,
                rewards=self._row_rewards,
                groups=groups,
                mask=everyone,
                lengths=everyone.sum(1),
            )
            rows = slice(len(mask) * self.accelerator.process_index, None)
            tokens = folded(method, advantages, everyone, groups, base)[rows]
            return output | {"advantages": tokens[: len(mask), : mask.shape[1]]}

    return RowTrainer
