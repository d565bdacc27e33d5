"""Loss and gradient against TRL, verl and rlhf-book on the same inputs."""

import math
from dataclasses import replace

import pytest
import torch

from rlbook.objectives import (
    METHODS,
    GeometricClip,
    KLPenalty,
    Method,
    RatioClip,
    SequenceGamma,
    SoftGate,
    Tokens,
    Totals,
    WeightClip,
    aggregate,
    group_normalize,
    kl_estimate,
    policy_loss,
    totals_of,
)

CLOSE = {"rtol": 1e-9, "atol": 1e-11}
PPO = Method("test", "none", group_normalize, "token", RatioClip(0.2, 0.2), "sequence_mean")
WIDE = RatioClip(0.2, 0.28)
K3 = KLPenalty("k3", 0.04, "loss", "naive")
CONSTANT = {"policy_A": 12, "policy_B": 12, "policy_X": 6}

# TRL's names for the same choices.
TRL = {
    "grpo": PPO,
    "bnpo": replace(PPO, aggregation="token_mean"),
    "dapo": replace(PPO, aggregation="token_mean"),
    "dr_grpo": replace(PPO, aggregation="constant", constant=12),
    "cispo": replace(METHODS["cispo"], aggregation="token_mean", trust_region=WeightClip(max=5.0)),
    "luspo": replace(PPO, ratio="sequence", aggregation="sequence_sum"),
    "gspo": METHODS["gspo"],
    "sapo": replace(PPO, trust_region=SoftGate()),
    "vespo": replace(
        PPO, ratio="sequence_product", trust_region=SequenceGamma(), aggregation="token_mean"
    ),
    "gspo_wideclip": replace(METHODS["gspo"], trust_region=WIDE),
    "grpo_cliphigher": replace(PPO, trust_region=WIDE, aggregation="token_mean"),
    "grpo_delta": replace(PPO, trust_region=RatioClip(0.2, 0.28, dual=2.0)),
    "grpo_beta": replace(PPO, kl=K3),
    "grpo_beta_biascorr": replace(PPO, kl=replace(K3, gradient="score")),
    "dapo_tis": replace(PPO, aggregation="token_mean"),
    "grpo_noold": PPO,
    "dapo_noold": replace(PPO, aggregation="token_mean"),
    "dapo_token_adv": replace(PPO, aggregation="token_mean"),
    "dapo_toolmask": replace(PPO, aggregation="token_mean"),
}
TRL_CASES = [
    *(
        f"{kind}/{fixture}"
        for kind in TRL
        for fixture in ("policy_A", "policy_B")
        if "noold" not in kind and kind not in ("dapo_token_adv", "dapo_toolmask")
    ),
    *("grpo_noold/policy_A", "dapo_noold/policy_A"),
    *("dapo_token_adv/policy_B", "dapo_toolmask/policy_A"),
    *(f"{kind}/policy_X" for kind in ("grpo", "bnpo", "dr_grpo", "dapo")),
]


def run(method, inputs, rows=slice(None), **options):
    """Loss and gradient of `policy_loss` on a reference case."""
    logp = inputs["log_prob"][rows].clone().requires_grad_()
    old = inputs.get("old_log_prob", inputs["log_prob"])[rows]
    mask = inputs["mask"][rows].bool()
    if "tool_mask" in inputs:
        mask = mask & inputs["tool_mask"][rows].bool()
    optional = {"logp_ref": "ref_log_prob", "correction": "importance_sampling_ratio"}
    tensors = {name: inputs[key][rows] for name, key in optional.items() if key in inputs}
    advantages = inputs["advantages"][rows]
    loss = policy_loss(method, logp, old, advantages, mask, **tensors, **options)
    loss.loss.backward()
    return loss, logp.grad


def test_every_copied_trl_case_is_used(golden):
    assert set(golden("trl_grpo_loss")) == set(TRL_CASES)


@pytest.mark.parametrize("case_id", TRL_CASES)
def test_trl_loss_types(golden, case_id):
    case = golden("trl_grpo_loss")[case_id]
    kind, fixture = case_id.split("/")
    method = replace(TRL[kind], constant=CONSTANT[fixture])
    loss, grad = run(method, case["inputs"])
    torch.testing.assert_close(loss.loss.detach(), case["outputs"]["loss"], **CLOSE)
    torch.testing.assert_close(grad, case["outputs"]["grad_log_prob"], **CLOSE)


@pytest.mark.parametrize("case_id", ["grpo/policy_A", "grpo_cliphigher/policy_A"])
def test_clip_fraction_is_the_share_of_masked_gradients_as_in_trl(golden, case_id):
    case = golden("trl_grpo_loss")[case_id]
    loss, _ = run(TRL[case_id.split("/")[0]], case["inputs"])
    expected = case["outputs"]["metrics"]["clip_ratio/region_mean"]
    assert float(loss.metrics["clip_fraction"]) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("fixture", ["policy_A", "policy_B", "policy_ONP"])
def test_trl_rloo_clips_the_ratio_of_whole_completions(golden, fixture):
    case = golden("trl_rloo_loss")[f"rloo_loss/{fixture}"]
    inputs, mask = case["inputs"], case["inputs"]["mask"].bool()
    advantages = inputs["advantages"][:, None].expand(mask.shape)
    pair = inputs["log_prob"], inputs["old_log_prob"]
    tokens = Tokens.of(*pair, advantages, mask, "sequence_product")
    # one value per completion, trained tokens or not
    per_sequence = RatioClip(0.2, 0.2).loss(replace(tokens, advantages=advantages))[:, :1]
    loss = aggregate(per_sequence, torch.ones_like(per_sequence).bool(), "sequence_mean")
    torch.testing.assert_close(loss, case["outputs"]["loss"], **CLOSE)
    row = replace(PPO, ratio="sequence_product", aggregation="sequence_sum")
    _, grad = run(row, {k: v for k, v in inputs.items() if k != "ref_log_prob"})
    torch.testing.assert_close(grad, case["outputs"]["grad_log_prob"], **CLOSE)


ACCUMULATED = [
    f"{kind}/{fixture}"
    for kind in ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "luspo")
    for fixture in ("policy_A", "policy_B")
]


@pytest.mark.parametrize("case_id", ACCUMULATED)
def test_accumulated_micro_batches_equal_the_full_batch(golden, case_id):
    """TRL's bnpo averages local token means; with global totals ours gives the full batch."""
    case = golden("trl_grad_accumulation")[case_id]
    method, inputs = TRL[case_id.split("/")[0]], case["inputs"]
    totals = totals_of(inputs["mask"].bool())
    parts = [run(method, inputs, rows, totals=totals) for rows in (slice(0, 4), slice(4, 8))]
    total = sum(loss.loss.detach() for loss, _ in parts)
    outputs = case["outputs"]
    torch.testing.assert_close(total, outputs["full_batch_loss"], **CLOSE)
    torch.testing.assert_close(
        torch.cat([grad for _, grad in parts]), outputs["grad_full_batch"], **CLOSE
    )
    assert ("bnpo" in case_id) == (
        not math.isclose(outputs["total_loss"], outputs["full_batch_loss"], rel_tol=1e-6)
    )


@pytest.mark.parametrize(
    "case_id",
    ["dapo/GA1_SPG2", "cispo/GA1_SPG2", "dapo/GA2_SPG4", "dapo/GA4_SPG2", "grpo/GA2_SPG4"],
)
def test_trl_micro_batches_with_its_own_denominators(golden, case_id):
    case = golden("trl_grad_accumulation")[case_id]
    k = case["kwargs"]
    tokens = int(k["num_items_in_batch"] * k["grad_accum"] / k["steps_per_generation"] * 2)
    for part in case["outputs"]["microbatches"]:
        start, stop = part["rows"]
        totals = Totals(tokens, 2 * (stop - start) * k["grad_accum"], 0)
        method = TRL[case_id.split("/")[0]]
        loss, grad = run(method, case["inputs"], slice(start, stop), totals=totals)
        # doubled denominators keep 59·1/2 an integer; doubled values undo it
        assert 2 * float(loss.loss.detach()) == pytest.approx(part["loss"], rel=1e-9)
        expected = torch.tensor(part["grad_log_prob"], dtype=torch.float64)
        torch.testing.assert_close(2 * grad, expected, **CLOSE)


VERL_MODES = {
    "token-mean": "token_mean",
    "token-sum": "sequence_sum",  # verl: plain sum; ours is divided by the number of sequences
    "seq-mean-token-sum": "sequence_sum",
    "seq-mean-token-mean": "sequence_mean",
    "seq-mean-token-sum-norm": "constant",
}
VERL_CASES = [
    f"{fixture}/{mode}{suffix}"
    for fixture in ("policy_A", "policy_B")
    for mode in VERL_MODES
    for suffix in ("", "/global")
] + [
    "policy_A/seq-mean-token-sum-norm/scale4096",
    "policy_B/seq-mean-token-sum-norm/scale4096",
    "policy_A/token-mean/nan_in_padding",
    "policy_A/seq-mean-token-mean/nan_in_padding",
]


def test_every_copied_verl_case_is_used(golden):
    assert set(golden("verl_agg_loss")) == set(VERL_CASES)


@pytest.mark.parametrize("case_id", VERL_CASES)
def test_verl_aggregations(golden, case_id):
    cases = golden("verl_agg_loss")
    case = cases[case_id]
    kwargs, mask = case["kwargs"], case["inputs"]["mask"].bool()
    loss_matrix = case["inputs"]["loss_mat"].requires_grad_()
    mode = kwargs["loss_agg_mode"]
    # verl leaves sequences without a trained token out of the mean
    totals = totals_of(mask, count_empty=False)
    if "batch_num_tokens" in kwargs:
        totals = Totals(kwargs["batch_num_tokens"], kwargs["global_batch_size"], 0)
    constant = kwargs.get("loss_scale_factor", mask.shape[1])
    loss = aggregate(loss_matrix, mask, VERL_MODES[mode], constant=constant, totals=totals)
    factor = kwargs.get("dp_size", 1) * (totals.num_sequences if mode == "token-sum" else 1)
    (factor * loss).backward()
    reference = case["outputs"]
    if case_id.endswith("nan_in_padding"):  # verl's seq-* modes let a NaN in padding through
        reference = cases[case_id.removesuffix("/nan_in_padding")]["outputs"]
    loose = {"rtol": 1e-7, "atol": 1e-10}  # verl adds 1e-8 to lengths
    torch.testing.assert_close((factor * loss).detach(), reference["loss"], **loose)
    torch.testing.assert_close(loss_matrix.grad, reference["grad_loss_mat"], **loose)


@pytest.mark.parametrize("fixture", ["policy_A", "policy_B"])
@pytest.mark.parametrize("low, high", [(0.4, 0.4), (0.2, 0.28)])
def test_verl_geo_mean(golden, fixture, low, high):
    case = golden("verl_geo_mean")[f"{fixture}/{low}-{high}"]
    row = replace(METHODS["gmpo"], trust_region=GeometricClip(low, high))
    loss, grad = run(row, case["inputs"])
    loose = {"rtol": 1e-7, "atol": 1e-10}  # verl adds 1e-8 to lengths
    torch.testing.assert_close(loss.loss.detach(), case["outputs"]["loss"], **loose)
    torch.testing.assert_close(grad, case["outputs"]["grad_log_prob"], **loose)


RLHF_BOOK = {
    "grpo": replace(PPO, trust_region=WIDE),
    "gspo": replace(METHODS["gspo"], trust_region=WIDE),
    "reinforce": replace(METHODS["reinforce"], aggregation="sequence_mean"),
    "maxrl": replace(METHODS["maxrl"], aggregation="sequence_mean"),
    "cispo": replace(PPO, trust_region=WeightClip(min=0.8, max=1.28)),
    "dapo": replace(PPO, trust_region=WIDE, aggregation="token_mean"),
}


@pytest.mark.parametrize("fixture", ["policy_A", "policy_B"])
@pytest.mark.parametrize("kind", RLHF_BOOK)
def test_rlhf_book_losses(golden, kind, fixture):
    case = golden("rlhf_book")[f"loss/{kind}/{fixture}"]
    inputs = {k: v for k, v in case["inputs"].items() if k != "ref_log_prob"}
    loss, grad = run(RLHF_BOOK[kind], inputs)
    torch.testing.assert_close(loss.loss.detach(), case["outputs"]["loss"], **CLOSE)
    torch.testing.assert_close(grad, case["outputs"]["grad_log_prob"], **CLOSE)


def test_rlhf_book_kl_values(golden):
    """Its kl2 is ours; its kl1 and kl3 are the estimators of the opposite direction."""
    cases = golden("rlhf_book")
    for kind, swapped in (("k1", True), ("k2", False), ("k3", True)):
        case = cases[f"kl/kl{kind[1]}"]
        pair = case["inputs"]["log_prob"], case["inputs"]["ref_log_prob"]
        ours = kl_estimate(*(pair[::-1] if swapped else pair), kind)
        mask = case["inputs"]["mask"].bool()
        torch.testing.assert_close(ours[mask], case["outputs"]["kl"][mask], **CLOSE)
