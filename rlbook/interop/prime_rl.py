"""prime-rl: settings as its source of 21 August 2026 has them (559b447).

It is not on PyPI, so no test imports these names or its loss.
"""

from typing import Any

from rlbook.interop.translation import Run, Translation, Words, estimator, region, table, unsaid
from rlbook.objectives import Method, PromptFilter

VERSION, DEFAULTS = table("prime-rl")
LOSS, ALGO = "trainer.loss.", "orchestrator.algo."

ADVANTAGES = {
    "group_center": Words({ALGO + "type": "grpo"}),
    "leave_one_out": Words({ALGO + "type": "grpo"}),
    "max_rl": Words({ALGO + "type": "max_rl"}, {"form": "algorithm_1"}),
    "EMABaseline": Words(
        {ALGO + "type": "rae"}, nearly="one average per agent, moved answer by answer"
    ),
    "reward_to_go": Words(
        {ALGO + "type": "opd"}, {"gamma": 0}, "the teacher is a served model: algo.teacher.name"
    ),
}


def translate(method: Method, run: Run) -> Translation:
    """The row as prime-rl's settings. Its π_old is the sampler's, its average that of tokens."""
    out, m = Translation("prime-rl"), method.resolved(run.max_new_tokens)
    out.estimates(m, ADVANTAGES)
    name, options = estimator(m)
    if name == "leave_one_out":
        out.say({LOSS + "adv_tau": run.leave_one_out})
    elif name == "EMABaseline":
        out.say({ALGO + "decay": options["decay"]})
    t: Any = m.trust_region
    if region(m) == "DivergenceMask" and (t.kind, t.ratio_cap, t.top_k) == ("tv", None, None):
        out.say({"type": "default", "kl_tau": 0.0}, LOSS)
        out.say({"dppo_mask_low": t.low, "dppo_mask_high": t.high}, LOSS)
    elif region(m) in ("NoTrustRegion", "NoTrustRegion/none"):
        # no probability changes by more than 1
        out.say({"type": "default", "kl_tau": 0.0}, LOSS)
        out.say({"dppo_mask_low": 1.0, "dppo_mask_high": 1.0}, LOSS)
        if m.ratio == "none":
            out.notes["ratio"] = "π/μ all the same: 1 where the sampler is the policy"
    else:
        out.lost["trust region"] = f"no {region(m)}: type = custom takes a function of your own"
    out.averages(m, {"token_mean": "always"})
    dropped = isinstance(m.prompt_filter, PromptFilter) and not m.resamples
    out.say({"filter_zero_advantages": dropped}, "orchestrator.train.")
    settled = {"old log-probs": m.old_logprobs == "sampler", "prompts": dropped}
    out.lost |= unsaid(m, settled)
    return out
